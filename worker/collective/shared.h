/* The row `shared`: all ranks on one host, payload in memory that all of them map, nothing copied but from where it is to where
 * it belongs. Private to the row.
 *
 * Every rank has one control segment that only it writes (base/segment.h seals it against others) and that all others read:
 *
 *   posted    (sequence, 0): this rank has come to that operation and lets others read its memory for it
 *   have[k]   (sequence, n): the first n pieces of owner k are final in this rank's memory: its own where they live, others'
 *             in `whole`. A piece is a segment, in an all-reduce at most SHARED_PIECE_MAX elements of one
 *   took[k]   bytes this rank took from rank k, by form: k's books are read from here
 *   note      what this rank waits for, so that posting makes no system call when nobody does (base/doorbell.h)
 *   blobs     what it says in an exchange, two in turn
 *   images    small vectors, two in turn: see below
 *
 * Positions only grow, and a position of a later operation is beyond every one of an earlier, so nothing is ever reset. The
 * two-fold slots (text, fingerprint, blobs, images) may be written again at sequence s + 2: to come there a rank needs everybody at
 * s + 1, who have left s.
 *
 *   reduce-scatter: owner k reads its segments of everybody once all have posted; have[k] tells that it has taken them
 *   all-gather:     rank r takes every piece from r-1, as soon as have[k] of r-1 says that it is there
 *   all-reduce:     both in one: a piece that r-1 holds final has been taken by its owner, so r may write over its own
 *
 * A rank leaves when nobody reads its memory any more: the owners have taken its contributions, r+1 has taken everything. For
 * a vector of at most SHARED_SMALL_MAX elements that last wait would cost as much as the rest; it is worked on in an image of
 * it in the control segment, and a rank leaves as soon as it has its own. (What it sent is booked then by what it offered.)
 * What stands in another's control segment is copied before it is checked, and believed only within bounds. */
#ifndef SHOAL_COLLECTIVE_SHARED_H
#define SHOAL_COLLECTIVE_SHARED_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/doorbell.h"
#include "base/segment.h"
#include "worker/collective/collective_internal.h"

enum {
    SHARED_WORLD_MAX = 1024,
    SHARED_PIECE_MAX = 1 << 16, /* elements: 256 KiB, so that a sum is still in a cache when the next rank takes it */
    SHARED_SMALL_MAX = 1 << 13, /* elements: 32 KiB */
    SHARED_COUNT_BITS = 24,
    SHARED_SEQUENCE_BITS = 40,
};

enum shared_kind { SHARED_REDUCE_SCATTER, SHARED_ALL_GATHER, SHARED_CONTROL, SHARED_KINDS };

#define SHARED_MAGIC 0x314d48534c414f48ull
struct shared_hello { /* on connecting, from both sides, with the control segment's descriptor */
    uint64_t magic, job, cluster_epoch, from_incarnation, to_incarnation, control_bytes;
    int32_t world, from, to, padding;
};

struct shared_slot { /* for people, when calls differ */
    uint64_t fingerprint;
    char text[160];
};

struct shared_control {
    struct shared_hello head;                  /* `to` is -1: whose memory this is */
    alignas(64) _Atomic uint64_t posted;
    doorbell bell;
    _Atomic uint32_t closed;                   /* 1: left in order, after what it has posted */
    _Atomic uint64_t fingerprint[2];
    alignas(64) _Atomic uint64_t note;
    alignas(64) struct shared_slot slots[2];
    alignas(64) _Atomic uint64_t have[];       /* [world], then as shared_layout says */
};

/* Offsets in a control segment. */
struct shared_layout {
    size_t took;   /* int64_t [world][SHARED_KINDS] */
    size_t images; /* float [2][SHARED_SMALL_MAX] */
    size_t blobs;  /* [2][blob_bytes_max] */
    size_t bytes;  /* in all */
};

struct shared_member {
    struct segment control; /* own: written here */
    const struct shared_control *seen;
    const _Atomic uint64_t *have;
    const _Atomic int64_t (*took)[SHARED_KINDS];
    const float *images;
    const uint8_t *blobs;
    int sock;  /* -1 for this rank */
};

/* What one collective_alloc made: own memory and the others'. */
struct shared_block {
    struct segment own;
    struct segment *others; /* [world], that of this rank empty */
    uint64_t number;
    enum account_kind kind;
    struct shared_block *next;
};

struct shared {
    struct collective *group;
    int rank, world, left, right;
    struct shared_member *members; /* [world] */
    struct shared_control *control; /* this rank's */
    _Atomic uint64_t *have;
    _Atomic int64_t (*took)[SHARED_KINDS];
    float *images;
    uint8_t *blobs;
    uint64_t sequence;
    int looks, spins; /* before a wait sleeps */
    int64_t timeout_ns;
    int64_t offered[SHARED_KINDS];     /* bytes that others take of this rank's images */
    int64_t from_images[SHARED_KINDS]; /* bytes that it took of theirs */
    struct { int64_t sent, received; } apart; /* of SHARED_CONTROL, what is in the books already */
    struct shared_block *blocks;
    uint64_t blocks_made;
    size_t plan_bytes_max; /* of what ranks told each other of one plan */
};

/* A place in the pieces of one owner. */
struct shared_cursor {
    int64_t done;   /* pieces */
    int at;         /* in by_owner */
    int32_t offset; /* elements into that segment */
};

/* Memory an operation works on: the vectors themselves, or images of them. */
struct shared_view {
    const float **wholes;          /* [world]: of each rank as mapped here */
    const float *const *left_own;  /* [segments of the left neighbour]: where they live; NULL: in its `whole` */
    float *whole;                  /* this rank's */
};

struct shared_plan {
    int small;                     /* 1: images are used */
    int direct;                    /* 1: of an image's pieces each is taken from its owner, see shared_source */
    struct shared_view vectors, images[2];
    const float **left_own;
    int64_t *pieces;               /* [world] of an all-reduce */
    int64_t *bytes;                /* [world] that rank k owns */
    int64_t bytes_all;
    struct shared_cursor *cursors; /* [world], while an operation runs */
    const float **sources;         /* [world] */
    const float **wholes;          /* [3][world]: of the views */
};

static inline uint64_t shared_position(uint64_t sequence, int64_t count)
{
    return sequence << SHARED_COUNT_BITS | (uint64_t)count;
}

/* --- shared_wait.c --- */

/* Announces the operation in group->call. */
void shared_begin(struct shared *row);
/* have[index] of this rank becomes (this operation, count); wakes who waits for it. */
void shared_post(struct shared *row, int index, int64_t count);
/* Until every other rank has come to this operation. STATUS_SHAPE when one has come to another one. */
int shared_await_all(struct shared *row, struct errbuf *err);
int shared_await_begin(struct shared *row, int peer, struct errbuf *err);
/* Until have[index] of `peer` is (this operation, count) or beyond. */
int shared_await(struct shared *row, int peer, int index, int64_t count, struct errbuf *err);
int shared_has(const struct shared *row, int peer, int index, int64_t count); /* without waiting */

/* --- shared_link.c: connections, segments --- */

int shared_open(struct collective *group, struct errbuf *err);
void shared_close(struct collective *group);
int64_t shared_buffers_max(const struct collective *group);
void *shared_alloc(struct collective *group, enum account_kind kind, size_t bytes);
void shared_free(struct collective *group, enum account_kind kind, void *memory, size_t bytes);
/* Where `bytes` at `memory` lie: the block's number and the offset in it. NULL: not in shared memory. */
const struct shared_block *shared_block_of(const struct shared *row, const void *memory, size_t bytes, size_t *offset);
/* The same of another rank, as mapped here; NULL: there is no such place. */
const void *shared_place(const struct shared *row, int rank, uint64_t number, uint64_t offset, size_t bytes);

/* --- shared_plan.c --- */

int shared_plan_open(struct collective_plan *plan, struct errbuf *err);
void shared_plan_close(struct collective_plan *plan);

#endif
