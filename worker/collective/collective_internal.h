/* What a group and a plan are, and what a row of worker/collective does. The row `ring` is always open in a group
 * of more than one rank: agreement and errors pass over it. With `shared` on top it carries no payload.
 *
 * collective.c does for every row: counting operations, the fingerprint of each, the group's failure (the first
 * error is kept and every later operation returns it), copying the layout. Operations run on the caller's thread,
 * one at a time. */
#ifndef SHOAL_COLLECTIVE_COLLECTIVE_INTERNAL_H
#define SHOAL_COLLECTIVE_COLLECTIVE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/errbuf.h"
#include "worker/collective/collective.h"

enum collective_form {
    COLLECTIVE_FORM_REDUCE_SCATTER = 1,
    COLLECTIVE_FORM_ALL_GATHER = 2,
    COLLECTIVE_FORM_EXCHANGE = 3,
    COLLECTIVE_FORM_PLAN = 4, /* the exchange inside collective_plan_create */
    COLLECTIVE_FORM_OPEN = 5, /* the exchange inside collective_open */
    COLLECTIVE_FORM_BARRIER = 6,
    COLLECTIVE_FORM_POISON = 7,     /* not an operation: an error on its way round the ring */
    COLLECTIVE_FORM_ALL_REDUCE = 8, /* rows that do it in one go */
    COLLECTIVE_FORM_ROW = 9         /* an exchange of a row's own, by collective_agree */
};
const char *
collective_form_name(uint32_t form); /* "reduce_scatter"; "operation 17" is the caller's to write: NULL */

/* What every rank must be doing at the same time. Filled in by collective.c before a row is called. */
struct collective_call {
    uint32_t form;
    uint64_t sequence;    /* of this group, from 1; an all-reduce counts twice */
    uint64_t fingerprint; /* of form and layout (or blob sizes) */
    char text[160];       /* for people: reduce_scatter "layers 0-1" of 4 segments */
};

struct collective_member { /* owned copies of collective_peer's texts */
    char *address, *public_key, *socket, *host;
    uint64_t incarnation;
};

struct collective_counters {
    _Atomic int64_t reduce_scatter, all_gather, control;
};

struct collective_ops;
struct ring;

struct collective {
    const struct collective_ops *ops; /* who moves payload */
    struct collective_port *port;     /* borrowed */
    struct account *account;          /* borrowed */
    int rank, world;
    uint64_t job, cluster_epoch;
    enum collective_transport wanted;
    size_t blob_bytes_max;
    double timeout_s;
    struct collective_member *members; /* [world] */
    struct ring *ring;                 /* NULL when world is 1 */
    size_t *zeros;                     /* [world]: a barrier's offsets and sizes */
    int plans_count;                   /* that exist */
    void *row;                         /* the row's own, when ops is not the ring's */
    struct collective_call call;       /* the operation at hand */
    struct collective_counters sent, received;
    _Atomic int status; /* 0, or the failure that every later operation returns with `failure` */
    struct errbuf failure;
    _Atomic int cancelled;       /* 0, or the status of collective_cancel; rows that wait look at it */
    pthread_mutex_t cancel_lock; /* guards cancel_text */
    char cancel_text[256];
};

struct collective_plan {
    struct collective *group;
    struct collective_segment *segments; /* owned, [segments_count] */
    int segments_count;
    int *by_owner;    /* owned: numbers of segments, owner after owner, ascending within one */
    int *owner_first; /* owned, [world + 1]: where owner k's begin in by_owner */
    float *whole;
    float **own; /* owned, [segments_count]; own[i] is set for segments of this rank, `whole` + begin by default */
    char text[112];       /* for people: "layers 0-1" of 4 segments, 1200 elements */
    int apart;            /* 1: payload is booked as control */
    int lean;             /* 1: others' memory does not stay mapped */
    uint64_t fingerprint; /* of world and segments: the same on all ranks once the plan exists */
    void *row;            /* the row's own */
};

/* A row. Functions return 0 or a status with the errbuf filled in (not for a cancel: collective.c has its words). A
 * failed operation ends the group: collective.c tells the other ranks over the ring, and all end with one text.
 * When several ranks find something, the lowest rank's finding wins, and any finding wins over a STATUS_TIMEOUT; of
 * those the one that is furthest from who is late gives way. */
struct collective_ops {
    const char *name;
    enum collective_transport transport;
    /* After the ring is connected and the ranks want the same; may use collective_agree. Ranks must come to the
     * same answer: STATUS_PROTOCOL (the text says which rank could not map which) on all when one of them cannot,
     * then nothing is left behind and the group goes on over tcp, or is refused when shm is forced. */
    int (*open)(struct collective *group, struct errbuf *err);
    void (*close)(struct collective *group); /* after a success of open only */
    void (*wake)(struct collective *group);  /* any thread: a wait must look at group->cancelled */
    void *(*alloc)(struct collective *group, enum account_kind kind, size_t bytes); /* NULL: out of memory */
    void (*free)(struct collective *group, enum account_kind kind, void *memory, size_t bytes);
    int (*plan_open)(struct collective_plan *plan, struct errbuf *err); /* all ranks agree on the layout by now */
    void (*plan_close)(struct collective_plan *plan);
    int (*reduce_scatter)(struct collective_plan *plan, collective_sink_fn *sink, void *context,
                          struct errbuf *err);
    int (*all_gather)(struct collective_plan *plan, struct errbuf *err);
    int (*all_reduce)(struct collective_plan *plan, struct errbuf *err); /* NULL: one after the other */
    int64_t (*buffers_max)(const struct collective *group); /* of the row alone */
    /* group->call.form says what for; all[offsets[k]..] */
    int (*exchange)(struct collective *group, const struct collective_blobs *blobs, struct errbuf *err);
};
extern const struct collective_ops collective_ring;
extern const struct collective_ops collective_shared;

/* An exchange over the ring, whatever moves payload: for a row's open, alloc and plan_open. Every rank calls it in
 * the same order, with the same sizes. */
int collective_agree(struct collective *group, const struct collective_blobs *blobs, struct errbuf *err);

/* What collective.c has for plan.c. Fingerprints: neighbours compare them, so nothing in them depends on the machine. */
uint64_t collective_mix(uint64_t hash, uint64_t value);
int collective_refused(const struct collective *group, struct errbuf *err); /* the failure so far, or 0 */
/* Fills in group->call. STATUS_ABORTED: it was cancelled. */
int collective_begin(struct collective *group, uint32_t form, uint64_t fingerprint, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The group's failure: told to the others, kept, and returned from now on. */
int collective_fail(struct collective *group, int status, struct errbuf *err);
/* One blob of `bytes` from each rank, over the ring; this rank's is mine[]. all: [world * bytes]. */
int collective_gather(struct collective *group, uint32_t form, const void *mine, void *all, size_t bytes,
                      struct errbuf *err);

/* For a row that waits elsewhere: 0, or the status and text that another rank told over the ring (or the cancel's).
 * Cheap enough for every few milliseconds of a wait. */
int collective_told(struct collective *group, struct errbuf *err);

/* What the default sink does: the sum of the sources to own[segment], which may lie in `whole`. */
void collective_sum(struct collective_plan *plan, int segment, const float *const *sources, int sources_count);

/* The listening end of the local socket: abstract AF_UNIX, SOCK_SEQPACKET, non-blocking, close-on-exec.
 * members[k].socket is the name (without the leading zero byte) under which rank k listens. */
int collective_port_unix(const struct collective_port *port);
const struct role_host *collective_port_host(const struct collective_port *port);

#endif
