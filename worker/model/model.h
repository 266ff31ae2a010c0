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
    float *values; /* all running_mean and running_var end to end, in layer order: mean then var */
    int64_t count;
    int64_t num_batches_tracked;
};

/* What a forward and backward of one micro-batch needs beyond the parameters. */
struct model_batch {
    const float *x;        /* (rows, features) */
    const int32_t *labels; /* classification */
    const float *targets;  /* regression, binary */
    int64_t rows;          /* may be 0 */
    int64_t first_row;     /* of the global mini-batch, for dropout's element index */
    int64_t step;          /* from 1, for dropout */
    double loss_scale;     /* gradient of (loss sum) is multiplied by this */
    int micro;             /* index of the micro-batch */
    int training;          /* 0: dropout off, running statistics used */
};

/* Reduces a vector of doubles over all data ranks, in order of rank (batch_norm_stats: global). Blocks.
 * merge 0: sum; merge 1: Chan's merge of (n, mean[f], M2[f]). NULL: statistics are local. */
struct model_reducer {
    int (*reduce)(struct model_reducer *self, int merge, double *values, int64_t count, struct errbuf *err);
};

struct model;

/* features and outputs from the data; outputs are the classes for softmax_cross_entropy, else the targets a row
 * (binary too: 1). job->model.outputs may ask for more classes. Row of model_table by job->model.kind; freeze and
 * no_decay are marked in the table. STATUS_INVALID, STATUS_UNKNOWN (a glob), STATUS_NOMEM. batch_rows_max sizes the
 * activations, which are allocated here (ACCOUNT_ACTIVATIONS). */
int model_create(struct model **model, const struct job *job, int64_t features, int64_t outputs,
                 int64_t batch_rows_max, struct pool *pool, struct account *account, struct errbuf *err);
/* The model that an exported file describes (its __metadata__), for predict and evaluate; model_import then loads
 * the values. STATUS_IO, STATUS_FORMAT. */
int model_create_from_file(struct model **model, const char *path, int64_t batch_rows_max, struct pool *pool,
                           struct account *account, struct errbuf *err);
void model_destroy(struct model *model);                           /* takes NULL */
const struct param_table *model_params(const struct model *model); /* names, shapes, layers; borrowed */
int model_layers(const struct model *model);
int64_t model_features(const struct model *model);
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
/* Backward of one layer, last to first. grad (n floats): += when accumulate_grad, else written whole; the places of
 * frozen tensors are never written. dropout and statistics are those of the forward just done. */
int model_backward(struct model *model, int layer, const float *w, float *grad, int accumulate_grad,
                   const struct model_batch *batch, struct model_reducer *reducer, struct errbuf *err);
const float *model_logits(const struct model *model); /* (rows, outputs) of the last forward */

/* BatchNorm statistics of the micro-batch just done, for the whole mini-batch's merge: for every norm layer in
 * order: n, mean[f], M2[f], as doubles. Returns the number of doubles (0: no norm layers). NULL: the size only. */
int64_t model_stats_collect(const struct model *model, double *out);
/* Merge and commit are norm_stats.h's (the coordinator calls them too); they need only this list: the features of
 * every norm layer in order (borrowed). Returns their number. */
int model_norms(const struct model *model, const int64_t **features);

/* Where the values of layers come from when nobody holds them all: `layer` gives the n floats of a layer, borrowed until
 * `done`. Asked for every layer, in order, one at a time; after an error no further one, and no `done` for that layer. */
struct model_values {
    int (*layer)(void *context, int layer, const float **w, struct errbuf *err);
    void (*done)(void *context, int layer); /* NULL: nothing to do */
    void *context;
};
/* Asks for every layer as model_export does, and reads nothing: what a rank calls that takes part in another rank's
 * export, where `layer` is collective. */
int model_values_pass(const struct model *model, const struct model_values *values, struct errbuf *err);

/* Export: parameters, buffers, metadata (model section, transform JSON; NULL: none) to a safetensors file, written and
 * hashed while the layers come. The bytes depend on these alone. path NULL: only the hash; sha256_hex may be NULL. After
 * an error the file that was there is kept. STATUS_IO, STATUS_NOMEM, values' own. */
int model_export(const struct model *model, const struct job *job, const struct model_values *values,
                 const char *transform_json, const char *path, char sha256_hex[65], struct errbuf *err);

/* Import, layer by layer. Open checks the whole file: every tensor must be there with the right shape, extra ones are
 * errors named. STATUS_IO, STATUS_FORMAT, STATUS_UNKNOWN, STATUS_SHAPE. What follows cannot fail. */
struct model_import;
int model_import_open(struct model_import **import, struct model *model, const char *path, struct errbuf *err);
void model_import_layer(const struct model_import *import, int layer, float *w); /* the layer's n floats; any order */
void model_import_buffers(const struct model_import *import); /* the running statistics, into the model's buffers */
void model_import_close(struct model_import *import); /* takes NULL */
/* All of it into w (flat) and the buffers; after an error nothing was written. */
int model_import(struct model *model, const char *path, float *w, struct errbuf *err);

#endif
