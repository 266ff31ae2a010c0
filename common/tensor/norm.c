#include "tensor/norm.h"

#include "tensor/kernels.h"

void batch_norm_stats(const float *x, int64_t rows, int64_t features, struct norm_stats *stats)
{
    stats->count = (double)rows;
    kernel_ops_best()->norm_moments(x, rows, features, stats->mean, stats->m2);
}

void batch_norm_merge(struct norm_stats *a, const struct norm_stats *b, int64_t features)
{
    if (b->count == 0.0)
        return;
    double total = a->count + b->count;
    double share = b->count / total, weight = a->count * share;
    for (int64_t j = 0; j < features; j++) {
        if (a->count == 0.0) { /* a's arrays may hold anything */
            a->mean[j] = b->mean[j];
            a->m2[j] = b->m2[j];
            continue;
        }
        double delta = b->mean[j] - a->mean[j];
        a->mean[j] += delta * share;
        a->m2[j] += b->m2[j] + delta * delta * weight;
    }
    a->count = total;
}

void batch_norm_commit(float *running_mean, float *running_var, const struct norm_stats *stats, int64_t features,
                       double momentum)
{
    if (stats->count < 2.0)
        return;
    for (int64_t j = 0; j < features; j++) {
        double variance = stats->m2[j] / (stats->count - 1.0);
        running_mean[j] = (float)((1.0 - momentum) * (double)running_mean[j] + momentum * stats->mean[j]);
        running_var[j] = (float)((1.0 - momentum) * (double)running_var[j] + momentum * variance);
    }
}

void batch_norm_forward(const float *x, const double *mean, const double *rstd, const float *gamma,
                        const float *beta, float *y, float *xhat, int64_t rows, int64_t features)
{
    kernel_ops_best()->norm_forward(x, mean, rstd, gamma, beta, y, xhat, rows, features);
}

void batch_norm_backward_sums(const float *dy, const float *xhat, int64_t rows, int64_t features, double *sums)
{
    kernel_ops_best()->norm_backward_sums(dy, xhat, rows, features, sums);
}

void batch_norm_backward(const float *dy, const float *xhat, const double *rstd, const float *gamma,
                         const double *sums, double n, float *dx, int64_t rows, int64_t features)
{
    kernel_ops_best()->norm_backward(dy, xhat, rstd, gamma, sums, n, dx, rows, features);
}
