/* How a worker's gradients reach their owners and parameters come back (parallel.data): one row a mode. The trainer calls
 * the hooks in this order, on its own thread; what a hook starts goes on under compute.
 *
 *   start -> [ step_begin -> (layer_acquire, layer_release)* forward -> (layer_acquire, grads_ready, layer_release)*
 *              backward -> step_sent -> verdict -> step_finish ]* -> finish
 *
 * With `accumulate` the two passes repeat, grads_ready comes in the last one only. Evaluation and export go through the
 * layers with layer_acquire and layer_release as a forward does, on every rank alike.
 *
 * A strategy says through layer_w and g where a layer's parameters and gradients are; both may move and vanish between
 * release and acquire. */
#ifndef SHOAL_STRATEGY_STRATEGY_H
#define SHOAL_STRATEGY_STRATEGY_H

#include <stdint.h>

#include "cluster/keymap.h"
#include "envelope.pb-c.h"

struct account;
struct ballot;
struct ballot_share;
struct client;
struct collective;
struct errbuf;
struct job;
struct pool;
struct strategy;
struct trace;

enum strategy_pass { STRATEGY_FORWARD, STRATEGY_BACKWARD, STRATEGY_EVALUATE };

/* What the worker should hold and have sent and received, by the closed forms; bytes. */
struct strategy_bytes {
    int64_t push, pull, reduce_scatter, all_gather;
};
struct strategy_books {
    int64_t parameters, gradients, optimizer;
    int64_t init; /* first values sent */
    int64_t buffers_max; /* stated cap of exchange buffers; 0: none */
    struct strategy_bytes sent, received;
};

/* First values by layer; fills `w` with the layer's n floats. */
struct strategy_source {
    int (*layer)(void *context, int layer, float *w, struct errbuf *err);
    void *context;
};

/* What the ranks of a ring agreed on. */
struct strategy_decision {
    Shoal__Verdict verdict;
    double grad_norm;
    int64_t nonfinite_run;
    int nonfinite_rank;          /* whose contribution it was; -1: not known */
    int stop_job;                /* not finite, and the job says stop */
    int stop_asked;              /* somebody voted for this step to be the last */
    const struct ballot *ballot; /* everybody's shares and statistics; until step_finish */
};

struct strategy_ops {
    const char *name, *help;
    /* Allocates, agrees on the first values. first: this rank's, NULL where they come from elsewhere. */
    int (*start)(struct strategy *, const struct strategy_source *first, struct errbuf *);
    int (*step_begin)(struct strategy *, int64_t step);
    /* Parameters present, before use; in backward also room for the gradients. */
    int (*layer_acquire)(struct strategy *, int layer, enum strategy_pass pass, struct errbuf *);
    void (*layer_release)(struct strategy *, int layer, enum strategy_pass pass); /* may be dropped, after use */
    int (*grads_ready)(struct strategy *, int layer, double weight);              /* last micro-batch's backward done */
    /* Everything of the step is on its way; may ask for the next parameters already. */
    int (*step_sent)(struct strategy *, struct errbuf *);
    /* The ranks' own verdict from their ballots; NULL: it comes from the coordinator. */
    int (*decide)(struct strategy *, const struct ballot_share *mine, const double *statistics,
                  struct strategy_decision *, struct errbuf *);
    int (*step_finish)(struct strategy *, const Shoal__Verdict *, struct errbuf *);
    /* Combines doubles over the ranks in order of rank, during forward or backward; every rank calls it in the same places.
     * merge: Chan's merge of (n, mean[f], M2[f]), else a sum. NULL: through the coordinator. */
    int (*reduce)(struct strategy *, int merge, double *values, int64_t count, struct errbuf *);
    /* All parameters of the last finished step are where layer_acquire finds them without exchange, or will be by it. */
    int (*settle)(struct strategy *, struct errbuf *);
    /* Writes a snapshot file of what this rank owns; NULL where workers own nothing. */
    int (*save)(struct strategy *, const char *path, char sha256[65], uint64_t *bytes, struct errbuf *);
    void (*books)(const struct strategy *, struct strategy_books *);
    void (*close)(struct strategy *);
};

struct strategy {
    const struct strategy_ops *ops;
    const struct job *job;
    const struct param_table *table;
    const struct keymap *map;
    struct client *client;
    struct collective *group; /* rings */
    struct account *account;
    struct pool *pool;
    struct trace *trace;
    int rank, world;
    uint64_t cluster_epoch;
    int64_t first_step, step, applied; /* applied: optimizer steps so far, before the step at hand */
    int64_t total_steps, steps_done;
    const char *const *snapshot_paths; /* of the snapshot to resume from, for rows where workers own state */
    int snapshot_paths_count;
    int64_t statistics; /* BatchNorm doubles of a rank and step */
    double next_lr;     /* of the next applied step */
    float **w; /* by layer; NULL while it is not here */
    float **g; /* by layer; NULL for a layer without trainable tensors, or while there is no room for it */
    void *own; /* the row's */
};

/* The row of enum job_parallel_data. */
const struct strategy_ops *strategy_at(int kind);
static inline float *strategy_layer_w(const struct strategy *strategy, int layer)
{
    return strategy->w[layer];
}

/* strategy_common.c: what rows share. */
/* The arrays w and g, all NULL. */
int strategy_alloc_layers(struct strategy *strategy, struct errbuf *err);

#endif
