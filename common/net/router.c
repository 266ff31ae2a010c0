#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zmq.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "net/endpoint.h"
#include "net/local.h"
#include "net/net_internal.h"
#include "wire/message_table.h"

enum { ROUTER_LINGER_MS = 500 };

struct net_router {
    struct net *net;
    struct net_router *next, *previous;
    struct zsock *zsock;
    struct monitor *monitor;
    net_serve_fn *serve;
    void *context;
    char endpoint[ENDPOINT_MAX];
    char domain[40]; /* of ZAP; names this router */
    int curve;
    char *allow_file;
    struct allow_list allow;
    /* Handshakes that came to an end so far, and their number when each descriptor was accepted. */
    uint64_t handshakes, *accepted_at;
    int accepted_room;
    struct local_port *local; /* for peers on this host, as soon as one asks */
    struct account *account;
    int inproc, closed;
};

/* --- requests --------------------------------------------------------------------------------------- */

/* With CURVE the key decides the role; a key that has left the list since its handshake has none. */
static int check_user(const struct net_router *router, const struct message *message, struct errbuf *err)
{
    if (!router->curve)
        return STATUS_OK;
    const char *key = strchr(message->user, ' ');
    const struct allow_row *row = key ? allow_list_find(&router->allow, key + 1) : NULL;
    if (!row)
        return errbuf_set(err, STATUS_DENIED, "key %.8s… is not in allow.list", key ? key + 1 : "?");
    if (row->role != message->envelope->role)
        return errbuf_set(err, STATUS_DENIED, "key %.8s… belongs to a %s and speaks as %s", row->key,
                          role_name(row->role), role_name(message->envelope->role));
    return STATUS_OK;
}

static void on_local_message(void *context, struct message *message, int status, struct errbuf *err);

/* LOCAL: whoever has come through the handshake may share memory with this end. */
static int answer_local(struct net_router *router, const struct message *message, const struct net_return *back,
                        struct errbuf *err)
{
    Shoal__Local body = SHOAL__LOCAL__INIT;
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    envelope.type = SHOAL__TYPE__LOCAL;
    envelope.body_case = SHOAL__ENVELOPE__BODY_LOCAL;
    envelope.local = &body;
    if (router->inproc || back->to.channel)
        return errbuf_set(err, STATUS_INVALID, "memory is shared already");
    struct local_port_options options = {router->net, router->account, on_local_message, router};
    int status = router->local ? STATUS_OK : local_port_open(&router->local, &options, err);
    if (!status)
        status = local_port_invite(router->local, message, &body);
    if (!status)
        net_reply(router, back, &envelope, NULL, 0); /* a peer that went asks again when it is back */
    return status;
}

static void take_request(struct net_router *router, struct message *message, int status, struct errbuf *err)
{
    struct net_return back = {.to = message->from, .received_ns = message->received_ns};
    if (message->envelope) {
        back.request = message->envelope->request;
        back.sent_ns = message->envelope->sent_ns;
    }
    if (!status)
        status = check_user(router, message, err);
    if (!status) {
        router->net->counters.received++;
        if (message->envelope->type != SHOAL__TYPE__LOCAL) {
            router->serve(router->context, router, message, &back);
            return;
        }
        status = answer_local(router, message, &back, err);
        if (!status)
            return;
    }
    net_refuse(router->net, router->endpoint, err->text);
    if (back.request != 0 && (back.to.count > 0 || back.to.channel))
        net_reply_status(router, &back, status, err->text);
}

static void on_local_message(void *context, struct message *message, int status, struct errbuf *err)
{
    take_request(context, message, status, err);
}

static int router_drain(void *context)
{
    struct net_router *router = context;
    for (int i = 0; i < ZSOCK_BATCH; i++) {
        struct message message;
        struct errbuf err;
        err.text[0] = '\0';
        int status = message_receive(zsock_socket(router->zsock), 1, router->net->limit_bytes, &message, &err);
        if (status == STATUS_BUSY || status == STATUS_CLOSED)
            return 0;
        take_request(router, &message, status, &err);
        message_close(&message);
        if (router->closed)
            return 0;
    }
    return 1;
}

/* The way it came; what is larger than the shared memory goes over the connection that it was agreed on. */
static int reply_shared(struct net_router *router, const struct net_return *back, const Shoal__Envelope *envelope,
                        struct buf *const *frames, int frames_count)
{
    uint8_t small[512];
    struct message_part packed = {small, shoal__envelope__get_packed_size(envelope)};
    struct message_identity over;
    uint8_t *memory = packed.bytes <= sizeof small ? small : malloc(packed.bytes);
    if (!memory)
        return STATUS_NOMEM;
    shoal__envelope__pack(envelope, memory);
    packed.data = memory;
    int status = local_port_send(router->local, &back->to, &packed, frames, frames_count, &over);
    if (status == STATUS_RANGE) {
        status = message_send(zsock_socket(router->zsock), &over, envelope, frames, frames_count);
        zsock_used(router->zsock);
    }
    if (memory != small)
        free(memory);
    return status;
}

int net_reply(struct net_router *router, const struct net_return *back, Shoal__Envelope *envelope,
              struct buf *const *frames, int frames_count)
{
    if (router->closed)
        return STATUS_CLOSED;
    net_fill(router->net, envelope);
    envelope->request = back->request;
    envelope->echo_ns = back->sent_ns;
    envelope->received_ns = back->received_ns;
    envelope->sent_ns = clock_now_ns();
    int status;
    if (back->to.channel) {
        status = reply_shared(router, back, envelope, frames, frames_count);
    } else {
        status = message_send(zsock_socket(router->zsock), &back->to, envelope, frames, frames_count);
        zsock_used(router->zsock);
    }
    if (!status)
        router->net->counters.sent++;
    return status;
}

void net_reply_status(struct net_router *router, const struct net_return *back, int status, const char *text)
{
    Shoal__Envelope envelope;
    shoal__envelope__init(&envelope);
    envelope.type = SHOAL__TYPE__ACK;
    envelope.status = status;
    if (text)
        envelope.text = (char *)text; /* only read */
    net_reply(router, back, &envelope, NULL, 0); /* a peer that went asks again when it is back */
}

/* --- opening ---------------------------------------------------------------------------------------- */

static void remember_accepted(struct net_router *router, int fd)
{
    if (fd < 0)
        return;
    if (fd >= router->accepted_room) {
        int room = fd * 2 + 16;
        uint64_t *grown = realloc(router->accepted_at, (size_t)room * sizeof *grown);
        if (!grown) /* only a count is lost */
            return;
        memset(grown + router->accepted_room, 0xFF, (size_t)(room - router->accepted_room) * sizeof *grown);
        router->accepted_at = grown;
        router->accepted_room = room;
    }
    router->accepted_at[fd] = router->handshakes;
}

/* ZeroMQ says nothing of a socket of a wrong kind but that it came and went: when no handshake ended in between, it
 * cannot have been let in. */
static void on_event(void *context, int event, int value)
{
    struct net_router *router = context;
    switch (event) {
    case ZMQ_EVENT_ACCEPTED:
        remember_accepted(router, value);
        break;
    case ZMQ_EVENT_DISCONNECTED:
        if (value >= 0 && value < router->accepted_room && router->accepted_at[value] == router->handshakes)
            net_refuse(router->net, router->endpoint, "a peer went without a handshake");
        break;
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
        router->handshakes++;
        break;
    default:
        router->handshakes++;
        net_refuse(router->net, router->endpoint, "a handshake failed");
        break;
    }
}

static void router_gone(void *context)
{
    struct net_router *router = context;
    allow_list_close(&router->allow);
    free(router->allow_file);
    free(router->accepted_at);
    free(router);
}

static int check_exposure(const struct endpoint *endpoint, const struct net_listen *listen, struct errbuf *err)
{
    if (endpoint->loopback || listen->insecure || listen->curve)
        return STATUS_OK;
    return errbuf_set(err, STATUS_DENIED,
                      "listening on %s lets anyone who can reach it in: give keys (shoal keygen, --keys DIR), or "
                      "--insecure if that is wanted", endpoint->text);
}

static int set_up_curve(struct net_router *router, void *socket, const struct net_listen *listen,
                        struct errbuf *err)
{
    if (!listen->allow_file)
        return errbuf_set(err, STATUS_INVALID, "CURVE without an allow.list");
    router->allow_file = strdup(listen->allow_file);
    if (!router->allow_file)
        return errbuf_set(err, STATUS_NOMEM, "no memory for a path");
    router->curve = 1;
    snprintf(router->domain, sizeof router->domain, "shoal-%p", (void *)router);
    int status = allow_list_read(&router->allow, router->allow_file, err);
    if (!status)
        status = zap_open(router->net, err);
    if (!status)
        status = curve_apply_server(socket, listen->curve, router->domain, err);
    return status;
}

static int bind_socket(struct net_router *router, void *socket, const struct endpoint *endpoint,
                       struct errbuf *err)
{
    if (zmq_bind(socket, endpoint->text))
        return errbuf_set(err, STATUS_IO, "cannot listen on %s: %s",
                          endpoint->text + (endpoint->kind == ENDPOINT_TCP ? 6 : 0), zmq_strerror(zmq_errno()));
    size_t bytes = sizeof router->endpoint;
    if (zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, router->endpoint, &bytes))
        return errbuf_set(err, STATUS_IO, "endpoint of %s: %s", endpoint->text, zmq_strerror(zmq_errno()));
    return STATUS_OK;
}

/* Takes the socket. */
static int start(struct net_router *router, void *socket, const struct net_listen *listen, struct errbuf *err)
{
    enum { EVENTS = ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED |
                    ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
                    ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL };
    struct net *net = router->net;
    struct endpoint endpoint;
    net_socket_init(net, socket);
    net_socket_set(socket, ZMQ_ROUTER_MANDATORY, 1);
    int status = endpoint_parse_listen(&endpoint, listen->endpoint, err);
    if (!status)
        status = check_exposure(&endpoint, listen, err);
    if (!status && listen->curve && endpoint.kind != ENDPOINT_INPROC)
        status = set_up_curve(router, socket, listen, err);
    if (!status) {
        router->inproc = endpoint.kind == ENDPOINT_INPROC;
        net_socket_set(socket, ZMQ_IPV6, endpoint.ipv6);
        if (endpoint.kind != ENDPOINT_INPROC)
            router->monitor = monitor_open(net, socket, EVENTS, on_event, router);
        status = bind_socket(router, socket, &endpoint, err);
    }
    if (!status) {
        router->zsock = zsock_add(net->watch, socket, router_drain, router_gone, router);
        if (!router->zsock)
            status = errbuf_set(err, STATUS_NOMEM, "no memory to listen");
    }
    if (status) {
        monitor_close(router->monitor);
        zmq_close(socket);
    }
    return status;
}

int net_router_open(struct net_router **out, struct net *net, const struct net_listen *listen, struct errbuf *err)
{
    struct net_router *router = calloc(1, sizeof *router);
    if (!router)
        return errbuf_set(err, STATUS_NOMEM, "no memory to listen");
    router->net = net;
    router->serve = listen->serve;
    router->context = listen->context;
    router->account = listen->account;
    void *socket = zmq_socket(net->zmq, ZMQ_ROUTER);
    int status = socket ? start(router, socket, listen, err)
                        : errbuf_set(err, STATUS_IO, "no socket: %s", zmq_strerror(zmq_errno()));
    if (status) {
        router_gone(router);
        return status;
    }
    router->next = net->routers;
    if (router->next)
        router->next->previous = router;
    net->routers = router;
    *out = router;
    return STATUS_OK;
}

void router_close(struct net_router *router, int linger_ms)
{
    if (router->closed)
        return;
    router->closed = 1;
    if (router->previous)
        router->previous->next = router->next;
    else
        router->net->routers = router->next;
    if (router->next)
        router->next->previous = router->previous;
    local_port_close(router->local);
    router->local = NULL;
    monitor_close(router->monitor);
    zsock_close(router->zsock, linger_ms);
}

void net_router_close(struct net_router *router)
{
    if (router)
        router_close(router, ROUTER_LINGER_MS);
}

const char *net_router_endpoint(const struct net_router *router)
{
    return router->endpoint;
}

const struct allow_list *router_allow(const struct net *net, const char *domain)
{
    for (const struct net_router *router = net->routers; router; router = router->next) {
        if (router->curve && strcmp(router->domain, domain) == 0)
            return &router->allow;
    }
    return NULL;
}

int net_allow_reload(struct net_router *router, struct errbuf *err)
{
    struct allow_list fresh;
    if (!router->curve)
        return STATUS_OK;
    int status = allow_list_read(&fresh, router->allow_file, err);
    if (status)
        return status;
    allow_list_close(&router->allow);
    router->allow = fresh;
    return STATUS_OK;
}
