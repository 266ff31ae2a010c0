/* Messages between two ends that share memory, without a copy on the reading side. Pure: no descriptors, no system calls.
 *
 * Each end makes one segment, which the other may only read. In it lie what the end says as a writer (a ring of descriptors
 * and the area that payloads are copied into) and what it says as a reader (how far it has read, which messages it has
 * released). A message is one block of the area, its parts at multiples of DUCT_ALIGN; it is held by the reader until
 * duct_release, in any order, and then the writer's to use again: slots name messages, generations tell one use of a slot
 * from the next.
 *
 * What the other end says is not trusted: a descriptor is copied before it is checked, every number is checked against this end's
 * own sizes, and what cannot be is STATUS_FORMAT, for ever. What is in the area may change while it is read. A liar spoils its own
 * messages and nothing else.
 *
 * One thread a duct, but for duct_release, which any thread may call. */
#ifndef SHOAL_NET_DUCT_H
#define SHOAL_NET_DUCT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/message.h"

enum { DUCT_SLOTS = 256, DUCT_ALIGN = 64, DUCT_PARTS = 1 + MESSAGE_FRAMES_MAX };

struct duct_descriptor {
    uint64_t offset; /* in the area, a multiple of DUCT_ALIGN */
    uint32_t slot, generation;
    uint32_t parts, unused;
    uint64_t bytes[DUCT_PARTS];
};

/* The beginning of a segment; the area follows. */
struct duct_head {
    _Atomic uint64_t published; /* messages written so far */
    uint8_t apart_1[120];
    _Atomic uint64_t taken;     /* messages of the other end read so far */
    _Atomic uint32_t asleep;    /* not 0: ring for a new message; the number of this sleep */
    _Atomic uint32_t starved;   /* not 0: ring when a message is released; the number of this want */
    uint8_t apart_2[112];
    _Atomic uint32_t released[DUCT_SLOTS]; /* by slot of the other end: the generation that was released last */
    struct duct_descriptor ring[DUCT_SLOTS];
};

struct duct_block { /* where a message lies, or nothing does */
    uint64_t offset, bytes;
};

struct duct {
    struct duct_head *mine;
    const struct duct_head *theirs;
    uint64_t mine_bytes, theirs_bytes; /* of the areas */
    /* as a writer */
    uint64_t published;
    uint32_t generation[DUCT_SLOTS];
    struct duct_block block[DUCT_SLOTS];
    uint16_t used[DUCT_SLOTS], idle[DUCT_SLOTS]; /* slots in use; slots to take */
    int used_count, idle_count;
    struct duct_block gaps[DUCT_SLOTS + 1]; /* free places of the area in ascending order */
    int gaps_count;
    uint32_t wants;
    int starving; /* the last write found no room */
    /* as a reader */
    uint64_t taken;
    uint32_t sleeps;
    /* the last sleep and want of the other end that were rung for */
    uint32_t rung_sleep;
    _Atomic uint32_t rung_want;
    int broken;
};

/* Of the segment that holds an area of so many bytes (rounded up to DUCT_ALIGN). */
size_t duct_segment_bytes(uint64_t area_bytes);
/* Both segments as zeroed memory of duct_segment_bytes(their area). */
void duct_init(struct duct *duct, void *mine, uint64_t mine_area_bytes, const void *theirs, uint64_t theirs_area_bytes);

/* 1: an empty area has room for parts (1..DUCT_PARTS) of these lengths. */
int duct_fits(const struct duct *duct, const struct message_part *parts, int count);
/* Copies the parts (1..DUCT_PARTS) into the area. STATUS_BUSY: no room now; the other end will ring when there may be
 * (duct_release says so to it). STATUS_RANGE: it does not fit into an empty area either. STATUS_FORMAT. */
int duct_write(struct duct *duct, const struct message_part *parts, int count);

struct duct_message {
    struct message_part parts[DUCT_PARTS]; /* in the other end's area */
    int count;
    uint32_t slot, generation;
};
/* The next message, held until it is released. STATUS_BUSY: none; STATUS_FORMAT: the other end lies. */
int duct_read(struct duct *duct, struct duct_message *message);
int duct_has_message(const struct duct *duct);
/* Any thread. 1: the other end waits for room and is to be rung. */
int duct_release(struct duct *duct, uint32_t slot, uint32_t generation);

/* After a write (or several): 1 when the other end sleeps and is to be rung. */
int duct_should_ring(struct duct *duct);
/* From now on this end wants to be rung for messages; 1: one has come meanwhile. */
int duct_sleep(struct duct *duct);
void duct_wake(struct duct *duct);

#endif
