/* A coordinator's core and members around it, between them a network that loses, doubles, delays and reorders requests and
 * answers, from a seed; a request is sent again until its answer has come. One thread. */
#ifndef SHOAL_TESTS_SIM_LOSSY_H
#define SHOAL_TESTS_SIM_LOSSY_H

#include "lib/core_world.h"

enum { LOSSY_MEMBERS = 12, LOSSY_CALLS = 64, LOSSY_FLIGHTS = 4096 };

/* A request that waits for its answer. */
struct lossy_call {
    int used;
    uint64_t request;
    Shoal__Type type;
    uint8_t *envelope;
    size_t envelope_bytes;
    double frame[64];
    size_t frame_bytes;
    uint8_t flags[64];
    size_t flags_bytes;
    int64_t resend_ns;
};

struct lossy_member {
    struct actor actor;
    struct lossy_call calls[LOSSY_CALLS];
};

struct lossy_flight {
    int member, call;
    uint64_t request;
    int64_t at_ns;
};

struct lossy {
    struct world world;
    struct lossy_member members[LOSSY_MEMBERS];
    int count;
    struct lossy_flight flights[LOSSY_FLIGHTS];
    int flights_count, replies_seen;
    uint64_t random;
    int faulty;
    /* What a member does with an answer to what it asked; 1: it is no answer yet, the request is sent again. */
    int (*act)(struct lossy *net, int member, Shoal__Type asked, const struct world_reply *reply);
};

/* Frames of a request: doubles, then bytes; 0 of them: none. */
struct lossy_frames {
    const double *values;
    int values_count;
    const uint8_t *flags;
    int flags_count;
};

/* world is open; `faulty` 0: every message arrives once, in order of sending. */
void lossy_begin(struct lossy *net, uint64_t seed, int faulty);
void lossy_close(struct lossy *net); /* the world, too */
uint32_t lossy_draw(struct lossy *net, uint32_t below);
void lossy_ask(struct lossy *net, int member, Shoal__Envelope *envelope, const struct lossy_frames *frames);
void lossy_forget(struct lossy *net, int member); /* what it has asked is not sent again */
/* One message arrives, or 10 ms go by; then answers are taken. */
void lossy_turn(struct lossy *net);

#endif
