#include "tensor/naive.h"

#include <math.h>
#include <stddef.h>

#include "base/rng.h"

void naive_gemm(int trans_a, int trans_b, int64_t m, int64_t n, int64_t k, const float *a, const float *b,
                float beta, float *c)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = beta == 0.0f ? 0.0 : (double)c[i * n + j];
            for (int64_t l = 0; l < k; l++)
                sum += (double)a[trans_a ? l * m + i : i * k + l] * (double)b[trans_b ? j * k + l : l * n + j];
            c[i * n + j] = (float)sum;
        }
}

static double gelu_tanh_slope(double x, double *t)
{
    double c = sqrt(2.0 / M_PI);
    *t = tanh(c * (x + 0.044715 * x * x * x));
    return c * (1.0 + 3.0 * 0.044715 * x * x);
}

void naive_activation_forward(enum activation kind, const float *x, float *y, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        double v = (double)x[i], t;
        switch (kind) {
        case ACTIVATION_RELU:
            y[i] = v <= 0.0 ? 0.0f : x[i];
            break;
        case ACTIVATION_GELU:
            y[i] = (float)(0.5 * v * (1.0 + erf(v / sqrt(2.0))));
            break;
        case ACTIVATION_GELU_TANH:
            gelu_tanh_slope(v, &t);
            y[i] = (float)(0.5 * v * (1.0 + t));
            break;
        case ACTIVATION_TANH:
            y[i] = (float)tanh(v);
            break;
        case ACTIVATION_NONE:
            y[i] = x[i];
            break;
        }
    }
}

void naive_activation_backward(enum activation kind, const float *x, const float *dy, float *dx, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        double v = (double)x[i], derivative = 1.0, t, slope;
        switch (kind) {
        case ACTIVATION_RELU:
            derivative = v <= 0.0 ? 0.0 : 1.0;
            break;
        case ACTIVATION_GELU:
            derivative = 0.5 * (1.0 + erf(v / sqrt(2.0))) + v * exp(-0.5 * v * v) / sqrt(2.0 * M_PI);
            break;
        case ACTIVATION_GELU_TANH:
            slope = gelu_tanh_slope(v, &t);
            derivative = 0.5 * (1.0 + t) + 0.5 * v * (1.0 - t * t) * slope;
            break;
        case ACTIVATION_TANH:
            derivative = 1.0 - tanh(v) * tanh(v);
            break;
        case ACTIVATION_NONE:
            break;
        }
        dx[i] = (float)((double)dy[i] * derivative);
    }
}

static double row_exp_sum(const float *row, int64_t classes, double *maximum)
{
    double sum = 0.0;
    *maximum = -INFINITY;
    for (int64_t j = 0; j < classes; j++)
        *maximum = fmax(*maximum, (double)row[j]);
    for (int64_t j = 0; j < classes; j++)
        sum += exp((double)row[j] - *maximum);
    return sum;
}

void naive_softmax_rows(const float *logits, float *probabilities, int64_t rows, int64_t classes)
{
    for (int64_t r = 0; r < rows; r++) {
        double maximum, sum = row_exp_sum(logits + r * classes, classes, &maximum);
        for (int64_t j = 0; j < classes; j++)
            probabilities[r * classes + j] = (float)(exp((double)logits[r * classes + j] - maximum) / sum);
    }
}

void naive_softmax_cross_entropy(const float *logits, const int32_t *labels, int64_t rows, int64_t classes,
                                 double scale, double *loss_sum, float *dlogits, int64_t *correct, int64_t *counted)
{
    *loss_sum = 0.0;
    *correct = *counted = 0;
    for (int64_t r = 0; r < rows; r++) {
        const float *row = logits + r * classes;
        double maximum, sum = row_exp_sum(row, classes, &maximum);
        int64_t largest = 0;
        for (int64_t j = 0; j < classes; j++) {
            double target = j == labels[r] ? 1.0 : 0.0;
            double derivative = exp((double)row[j] - maximum) / sum - target;
            dlogits[r * classes + j] = labels[r] < 0 ? 0.0f : (float)(derivative * scale);
            largest = row[j] > row[largest] ? j : largest;
        }
        if (labels[r] < 0)
            continue;
        *loss_sum += log(sum) - ((double)row[labels[r]] - maximum);
        *correct += largest == labels[r];
        *counted += 1;
    }
}

static int row_is_padding(const float *targets, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        if (isnan(targets[j]))
            return 1;
    return 0;
}

void naive_binary_cross_entropy(const float *logits, const float *targets, int64_t rows, int64_t n, double scale,
                                double *loss_sum, float *dlogits, int64_t *correct, int64_t *counted)
{
    *loss_sum = 0.0;
    *correct = *counted = 0;
    for (int64_t r = 0; r < rows; r++) {
        int padding = row_is_padding(targets + r * n, n);
        for (int64_t j = r * n; j < (r + 1) * n; j++) {
            double x = (double)logits[j], t = (double)targets[j];
            dlogits[j] = padding ? 0.0f : (float)((1.0 / (1.0 + exp(-x)) - t) * scale / (double)n);
            if (!padding)
                *loss_sum += (fmax(x, 0.0) - x * t + log1p(exp(-fabs(x)))) / (double)n;
        }
        *correct += n == 1 && !padding && (logits[r] > 0.0f) == (targets[r] > 0.5f);
        *counted += !padding;
    }
}

void naive_bias_add(float *y, const float *bias, int64_t rows, int64_t n)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < n; j++)
            y[r * n + j] = y[r * n + j] + bias[j];
}

void naive_bias_grad(float *dbias, const float *dy, int64_t rows, int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        double sum = 0.0;
        for (int64_t r = 0; r < rows; r++)
            sum += (double)dy[r * n + j];
        dbias[j] = (float)((double)dbias[j] + sum);
    }
}

void naive_dropout_apply(double p, uint64_t seed, uint32_t layer, uint32_t step, int64_t first_element,
                         const float *x, float *y, int64_t count)
{
    float factor = (float)(1.0 / (1.0 - p));
    for (int64_t i = 0; i < count; i++) {
        float u = rng_uniform(seed, RNG_SITE_DROPOUT + layer, step, (uint64_t)(first_element + i));
        y[i] = (double)u >= p ? x[i] * factor : 0.0f;
    }
}

void naive_reduce_add_many(float *acc, const float *const *sources, int sources_count, int first, int64_t count)
{
    for (int s = 0; s < sources_count; s++)
        for (int64_t i = 0; i < count; i++)
            acc[i] = first && s == 0 ? sources[s][i] : acc[i] + sources[s][i];
}

void naive_reduce_scale(float *acc, float factor, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        acc[i] = acc[i] * factor;
}

static double sum_of_lanes(const double lanes[16])
{
    double sum = lanes[0];
    for (int l = 1; l < 16; l++)
        sum += lanes[l];
    return sum;
}

double naive_reduce_norm_squared(const float *x, int64_t count, int *finite)
{
    double lanes[16] = {0};
    for (int64_t i = 0; i < count; i++) {
        lanes[i % 16] += (double)x[i] * (double)x[i];
        if (!isfinite(x[i]))
            *finite = 0;
    }
    return sum_of_lanes(lanes);
}

double naive_reduce_sum(const float *x, int64_t count)
{
    double lanes[16] = {0};
    for (int64_t i = 0; i < count; i++)
        lanes[i % 16] += (double)x[i];
    return sum_of_lanes(lanes);
}

void naive_squared_error(const float *outputs, const float *targets, int64_t rows, int64_t n, int half,
                         double scale, double *loss_sum, float *doutputs, int64_t *counted)
{
    double divisor = half ? 1.0 : (double)n;
    *loss_sum = 0.0;
    *counted = 0;
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0.0;
        int padding = row_is_padding(targets + r * n, n);
        for (int64_t j = r * n; j < (r + 1) * n; j++) {
            double d = (double)outputs[j] - (double)targets[j];
            sum += half ? 0.5 * d * d : d * d;
            doutputs[j] = padding ? 0.0f : (float)((half ? d : 2.0 * d) * scale / divisor);
        }
        if (padding)
            continue;
        *loss_sum += sum / divisor;
        *counted += 1;
    }
}

void naive_batch_norm_stats(const float *x, int64_t rows, int64_t features, struct norm_stats *stats)
{
    stats->count = (double)rows;
    for (int64_t j = 0; j < features; j++) {
        double sum = 0.0, square = 0.0;
        for (int64_t r = 0; r < rows; r++)
            sum += (double)x[r * features + j];
        double mean = rows > 0 ? sum / (double)rows : 0.0;
        for (int64_t r = 0; r < rows; r++) {
            double deviation = (double)x[r * features + j] - mean;
            square += deviation * deviation;
        }
        stats->mean[j] = mean;
        stats->m2[j] = square;
    }
}

void naive_batch_norm_forward(const float *x, const double *mean, const double *rstd, const float *gamma,
                              const float *beta, float *y, float *xhat, int64_t rows, int64_t features)
{
    for (int64_t i = 0; i < rows * features; i++) {
        int64_t j = i % features;
        double normal = ((double)x[i] - mean[j]) * rstd[j];
        y[i] = (float)(normal * (double)gamma[j] + (double)beta[j]);
        if (xhat != NULL)
            xhat[i] = (float)normal;
    }
}

void naive_batch_norm_backward_sums(const float *dy, const float *xhat, int64_t rows, int64_t features,
                                    double *sums)
{
    for (int64_t j = 0; j < features; j++) {
        sums[j] = sums[features + j] = 0.0;
        for (int64_t r = 0; r < rows; r++) {
            sums[j] += (double)dy[r * features + j];
            sums[features + j] += (double)dy[r * features + j] * (double)xhat[r * features + j];
        }
    }
}

void naive_batch_norm_backward(const float *dy, const float *xhat, const double *rstd, const float *gamma,
                               const double *sums, double n, float *dx, int64_t rows, int64_t features)
{
    for (int64_t i = 0; i < rows * features; i++) {
        int64_t j = i % features;
        double centred = (double)dy[i] - sums[j] / n - (double)xhat[i] * (sums[features + j] / n);
        dx[i] = (float)((double)gamma[j] * rstd[j] * centred);
    }
}
