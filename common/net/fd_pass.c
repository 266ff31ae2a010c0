#include "net/fd_pass.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/errbuf.h"
#include "base/status.h"

enum { FD_PASS_BACKLOG = 1024, FD_PASS_RETRY_NS = 1000000 };

/* One descriptor more than allowed, so that too many are seen instead of cut. */
union fd_pass_control {
    struct cmsghdr head;
    char bytes[CMSG_SPACE(sizeof(int) * (FD_PASS_FDS_MAX + 1))];
};

static int fd_pass_refused(struct errbuf *err, const char *what)
{
    return errbuf_set(err, STATUS_IO, "local socket: %s: %s", what, strerror(errno));
}

static int fd_pass_open(int *sock, struct errbuf *err)
{
    *sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return *sock >= 0 ? STATUS_OK : fd_pass_refused(err, "socket");
}

static void fd_pass_close(int *sock)
{
    close(*sock);
    *sock = -1;
}

/* A NUL byte and the name, without another one. */
static socklen_t fd_pass_address(struct sockaddr_un *address, const char *name)
{
    size_t length = strnlen(name, FD_PASS_NAME_BYTES - 1);
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path + 1, name, length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

static int fd_pass_check_user(int sock, struct errbuf *err)
{
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0)
        return fd_pass_refused(err, "SO_PEERCRED");
    if (peer.uid != geteuid())
        return errbuf_set(err, STATUS_DENIED, "local socket: the other end runs as user %ld, this one as %ld",
                          (long)peer.uid, (long)geteuid());
    return STATUS_OK;
}

/* Waits for one of `events`; an end that is gone counts, the call that follows says so. */
static int fd_pass_poll(int sock, short events, int64_t until_ns, struct errbuf *err)
{
    for (;;) {
        int64_t left_ns = until_ns - clock_now_ns();
        struct pollfd entry = {.fd = sock, .events = events};
        struct timespec left = {.tv_sec = left_ns / 1000000000, .tv_nsec = left_ns % 1000000000};
        int ready = left_ns > 0 ? ppoll(&entry, 1, &left, NULL) : 0;
        if (ready > 0)
            return STATUS_OK;
        if (ready < 0 && errno != EINTR)
            return fd_pass_refused(err, "poll");
        if (ready == 0 && until_ns - clock_now_ns() <= 0)
            return errbuf_set(err, STATUS_TIMEOUT, "local socket: nothing came in time");
    }
}

int fd_pass_listen(int *listener, char name[FD_PASS_NAME_BYTES], struct errbuf *err)
{
    uint64_t random[2];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return fd_pass_refused(err, "getrandom");
    snprintf(name, FD_PASS_NAME_BYTES, "shoal-%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
    int status = fd_pass_open(listener, err);
    if (status)
        return status;
    struct sockaddr_un address;
    socklen_t length = fd_pass_address(&address, name);
    if (bind(*listener, (struct sockaddr *)&address, length) == 0 && listen(*listener, FD_PASS_BACKLOG) == 0)
        return STATUS_OK;
    status = fd_pass_refused(err, "bind");
    fd_pass_close(listener);
    return status;
}

int fd_pass_connect(int *sock, const char *name, int64_t until_ns, struct errbuf *err)
{
    struct sockaddr_un address;
    socklen_t length = fd_pass_address(&address, name);
    int status = fd_pass_open(sock, err);
    if (status)
        return status;
    while (connect(*sock, (struct sockaddr *)&address, length) != 0) {
        int full = errno == EAGAIN || errno == EINTR; /* as many wait there as it lets */
        if (full && clock_now_ns() < until_ns) {
            nanosleep(&(struct timespec){.tv_nsec = FD_PASS_RETRY_NS}, NULL);
            continue;
        }
        if (full)
            status = errbuf_set(err, STATUS_TIMEOUT, "local socket: the other end does not answer");
        else if (errno == ECONNREFUSED)
            status = errbuf_set(err, STATUS_UNKNOWN, "local socket: nobody listens there");
        else
            status = fd_pass_refused(err, "connect");
        fd_pass_close(sock);
        return status;
    }
    status = fd_pass_check_user(*sock, err); /* of whoever called listen */
    if (status)
        fd_pass_close(sock);
    return status;
}

int fd_pass_accept(int *sock, int listener, int64_t until_ns, struct errbuf *err)
{
    *sock = -1;
    while (*sock < 0) {
        int status = fd_pass_poll(listener, POLLIN, until_ns, err);
        if (status)
            return status;
        *sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (*sock < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
            return fd_pass_refused(err, "accept");
    }
    int status = fd_pass_check_user(*sock, err);
    if (status)
        fd_pass_close(sock);
    return status;
}

int fd_pass_send(int sock, const void *message, size_t bytes, const int *fds, int fds_count, int64_t until_ns,
                 struct errbuf *err)
{
    if (bytes == 0 || fds_count < 0 || fds_count > FD_PASS_FDS_MAX)
        return errbuf_set(err, STATUS_INVALID, "local socket: %zu bytes with %d descriptors", bytes, fds_count);
    union fd_pass_control control = {0};
    struct iovec part = {.iov_base = (void *)(uintptr_t)message, .iov_len = bytes};
    struct msghdr packet = {.msg_iov = &part, .msg_iovlen = 1};
    if (fds_count > 0) {
        packet.msg_control = control.bytes;
        packet.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)fds_count);
        struct cmsghdr *head = CMSG_FIRSTHDR(&packet);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)fds_count);
        memcpy(CMSG_DATA(head), fds, sizeof(int) * (size_t)fds_count);
    }
    while (sendmsg(sock, &packet, MSG_NOSIGNAL) < 0) {
        if (errno == EPIPE || errno == ECONNRESET)
            return errbuf_set(err, STATUS_CLOSED, "local socket: the other end is gone");
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN)
            return fd_pass_refused(err, "sendmsg");
        int status = fd_pass_poll(sock, POLLOUT, until_ns, err);
        if (status)
            return status;
    }
    return STATUS_OK;
}

/* Takes what came into `fds`, closes what is beyond `room`; returns how many came. */
static int fd_pass_take(struct msghdr *packet, int *fds, int room)
{
    int count = 0;
    for (struct cmsghdr *head = CMSG_FIRSTHDR(packet); head; head = CMSG_NXTHDR(packet, head)) {
        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
            continue;
        size_t here = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < here; i++, count++) {
            int fd;
            memcpy(&fd, CMSG_DATA(head) + i * sizeof fd, sizeof fd);
            if (count < room)
                fds[count] = fd;
            else
                close(fd);
        }
    }
    return count;
}

int fd_pass_receive(int sock, void *message, size_t bytes, int *fds, int fds_count, int64_t until_ns,
                    struct errbuf *err)
{
    union fd_pass_control control;
    struct iovec part = {.iov_base = message, .iov_len = bytes};
    struct msghdr packet;
    ssize_t came;
    do {
        int status = fd_pass_poll(sock, POLLIN, until_ns, err);
        if (status)
            return status;
        packet = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes,
                                 .msg_controllen = sizeof control.bytes};
        came = recvmsg(sock, &packet, MSG_CMSG_CLOEXEC);
    } while (came < 0 && (errno == EAGAIN || errno == EINTR));
    if (came == 0 || (came < 0 && errno == ECONNRESET))
        return errbuf_set(err, STATUS_CLOSED, "local socket: the other end is gone");
    if (came < 0)
        return fd_pass_refused(err, "recvmsg");
    int count = fd_pass_take(&packet, fds, fds_count);
    if ((size_t)came == bytes && count == fds_count && !(packet.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
        return STATUS_OK;
    for (int i = 0; i < count && i < fds_count; i++)
        close(fds[i]);
    return errbuf_set(err, STATUS_FORMAT, "local socket: a message of %zd bytes with %d descriptors instead of %zu with %d",
                      came, count, bytes, fds_count);
}

int fd_pass_gone(int sock)
{
    struct pollfd entry = {.fd = sock, .events = POLLRDHUP};
    return poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL));
}
