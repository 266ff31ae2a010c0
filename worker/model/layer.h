/* What a layer kind is: sizes, forward and backward of one layer on one micro-batch. A layer owns the
 * activations it keeps for its backward and no parameters. The trainer's thread calls it. */
#ifndef SHOAL_MODEL_LAYER_H
#define SHOAL_MODEL_LAYER_H

#include <stddef.h>
#include <stdint.h>

#include "base/account.h"
#include "cluster/param_table.h"

struct errbuf;
struct layer_norm;
struct model_batch;
struct model_reducer;
struct pool;

/* All memory of a model, booked and freed as one. */
struct model_memory {
    struct account *account;
    struct model_memory_item {
        void *pointer;
        size_t bytes;
        enum account_kind kind;
    } * items;
    int count;
};
/* `count` zeroed elements of `bytes_each`; NULL when out of memory. Lives until model_memory_close. */
void *model_memory_take(struct model_memory *memory, enum account_kind kind, int64_t count, size_t bytes_each);
void model_memory_close(struct model_memory *memory);

/* How a tensor starts: U(±bound), or `value` everywhere. */
struct tensor_init {
    int uniform;
    double value; /* the bound, or the constant */
};

/* What a layer is given when it is made. */
struct layer_setup {
    struct model_memory *memory;
    struct param_table *params; /* the layer opens its param layer and adds its tensors */
    struct tensor_init *inits;  /* [tensor], room for four more tensors */
    int64_t rows_max;
    int zeros; /* init: zeros */
    uint64_t seed;
};

/* One forward or backward. */
struct layer_call {
    struct pool *pool;
    const struct model_batch *batch;
    struct model_reducer *reducer; /* NULL: BatchNorm statistics are local */
    const float *w;                /* the layer's parameters */
    const float *x;                /* (rows, in) */
    /* backward only */
    float *dy;           /* (rows, out), destroyed */
    float *dx;           /* (rows, in), or NULL: not wanted */
    float *grad;         /* like w; frozen tensors' places are not touched */
    int accumulate_grad; /* += instead of written whole */
};

struct layer;
struct layer_ops {
    const char *name;
    int (*forward)(struct layer *layer, const struct layer_call *call, struct errbuf *err);
    int (*backward)(struct layer *layer, const struct layer_call *call, struct errbuf *err);
};

/* First member of every kind's own struct. */
struct layer {
    const struct layer_ops *ops;
    int index; /* of the param layer */
    int64_t in, out;
    const struct param_tensor *tensors; /* of this layer, set once the table is complete */
    const float *y;                     /* (rows, out) of the last forward */
    struct layer_norm *norm;            /* NULL: none */
};

#endif
