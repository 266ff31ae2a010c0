/* What a row of model_table is, and what the files of this room share: the inside of struct model. */
#ifndef SHOAL_MODEL_MODEL_KIND_H
#define SHOAL_MODEL_MODEL_KIND_H

#include <stdint.h>

#include "config/job.h"
#include "worker/model/layer.h"
#include "worker/model/layer_linear.h"
#include "worker/model/model.h"

/* One row: builds its list of layers with model_add_linear. */
struct model_ops {
    enum job_model_kind kind;
    const char *name, *help;
    int (*build)(struct model *model, const struct job *job, struct errbuf *err);
};
const struct model_ops *model_table_find(enum job_model_kind kind); /* NULL: no such row */
const struct model_ops *model_table_find_name(const char *name);

struct model {
    const struct model_ops *ops;
    struct param_table params;
    struct model_memory memory;
    struct pool *pool;
    struct layer **layers; /* [layers_count] */
    int layers_count, layers_max;
    struct tensor_init *inits; /* [params.tensor_count] */
    int64_t features, outputs, rows_max;
    enum job_loss loss;
    uint64_t seed;
    int zeros;
    int first_trainable;    /* lowest layer with a tensor that is not frozen; backward ends there */
    float *gradients[2];    /* (rows_max, widest): dy and dx take turns */
    int gradient_now;       /* which of them holds the dy of the next backward */
    int64_t *norm_features; /* [norms] */
    struct layer_norm **norms;
    int norms_count;
    struct model_buffers buffers;
};

/* Appends a layer; room for layers_max is made by model_reserve, called once by the row. */
int model_reserve(struct model *model, int layers, struct errbuf *err);
int model_add_linear(struct model *model, const struct layer_linear_spec *spec, struct errbuf *err);
/* Width of the last layer so far, or the features. */
int64_t model_width(const struct model *model);

/* The model section as JSON (owned by the caller, NULL: out of memory) and back. What it reads is only what a
 * model needs: kind, loss, hidden, activation, batch_norm, dropout, features, outputs. */
char *model_section_write(const struct model *model, const struct job *job);
struct model_section {
    struct job job; /* only ->model is set; close frees it */
    int64_t features, outputs;
};
int model_section_read(struct model_section *section, const char *json, struct errbuf *err);
void model_section_close(struct model_section *section);

#endif
