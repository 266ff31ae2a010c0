/* What the rows of a ring (ddp, zero1, zero2, zero3) share: buckets of gradients on their way to the owners, the ballot, the
 * own pieces and their update. A row is which of these functions fill which hooks; how gradients and parameters are held
 * is a matter of two pairs of functions each:
 *
 *   gradients: peer_grads_whole (every layer has its place; the sums come into it) or
 *              peer_grads_parts (two buckets' room; the sums come into packed own pieces)
 *   parameters: peer_values_whole (flat N) or gather.h (own parts, layers are gathered for use)
 *
 * Hooks run on the trainer's thread, collectives on the comm thread. */
#ifndef SHOAL_STRATEGY_PEER_H
#define SHOAL_STRATEGY_PEER_H

#include "worker/collective/collective.h"
#include "worker/strategy/ballot.h"
#include "worker/strategy/bucket.h"
#include "worker/strategy/comm.h"
#include "worker/strategy/owned.h"
#include "worker/strategy/strategy.h"

struct gather;
struct peer;

enum { PEER_SLOTS = 2 };

struct peer_bucket {
    struct comm_op reduce; /* gradients to their owners, and what a row adds to that */
    struct comm_op values; /* updated parameters to everybody */
    struct peer *peer;
    struct bucket bucket;
    int index;
    float *whole; /* gradients of its layers, end to end */
    struct bucket_segment *segments;
    float **sum_at; /* by segment: where an own one's sum goes */
    int segments_count;
    struct collective_plan *grads, *weights;
    int waiting; /* layers of this step whose backward is not done */
    int piece_first, piece_end;
    char name[32];
};

struct peer {
    struct strategy *s;
    struct comm *comm;
    struct owned *owned;
    struct ballot ballot;
    struct comm_op cast, norms, combine;
    struct collective_blobs combined; /* every rank's doubles, while BatchNorm's statistics are global */
    size_t *combine_offsets, *combine_sizes;
    struct peer_bucket *buckets; /* by falling layers */
    int buckets_count;
    int *bucket_of; /* by layer, -1: none */
    int owns_all;   /* everybody owns everything */
    float *flat;    /* parameters, N; NULL with gather */
    float *slots[PEER_SLOTS];
    float *sums;    /* own gradient sums, packed; NULL with whole gradients */
    int64_t slot_elements, sums_elements;
    struct gather *gather;
    struct owned_step eager;           /* the rule of the step at hand */
    double *trust_norms, *ratios;      /* lamb */
    int64_t applied_here;              /* applied steps of this run */
};

static inline struct peer *peer_of(const struct strategy *s)
{
    return s->own;
}

/* --- set-up, in this order; each returns a status. `rank`: whose pieces are owned here, -1: all */
int peer_open(struct strategy *s, int rank, struct errbuf *err);
int peer_values_whole(struct peer *peer, struct errbuf *err);
int peer_grads_whole(struct peer *peer, struct errbuf *err);
/* Slots, or whole where `accumulate` needs all gradients until the last micro-step. */
int peer_grads_parts(struct peer *peer, struct errbuf *err);
/* Plans for gradients (and, where W is whole, for parameters by bucket). reduce: what a bucket's op does. */
int peer_plan(struct peer *peer, int (*reduce)(struct comm_op *, struct errbuf *), struct errbuf *err);
/* First values into the whole parameters: rank 0's, or the snapshot's. */
int peer_first_values(struct peer *peer, const struct strategy_source *first, struct errbuf *err);
/* All of that, for rows whose parameters are whole. */
struct peer_setup {
    int rank; /* as in peer_open */
    int (*grads)(struct peer *, struct errbuf *);
    int (*reduce)(struct comm_op *, struct errbuf *);
};
int peer_start_whole(struct strategy *s, const struct peer_setup *setup, const struct strategy_source *first,
                     struct errbuf *err);
void peer_close(struct strategy *s);

/* A plan for `segments` on `whole`, whose element of layer l's element 0 is at base[l - low]. own: by segment, NULL: in
 * whole. */
struct peer_layout {
    const struct bucket_segment *segments;
    int count, low;
    const int64_t *base;
    float *whole;
    float *const *own;
    const char *name;
    int lean, apart; /* as in collective_layout */
};
int peer_make_plan(struct peer *peer, const struct peer_layout *layout, struct collective_plan **plan,
                   struct errbuf *err);
/* Rank 0's values of one layer to everybody; w has the layer's n floats and comes from collective_alloc. */
int peer_broadcast_layer(struct peer *peer, int layer, float *w, const struct strategy_source *first,
                         struct errbuf *err);

/* Whether zero3 gives other ranks' pages back after reading them: where parameters are many, as page faults cost more than a
 * small model's exchange. */
int peer_is_lean(const struct peer *peer);
/* A bucket's layers find their gradients in its `whole`. */
void peer_place_gradients(struct peer *peer, const struct peer_bucket *bucket);

/* --- what a bucket's op does */
int peer_reduce(struct comm_op *op, struct errbuf *err);            /* to the owners */
int peer_reduce_and_return(struct comm_op *op, struct errbuf *err); /* ddp: and back to everybody */

/* --- hooks */
int peer_step_begin(struct strategy *s, int64_t step);
int peer_acquire_whole(struct strategy *s, int layer, enum strategy_pass pass, struct errbuf *err);
int peer_acquire_room(struct strategy *s, int layer, struct errbuf *err); /* slots: room for a layer's gradients */
int peer_acquire_slots(struct strategy *s, int layer, enum strategy_pass pass, struct errbuf *err);
void peer_release(struct strategy *s, int layer, enum strategy_pass pass);
int peer_grads_ready(struct strategy *s, int layer, double weight);
int peer_step_sent(struct strategy *s, struct errbuf *err);
int peer_decide(struct strategy *s, const struct ballot_share *mine, const double *statistics,
                struct strategy_decision *decision, struct errbuf *err);
int peer_finish_everything(struct strategy *s, const Shoal__Verdict *verdict, struct errbuf *err); /* ddp */
int peer_finish_parts(struct strategy *s, const Shoal__Verdict *verdict, struct errbuf *err);
int peer_combine(struct strategy *s, int merge, double *values, int64_t count, struct errbuf *err); /* reduce */
int peer_settle(struct strategy *s, struct errbuf *err);
int peer_save(struct strategy *s, const char *path, char sha256[65], uint64_t *bytes, struct errbuf *err);

/* --- closed forms */
void peer_books(const struct strategy *s, struct strategy_books *books); /* what all rows have in common */
int64_t peer_trainable_layers_bytes(const struct strategy *s);           /* gradients held whole */
int64_t peer_scatter_bytes(const struct strategy *s);                    /* sent in one reduce-scatter of all buckets */
int64_t peer_gather_bytes(const struct strategy *s);                     /* sent in one all-gather of all buckets */

#endif
