/* Ranks in one thread that run collectives on the real ring_pass and ring_wire over a simulated network: links
 * between neighbours keep their order, hold `queue` messages and deliver each after a delay of its own, ranks take
 * turns by chance, and ranks die, connections are cut. Everything follows from the seed. */
#ifndef SHOAL_TESTS_RING_WORLD_H
#define SHOAL_TESTS_RING_WORLD_H

#include <stdint.h>

#include "worker/collective/ring_pass.h"
#include "worker/collective/ring_wire.h"

enum { RING_WORLD_MAX = 8, RING_LINK_MAX = 64, RING_OPS_MAX = 12, RING_LAYOUTS = 3 };

struct ring_flight {
    uint8_t envelope[RING_ENVELOPE_MAX];
    size_t envelope_bytes;
    float *data;      /* owned; NULL while the sender's own memory is lent */
    const void *lent; /* must stay as it is until the flight ends */
    size_t bytes;
    int64_t at; /* not to be taken before */
};

struct ring_link { /* from a rank to its right neighbour */
    struct ring_flight flights[RING_LINK_MAX];
    int first, count;
};

struct ring_vector {
    int64_t n;
    struct collective_segment *segments;
    int count, *by_owner, *owner_first;
    uint64_t fingerprint;
    int own_apart; /* 1: own segments have places outside `whole` */
};

struct ring_op {
    enum ring_kind kind;
    int layout;
};

enum ring_trouble { RING_FINE, RING_TOLD_LOST, RING_TOLD_OTHER };

struct ring_node {
    int alive, op; /* op: number of the one that runs; ops_count: through */
    int asleep_until;
    struct ring_pass pass;
    float *held[RING_LINK_MAX];
    int held_first, held_most;
    float *whole, **own;
    struct collective_blobs blobs;
    size_t offsets[RING_WORLD_MAX], sizes[RING_WORLD_MAX];
    uint8_t all[RING_WORLD_MAX * 64];
    struct ring_op ops[RING_OPS_MAX];
    enum ring_trouble trouble;
    int strangers;          /* messages of an earlier epoch, dropped */
    int64_t sent[3], taken; /* payload bytes by kind; sums that the sink was given */
    const char *wrong;      /* what was found wrong with a result */
};

struct ring_world {
    int world, ops_count, queue;
    uint64_t epoch, random;
    int64_t now;
    struct ring_op ops[RING_OPS_MAX];
    struct ring_vector vectors[RING_LAYOUTS];
    struct ring_node nodes[RING_WORLD_MAX];
    struct ring_link links[RING_WORLD_MAX];
};

void ring_world_open(struct ring_world *world, uint64_t seed, int ranks, int queue);
void ring_world_close(struct ring_world *world);
uint32_t ring_world_draw(struct ring_world *world, uint32_t below);

/* A vector of n elements in segments of at most `most` (cut by chance when `odd`), owned canonically or,
 * `one_owner` >= 0, all by one rank. */
struct ring_cut {
    int64_t n;
    int32_t most;
    int odd, one_owner, own_apart;
};
void ring_world_vector(struct ring_world *world, int layout, const struct ring_cut *cut);

void ring_world_begin(struct ring_world *world); /* ops and vectors are set */
/* One turn of somebody. 0 when nobody can do anything any more. */
int ring_world_turn(struct ring_world *world);
int ring_world_all_through(const struct ring_world *world);
/* The rank does nothing any more. */
void ring_world_kill(struct ring_world *world, int rank);
/* The last `count` messages on their way from `rank` are lost, as when a connection is cut. */
void ring_world_cut(struct ring_world *world, int rank, int count);
/* The same ranks but the dead ones, renumbered, under the next epoch; what is on its way still arrives. */
void ring_world_reform(struct ring_world *world);

#endif
