/* One pass round the ring, without sockets or time: which message a rank sends next and from where, which one it
 * must get next, and what is done with it. The transport (ring.c, or a test's simulated network) moves the bytes.
 *
 * Each message is one segment (or blob). A pass has P-1 rounds; in round i rank r sends what belongs to owner r - i
 * - 1 (reduce-scatter) or r - i (all-gather, exchange), mod P: in round 0 from its own memory, later the very
 * buffer that came in round i-1, in a reduce-scatter after its own contribution was added into it. So a
 * reduce-scatter's sum has the canonical order (cluster/canonical.h) by construction, and its last buffer and the
 * owner's own contribution are the sink's two sources.
 *
 * The rounds are interleaved so that a bounded number of arrivals is held whatever the vector's length: the w-th
 * segment of an owner goes in slot w + RING_LAG * i of its round i, slots ascending, later rounds first within a
 * slot. A rank that holds ring_pass_held_max() buffers takes no more until it has sent one. Then the rank that is
 * least far can always move, even if queues between neighbours hold one message only: what it waits for was sent
 * before by its left neighbour, which is not behind it, and its right neighbour, not behind it either, holds at
 * most what was sent in the last RING_LAG + 1 slots.
 *
 * Arrivals come in the order in which the left neighbour sends, so that both sides know what comes next. Embedded;
 * one thread; borrows every pointer; allocates nothing. */
#ifndef SHOAL_COLLECTIVE_RING_PASS_H
#define SHOAL_COLLECTIVE_RING_PASS_H

#include <stddef.h>
#include <stdint.h>

#include "worker/collective/collective.h"

/* Slots between a segment's rounds: 1 would make every send wait for the arrival just before it. */
enum { RING_LAG = 2 };

enum ring_kind { RING_REDUCE_SCATTER, RING_ALL_GATHER, RING_EXCHANGE };

struct ring_task {
    enum ring_kind kind;
    int rank, world;
    /* The first two kinds: */
    const struct collective_segment *segments;
    const int *by_owner;    /* numbers of segments, owner after owner, ascending within one */
    const int *owner_first; /* [world + 1]: where owner k's begin in by_owner */
    float *whole;
    float *const *own; /* places of this rank's own segments, by number of segment */
    collective_sink_fn *sink;
    void *context;
    /* exchange: blob k is "segment" k of owner k */
    const struct collective_blobs *blobs;
};

/* Walks through what one rank sends in a pass, in order. */
struct ring_cursor {
    int rank;
    int64_t slot, slots; /* slots: one beyond the last that has a message */
    int round;           /* of the message at hand */
    int segment;         /* the message at hand; -1: none is left */
};

struct ring_pass {
    struct ring_task task;
    struct ring_cursor sends, arrivals; /* of this rank; of its left neighbour */
    int held;                           /* arrived, to be sent on, not sent yet */
};

enum ring_next {
    RING_DONE,
    RING_WAIT, /* send: for an arrival; arrival: for a send, since enough is held */
    RING_OWN,  /* send: from `data`, this rank's memory */
    RING_HELD, /* send: the oldest buffer that is held */
    RING_TAKE  /* arrival */
};
struct ring_move {
    int segment;
    size_t bytes;
    const void *data; /* RING_OWN */
};

int ring_pass_held_max(int world); /* at least 1 */

/* Does what needs no neighbour: an all-gather's own segments go to `whole`; alone in the world the sink gets its
 * one source. */
void ring_pass_begin(struct ring_pass *pass, const struct ring_task *task);
enum ring_next ring_pass_next_send(const struct ring_pass *pass, struct ring_move *move);
void ring_pass_sent(struct ring_pass *pass); /* what next_send said has left this rank's hands */
enum ring_next ring_pass_next_arrival(const struct ring_pass *pass, struct ring_move *move);
/* What next_arrival said is in `data` (aligned as its elements). Adds into it, copies it or gives it to the sink.
 * Returns 1 when the buffer must be held and sent on, 0 when it is done with. */
int ring_pass_arrived(struct ring_pass *pass, void *data);
int ring_pass_done(const struct ring_pass *pass);

#endif
