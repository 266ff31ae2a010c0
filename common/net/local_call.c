#include "net/local.h"

#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/errbuf.h"
#include "base/host.h"
#include "base/status.h"
#include "net/duct.h"
#include "net/fd_pass.h"

/* The loop waits at most so long for a local socket, which answers at once or is overrun. */
enum { SOCKET_NS = 2000000, HOST_BYTES = 128 };

void local_call_close(struct local_call *call)
{
    channel_close(call->channel);
    call->channel = NULL;
    call->open = 0;
    if (call->mine.memory)
        segment_close(&call->mine);
}

static void refuse(struct local_call *call, int status, const char *why)
{
    local_call_close(call);
    call->ops.opened(call->ops.context, status, why);
}

static int take_welcome(struct local_call *call, int sock, struct errbuf *err)
{
    struct local_welcome welcome;
    struct segment theirs = {.fd = -1};
    int fd = -1;
    int status = fd_pass_receive(sock, &welcome, sizeof welcome, &fd, 1, clock_now_ns() + SOCKET_NS, err);
    if (status)
        return status;
    if (welcome.magic != LOCAL_MAGIC || welcome.version != LOCAL_VERSION || welcome.area_bytes < LOCAL_AREA_MIN ||
        welcome.area_bytes > LOCAL_AREA_MAX)
        status = errbuf_set(err, STATUS_PROTOCOL, "local socket: another way of sharing memory");
    if (!status)
        status = segment_map(&theirs, fd, duct_segment_bytes(welcome.area_bytes), err);
    close(fd);
    if (!status) {
        status = channel_open(call->channel, &call->mine, call->request_bytes, &theirs, welcome.area_bytes, call->account);
        if (status)
            errbuf_set(err, status, "out of memory");
    }
    segment_close(&theirs);
    return status;
}

static void on_greet(void *context, struct channel *channel, int sock)
{
    struct local_call *call = context;
    struct errbuf err;
    errbuf_init(&err);
    (void)channel;
    int status = take_welcome(call, sock, &err);
    if (status == STATUS_TIMEOUT)
        return; /* woken for nothing */
    if (status) {
        refuse(call, status, err.text);
        return;
    }
    call->open = 1;
    call->ops.opened(call->ops.context, STATUS_OK, "");
}

static void on_message(void *context, struct channel *channel, struct message *message, int status, struct errbuf *err)
{
    struct local_call *call = context;
    (void)channel;
    call->ops.message(call->ops.context, message, status, err);
}

static void on_gone(void *context, struct channel *channel, const char *why)
{
    struct local_call *call = context;
    (void)channel;
    call->channel = NULL;
    local_call_close(call);
    call->ops.lost(call->ops.context, why);
}

static int say_hello(struct local_call *call, const Shoal__Local *invitation, int sock, struct errbuf *err)
{
    struct local_hello hello = {.magic = LOCAL_MAGIC, .version = LOCAL_VERSION, .area_bytes = call->request_bytes,
                                .answer_bytes = call->reply_bytes};
    memcpy(hello.nonce, invitation->nonce.data, sizeof hello.nonce);
    int status = segment_create(&call->mine, "shoal-requests", duct_segment_bytes(call->request_bytes), err);
    if (!status)
        status = fd_pass_send(sock, &hello, sizeof hello, &call->mine.fd, 1, clock_now_ns() + SOCKET_NS, err);
    return status;
}

int local_call_connect(struct local_call *call, const Shoal__Local *invitation, struct errbuf *err)
{
    char host[HOST_BYTES];
    int sock = -1;
    host_id(host, sizeof host);
    if (strcmp(invitation->host, host) != 0)
        return errbuf_set(err, STATUS_UNKNOWN, "it is on another host");
    if (invitation->nonce.len != LOCAL_NONCE_BYTES || invitation->socket[0] == '\0')
        return errbuf_set(err, STATUS_PROTOCOL, "it offers no shared memory");
    int status = fd_pass_connect(&sock, invitation->socket, clock_now_ns() + SOCKET_NS, err);
    if (status)
        return status;
    struct channel_ops ops = {on_greet, on_message, on_gone, call};
    status = say_hello(call, invitation, sock, err);
    if (!status) {
        status = channel_create(&call->channel, call->net, sock, 0, &ops);
        if (status)
            errbuf_set(err, status, "out of memory");
    }
    if (status) {
        close(sock);
        segment_close(&call->mine);
    }
    return status;
}
