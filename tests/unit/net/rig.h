/* One loop with one net on it, and a serving end that answers what tests send. One thread. */
#ifndef SHOAL_TESTS_NET_RIG_H
#define SHOAL_TESTS_NET_RIG_H

#include <uv.h>

#include "base/errbuf.h"
#include "base/log.h"
#include "net/net.h"

struct rig {
    uv_loop_t loop;
    void *zmq;
    int zmq_owned;
    int reopening; /* a port in use is waited for */
    struct log log;
    struct net *net;
    struct errbuf err;
};
/* zmq NULL: a context of its own. */
void rig_open(struct rig *rig, void *zmq, Shoal__Role role);
void rig_close(struct rig *rig);
/* Turns the loop until *value >= wanted. */
void rig_until(struct rig *rig, const int *value, int wanted);

int rig_free_port(void); /* of 127.0.0.1, free a moment ago */

/* Answers HEARTBEAT by HEARTBEAT, PUSH by ACK, PULL by VALUES with a frame of selector.end - selector.begin floats
 * or, when values is set, that buf; HELLO is kept unanswered. */
struct echo {
    struct net_router *router;
    struct buf *values;
    int served, kept;
    struct net_return back; /* of the last HELLO */
    uint64_t bytes;
    char address[64];       /* of the last JOIN */
    uint64_t clocks[64];    /* of the requests, in the order of their coming */
};
void echo_open(struct echo *echo, struct rig *rig, const struct net_listen *listen);
void echo_serve(void *context, struct net_router *router, struct message *request, const struct net_return *back);

/* What a call came to. */
struct answer {
    int done, status;
    int type;
    uint64_t request;
    char text[512];
    size_t bytes;
    struct buf *frame; /* taken when keep */
    int keep;
};
void answer_take(void *context, int status, struct message *reply);
uint64_t ask(struct net_link *link, Shoal__Type type, struct answer *answer, int64_t deadline_ms);
uint64_t ask_push(struct net_link *link, struct buf *values, uint64_t clock, struct answer *answer);

#endif
