/* Three workers and two servers around a core, moved by hand, step by step. */
#ifndef SHOAL_TESTS_UNIT_COORDINATOR_CLUSTER_H
#define SHOAL_TESTS_UNIT_COORDINATOR_CLUSTER_H

#include "lib/core_world.h"

enum { CLUSTER_WORKERS = 3, CLUSTER_SERVERS = 2 };

struct cluster {
    struct world world;
    struct actor workers[CLUSTER_WORKERS], servers[CLUSTER_SERVERS];
    struct param_table table;
    struct keymap keymap;
    uint64_t total_steps;
    int64_t features; /* of one norm layer, 0: none */
};

/* `yaml` is added to the job; cluster.workers 3 and servers 2 are set here unless it says "cluster:". */
void cluster_open(struct cluster *cluster, const char *yaml);
void cluster_close(struct cluster *cluster);
void cluster_join(struct cluster *cluster);
/* JOB, REGISTER, READY, START to all. */
void cluster_start(struct cluster *cluster);
/* PREPARED of every range and REPORT of every worker: loss_sum 4 · loss, 4 samples each. */
void cluster_feed(struct cluster *cluster, uint64_t step, double loss, int finite);
/* Everyone takes its next event, which must be of that type; returns worker 0's. */
const struct world_reply *cluster_events(struct cluster *cluster, Shoal__Type type, int workers, int servers);
/* feed + VERDICT to all; returns it. */
const Shoal__Verdict *cluster_step(struct cluster *cluster, uint64_t step, double loss);
/* Summaries of all and END. */
void cluster_finish(struct cluster *cluster);

#endif
