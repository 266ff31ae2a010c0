#include "worker/model/layer_norm.h"

#include <math.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "tensor/norm.h"
#include "worker/model/model.h"

static const double norm_eps = 1e-5;

struct layer_norm *layer_norm_create(struct model_memory *memory, int64_t features, int64_t rows_max)
{
    struct layer_norm *norm = model_memory_take(memory, ACCOUNT_CONTROL, 1, sizeof *norm);
    double *statistics = model_memory_take(memory, ACCOUNT_CONTROL, 2 + 8 * features, sizeof *statistics);
    if (!norm || !statistics)
        return NULL;
    norm->features = features;
    norm->local = statistics;
    norm->group = norm->local + 1 + 2 * features;
    norm->mean = norm->group + 1 + 2 * features;
    norm->rstd = norm->mean + features;
    norm->sums = norm->rstd + features;
    norm->xhat = model_memory_take(memory, ACCOUNT_ACTIVATIONS, rows_max * features, sizeof *norm->xhat);
    return norm->xhat ? norm : NULL;
}

static int group_statistics(struct layer_norm *norm, const struct layer_call *call, const float *x,
                            struct errbuf *err)
{
    int64_t f = norm->features;
    struct norm_stats stats = {.mean = norm->local + 1, .m2 = norm->local + 1 + f};
    batch_norm_stats(x, call->batch->rows, f, &stats);
    norm->local[0] = stats.count;
    memcpy(norm->group, norm->local, (size_t)(1 + 2 * f) * sizeof *norm->group);
    if (call->reducer) {
        int status = call->reducer->reduce(call->reducer, 1, norm->group, 1 + 2 * f, err);
        if (status != STATUS_OK)
            return status;
    }
    double n = norm->group[0] > 0 ? norm->group[0] : 1; /* nobody has a row: no output to normalise either */
    for (int64_t j = 0; j < f; j++) {
        norm->mean[j] = norm->group[1 + j];
        norm->rstd[j] = 1 / sqrt(norm->group[1 + f + j] / n + norm_eps);
    }
    return STATUS_OK;
}

int layer_norm_forward(struct layer_norm *norm, const struct layer_call *call, const float *gamma,
                       const float *beta, float *x, struct errbuf *err)
{
    int64_t f = norm->features;
    if (call->batch->training) {
        int status = group_statistics(norm, call, x, err);
        if (status != STATUS_OK)
            return errbuf_prefix(err, status, "%s", norm->name);
    } else {
        for (int64_t j = 0; j < f; j++) {
            norm->mean[j] = norm->running[j];
            norm->rstd[j] = 1 / sqrt(norm->running[f + j] + norm_eps);
        }
    }
    batch_norm_forward(x, norm->mean, norm->rstd, gamma, beta, x, call->batch->training ? norm->xhat : NULL,
                       call->batch->rows, f);
    return STATUS_OK;
}

/* grad (+)= sums, rounded once. */
static void write_sums(float *grad, int accumulate, const double *sums, int64_t features)
{
    for (int64_t j = 0; j < features; j++)
        grad[j] = accumulate ? grad[j] + (float)sums[j] : (float)sums[j];
}

int layer_norm_backward(struct layer_norm *norm, const struct layer_call *call, const float *gamma, float *dgamma,
                        float *dbeta, struct errbuf *err)
{
    int64_t f = norm->features, rows = call->batch->rows;
    batch_norm_backward_sums(call->dy, norm->xhat, rows, f, norm->sums);
    if (dbeta)
        write_sums(dbeta, call->accumulate_grad, norm->sums, f);
    if (dgamma)
        write_sums(dgamma, call->accumulate_grad, norm->sums + f, f);
    if (call->reducer) {
        int status = call->reducer->reduce(call->reducer, 0, norm->sums, 2 * f, err);
        if (status != STATUS_OK)
            return errbuf_prefix(err, status, "%s", norm->name);
    }
    batch_norm_backward(call->dy, norm->xhat, norm->rstd, gamma, norm->sums, norm->group[0], call->dy, rows, f);
    return STATUS_OK;
}
