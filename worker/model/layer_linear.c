#include "worker/model/layer_linear.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "tensor/elementwise.h"
#include "tensor/gemm.h"
#include "worker/model/layer_norm.h"
#include "worker/model/model.h"

enum { WEIGHT, BIAS, GAMMA, BETA };

struct layer_linear {
    struct layer base;
    enum activation activation;
    double dropout;
    uint64_t seed;
    float *z; /* (rows, out): linear, then normalised; the activation's input */
    float *a; /* the activation's output; z itself where backward does not need both */
    float *d; /* dropout's output; a itself unless the activation's backward reads a */
};

static int needs_input(enum activation kind)
{
    return kind == ACTIVATION_GELU || kind == ACTIVATION_GELU_TANH;
}

static int drops(const struct layer_linear *self, const struct layer_call *call)
{
    return call->batch->training && self->dropout > 0;
}

static void drop(const struct layer_linear *self, const struct layer_call *call, const float *x, float *y)
{
    const struct model_batch *batch = call->batch;
    int64_t out = self->base.out;
    dropout_apply(call->pool, self->dropout, self->seed, (uint32_t)self->base.index, (uint32_t)batch->step,
                  batch->first_row * out, x, y, batch->rows * out);
}

static int forward(struct layer *layer, const struct layer_call *call, struct errbuf *err)
{
    struct layer_linear *self = (struct layer_linear *)layer;
    int64_t rows = call->batch->rows, in = layer->in, out = layer->out;
    const float *bias = call->w + out * in;
    /* z (rows,out) = x (rows,in) · weight (out,in)ᵀ + bias */
    gemm(call->pool, 0, 1, rows, out, in, call->x, call->w, 0, self->z);
    bias_add(self->z, bias, rows, out);
    if (layer->norm) {
        int status = layer_norm_forward(layer->norm, call, bias + out, bias + 2 * out, self->z, err);
        if (status != STATUS_OK)
            return status;
    }
    if (self->activation != ACTIVATION_NONE)
        activation_forward(self->activation, call->pool, self->z, self->a, rows * out);
    layer->y = self->a;
    if (drops(self, call)) {
        drop(self, call, self->a, self->d);
        layer->y = self->d;
    }
    return STATUS_OK;
}

/* dweight (out,in) (+)= dzᵀ x; dbias (+)= Σ dz over rows. */
static void linear_gradients(const struct layer *layer, const struct layer_call *call)
{
    int64_t rows = call->batch->rows, in = layer->in, out = layer->out;
    if (!layer->tensors[WEIGHT].frozen)
        gemm(call->pool, 1, 0, out, in, rows, call->dy, call->x, call->accumulate_grad ? 1 : 0, call->grad);
    if (layer->tensors[BIAS].frozen)
        return;
    float *dbias = call->grad + out * in;
    if (!call->accumulate_grad)
        memset(dbias, 0, (size_t)out * sizeof *dbias);
    bias_grad(dbias, call->dy, rows, out);
}

/* call->dy is turned, in place, into the gradient before dropout, activation and norm. */
static int backward(struct layer *layer, const struct layer_call *call, struct errbuf *err)
{
    struct layer_linear *self = (struct layer_linear *)layer;
    int64_t rows = call->batch->rows, in = layer->in, out = layer->out;
    if (drops(self, call))
        drop(self, call, call->dy, call->dy);
    if (self->activation != ACTIVATION_NONE)
        activation_backward(self->activation, call->pool, self->z, self->a, call->dy, call->dy, rows * out);
    if (layer->norm) {
        const float *gamma = call->w + out * in + out;
        float *dgamma = call->grad + out * in + out;
        int status = layer_norm_backward(layer->norm, call, gamma, layer->tensors[GAMMA].frozen ? NULL : dgamma,
                                         layer->tensors[BETA].frozen ? NULL : dgamma + out, err);
        if (status != STATUS_OK)
            return status;
    }
    linear_gradients(layer, call);
    if (call->dx) /* dx (rows,in) = dz (rows,out) · weight (out,in) */
        gemm(call->pool, 0, 0, rows, in, out, call->dy, call->w, 0, call->dx);
    return STATUS_OK;
}

static const struct layer_ops layer_linear_ops = {.name = "linear", .forward = forward, .backward = backward};

static int add_tensor(const struct layer_setup *setup, const char *name, const char *suffix, int dims,
                      const int64_t shape[2], struct tensor_init init, struct errbuf *err)
{
    char full[PARAM_NAME_MAX + 1];
    snprintf(full, sizeof full, "%s.%s", name, suffix);
    int index = param_table_add(setup->params, full, dims, shape, err);
    if (index < 0)
        return index;
    setup->inits[index] = init;
    return STATUS_OK;
}

static int add_tensors(const struct layer_setup *setup, const struct layer_linear_spec *spec, struct errbuf *err)
{
    const int64_t shape[2] = {spec->out, spec->in};
    struct tensor_init start = {.uniform = 1, .value = 1 / sqrt((double)spec->in)};
    if (setup->zeros)
        start = (struct tensor_init){0};
    int status = add_tensor(setup, spec->linear_name, "weight", 2, shape, start, err);
    if (status == STATUS_OK)
        status = add_tensor(setup, spec->linear_name, "bias", 1, shape, start, err);
    if (status == STATUS_OK && spec->norm_name)
        status = add_tensor(setup, spec->norm_name, "weight", 1, shape, (struct tensor_init){.value = 1}, err);
    if (status == STATUS_OK && spec->norm_name)
        status = add_tensor(setup, spec->norm_name, "bias", 1, shape, (struct tensor_init){0}, err);
    return status;
}

/* Allocates only the activations that this combination's backward reads. */
static int take_activations(struct layer_linear *self, const struct layer_setup *setup,
                            const struct layer_linear_spec *spec)
{
    int64_t count = setup->rows_max * spec->out;
    int failed = 0;
    self->z = model_memory_take(setup->memory, ACCOUNT_ACTIVATIONS, count, sizeof *self->z);
    failed |= !self->z;
    self->a = self->z;
    if (needs_input(spec->activation)) {
        self->a = model_memory_take(setup->memory, ACCOUNT_ACTIVATIONS, count, sizeof *self->a);
        failed |= !self->a;
    }
    /* relu's derivative is the same read off the dropped output: dropped places carry no gradient */
    self->d = self->a;
    if (spec->dropout > 0 && spec->activation == ACTIVATION_TANH) {
        self->d = model_memory_take(setup->memory, ACCOUNT_ACTIVATIONS, count, sizeof *self->d);
        failed |= !self->d;
    }
    if (spec->norm_name) {
        self->base.norm = layer_norm_create(setup->memory, spec->out, setup->rows_max);
        if (!self->base.norm)
            return STATUS_NOMEM;
        snprintf(self->base.norm->name, sizeof self->base.norm->name, "%s", spec->norm_name);
    }
    return failed ? STATUS_NOMEM : STATUS_OK;
}

int layer_linear_create(struct layer **layer, const struct layer_setup *setup, const struct layer_linear_spec *spec,
                        struct errbuf *err)
{
    int index = param_table_add_layer(setup->params);
    if (index < 0)
        return errbuf_set(err, index, "%s: out of memory", spec->linear_name);
    int status = add_tensors(setup, spec, err);
    if (status != STATUS_OK)
        return status;
    struct layer_linear *self = model_memory_take(setup->memory, ACCOUNT_CONTROL, 1, sizeof *self);
    if (!self || take_activations(self, setup, spec) != STATUS_OK)
        return errbuf_set(err, STATUS_NOMEM, "%s: out of memory for the activations of %lld rows x %lld",
                          spec->linear_name, (long long)setup->rows_max, (long long)spec->out);
    self->base.ops = &layer_linear_ops;
    self->base.index = index;
    self->base.in = spec->in;
    self->base.out = spec->out;
    self->activation = spec->activation;
    self->dropout = spec->dropout;
    self->seed = setup->seed;
    *layer = &self->base;
    return STATUS_OK;
}
