#include "tests/lib/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/pool.h"
#include "base/status.h"
#include "cluster/norm_stats.h"
#include "tensor/gemm.h"
#include "tensor/reduce.h"

void reference_job(struct job *job)
{
    memset(job, 0, sizeof *job);
    job->seed = 1;
    job->epochs = 1;
    job->batch_size = 1;
    job->accumulate = 1;
    job->data.order = JOB_ORDER_SEQUENTIAL;
    job->model.kind = JOB_MODEL_LINEAR;
    job->optimizer.kind = JOB_SGD;
    job->optimizer.lr = 0.1;
    job->optimizer.beta1 = 0.9;
    job->optimizer.beta2 = 0.999;
    job->optimizer.eps = 1e-8;
    job->optimizer.beta = 1;
    job->lr_schedule.kind = JOB_LR_CONSTANT;
}

static void *floats(int64_t count)
{
    return calloc((size_t)count + 1, sizeof(float));
}

static int take_memory(struct reference *reference)
{
    int64_t n = model_params(reference->model)->count;
    int64_t stats = model_stats_collect(reference->model, NULL);
    reference->w = floats(n);
    reference->grad = floats(n);
    reference->part = floats(n);
    reference->stats = calloc((size_t)stats + 1, sizeof *reference->stats);
    reference->merged = calloc((size_t)stats + 1, sizeof *reference->merged);
    int failed = !reference->w || !reference->grad || !reference->part || !reference->stats || !reference->merged;
    for (int s = 0; s < reference->ops->slots(&reference->params); s++) {
        reference->slots[s] = floats(n);
        failed |= !reference->slots[s];
    }
    return failed ? STATUS_NOMEM : STATUS_OK;
}

int reference_open(struct reference *reference, const struct job *job, const struct reference_data *data,
                   int groups, int threads, struct errbuf *err)
{
    memset(reference, 0, sizeof *reference);
    reference->job = job;
    reference->data = *data;
    reference->groups = groups;
    account_init(&reference->account);
    int status = gemm_start(err);
    if (status != STATUS_OK)
        return status;
    pool_thread_numerics();
    reference->pool = pool_create(threads, 0);
    if (!reference->pool)
        return errbuf_set(err, STATUS_NOMEM, "reference: no pool");
    status = optimizer_of_job(job, &reference->ops, &reference->params, &reference->plugin, err);
    if (status == STATUS_OK)
        status = model_create(&reference->model, job, data->features, data->outputs, job->batch_size,
                              reference->pool, &reference->account, err);
    if (status == STATUS_OK)
        status = take_memory(reference);
    if (status != STATUS_OK) {
        reference_close(reference);
        return status;
    }
    const struct param_table *table = model_params(reference->model);
    for (int i = 0; i < model_layers(reference->model); i++)
        model_init_layer(reference->model, i, reference->w + table->layers[i].offset);
    return STATUS_OK;
}

void reference_close(struct reference *reference)
{
    for (int s = 0; s < OPTIMIZER_SLOTS_MAX; s++)
        free(reference->slots[s]);
    free(reference->merged);
    free(reference->stats);
    free(reference->part);
    free(reference->grad);
    free(reference->w);
    optimizer_unload(reference->plugin);
    model_destroy(reference->model);
    pool_destroy(reference->pool);
}

int64_t reference_steps_per_epoch(const struct reference *reference)
{
    return (reference->data.rows + reference->job->batch_size - 1) / reference->job->batch_size;
}

void reference_share(int64_t rows, int groups, int group, int64_t *first, int64_t *count)
{
    int64_t each = rows / groups, over = rows % groups;
    *count = each + (group < over ? 1 : 0);
    *first = group * each + (group < over ? group : over);
}

static struct model_batch batch_of(const struct reference_data *data, int64_t first, int64_t rows)
{
    return (struct model_batch){.x = data->x + first * data->features,
                                .labels = data->labels ? data->labels + first : NULL,
                                .targets = data->targets ? data->targets + first * data->outputs : NULL,
                                .rows = rows,
                                .loss_scale = 1};
}

static int forward(struct reference *reference, const struct model_batch *batch, struct errbuf *err)
{
    const struct param_table *table = model_params(reference->model);
    int status = STATUS_OK;
    for (int i = 0; i < table->layer_count && status == STATUS_OK; i++)
        status = model_forward(reference->model, i, reference->w + table->layers[i].offset, batch, NULL, err);
    return status;
}

/* Gradient of one group into part, its loss sum, its statistics into the merge. */
static int run_group(struct reference *reference, const struct model_batch *batch, double *loss_sum,
                     struct errbuf *err)
{
    struct model *model = reference->model;
    const struct param_table *table = model_params(model);
    int64_t counted, correct;
    int status = forward(reference, batch, err);
    if (status != STATUS_OK)
        return status;
    model_loss(model, batch, loss_sum, &counted, &correct);
    for (int i = table->layer_count - 1; i >= 0 && status == STATUS_OK; i--) {
        int64_t at = table->layers[i].offset;
        status = model_backward(model, i, reference->w + at, reference->part + at, 0, batch, NULL, err);
    }
    const int64_t *features;
    int norms = model_norms(model, &features);
    model_stats_collect(model, reference->stats);
    norm_stats_merge(features, norms, reference->merged, reference->stats);
    return status;
}

/* torch's clip coefficient, rounded once to float32; sets grad_norm. */
static float clip_scale(struct reference *reference)
{
    const struct param_table *table = model_params(reference->model);
    double squares = 0;
    int finite = 1;
    for (int t = 0; t < table->tensor_count; t++) {
        const struct param_tensor *tensor = &table->tensors[t];
        int64_t at = table->layers[tensor->layer].offset + tensor->offset;
        if (!tensor->frozen)
            squares += reduce_norm_squared(reference->grad + at, tensor->count, &finite);
    }
    reference->grad_norm = sqrt(squares);
    double clip = reference->job->optimizer.clip_norm;
    double scale = clip / (reference->grad_norm + 1e-6);
    return clip > 0 && scale < 1 ? (float)scale : 1;
}

static void update(struct reference *reference)
{
    const struct param_table *table = model_params(reference->model);
    const struct job *job = reference->job;
    int64_t total = job->steps ? job->steps : job->epochs * reference_steps_per_epoch(reference);
    struct optimizer_step step = {.t = ++reference->t, .grad_scale = clip_scale(reference), .trust_ratio = 1};
    step.lr = lr_schedule_at(job, step.t, total);
    for (int t = 0; t < table->tensor_count; t++) {
        const struct param_tensor *tensor = &table->tensors[t];
        if (tensor->frozen)
            continue;
        int64_t at = table->layers[tensor->layer].offset + tensor->offset;
        float *slots[OPTIMIZER_SLOTS_MAX] = {0};
        for (int s = 0; s < OPTIMIZER_SLOTS_MAX; s++)
            slots[s] = reference->slots[s] ? reference->slots[s] + at : NULL;
        float *w = reference->w + at, *grad = reference->grad + at;
        int decay = !tensor->no_decay;
        if (reference->ops->prepare) {
            double norms[2] = {0, 0};
            reference->ops->prepare(&reference->params, &step, decay, w, grad, slots, tensor->count, norms);
            step.trust_ratio = norms[0] > 0 && norms[1] > 0 ? sqrt(norms[0]) / sqrt(norms[1]) : 1;
        }
        reference->ops->update(&reference->params, &step, decay, w, grad, slots, tensor->count);
    }
}

int reference_step(struct reference *reference, struct errbuf *err)
{
    struct model *model = reference->model;
    int64_t n = model_params(model)->count, size = reference->job->batch_size;
    int64_t start = reference->step % reference_steps_per_epoch(reference) * size;
    int64_t rows = reference->data.rows - start < size ? reference->data.rows - start : size;
    double loss = 0;
    reference->step++;
    memset(reference->merged, 0, (size_t)model_stats_collect(model, NULL) * sizeof *reference->merged);
    for (int g = 0; g < reference->groups; g++) {
        int64_t first, count;
        reference_share(rows, reference->groups, g, &first, &count);
        struct model_batch batch = batch_of(&reference->data, start + first, count);
        batch.first_row = first;
        batch.step = reference->step;
        batch.loss_scale = 1.0 / (double)rows;
        batch.training = 1;
        double loss_sum;
        int status = run_group(reference, &batch, &loss_sum, err);
        if (status != STATUS_OK)
            return status;
        loss += loss_sum;
        (g == 0 ? reduce_copy : reduce_add)(reference->grad, reference->part, n);
    }
    reference->loss = loss / (double)rows;
    update(reference);
    const int64_t *features;
    int norms = model_norms(model, &features);
    norm_stats_commit(features, norms, reference->merged, model_buffers(model)->values);
    model_buffers(model)->num_batches_tracked++;
    return STATUS_OK;
}

double reference_evaluate(struct reference *reference, const struct reference_data *data, int64_t *correct)
{
    double loss = 0;
    int64_t right = 0, size = reference->job->batch_size;
    for (int64_t first = 0; first < data->rows; first += size) {
        int64_t rows = data->rows - first < size ? data->rows - first : size;
        struct model_batch batch = batch_of(data, first, rows);
        double loss_sum;
        int64_t block_right, counted;
        if (forward(reference, &batch, NULL) != STATUS_OK)
            return NAN;
        model_loss(reference->model, &batch, &loss_sum, &counted, &block_right);
        loss += loss_sum;
        right += block_right;
    }
    if (correct)
        *correct = right;
    return loss / (double)data->rows;
}
