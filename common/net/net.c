#include "net/net.h"

#include <stdlib.h>
#include <string.h>

#include <zmq.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "net/channel.h"
#include "net/net_internal.h"

/* Later than this, and the loop stood still (a stopped process, a long computation): answers may lie unread. */
enum { TIMER_LATE_MS = 250, TIMER_DEFER_MS = 10 };

int64_t net_now_ms(void)
{
    return clock_now_ns() / 1000000;
}

static void on_timer(uv_timer_t *timer);

void net_arm(struct net *net, int64_t at_ms)
{
    if (net->closing || at_ms == 0 || (net->armed_ms != 0 && net->armed_ms <= at_ms))
        return;
    int64_t wait = at_ms - net_now_ms();
    net->armed_ms = at_ms;
    uv_timer_start(&net->timer, on_timer, wait > 0 ? (uint64_t)wait : 0, 0);
}

static void on_timer(uv_timer_t *timer)
{
    struct net *net = timer->data;
    int64_t now = net_now_ms();
    int late = net->armed_ms != 0 && now - net->armed_ms > TIMER_LATE_MS;
    net->armed_ms = 0;
    if (late && !net->deferred) {
        net->deferred = 1;
        net_arm(net, now + TIMER_DEFER_MS);
        return;
    }
    net->deferred = 0;
    wheel_advance(&net->wheel, now);
    for (struct pending *p; (p = wheel_pop(&net->wheel));)
        link_pending_due(p, now);
    for (struct net_link *link = net->links; link; link = link_next(link))
        link_on_time(link, now);
    net_arm(net, wheel_next_ms(&net->wheel));
    for (struct net_link *link = net->links; link; link = link_next(link))
        net_arm(net, link_next_ms(link));
}

struct net *net_create(uv_loop_t *loop, void *zmq, const struct log *log, size_t limit_bytes)
{
    struct net *net = calloc(1, sizeof *net);
    if (!net)
        return NULL;
    net->loop = loop;
    net->zmq = zmq;
    net->log = log;
    net->limit_bytes = limit_bytes;
    net->self.rank = -1;
    net->watch = zsock_watch_create(loop);
    if (!net->watch) {
        free(net);
        return NULL;
    }
    uv_timer_init(loop, &net->timer);
    net->timer.data = net;
    return net;
}

static void net_gone(uv_handle_t *timer)
{
    free(timer->data);
}

void net_destroy(struct net *net, int linger_ms)
{
    if (!net || net->closing)
        return;
    net->closing = 1;
    while (net->links)
        link_close(net->links, linger_ms);
    while (net->routers)
        router_close(net->routers, linger_ms);
    zap_close(net);
    zsock_watch_close(net->watch);
    channel_watch_close(net->channels);
    pending_pool_close(&net->pool);
    uv_close((uv_handle_t *)&net->timer, net_gone);
}

struct net_self *net_self(struct net *net)
{
    return &net->self;
}

const struct net_counters *net_counters(const struct net *net)
{
    return &net->counters;
}

void net_fill(const struct net *net, Shoal__Envelope *envelope)
{
    const struct net_self *self = &net->self;
    envelope->protocol_low = PROTOCOL_LOW;
    envelope->protocol_high = PROTOCOL_HIGH;
    envelope->features = self->features;
    envelope->job = self->job;
    envelope->term = self->term;
    envelope->cluster_epoch = self->cluster_epoch;
    envelope->role = self->role;
    envelope->rank = self->rank;
    envelope->incarnation = self->incarnation;
}

void net_refuse(struct net *net, const char *where, const char *why)
{
    uint64_t count = ++net->counters.refused;
    if (net->log && (count & (count - 1)) == 0)
        log_warning(net->log, "refused at=%s count=%llu why=\"%s\"", where, (unsigned long long)count, why);
}

void net_socket_set(void *socket, int option, int value)
{
    zmq_setsockopt(socket, option, &value, sizeof value);
}

void net_socket_init(const struct net *net, void *socket)
{
    enum { HANDSHAKE_MS = 5000, RECONNECT_MS = 100, RECONNECT_MAX_MS = 2000, HIGH_WATER = 4000, BACKLOG = 1024 };
    size_t frame = net->limit_bytes > MESSAGE_ENVELOPE_MAX ? net->limit_bytes : MESSAGE_ENVELOPE_MAX;
    int64_t largest = frame > INT64_MAX ? INT64_MAX : (int64_t)frame;
    zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &largest, sizeof largest);
    net_socket_set(socket, ZMQ_LINGER, 0);
    net_socket_set(socket, ZMQ_SNDHWM, 0); /* credit bounds what is in flight, not a queue that would block */
    net_socket_set(socket, ZMQ_RCVHWM, HIGH_WATER);
    net_socket_set(socket, ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS);
    net_socket_set(socket, ZMQ_RECONNECT_IVL, RECONNECT_MS);
    net_socket_set(socket, ZMQ_RECONNECT_IVL_MAX, RECONNECT_MAX_MS);
    net_socket_set(socket, ZMQ_BACKLOG, BACKLOG);
    net_socket_set(socket, ZMQ_TCP_KEEPALIVE, 1);
    net_socket_set(socket, ZMQ_TCP_KEEPALIVE_IDLE, 10);
    net_socket_set(socket, ZMQ_TCP_KEEPALIVE_INTVL, 5);
    net_socket_set(socket, ZMQ_TCP_KEEPALIVE_CNT, 4);
}
