/* The inside of a client end: link.c (requests, the connection) and link_share.c (payload through shared memory). */
#ifndef SHOAL_NET_LINK_INTERNAL_H
#define SHOAL_NET_LINK_INTERNAL_H

#include "net/endpoint.h"
#include "net/local.h"
#include "net/net_internal.h"

struct net_link {
    struct net *net;
    struct net_link *next, *previous;
    struct endpoint endpoint;
    struct net_curve *curve; /* owned copy; NULL: plain */
    struct zsock *zsock;
    struct monitor *monitor; /* not with inproc */
    net_state_fn *state;
    void *context;
    struct pending_table table;
    uint64_t last_request;
    uint64_t sent_bytes, received_bytes;
    int64_t announce_at, reopen_at, welcome_at; /* ms, 0: not planned */
    int64_t failing_since;                      /* ms, 0: the last handshake was fine */
    int failures;
    int connected, closed;
    int zsocks; /* whose handles are not gone yet */
    struct local_call call;
    struct net_share share;
    uint64_t share_request; /* LOCAL under way, or 0 */
    int share_wanted, share_asked; /* asked: since the connection is there */
};

/* Something planned at *at, unless it is already. */
void link_plan(struct net_link *link, int64_t *at, int64_t in_ms);
/* A reply, or a whole message that breaks the rules (status, err). */
void link_take(struct net_link *link, struct message *message, int status, struct errbuf *err);
/* Everything unanswered, again. */
void link_send_all(struct net_link *link);

/* --- link_share.c --- */
void link_share_connected(struct net_link *link);
void link_share_cut(struct net_link *link); /* the connection is cut, or the link is closed */
void link_share_on_time(struct net_link *link, int64_t now_ms);

#endif
