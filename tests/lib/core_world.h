/* A coordinator core with a fake clock and fake actions, and members that play their part by themselves. Used by the
 * unit tests of the core and by tests/sim. One thread. */
#ifndef SHOAL_TESTS_CORE_WORLD_H
#define SHOAL_TESTS_CORE_WORLD_H

#include <stdint.h>

#include "cluster/keymap.h"
#include "cluster/param_table.h"
#include "config/job.h"
#include "server/coordinator/coordinator_core.h"

enum { WORLD_TEXT = 1 << 16, WORLD_MEMBERS = 16, WORLD_VERDICTS = 256 };

/* An answer as it came; closed by world_reply_close. */
struct world_reply {
    uint64_t request;
    Shoal__Envelope *envelope; /* NULL: not answered */
    struct buf *frame;
};

struct world_verdict {
    uint64_t step;
    int decision;
    float grad_scale;
    double lr, next_lr, loss;
    uint64_t t;
    int evaluate, last;
    float running[4];
};

struct actor;
/* Frames of a request; NULL: none. */
struct world_frames {
    const void *first, *second;
    size_t first_bytes, second_bytes;
};

struct world {
    /* Where requests go; NULL: into the core at once. Gives the request's number. */
    uint64_t (*send)(struct world *world, struct actor *actor, Shoal__Envelope *envelope, const struct world_frames *frames);
    struct coordinator_core *core;
    struct coordinator_ops ops;
    int64_t now_ns;
    struct job *job;
    struct world_reply *replies;
    int replies_count, replies_room;
    uint64_t requests;
    char said[WORLD_TEXT], logged[WORLD_TEXT], metrics[WORLD_TEXT];
    uint64_t randoms;
    int persisted, persist_fails, commit_fails;
    int commits;
    char committed[WORLD_TEXT]; /* "folder[ best] " a commit */
    struct manifest manifest;   /* of the last commit */
    char discarded[1024];
    struct manifest *restore; /* what restore finds; NULL: nothing */
    char restored[1024];      /* the path it was last asked for */
    int restore_status;
    int ended, end_status;
    char end_text[1024];
};

/* yaml is appended to a small synthetic job for `workers` and `servers` ("" for none). */
void world_open(struct world *world, const char *yaml, int once);
void world_close(struct world *world);
int world_submit(struct world *world, const char *directory, int resume);

/* One process of the cluster. */
struct actor {
    struct world *world;
    Shoal__Role role;
    int rank, wanted;
    uint64_t incarnation;
    int64_t pid;
    const char *core_type;
    uint64_t sequence; /* last event seen */
    uint64_t job, cluster_epoch, term;
    int64_t unbooked; /* payload that its summary's formula does not know of */
};
void actor_init(struct actor *actor, struct world *world, Shoal__Role role, int wanted);
/* An envelope of the actor's, to be filled further. */
void actor_envelope(const struct actor *actor, Shoal__Envelope *envelope, Shoal__Type type);
/* Sends and returns the request's number; frames are copied. */
uint64_t actor_send(struct actor *actor, Shoal__Envelope *envelope, const void *frame, size_t bytes,
                    const void *second, size_t second_bytes);
uint64_t actor_resend(struct actor *actor, Shoal__Envelope *envelope, uint64_t request, const void *frame,
                      size_t bytes, const void *second, size_t second_bytes);
/* The last answer to a request, or NULL. Owned by the world. */
const struct world_reply *world_answer(const struct world *world, uint64_t request);
int world_answers(const struct world *world, uint64_t request); /* how often it was answered */
int world_status(const struct world *world, uint64_t request);  /* of the answer; 1: none yet */
const char *world_text(const struct world *world, uint64_t request);

uint64_t actor_join(struct actor *actor); /* takes the rank when one was given */
uint64_t actor_await(struct actor *actor);
/* AWAIT answered at once, the event taken over (sequence, job, epoch). NULL: held. */
const struct world_reply *actor_event(struct actor *actor);
/* With a peer's address "tcp://h:pid", which ps does not look at. */
uint64_t actor_register(struct actor *actor, uint64_t total_steps, int64_t width, int64_t features);
uint64_t actor_simple(struct actor *actor, Shoal__Type type, uint64_t clock, int status, const char *text);
uint64_t actor_report(struct actor *actor, uint64_t step, double loss_sum, int64_t counted);
uint64_t actor_report_digest(struct actor *actor, uint64_t step, double loss_sum, const char *digest);
/* What a worker of a ring reports: what the ranks have agreed on. */
struct actor_vote {
    Shoal__Decision decision;
    float grad_scale;
    double lr, next_lr, loss, grad_norm;
    uint64_t t;
    int64_t nonfinite_run;
    int evaluate, last, stopped;
};
void actor_fill_vote(Shoal__Report *report, Shoal__Verdict *verdict, const struct actor_vote *vote);
uint64_t actor_ring_report(struct actor *actor, uint64_t step, const struct actor_vote *vote);
uint64_t actor_evaluated(struct actor *actor, uint64_t step, const char *set, const double *rows, int blocks);
uint64_t actor_snapshot_done(struct actor *actor, uint64_t step, int status, const char *text);
uint64_t actor_summary(struct actor *actor, const char *export_sha256);
uint64_t actor_gather(struct actor *actor, uint64_t step, uint32_t sequence, int merge, const double *values,
                      int count);
/* PREPARED of one range whose first run is given. */
uint64_t actor_prepared(struct actor *actor, uint64_t step, const struct keymap_range *range, double squares,
                        int finite);

/* The table that actor_register sends: one layer, w (width, 200). */
void world_table(struct param_table *table, int64_t width);

#endif
