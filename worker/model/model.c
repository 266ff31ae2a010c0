#include "worker/model/model.h"

#include <stdlib.h>
#include <string.h>

#include "base/account.h"
#include "base/errbuf.h"
#include "base/status.h"
#include "tensor/loss.h"
#include "worker/model/layer_norm.h"
#include "worker/model/model_kind.h"

enum { TENSORS_A_LAYER_MAX = 4 };

void *model_memory_take(struct model_memory *memory, enum account_kind kind, int64_t count, size_t bytes_each)
{
    size_t bytes;
    if (count < 0 || __builtin_mul_overflow((size_t)count, bytes_each, &bytes))
        return NULL;
    struct model_memory_item *items = realloc(memory->items, (size_t)(memory->count + 1) * sizeof *items);
    if (!items)
        return NULL;
    memory->items = items;
    void *pointer = account_alloc(memory->account, kind, bytes);
    if (pointer)
        items[memory->count++] = (struct model_memory_item){.pointer = pointer, .bytes = bytes, .kind = kind};
    return pointer;
}

void model_memory_close(struct model_memory *memory)
{
    for (int i = memory->count - 1; i >= 0; i--)
        account_free(memory->account, memory->items[i].kind, memory->items[i].pointer, memory->items[i].bytes);
    free(memory->items);
    memory->items = NULL;
    memory->count = 0;
}

int model_reserve(struct model *model, int layers, struct errbuf *err)
{
    struct model_memory *memory = &model->memory;
    model->layers = model_memory_take(memory, ACCOUNT_CONTROL, layers, sizeof *model->layers);
    model->norms = model_memory_take(memory, ACCOUNT_CONTROL, layers, sizeof *model->norms);
    model->norm_features = model_memory_take(memory, ACCOUNT_CONTROL, layers, sizeof *model->norm_features);
    model->inits =
        model_memory_take(memory, ACCOUNT_CONTROL, (int64_t)layers * TENSORS_A_LAYER_MAX, sizeof *model->inits);
    if (!model->layers || !model->norms || !model->norm_features || !model->inits)
        return errbuf_set(err, STATUS_NOMEM, "model: out of memory for %d layers", layers);
    model->layers_max = layers;
    return STATUS_OK;
}

int64_t model_width(const struct model *model)
{
    return model->layers_count == 0 ? model->features : model->layers[model->layers_count - 1]->out;
}

int model_add_linear(struct model *model, const struct layer_linear_spec *spec, struct errbuf *err)
{
    struct layer_setup setup = {.memory = &model->memory,
                                .params = &model->params,
                                .inits = model->inits,
                                .rows_max = model->rows_max,
                                .zeros = model->zeros,
                                .seed = model->seed};
    struct layer *layer;
    int status = layer_linear_create(&layer, &setup, spec, err);
    if (status != STATUS_OK)
        return status;
    model->layers[model->layers_count++] = layer;
    if (layer->norm) {
        model->norm_features[model->norms_count] = layer->norm->features;
        model->norms[model->norms_count++] = layer->norm;
    }
    return STATUS_OK;
}

/* Running statistics of all norms end to end: mean 0, variance 1. */
static int make_buffers(struct model *model, struct errbuf *err)
{
    struct model_buffers *buffers = &model->buffers;
    for (int i = 0; i < model->norms_count; i++)
        buffers->count += 2 * model->norm_features[i];
    buffers->values = model_memory_take(&model->memory, ACCOUNT_CONTROL, buffers->count, sizeof *buffers->values);
    if (!buffers->values)
        return errbuf_set(err, STATUS_NOMEM, "model: out of memory for the running statistics");
    float *at = buffers->values;
    for (int i = 0; i < model->norms_count; i++) {
        int64_t f = model->norm_features[i];
        model->norms[i]->running = at;
        for (int64_t j = 0; j < f; j++)
            at[f + j] = 1;
        at += 2 * f;
    }
    return STATUS_OK;
}

static int make_gradients(struct model *model, struct errbuf *err)
{
    int64_t widest = 0;
    for (int i = 0; i < model->layers_count; i++)
        if (model->layers[i]->out > widest)
            widest = model->layers[i]->out;
    int turns = model->layers_count > 1 ? 2 : 1;
    for (int i = 0; i < turns; i++) {
        model->gradients[i] = model_memory_take(&model->memory, ACCOUNT_ACTIVATIONS, model->rows_max * widest,
                                                sizeof *model->gradients[i]);
        if (!model->gradients[i])
            return errbuf_set(err, STATUS_NOMEM, "model: out of memory for gradients of %lld rows x %lld",
                              (long long)model->rows_max, (long long)widest);
    }
    return STATUS_OK;
}

static int mark_tensors(struct model *model, const struct job *job, struct errbuf *err)
{
    struct param_table *params = &model->params;
    int status = param_table_freeze(params, job->optimizer.freeze.items, job->optimizer.freeze.count, err);
    if (status != STATUS_OK)
        return errbuf_prefix(err, status, "optimizer.freeze");
    status = param_table_no_decay(params, job->optimizer.no_decay.items, job->optimizer.no_decay.count, err);
    if (status != STATUS_OK)
        return errbuf_prefix(err, status, "optimizer.no_decay");
    model->first_trainable = params->layer_count;
    for (int t = params->tensor_count - 1; t >= 0; t--)
        if (!params->tensors[t].frozen)
            model->first_trainable = params->tensors[t].layer;
    for (int i = 0; i < model->layers_count; i++)
        model->layers[i]->tensors = params->tensors + params->layers[i].tensor_first;
    return STATUS_OK;
}

static int check(const struct job *job, int64_t features, int64_t outputs, int64_t rows_max, struct errbuf *err)
{
    if (features < 1 || outputs < 1 || rows_max < 0)
        return errbuf_set(err, STATUS_INVALID, "model: %lld features, %lld outputs, %lld rows: too few",
                          (long long)features, (long long)outputs, (long long)rows_max);
    int64_t wanted = job->model.outputs;
    int softmax = job->model.loss == JOB_LOSS_SOFTMAX_CROSS_ENTROPY;
    if (wanted != 0 && (softmax ? wanted < outputs : wanted != outputs))
        return errbuf_set(err, STATUS_INVALID, "model.outputs: %lld, the data have %lld %s", (long long)wanted,
                          (long long)outputs, softmax ? "classes" : "targets a row");
    if (rows_max > INT64_C(1) << 40 || features > INT64_C(1) << 40)
        return errbuf_set(err, STATUS_RANGE, "model: %lld rows of %lld features are too many", (long long)rows_max,
                          (long long)features);
    return STATUS_OK;
}

static int build(struct model *model, const struct job *job, struct errbuf *err)
{
    int status = model->ops->build(model, job, err);
    if (status == STATUS_OK)
        status = mark_tensors(model, job, err);
    if (status == STATUS_OK)
        status = make_buffers(model, err);
    if (status == STATUS_OK)
        status = make_gradients(model, err);
    return status;
}

int model_create(struct model **model, const struct job *job, int64_t features, int64_t outputs,
                 int64_t batch_rows_max, struct pool *pool, struct account *account, struct errbuf *err)
{
    const struct model_ops *ops = model_table_find(job->model.kind);
    if (!ops)
        return errbuf_set(err, STATUS_INVALID, "model.kind: none given");
    int status = check(job, features, outputs, batch_rows_max, err);
    if (status != STATUS_OK)
        return status;
    struct model *self = calloc(1, sizeof *self);
    if (!self)
        return errbuf_set(err, STATUS_NOMEM, "model: out of memory");
    self->ops = ops;
    self->memory.account = account;
    self->pool = pool;
    self->features = features;
    self->outputs = job->model.outputs ? job->model.outputs : outputs;
    self->rows_max = batch_rows_max;
    self->loss = job->model.loss;
    self->seed = job->seed;
    self->zeros = job->model.init == JOB_INIT_ZEROS;
    status = build(self, job, err);
    if (status != STATUS_OK) {
        model_destroy(self);
        return status;
    }
    *model = self;
    return STATUS_OK;
}

void model_destroy(struct model *model)
{
    if (!model)
        return;
    model_memory_close(&model->memory);
    param_table_close(&model->params);
    free(model);
}

const struct param_table *model_params(const struct model *model)
{
    return &model->params;
}

int model_layers(const struct model *model)
{
    return model->layers_count;
}

int64_t model_outputs(const struct model *model)
{
    return model->outputs;
}

int64_t model_features(const struct model *model)
{
    return model->features;
}

struct model_buffers *model_buffers(struct model *model)
{
    return &model->buffers;
}

int model_norms(const struct model *model, const int64_t **features)
{
    *features = model->norm_features;
    return model->norms_count;
}

static const float *layer_input(const struct model *model, int layer, const struct model_batch *batch)
{
    return layer == 0 ? batch->x : model->layers[layer - 1]->y;
}

int model_forward(struct model *model, int layer, const float *w, const struct model_batch *batch,
                  struct model_reducer *reducer, struct errbuf *err)
{
    if (batch->rows < 0 || batch->rows > model->rows_max)
        return errbuf_set(err, STATUS_RANGE, "model: a micro-batch of %lld rows, room is for %lld",
                          (long long)batch->rows, (long long)model->rows_max);
    struct layer *self = model->layers[layer];
    struct layer_call call = {
        .pool = model->pool, .batch = batch, .reducer = reducer, .w = w, .x = layer_input(model, layer, batch)};
    return self->ops->forward(self, &call, err);
}

void model_loss(struct model *model, const struct model_batch *batch, double *loss_sum, int64_t *counted,
                int64_t *correct)
{
    const float *y = model_logits(model);
    float *dy = batch->training ? model->gradients[0] : NULL;
    int64_t rows = batch->rows, n = model->outputs;
    double scale = batch->loss_scale;
    model->gradient_now = 0;
    *correct = 0;
    switch (model->loss) {
    case JOB_LOSS_SOFTMAX_CROSS_ENTROPY:
        loss_softmax_cross_entropy(y, batch->labels, rows, n, scale, loss_sum, dy, correct, counted);
        break;
    case JOB_LOSS_BINARY_CROSS_ENTROPY:
        loss_binary_cross_entropy(y, batch->targets, rows, n, scale, loss_sum, dy, correct, counted);
        break;
    case JOB_LOSS_MSE:
        loss_mse(y, batch->targets, rows, n, scale, loss_sum, dy, counted);
        break;
    case JOB_LOSS_HALF_SQUARED_ERROR:
        loss_half_squared_error(y, batch->targets, rows, n, scale, loss_sum, dy, counted);
        break;
    }
}

int model_backward(struct model *model, int layer, const float *w, float *grad, int accumulate_grad,
                   const struct model_batch *batch, struct model_reducer *reducer, struct errbuf *err)
{
    if (layer < model->first_trainable)
        return STATUS_OK;
    struct layer *self = model->layers[layer];
    int now = model->gradient_now;
    struct layer_call call = {.pool = model->pool,
                              .batch = batch,
                              .reducer = reducer,
                              .w = w,
                              .x = layer_input(model, layer, batch),
                              .dy = model->gradients[now],
                              .dx = layer > model->first_trainable ? model->gradients[1 - now] : NULL,
                              .grad = grad,
                              .accumulate_grad = accumulate_grad};
    model->gradient_now = 1 - now;
    return self->ops->backward(self, &call, err);
}

const float *model_logits(const struct model *model)
{
    return model->layers[model->layers_count - 1]->y;
}

int64_t model_stats_collect(const struct model *model, double *out)
{
    int64_t at = 0;
    for (int i = 0; i < model->norms_count; i++) {
        int64_t count = 1 + 2 * model->norm_features[i];
        if (out)
            memcpy(out + at, model->norms[i]->local, (size_t)count * sizeof *out);
        at += count;
    }
    return at;
}
