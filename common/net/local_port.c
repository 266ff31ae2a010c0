#include "net/local.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include <uv.h>

#include "base/clock.h"
#include "base/errbuf.h"
#include "base/host.h"
#include "base/status.h"
#include "net/duct.h"
#include "net/fd_pass.h"
#include "net/net_internal.h"

/* Invitations wait for their guests; guests on the local socket that have not said hello are few, or the oldest goes. */
enum { INVITATIONS = 256, STRANGERS_MAX = 64, SOCKET_NS = 1000000 };

struct invitation {
    uint8_t nonce[LOCAL_NONCE_BYTES];
    struct message_identity from; /* over ZeroMQ */
    char user[MESSAGE_USER_MAX];
    int open;
};

struct guest {
    struct local_port *port;
    struct guest *next, *previous;
    struct channel *channel;
    struct message_identity from;
    char user[MESSAGE_USER_MAX];
    int known;
};

struct local_port {
    struct local_port_options options;
    uv_poll_t poll;
    int listener;
    char name[FD_PASS_NAME_BYTES], host[128];
    struct invitation invitations[INVITATIONS];
    unsigned next_invitation;
    struct guest *guests; /* the newest first */
    int strangers;
};

/* --- guests ------------------------------------------------------------------------------------------- */

static void guest_remove(struct guest *guest)
{
    struct local_port *port = guest->port;
    if (guest->previous)
        guest->previous->next = guest->next;
    else
        port->guests = guest->next;
    if (guest->next)
        guest->next->previous = guest->previous;
    port->strangers -= !guest->known;
    channel_close(guest->channel);
    free(guest);
}

static struct invitation *find_invitation(struct local_port *port, const uint8_t *nonce)
{
    for (int i = 0; i < INVITATIONS; i++) {
        if (port->invitations[i].open && memcmp(port->invitations[i].nonce, nonce, LOCAL_NONCE_BYTES) == 0)
            return &port->invitations[i];
    }
    return NULL;
}

static int check_hello(struct guest *guest, const struct local_hello *hello, struct errbuf *err)
{
    if (hello->magic != LOCAL_MAGIC || hello->version != LOCAL_VERSION)
        return errbuf_set(err, STATUS_PROTOCOL, "a hello of another version");
    if (hello->area_bytes < LOCAL_AREA_MIN || hello->area_bytes > LOCAL_AREA_MAX ||
        hello->answer_bytes < LOCAL_AREA_MIN || hello->answer_bytes > LOCAL_AREA_MAX)
        return errbuf_set(err, STATUS_RANGE, "a hello with areas of %llu and %llu bytes",
                          (unsigned long long)hello->area_bytes, (unsigned long long)hello->answer_bytes);
    struct invitation *invitation = find_invitation(guest->port, hello->nonce);
    if (!invitation)
        return errbuf_set(err, STATUS_DENIED, "a guest whom nobody invited");
    invitation->open = 0;
    guest->from = invitation->from;
    memcpy(guest->user, invitation->user, sizeof guest->user);
    return STATUS_OK;
}

static int let_in(struct guest *guest, int sock, const struct local_hello *hello, int fd, struct errbuf *err)
{
    struct segment mine = {.fd = -1}, theirs = {.fd = -1};
    struct local_welcome welcome = {LOCAL_MAGIC, LOCAL_VERSION, hello->answer_bytes};
    int status = check_hello(guest, hello, err);
    if (!status)
        status = segment_map(&theirs, fd, duct_segment_bytes(hello->area_bytes), err);
    if (!status)
        status = segment_create(&mine, "shoal-replies", duct_segment_bytes(hello->answer_bytes), err);
    if (!status)
        status = fd_pass_send(sock, &welcome, sizeof welcome, &mine.fd, 1, clock_now_ns() + SOCKET_NS, err);
    if (!status)
        status = channel_open(guest->channel, &mine, hello->answer_bytes, &theirs, hello->area_bytes,
                              guest->port->options.account);
    segment_close(&mine);
    segment_close(&theirs);
    return status;
}

static void on_greet(void *context, struct channel *channel, int sock)
{
    struct guest *guest = context;
    struct local_hello hello;
    struct errbuf err;
    int fd = -1;
    (void)channel;
    errbuf_init(&err);
    int status = fd_pass_receive(sock, &hello, sizeof hello, &fd, 1, clock_now_ns() + SOCKET_NS, &err);
    if (status == STATUS_TIMEOUT)
        return; /* woken for nothing */
    if (!status) {
        status = let_in(guest, sock, &hello, fd, &err);
        close(fd);
    }
    if (status) {
        if (status != STATUS_CLOSED)
            net_refuse(guest->port->options.net, guest->port->name, err.text);
        guest_remove(guest);
        return;
    }
    guest->known = 1;
    guest->port->strangers--;
}

static void on_message(void *context, struct channel *channel, struct message *message, int status, struct errbuf *err)
{
    struct guest *guest = context;
    struct local_port *port = guest->port;
    (void)channel;
    memcpy(message->user, guest->user, sizeof message->user);
    port->options.message(port->options.context, message, status, err);
}

static void on_gone(void *context, struct channel *channel, const char *why)
{
    struct guest *guest = context;
    (void)channel;
    (void)why;
    guest->channel = NULL;
    guest_remove(guest);
}

static void drop_oldest_stranger(struct local_port *port)
{
    struct guest *oldest = NULL;
    for (struct guest *guest = port->guests; guest; guest = guest->next)
        oldest = guest->known ? oldest : guest;
    if (oldest)
        guest_remove(oldest);
}

static void on_guest(uv_poll_t *poll, int status, int events)
{
    struct local_port *port = poll->data;
    struct errbuf err;
    int sock = -1;
    (void)events;
    if (status || fd_pass_accept(&sock, port->listener, clock_now_ns() + SOCKET_NS, &err))
        return; /* another user's was closed */
    if (port->strangers >= STRANGERS_MAX)
        drop_oldest_stranger(port);
    struct guest *guest = calloc(1, sizeof *guest);
    struct channel_ops ops = {on_greet, on_message, on_gone, guest};
    if (!guest || channel_create(&guest->channel, port->options.net, sock, 1, &ops)) {
        free(guest);
        close(sock);
        return;
    }
    guest->port = port;
    guest->next = port->guests;
    if (guest->next)
        guest->next->previous = guest;
    port->guests = guest;
    port->strangers++;
}

/* --- the port ----------------------------------------------------------------------------------------- */

int local_port_open(struct local_port **out, const struct local_port_options *options, struct errbuf *err)
{
    struct local_port *port = calloc(1, sizeof *port);
    if (!port)
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    port->options = *options;
    host_id(port->host, sizeof port->host);
    int status = fd_pass_listen(&port->listener, port->name, err);
    if (!status && uv_poll_init(options->net->loop, &port->poll, port->listener)) {
        close(port->listener);
        status = errbuf_set(err, STATUS_NOMEM, "out of memory");
    }
    if (status) {
        free(port);
        return status;
    }
    port->poll.data = port;
    uv_poll_start(&port->poll, UV_READABLE, on_guest);
    *out = port;
    return STATUS_OK;
}

static void on_closed(uv_handle_t *handle)
{
    free(handle->data);
}

void local_port_close(struct local_port *port)
{
    if (!port)
        return;
    while (port->guests)
        guest_remove(port->guests);
    uv_poll_stop(&port->poll);
    close(port->listener);
    uv_close((uv_handle_t *)&port->poll, on_closed);
}

int local_port_invite(struct local_port *port, const struct message *request, Shoal__Local *answer)
{
    if (strcmp(request->envelope->local->host, port->host) != 0) {
        answer->host = port->host; /* elsewhere: nothing to offer */
        return STATUS_OK;
    }
    struct invitation *invitation = &port->invitations[port->next_invitation++ % INVITATIONS];
    if (getrandom(invitation->nonce, sizeof invitation->nonce, 0) != (ssize_t)sizeof invitation->nonce)
        return STATUS_IO;
    invitation->open = 1;
    invitation->from = request->from;
    memcpy(invitation->user, request->user, sizeof invitation->user);
    answer->host = port->host;
    answer->socket = port->name;
    answer->nonce = (ProtobufCBinaryData){sizeof invitation->nonce, invitation->nonce};
    return STATUS_OK;
}

int local_port_send(struct local_port *port, const struct message_identity *to, const struct message_part *envelope,
                    struct buf *const *frames, int frames_count, struct message_identity *over)
{
    struct guest *guest = port->guests;
    while (guest && channel_id(guest->channel) != to->channel)
        guest = guest->next;
    if (!guest)
        return STATUS_UNKNOWN;
    *over = guest->from;
    int status = channel_send(guest->channel, envelope, frames, frames_count);
    return status == STATUS_CLOSED ? STATUS_UNKNOWN : status;
}
