#include "rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>
#include <zmq.h>

#include "base/status.h"

enum { LIMIT_BYTES = 64 << 20 };

void rig_open(struct rig *rig, void *zmq, Shoal__Role role)
{
    memset(rig, 0, sizeof *rig);
    uv_loop_init(&rig->loop);
    rig->zmq_owned = !zmq;
    rig->zmq = zmq ? zmq : zmq_ctx_new();
    log_init(&rig->log, "test");
    rig->log.level = LOG_ERROR;
    rig->net = net_create(&rig->loop, rig->zmq, &rig->log, LIMIT_BYTES);
    assert_non_null(rig->net);
    net_self(rig->net)->role = role;
    net_self(rig->net)->rank = 0;
    net_self(rig->net)->incarnation = 7;
}

void rig_close(struct rig *rig)
{
    net_destroy(rig->net, 0);
    uv_run(&rig->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&rig->loop), 0);
    if (rig->zmq_owned)
        zmq_ctx_term(rig->zmq);
}

void rig_until(struct rig *rig, const int *value, int wanted)
{
    while (*value < wanted)
        uv_run(&rig->loop, UV_RUN_ONCE);
}

void echo_open(struct echo *echo, struct rig *rig, const struct net_listen *listen)
{
    struct net_listen mine = *listen;
    memset(echo, 0, sizeof *echo);
    mine.serve = echo_serve;
    mine.context = echo;
    int status;
    /* A socket that was closed in this process frees its port on ZeroMQ's thread a moment later. */
    do {
        uv_run(&rig->loop, UV_RUN_NOWAIT);
        status = net_router_open(&echo->router, rig->net, &mine, &rig->err);
    } while (status == STATUS_IO && rig->reopening);
    if (status)
        print_error("%s\n", rig->err.text);
    assert_int_equal(status, STATUS_OK);
}

int rig_free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, bytes), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    close(fd);
    return ntohs(address.sin_port);
}

static void echo_values(struct echo *echo, const Shoal__Envelope *request, const struct net_return *back)
{
    Shoal__Envelope envelope;
    shoal__envelope__init(&envelope);
    envelope.type = SHOAL__TYPE__VALUES;
    envelope.dtype = request->dtype;
    struct buf *buf = echo->values ? buf_share(echo->values)
                                   : buf_create((request->selector->end - request->selector->begin) * 4);
    if (!echo->values)
        memset(buf->data, 1, buf->bytes);
    net_reply(echo->router, back, &envelope, &buf, 1);
    buf_release(buf);
}

void echo_serve(void *context, struct net_router *router, struct message *request, const struct net_return *back)
{
    struct echo *echo = context;
    const Shoal__Envelope *envelope = request->envelope;
    if (echo->served < 64)
        echo->clocks[echo->served] = envelope->clock;
    echo->served++;
    for (int i = 0; i < request->frames_count; i++)
        echo->bytes += request->frames[i]->bytes;
    if (envelope->type == SHOAL__TYPE__HELLO) {
        echo->kept++;
        echo->back = *back;
    } else if (envelope->type == SHOAL__TYPE__HEARTBEAT) {
        Shoal__Envelope reply;
        shoal__envelope__init(&reply);
        reply.type = SHOAL__TYPE__HEARTBEAT;
        net_reply(router, back, &reply, NULL, 0);
    } else if (envelope->type == SHOAL__TYPE__JOIN) {
        snprintf(echo->address, sizeof echo->address, "%s", request->address);
        net_reply_status(router, back, STATUS_EXISTS, "rank 1 is taken");
    } else if (envelope->type == SHOAL__TYPE__PULL) {
        echo_values(echo, envelope, back);
    } else {
        net_reply_status(router, back, STATUS_OK, NULL);
    }
}

void answer_take(void *context, int status, struct message *reply)
{
    struct answer *answer = context;
    answer->done++;
    answer->status = status;
    if (!reply)
        return;
    answer->type = (int)reply->envelope->type;
    answer->request = reply->envelope->request;
    snprintf(answer->text, sizeof answer->text, "%s", reply->envelope->text);
    for (int i = 0; i < reply->frames_count; i++)
        answer->bytes += reply->frames[i]->bytes;
    if (answer->keep && reply->frames_count > 0) {
        answer->frame = reply->frames[0];
        reply->frames[0] = NULL;
    }
}

uint64_t ask(struct net_link *link, Shoal__Type type, struct answer *answer, int64_t deadline_ms)
{
    Shoal__Envelope envelope;
    shoal__envelope__init(&envelope);
    envelope.type = type;
    struct net_call call = {.envelope = &envelope, .deadline_ms = deadline_ms, .reply = answer_take,
                            .context = answer};
    return net_request(link, &call);
}

uint64_t ask_push(struct net_link *link, struct buf *values, uint64_t clock, struct answer *answer)
{
    Shoal__Envelope envelope;
    Shoal__Selector selector;
    shoal__envelope__init(&envelope);
    shoal__selector__init(&selector);
    selector.end = values->bytes / 4;
    envelope.type = SHOAL__TYPE__PUSH;
    envelope.dtype = SHOAL__DTYPE__F32;
    envelope.clock = clock;
    envelope.selector = &selector;
    struct net_call call = {.envelope = &envelope, .frames = &values, .frames_count = 1, .reply = answer_take,
                            .context = answer};
    return net_request(link, &call);
}
