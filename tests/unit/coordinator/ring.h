/* Workers of a ring around a core, moved by hand, step by step: what they agree on is said here. */
#ifndef SHOAL_TESTS_UNIT_COORDINATOR_RING_H
#define SHOAL_TESTS_UNIT_COORDINATOR_RING_H

#include "lib/core_world.h"

enum { RING_WORKERS = 3 };

struct ring {
    struct world world;
    struct actor workers[RING_WORKERS + 1]; /* the last one joins when a test says so */
    int count;                              /* workers of the job */
    uint64_t total_steps;
    int64_t features; /* of one norm layer, 0: none */
    uint64_t t;       /* updates so far */
};

/* `yaml` is added to a job of three workers; `parallel` are the options of that section and `cluster` those of the other. */
void ring_open(struct ring *ring, const char *parallel, const char *cluster, const char *yaml);
void ring_close(struct ring *ring);
void ring_join(struct ring *ring);
/* JOB, REGISTER, START; returns worker 0's START. */
const struct world_reply *ring_start(struct ring *ring);
/* Everyone takes its next event, which must be of that type; returns worker 0's. */
const struct world_reply *ring_events(struct ring *ring, Shoal__Type type);

/* What all ranks agree on at `step` when nothing is wrong; the next update. */
struct actor_vote ring_vote(const struct ring *ring, uint64_t step);
/* REPORT of every worker, loss_sum 4 · loss, acknowledged. */
void ring_report(struct ring *ring, uint64_t step, const struct actor_vote *vote);
/* vote and report. */
void ring_step(struct ring *ring, uint64_t step);
/* Rank i's EVALUATED of one block; returns rank 0's answer when all are in. */
const Shoal__Evaluation *ring_evaluate(struct ring *ring, uint64_t step, const char *set, double correct);
/* Summaries of all and END. */
void ring_finish(struct ring *ring);

#endif
