#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zmq.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "net/link_internal.h"
#include "wire/message_table.h"

/*          open               handshake                  cut
 *  (start) ----> connecting ------------> connected --------+
 *                 ^  |  ^                                   |
 *        reopened |  |  +-----------------------------------+
 *                 |  | handshake refused: calls end with STATUS_DENIED
 *                 +--+
 * A request is sent when the link is connected, or with everything unanswered as soon as it is. ZeroMQ gives a
 * session up after a refused handshake, and a DEALER over inproc is alone once its peer closed: then the socket is
 * opened anew. */
enum {
    REOPEN_MS = 200,
    CUT_MS = 20, /* for answers that came before the cut; less than ZeroMQ waits to reconnect */
    DENY_FAILURES = 3,  /* with CURVE: so many cut handshakes in a row are a refusal (a wrong server key) */
    DENY_PLAIN_MS = 10000, /* without: a proxy before a server that is not up yet cuts them, too */
    RESEND_BACK_OFF = 8
};

static size_t payload_bytes(struct buf *const *frames, int count)
{
    size_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += frames[i] ? frames[i]->bytes : 0;
    return bytes;
}

void link_plan(struct net_link *link, int64_t *at, int64_t in_ms)
{
    if (*at == 0)
        *at = net_now_ms() + in_ms;
    net_arm(link->net, *at);
}

/* --- answers ---------------------------------------------------------------------------------------- */

/* The callback may close the link or the net. */
static void complete(struct net_link *link, struct pending *pending, int status, struct message *reply)
{
    net_reply_fn *fn = pending->reply;
    void *context = pending->context;
    wheel_remove(&link->net->wheel, pending);
    pending_table_remove(&link->table, pending);
    pending_give(&link->net->pool, pending);
    if (fn)
        fn(context, status, reply);
}

/* Ends a call with a reason a person can read: an ACK that nobody sent. */
static void complete_with_text(struct net_link *link, struct pending *pending, int status, const char *text)
{
    struct message reply;
    memset(&reply, 0, sizeof reply);
    reply.envelope = malloc(sizeof *reply.envelope);
    char *copy = strdup(text);
    if (!reply.envelope || !copy) {
        free(reply.envelope);
        free(copy);
        complete(link, pending, status, NULL);
        return;
    }
    shoal__envelope__init(reply.envelope);
    reply.envelope->type = SHOAL__TYPE__ACK;
    reply.envelope->request = pending->request;
    reply.envelope->status = status;
    reply.envelope->text = copy;
    reply.received_ns = clock_now_ns();
    complete(link, pending, status, &reply);
    message_close(&reply);
}

/* All calls made so far; those that a callback makes are not among them. */
static void fail_all(struct net_link *link, int status, const char *text)
{
    uint64_t last = link->last_request;
    while (link->table.first && link->table.first->request <= last) {
        if (text)
            complete_with_text(link, link->table.first, status, text);
        else
            complete(link, link->table.first, status, NULL);
    }
}

static void take_reply(struct net_link *link, struct message *message)
{
    link->net->counters.received++;
    struct pending *pending = pending_table_find(&link->table, message->envelope->request);
    if (!pending) /* the answer to a repeat */
        return;
    link->received_bytes += payload_bytes(message->frames, message->frames_count);
    complete(link, pending, message->envelope->status, message);
}

/* A whole message that breaks the rules: the call it answers cannot end well. */
static void take_bad(struct net_link *link, struct message *message, int status, const char *why)
{
    net_refuse(link->net, link->endpoint.text, why);
    struct pending *pending =
        message->envelope ? pending_table_find(&link->table, message->envelope->request) : NULL;
    if (pending)
        complete_with_text(link, pending, status, why);
}

void link_take(struct net_link *link, struct message *message, int status, struct errbuf *err)
{
    if (status)
        take_bad(link, message, status, err->text);
    else
        take_reply(link, message);
}

/* Lets ZeroMQ look at its commands, too. */
static int link_events(struct net_link *link)
{
    int events = 0;
    size_t bytes = sizeof events;
    zmq_getsockopt(zsock_socket(link->zsock), ZMQ_EVENTS, &events, &bytes);
    zsock_used(link->zsock);
    return events;
}

/* Woken without a message: an inproc peer may have closed. 1: a message came meanwhile. */
static int look_for_peer(struct net_link *link)
{
    int events = link_events(link);
    if (!(events & (ZMQ_POLLOUT | ZMQ_POLLIN)))
        link_plan(link, &link->reopen_at, REOPEN_MS);
    return events & ZMQ_POLLIN ? 1 : 0;
}

static int link_drain(void *context)
{
    struct net_link *link = context;
    struct zsock *zsock = link->zsock;
    for (int i = 0; i < ZSOCK_BATCH; i++) {
        struct message message;
        struct errbuf err;
        err.text[0] = '\0';
        int status = message_receive(zsock_socket(zsock), 0, link->net->limit_bytes, &message, &err);
        if (status == STATUS_BUSY || status == STATUS_CLOSED)
            return i == 0 && link->endpoint.kind == ENDPOINT_INPROC ? look_for_peer(link) : 0;
        link_take(link, &message, status, &err);
        message_close(&message);
        if (link->closed || link->zsock != zsock)
            return 0;
    }
    return 1;
}

/* --- sending ---------------------------------------------------------------------------------------- */

/* 1: it leaves through shared memory. What does not fit, or finds the channel broken, goes the other way. */
static int send_shared(struct net_link *link, const struct pending *pending, const struct message_part *envelope)
{
    return link->call.open &&
           channel_send(link->call.channel, envelope, pending->frames, pending->frames_count) == STATUS_OK;
}

static void send_pending(struct net_link *link, struct pending *pending)
{
    struct message_part envelope = {pending->packed, pending->packed_bytes};
    if (!send_shared(link, pending, &envelope)) {
        int status = message_send_packed(zsock_socket(link->zsock), &envelope, pending->frames, pending->frames_count);
        zsock_used(link->zsock);
        if (status == STATUS_BUSY && link->endpoint.kind == ENDPOINT_INPROC)
            link_plan(link, &link->reopen_at, REOPEN_MS);
        if (status)
            return;
    }
    link->net->counters.sent++;
    link->net->counters.resent += pending->sent != 0;
    pending->sent = 1;
}

void link_send_all(struct net_link *link)
{
    for (struct pending *p = link->table.first; p; p = p->next)
        send_pending(link, p);
}

void link_pending_due(struct pending *pending, int64_t now_ms)
{
    struct net_link *link = pending->link;
    if (pending->deadline_at != 0 && now_ms >= pending->deadline_at) {
        link->net->counters.timeouts++;
        complete(link, pending, STATUS_TIMEOUT, NULL);
        return;
    }
    if (pending->resend_at != 0 && now_ms >= pending->resend_at) {
        if (link->connected)
            send_pending(link, pending);
        pending->resend_ms = pending->resend_ms * 2 > pending->resend_max_ms ? pending->resend_max_ms
                                                                             : pending->resend_ms * 2;
        pending->resend_at = now_ms + pending->resend_ms;
    }
    wheel_add(&link->net->wheel, pending, now_ms);
}

static int pack(struct pending *pending, const Shoal__Envelope *envelope)
{
    pending->packed_bytes = shoal__envelope__get_packed_size(envelope);
    pending->packed = pending->packed_inline;
    if (pending->packed_bytes > sizeof pending->packed_inline)
        pending->packed = malloc(pending->packed_bytes);
    if (!pending->packed)
        return STATUS_NOMEM;
    shoal__envelope__pack(envelope, pending->packed);
    return STATUS_OK;
}

uint64_t net_request(struct net_link *link, const struct net_call *call)
{
    struct net *net = link->net;
    if (link->closed || call->frames_count > MESSAGE_FRAMES_MAX)
        return 0;
    struct pending *pending = pending_take(&net->pool);
    if (!pending)
        return 0;
    net_fill(net, call->envelope);
    call->envelope->request = pending->request = link->last_request + 1;
    call->envelope->sent_ns = clock_now_ns();
    if (pack(pending, call->envelope))
        goto give;
    pending->link = link;
    pending->reply = call->reply;
    pending->context = call->context;
    for (int i = 0; i < call->frames_count; i++)
        pending->frames[pending->frames_count++] = buf_share(call->frames[i]);
    if (pending_table_add(&link->table, pending))
        goto give;
    link->last_request++;
    int64_t now = call->envelope->sent_ns / 1000000;
    pending->deadline_at = call->deadline_ms > 0 ? now + call->deadline_ms : 0;
    pending->resend_ms = call->resend_ms;
    pending->resend_max_ms = call->resend_ms * RESEND_BACK_OFF;
    pending->resend_at = call->resend_ms > 0 ? now + call->resend_ms : 0;
    net_arm(net, wheel_add(&net->wheel, pending, now));
    link->sent_bytes += payload_bytes(call->frames, call->frames_count);
    if (link->connected)
        send_pending(link, pending);
    return pending->request;
give:
    pending_give(&net->pool, pending);
    return 0;
}

void net_cancel(struct net_link *link, uint64_t request)
{
    struct pending *pending = pending_table_find(&link->table, request);
    if (pending)
        complete(link, pending, STATUS_CLOSED, NULL);
}

void net_link_bytes(const struct net_link *link, uint64_t *sent, uint64_t *received)
{
    *sent = link->sent_bytes;
    *received = link->received_bytes;
}

/* --- the connection --------------------------------------------------------------------------------- */

static void set_connected(struct net_link *link, int connected)
{
    if (link->connected == connected)
        return;
    link->connected = connected;
    if (connected) {
        link->failures = 0;
        link->failing_since = 0;
        link_events(link); /* the new pipe is a command that a send might not look at */
        link_send_all(link);
        link_share_connected(link);
    } else {
        link_share_cut(link);
    }
    if (link->state && !link->closed)
        link->state(link->context, connected);
}

static void deny(struct net_link *link, const char *how)
{
    char text[512];
    snprintf(text, sizeof text, "handshake with %s failed: %s", link->endpoint.text, how);
    if (link->net->log)
        log_warning(link->net->log, "%s", text);
    fail_all(link, STATUS_DENIED, text);
}

static const char *protocol_failure(int value, int curve)
{
    if (value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
        return curve ? "it does not use CURVE" : "it wants CURVE, give the folder of the keys";
    if (value == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC || curve)
        return "CURVE: wrong server key, or this key is not in its allow.list";
    return "it does not speak ZMTP, or is no Shoal server";
}

static void on_failed_handshake(struct net_link *link)
{
    int64_t now = net_now_ms();
    if (link->failures++ == 0)
        link->failing_since = now;
    if (link->curve && link->failures >= DENY_FAILURES)
        deny(link, "cut by the peer: wrong server key, this key is not in its allow.list, or it does not use CURVE");
    else if (now - link->failing_since >= DENY_PLAIN_MS)
        deny(link, "cut by the peer again and again: it wants CURVE, or is no Shoal server");
}

static void on_event(void *context, int event, int value)
{
    struct net_link *link = context;
    switch (event) {
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
        link->reopen_at = 0;
        set_connected(link, 1);
        break;
    case ZMQ_EVENT_DISCONNECTED:
        /* A fresh socket: the old one would first send what was queued since the cut, ahead of older requests. */
        if (link->connected)
            link_plan(link, &link->reopen_at, CUT_MS);
        set_connected(link, 0);
        break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        on_failed_handshake(link);
        break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
        link_plan(link, &link->reopen_at, REOPEN_MS * 5);
        deny(link, "CURVE: this key is not in its allow.list");
        break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
        link_plan(link, &link->reopen_at, REOPEN_MS * 5);
        deny(link, protocol_failure(value, link->curve != NULL));
        break;
    default:
        break;
    }
}

static void link_gone(void *context)
{
    struct net_link *link = context;
    if (--link->zsocks > 0 || !link->closed)
        return;
    pending_table_close(&link->table);
    free(link->curve);
    free(link);
}

static int connect_socket(struct net_link *link, struct errbuf *err)
{
    enum { EVENTS = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                    ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL };
    struct net *net = link->net;
    void *socket = zmq_socket(net->zmq, ZMQ_DEALER);
    if (!socket)
        return errbuf_set(err, STATUS_IO, "no socket: %s", zmq_strerror(zmq_errno()));
    net_socket_init(net, socket);
    net_socket_set(socket, ZMQ_IPV6, link->endpoint.ipv6);
    /* Not ZMQ_IMMEDIATE: it would drop answers that came before a cut and are not read yet. */
    net_socket_set(socket, ZMQ_IMMEDIATE, 0);
    int status = link->curve ? curve_apply_client(socket, link->curve, err) : STATUS_OK;
    if (!status && link->endpoint.kind != ENDPOINT_INPROC) {
        link->monitor = monitor_open(net, socket, EVENTS, on_event, link);
        if (!link->monitor)
            status = errbuf_set(err, STATUS_NOMEM, "no monitor for %s", link->endpoint.text);
    }
    if (!status && zmq_connect(socket, link->endpoint.text))
        status = errbuf_set(err, STATUS_IO, "connecting to %s: %s", link->endpoint.text,
                            zmq_strerror(zmq_errno()));
    if (!status) {
        link->zsock = zsock_add(net->watch, socket, link_drain, link_gone, link);
        if (!link->zsock)
            status = errbuf_set(err, STATUS_NOMEM, "no memory for a connection");
    }
    if (status) {
        monitor_close(link->monitor);
        link->monitor = NULL;
        zmq_close(socket);
        return status;
    }
    link->zsocks++;
    if (link->endpoint.kind == ENDPOINT_INPROC)
        link_plan(link, &link->announce_at, 0);
    return STATUS_OK;
}

static void disconnect_socket(struct net_link *link, int linger_ms)
{
    monitor_close(link->monitor);
    link->monitor = NULL;
    if (link->zsock)
        zsock_close(link->zsock, linger_ms);
    link->zsock = NULL;
}

struct net_link *link_next(const struct net_link *link)
{
    return link->next;
}

int64_t link_next_ms(const struct net_link *link)
{
    int64_t next = link->reopen_at;
    if (link->announce_at != 0 && (next == 0 || link->announce_at < next))
        next = link->announce_at;
    if (link->welcome_at != 0 && (next == 0 || link->welcome_at < next))
        next = link->welcome_at;
    return next;
}

static void reopen(struct net_link *link)
{
    struct errbuf err;
    set_connected(link, 0);
    while (!link->closed && link_drain(link))
        ;
    if (link->closed)
        return;
    disconnect_socket(link, 0);
    if (!connect_socket(link, &err))
        return;
    if (link->net->log)
        log_warning(link->net->log, "%s", err.text);
    link_plan(link, &link->reopen_at, REOPEN_MS * 5);
}

void link_on_time(struct net_link *link, int64_t now_ms)
{
    if (!link->closed && link->reopen_at != 0 && now_ms >= link->reopen_at) {
        link->reopen_at = 0;
        reopen(link);
    }
    if (!link->closed && link->announce_at != 0 && now_ms >= link->announce_at) {
        link->announce_at = 0;
        if (link->zsock)
            set_connected(link, 1);
    }
    if (!link->closed)
        link_share_on_time(link, now_ms);
}

int net_link_open(struct net_link **out, struct net *net, const char *endpoint, const struct net_curve *curve,
                  net_state_fn *state, void *context, struct errbuf *err)
{
    struct net_link *link = calloc(1, sizeof *link);
    if (!link)
        return errbuf_set(err, STATUS_NOMEM, "no memory for a connection");
    link->net = net;
    link->state = state;
    link->context = context;
    int status = endpoint_parse_connect(&link->endpoint, endpoint, err);
    if (!status && curve && link->endpoint.kind != ENDPOINT_INPROC) {
        link->curve = malloc(sizeof *link->curve);
        if (link->curve)
            *link->curve = *curve;
        else
            status = errbuf_set(err, STATUS_NOMEM, "no memory for a connection");
    }
    if (!status)
        status = connect_socket(link, err);
    if (status) {
        free(link->curve);
        free(link);
        return status;
    }
    link->next = net->links;
    if (link->next)
        link->next->previous = link;
    net->links = link;
    net_arm(net, link_next_ms(link));
    *out = link;
    return STATUS_OK;
}

void link_close(struct net_link *link, int linger_ms)
{
    if (link->closed)
        return;
    link->closed = 1;
    if (link->previous)
        link->previous->next = link->next;
    else
        link->net->links = link->next;
    if (link->next)
        link->next->previous = link->previous;
    int alone = link->zsocks == 0; /* a reopening that failed left no socket to go */
    link_share_cut(link);
    disconnect_socket(link, linger_ms);
    fail_all(link, STATUS_CLOSED, NULL);
    if (alone) {
        link->zsocks = 1;
        link_gone(link);
    }
}

void net_link_close(struct net_link *link)
{
    if (link)
        link_close(link, 0);
}
