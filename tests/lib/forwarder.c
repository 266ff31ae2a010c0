#include "tests/lib/forwarder.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAIRS_MAX = 64, BLOCK_BYTES = 16384 };

/* One connection: ends[0] came to us, ends[1] went to the target; what was read from one waits for the other. */
struct pair {
    int ends[2];
    size_t at[2], used[2];
    char held[2][BLOCK_BYTES];
};

struct forwarder {
    int target_port, port, listener, wake;
    pthread_t thread;
    atomic_int cut, closed, frozen, done;
    _Atomic int64_t bytes;
    struct pair *pairs[PAIRS_MAX];
    int count;
};

static struct sockaddr_in loopback(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons((uint16_t)port);
    return address;
}

/* With a reset, as a dead host's successor answers. */
static void drop_end(int fd)
{
    struct linger at_once = {.l_onoff = 1, .l_linger = 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(fd);
}

static void drop(struct forwarder *forwarder, int i)
{
    struct pair *pair = forwarder->pairs[i];
    drop_end(pair->ends[0]);
    drop_end(pair->ends[1]);
    free(pair);
    forwarder->pairs[i] = forwarder->pairs[--forwarder->count];
}

static void set_no_delay(int fd)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void take_one(struct forwarder *forwarder)
{
    int in = accept4(forwarder->listener, NULL, NULL, SOCK_CLOEXEC);
    if (in < 0)
        return;
    struct sockaddr_in address = loopback(forwarder->target_port);
    int out = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct pair *pair = calloc(1, sizeof *pair);
    if (atomic_load(&forwarder->closed) || forwarder->count == PAIRS_MAX || !pair ||
        connect(out, (struct sockaddr *)&address, sizeof address) != 0) {
        drop_end(in);
        drop_end(out);
        free(pair);
        return;
    }
    set_no_delay(in);
    set_no_delay(out);
    pair->ends[0] = in;
    pair->ends[1] = out;
    forwarder->pairs[forwarder->count++] = pair;
}

/* From end `from` to the other one, without blocking: 0, or -1 when the connection is over. */
static int relay(struct forwarder *forwarder, struct pair *pair, int from)
{
    if (pair->used[from] == 0) {
        ssize_t got = recv(pair->ends[from], pair->held[from], BLOCK_BYTES, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
            return -1;
        pair->at[from] = 0;
        pair->used[from] = got > 0 ? (size_t)got : 0;
    }
    if (pair->used[from] == 0)
        return 0;
    ssize_t sent =
        send(pair->ends[!from], pair->held[from] + pair->at[from], pair->used[from], MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    pair->at[from] += (size_t)sent;
    pair->used[from] -= (size_t)sent;
    atomic_fetch_add(&forwarder->bytes, sent);
    return 0;
}

static int fill_polls(const struct forwarder *forwarder, struct pollfd *polls)
{
    int count = 2, frozen = atomic_load(&forwarder->frozen);
    polls[0] = (struct pollfd){.fd = forwarder->wake, .events = POLLIN};
    polls[1] = (struct pollfd){.fd = frozen ? -1 : forwarder->listener, .events = POLLIN};
    for (int i = 0; i < forwarder->count && !frozen; i++) {
        const struct pair *pair = forwarder->pairs[i];
        for (int end = 0; end < 2; end++) {
            short events = (short)((pair->used[end] ? 0 : POLLIN) | (pair->used[!end] ? POLLOUT : 0));
            polls[count++] = (struct pollfd){.fd = pair->ends[end], .events = events};
        }
    }
    return count;
}

static void *relay_main(void *context)
{
    struct forwarder *forwarder = context;
    while (!atomic_load(&forwarder->done)) {
        struct pollfd polls[2 + 2 * PAIRS_MAX];
        uint64_t wakes;
        poll(polls, (nfds_t)fill_polls(forwarder, polls), -1);
        if (polls[0].revents && read(forwarder->wake, &wakes, sizeof wakes) < 0)
            break;
        if (atomic_exchange(&forwarder->cut, 0) || atomic_load(&forwarder->closed)) {
            while (forwarder->count > 0)
                drop(forwarder, 0);
        }
        if (atomic_load(&forwarder->frozen))
            continue;
        for (int i = forwarder->count - 1; i >= 0; i--) {
            if (relay(forwarder, forwarder->pairs[i], 0) != 0 || relay(forwarder, forwarder->pairs[i], 1) != 0)
                drop(forwarder, i);
        }
        if (polls[1].revents & POLLIN)
            take_one(forwarder);
    }
    return NULL;
}

struct forwarder *forwarder_open(int target_port)
{
    struct forwarder *forwarder = calloc(1, sizeof *forwarder);
    assert_non_null(forwarder);
    struct sockaddr_in address = loopback(0);
    socklen_t length = sizeof address;
    forwarder->target_port = target_port;
    forwarder->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    forwarder->wake = eventfd(0, EFD_CLOEXEC);
    assert_return_code(bind(forwarder->listener, (struct sockaddr *)&address, sizeof address), errno);
    assert_return_code(listen(forwarder->listener, 32), errno);
    getsockname(forwarder->listener, (struct sockaddr *)&address, &length);
    forwarder->port = ntohs(address.sin_port);
    assert_int_equal(pthread_create(&forwarder->thread, NULL, relay_main, forwarder), 0);
    return forwarder;
}

int forwarder_port(const struct forwarder *forwarder)
{
    return forwarder->port;
}

static void wake(struct forwarder *forwarder)
{
    uint64_t one = 1;
    if (write(forwarder->wake, &one, sizeof one) != sizeof one)
        abort();
}

void forwarder_cut(struct forwarder *forwarder)
{
    atomic_store(&forwarder->cut, 1);
    wake(forwarder);
}

void forwarder_close_door(struct forwarder *forwarder, int closed)
{
    atomic_store(&forwarder->closed, closed);
    wake(forwarder);
}

void forwarder_freeze(struct forwarder *forwarder, int frozen)
{
    atomic_store(&forwarder->frozen, frozen);
    wake(forwarder);
}

int64_t forwarder_bytes(const struct forwarder *forwarder)
{
    return atomic_load(&forwarder->bytes);
}

void forwarder_close(struct forwarder *forwarder)
{
    if (!forwarder)
        return;
    atomic_store(&forwarder->done, 1);
    wake(forwarder);
    pthread_join(forwarder->thread, NULL);
    while (forwarder->count > 0)
        drop(forwarder, 0);
    close(forwarder->listener);
    close(forwarder->wake);
    free(forwarder);
}
