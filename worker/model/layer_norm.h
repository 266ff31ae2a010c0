/* BatchNorm inside a layer: normalises (rows, features) by the statistics of the micro-batch, of all data ranks'
 * micro-batches (reducer given), or by the running ones (evaluation). Ioffe and Szegedy 2015. Running statistics
 * change only by norm_stats_commit, never here. */
#ifndef SHOAL_MODEL_LAYER_NORM_H
#define SHOAL_MODEL_LAYER_NORM_H

#include <stdint.h>

#include "worker/model/layer.h"

struct layer_norm {
    int64_t features;
    char name[64];       /* "layers.0.norm" */
    float *running;      /* mean[f], variance[f]: a slice of the model's buffers, set once they exist */
    double *local;       /* n, mean[f], M2[f] of the last micro-batch here */
    double *group;       /* the same of the normalisation group */
    double *mean, *rstd; /* in use, f each */
    double *sums;        /* backward: Σdy[f], Σdy·x̂[f] of the group */
    float *xhat;         /* (rows, f) */
};

/* Allocates for rows_max rows; NULL when out of memory. */
struct layer_norm *layer_norm_create(struct model_memory *memory, int64_t features, int64_t rows_max);
/* y = normalised x, in place. gamma, beta (f). */
int layer_norm_forward(struct layer_norm *norm, const struct layer_call *call, const float *gamma,
                       const float *beta, float *x, struct errbuf *err);
/* dy becomes dx. dgamma and dbeta (NULL: frozen) get this rank's own sums; only dx uses the group's. */
int layer_norm_backward(struct layer_norm *norm, const struct layer_call *call, const float *gamma, float *dgamma,
                        float *dbeta, struct errbuf *err);

#endif
