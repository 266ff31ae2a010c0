/* A member's talk with the coordinator: join, heartbeats, the stream of events, requests. Servers and workers use the
 * same one. Loop thread only.
 *
 *   joining --JOINED--> member --(END handled by the owner)--> member … --member_leave--> left
 *      |                  |
 *      +---- refused, unreachable for start_s, silent for dead_s: `lost`, once, and nothing more
 */
#ifndef SHOAL_NET_MEMBER_H
#define SHOAL_NET_MEMBER_H

#include "net/net.h"

struct member_ops {
    void (*joined)(void *context, int rank); /* and again when a JOB gives this member another rank */
    /* JOB, START, VERDICT, SNAPSHOT, END in order, each once. The callee may take frames by setting them NULL. */
    void (*event)(void *context, struct message *event);
    void (*lost)(void *context, int status, const char *text);
    void *context;
};

struct member_options {
    const char *cluster;            /* coordinator's endpoint */
    const struct net_curve *curve;  /* NULL: plain */
    const Shoal__Join *join;        /* copied where needed until joined: must outlive that */
    double start_s, dead_s;         /* give up joining; coordinator silent */
    const struct log *log;          /* where a stall that the coordinator reports is said; NULL: nowhere */
    struct member_ops ops;
};

struct member;
int member_create(struct member **member, struct net *net, uv_loop_t *loop, const struct member_options *options,
                  struct errbuf *err);
/* Closes link and timer; the loop must run once more. Takes NULL. */
void member_destroy(struct member *member);
void member_set_dead_after(struct member *member, double seconds); /* from the job */
/* The owner is through with the job whose END it was given: only then are further events asked for, as what it still sends
 * would else go out under the next job's id. */
void member_next_job(struct member *member);
/* A request to the coordinator, resent until answered. */
uint64_t member_request(struct member *member, Shoal__Envelope *envelope, struct buf *const *frames, int frames_count,
                        net_reply_fn *reply, void *context);
/* Tells the coordinator that this member got a signal: the job ends in order after the step at hand. */
void member_ask_stop(struct member *member);
/* Tells the coordinator that this member goes (status 0) or failed; `done` once, at most deadline_ms later. */
void member_leave(struct member *member, int status, const char *text, int64_t deadline_ms,
                  void (*done)(void *context), void *context);
/* Coordinator's clock minus ours, by the heartbeat with the shortest round trip. */
int64_t member_clock_offset_ns(const struct member *member);

#endif
