/* A model as a list of layers, each the unit of forward and backward. The model owns no parameters: weights and
 * gradients are given per layer (a slice of the flat vector of param_table.h), so that a strategy may hold, fetch
 * and drop them. One trainer thread uses a model; kernels spread over its pool. */
#ifndef SHOAL_MODEL_MODEL_H
#define SHOAL_MODEL_MODEL_H

#include <stdint.h>

#include "cluster/param_table.h"

struct account;
struct errbuf;
struct job;
struct pool;
struct safetensors;

/* BatchNorm running statistics and the like: not trained, kept by the coordinator, the same on all ranks. */
struct model_buffers {
    float *values;  /* all running_mean and running_var end to end, in layer order: mean then var */
    int64_t count;
    int64_t num_batches_tracked;
};

/* What a forward and backward of one micro-batch needs beyond the parameters. */
struct model_batch {
    const float *x;         /* (rows, features) */
    const int32_t *labels;  /* classification */
    const float *targets;   /* regression, binary */
    int64_t rows;           /* may be 0 */
    int64_t first_row;      /* of the global mini-batch, for dropout's element index */
    int64_t step;           /* from 1, for dropout */
    double loss_scale;      /* gradient of (loss sum) is multiplied by this */
    int micro;              /* index of the micro-batch */
    int training;           /* 0: dropout off, running statistics used */
};

/* Reduces a vector of doubles over all data ranks, in order of rank (batch_norm_stats: global). Blocks.
 * merge 0: sum; merge 1: Chan's merge of (n, mean[f], M2[f]). NULL: statistics are local. */
struct model_reducer {
    int (*reduce)(struct model_reducer *self, int merge, double *values, int64_t count, struct errbuf *err);
};

struct model;

/* features and outputs (classes) from the data. Row of model_table by job->model.kind. STATUS_INVALID with the
 * reason. batch_rows_max sizes the activations, which are allocated here (ACCOUNT_ACTIVATIONS). */
int model_create(struct model **model, const struct job *job, int64_t features, int64_t outputs,
                 int64_t batch_rows_max, struct pool *pool, struct account *account, struct errbuf *err);
void model_destroy(struct model *model);
const struct param_table *model_params(const struct model *model); /* names, shapes, layers; borrowed */
int model_layers(const struct model *model);
int64_t model_outputs(const struct model *model);
/* Writes the initial values of layer `layer` (its n floats), by spec section 4, from the seed alone. */
void model_init_layer(const struct model *model, int layer, float *w);
struct model_buffers *model_buffers(struct model *model);

/* Forward of one layer: reads the activation of the layer before (the batch for layer 0). The last layer's output
 * is the logits. */
int model_forward(struct model *model, int layer, const float *w, const struct model_batch *batch,
                  struct model_reducer *reducer, struct errbuf *err);
/* After the last forward: loss sum, gradient of the logits when training, counts. */
void model_loss(struct model *model, const struct model_batch *batch, double *loss_sum, int64_t *counted,
                int64_t *correct);
/* Backward of one layer, last to first. grad (n floats): += when accumulate_grad, else written whole. */
int model_backward(struct model *model, int layer, const float *w, float *grad, int accumulate_grad,
                   const struct model_batch *batch, struct model_reducer *reducer, struct errbuf *err);
const float *model_logits(const struct model *model); /* (rows, outputs) of the last forward */

/* BatchNorm statistics of the micro-batch just done, for the whole mini-batch's merge: for every norm layer in
 * order: n, mean[f], M2[f], as doubles. Returns the number of doubles (0: no norm layers). NULL: the size only. */
int64_t model_stats_collect(const struct model *model, double *out);
/* a = a merged with b (two such vectors). */
void model_stats_merge(const struct param_table *table, double *a, const double *b);
/* Commits merged statistics to buffers (pure; the coordinator calls it too, so it needs only the sizes). */
void model_stats_commit(const int64_t *norm_features, int norms, const double *merged, struct model_buffers *buffers);

/* Export: parameters from w (flat), buffers, metadata (model section, transform JSON) to a safetensors file. */
int model_export(const struct model *model, const struct job *job, const float *w, const char *transform_json,
                 const char *path, char sha256_hex[65], struct errbuf *err);
/* Import into w (flat) and buffers: every tensor must be there with the right shape; extra ones are errors named. */
int model_import(struct model *model, const char *path, float *w, struct errbuf *err);

#endif
