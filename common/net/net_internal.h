/* What the files of net share. Loop thread only. */
#ifndef SHOAL_NET_NET_INTERNAL_H
#define SHOAL_NET_NET_INTERNAL_H

#include <stdint.h>
#include <uv.h>

#include "base/errbuf.h"
#include "net/net.h"
#include "net/pending.h"
#include "net/zsock_watch.h"

struct channel_watch;
struct net_zap;

struct net {
    uv_loop_t *loop;
    void *zmq; /* borrowed */
    const struct log *log;
    size_t limit_bytes;
    struct zsock_watch *watch;
    struct channel_watch *channels; /* there as soon as one is */
    struct net_self self;
    struct net_counters counters;
    struct net_link *links;
    struct net_router *routers;
    struct net_zap *zap; /* there as soon as one router uses CURVE */
    struct pending_pool pool;
    struct wheel wheel;
    uv_timer_t timer; /* the wheel's and the links' next moment */
    int64_t armed_ms; /* 0: not armed */
    int deferred;     /* the timer was late and gave the sockets a turn first */
    int closing;
    int64_t awake_ns; /* net_stay_awake */
    int awake_peers_max;
};

int64_t net_now_ms(void);
/* The timer fires at `at_ms` or before. */
void net_arm(struct net *net, int64_t at_ms);
void net_fill(const struct net *net, Shoal__Envelope *envelope);
/* Counts, and says the first and then every doubling. */
void net_refuse(struct net *net, const char *where, const char *why);
/* Options every socket of Shoal has. */
void net_socket_set(void *socket, int option, int value);
void net_socket_init(const struct net *net, void *socket);

/* --- link.c, for the timer --- */
int64_t link_next_ms(const struct net_link *link); /* 0: nothing planned */
struct net_link *link_next(const struct net_link *link);
void link_on_time(struct net_link *link, int64_t now_ms);
void link_pending_due(struct pending *pending, int64_t now_ms);
void link_close(struct net_link *link, int linger_ms);

/* --- router.c --- */
void router_close(struct net_router *router, int linger_ms);

/* --- monitor.c: ZMQ_EVENT_* of a socket, told in the loop --- */
typedef void monitor_fn(void *context, int event, int value);
struct monitor;
struct monitor *monitor_open(struct net *net, void *socket, int events, monitor_fn *fn, void *context);
/* Before the socket is closed; takes NULL. No call comes afterwards. */
void monitor_close(struct monitor *monitor);

/* --- curve.c --- */
int curve_apply_client(void *socket, const struct net_curve *curve, struct errbuf *err);
int curve_apply_server(void *socket, const struct net_curve *curve, const char *domain, struct errbuf *err);
struct allow_list {
    struct allow_row *rows;
    int count;
};
struct allow_row {
    char key[41];
    Shoal__Role role;
};
int allow_list_read(struct allow_list *list, const char *path, struct errbuf *err);
void allow_list_close(struct allow_list *list);
const struct allow_row *allow_list_find(const struct allow_list *list, const char *key);
/* Answers ZeroMQ's questions about keys for all CURVE routers of this net. */
int zap_open(struct net *net, struct errbuf *err);
void zap_close(struct net *net);
const struct allow_list *router_allow(const struct net *net, const char *domain); /* router.c */
Shoal__Role role_of_name(const char *name);
const char *role_name(Shoal__Role role);

#endif
