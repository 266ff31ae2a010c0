/* How a worker's gradients reach their owners and parameters come back (parallel.data): one row a mode. The trainer calls
 * the hooks in this order, on its own thread; what a hook starts goes on under compute.
 *
 *   start -> [ step_begin -> (layer_acquire, layer_release)* forward -> (layer_acquire, grads_ready, layer_release)*
 *              backward -> step_sent -> verdict -> step_finish ]* -> finish
 *
 * w and g are flat vectors in the table's order; a strategy says through layer_w and layer_g where a layer's slice is. */
#ifndef SHOAL_STRATEGY_STRATEGY_H
#define SHOAL_STRATEGY_STRATEGY_H

#include <stdint.h>

#include "cluster/keymap.h"
#include "envelope.pb-c.h"

struct account;
struct client;
struct errbuf;
struct job;
struct pool;
struct strategy;

struct strategy_books { /* what the worker should hold and have sent, by the closed forms; bytes */
    int64_t parameters, gradients, optimizer;
    int64_t push, init, pull;
};

struct strategy_ops {
    const char *name, *help;
    /* Allocates, agrees on the first values. init: this rank's first values (flat), NULL where they come from elsewhere. */
    int (*start)(struct strategy *, const float *init, struct errbuf *);
    int (*step_begin)(struct strategy *, int64_t step);
    int (*layer_acquire)(struct strategy *, int layer, struct errbuf *); /* parameters present, before use */
    void (*layer_release)(struct strategy *, int layer);                 /* may be dropped, after use */
    int (*grads_ready)(struct strategy *, int layer, double weight);     /* last micro-batch's backward done */
    /* Everything of the step is on its way; may ask for the next parameters already. */
    int (*step_sent)(struct strategy *, struct errbuf *);
    int (*step_finish)(struct strategy *, const Shoal__Verdict *, struct errbuf *);
    /* All parameters of the last finished step are in layer_w. */
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
    struct account *account;
    struct pool *pool;
    int rank, world;
    int64_t first_step, step, applied; /* applied: optimizer steps before first_step */
    int64_t steps_done;
    const char *const *snapshot_paths; /* of the snapshot to resume from, for rows where workers own state */
    int snapshot_paths_count;
    float *w; /* N */
    float **g; /* by layer; NULL for a layer without trainable tensors */
    void *own; /* the row's */
};

/* The row of enum job_parallel_data. */
const struct strategy_ops *strategy_at(int kind);
static inline float *strategy_layer_w(const struct strategy *strategy, int layer)
{
    return strategy->w + strategy->table->layers[layer].offset;
}

#endif
