#include "tensor/loss.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "tensor/kernels.h"
#include "tensor/vector_math.h"

static void store_count(int64_t *out, int64_t value)
{
    if (out != NULL)
        *out = value;
}

static int is_largest(const float *row, int64_t label, float maximum)
{
    if (row[label] != maximum)
        return 0;
    for (int64_t j = 0; j < label; j++)
        if (row[j] == maximum)
            return 0;
    return 1;
}

void loss_softmax_cross_entropy(const float *logits, const int32_t *labels, int64_t rows, int64_t classes,
                                double scale, double *loss_sum, float *dlogits, int64_t *correct, int64_t *counted)
{
    const struct kernel_ops *ops = kernel_ops_best();
    double loss = 0.0;
    int64_t right = 0, number = 0;
    for (int64_t r = 0; r < rows; r++) {
        const float *row = logits + r * classes;
        float *drow = dlogits != NULL ? dlogits + r * classes : NULL;
        int32_t label = labels[r];
        if (label < 0) {
            if (drow != NULL)
                memset(drow, 0, (size_t)classes * sizeof *drow);
            continue;
        }
        assert(label < classes);
        float maximum = ops->row_maximum(row, classes);
        double sum = ops->row_exp_sum(row, (double)maximum, classes);
        double shifted = (double)row[label] - (double)maximum;
        loss += vector_log(sum) - shifted;
        right += !isnan(sum) && is_largest(row, label, maximum);
        number++;
        if (drow != NULL) {
            double at_label = vector_exp(shifted) / sum - 1.0;
            ops->row_exp_scale(row, (double)maximum, scale / sum, drow, classes);
            drow[label] = (float)(at_label * scale);
        }
    }
    *loss_sum = loss;
    store_count(correct, right);
    store_count(counted, number);
}

void softmax_rows(const float *logits, float *probabilities, int64_t rows, int64_t classes)
{
    const struct kernel_ops *ops = kernel_ops_best();
    for (int64_t r = 0; r < rows; r++) {
        const float *row = logits + r * classes;
        float maximum = ops->row_maximum(row, classes);
        double sum = ops->row_exp_sum(row, (double)maximum, classes);
        ops->row_exp_scale(row, (double)maximum, 1.0 / sum, probabilities + r * classes, classes);
    }
}

/* Loss and derivative of one output against its target, before any mean. */
struct point {
    double loss, derivative;
};

/* max(x,0) - x t + log(1 + e^-|x|); sigmoid(x) - t */
static struct point binary_cross_entropy_point(double x, double t)
{
    double e = vector_exp(-fabs(x));
    double positive = x > 0.0 ? x : 0.0;
    double sigmoid = (x >= 0.0 ? 1.0 : e) / (1.0 + e);
    double loss = isnan(x) ? x : positive - x * t + vector_log1p(e);
    return (struct point){loss, sigmoid - t};
}

static struct point squared_error_point(double x, double t)
{
    double d = x - t;
    return (struct point){d * d, 2.0 * d};
}

static struct point half_squared_error_point(double x, double t)
{
    double d = x - t;
    return (struct point){0.5 * d * d, d};
}

struct pointwise_call {
    const float *outputs, *targets;
    int64_t rows, n;
    double divisor; /* a row's loss and gradient are divided by it */
    double scale;
    float *gradient;
};

static int row_is_padding(const float *targets, int64_t n)
{
    int padding = 0;
    for (int64_t j = 0; j < n; j++)
        padding |= isnan(targets[j]) != 0;
    return padding;
}

static double pointwise_loss(struct point (*point)(double, double), const struct pointwise_call *call,
                             int64_t *counted)
{
    double loss = 0.0;
    int64_t number = 0, n = call->n;
    for (int64_t r = 0; r < call->rows; r++) {
        const float *x = call->outputs + r * n, *t = call->targets + r * n;
        float *g = call->gradient != NULL ? call->gradient + r * n : NULL;
        if (row_is_padding(t, n)) {
            if (g != NULL)
                memset(g, 0, (size_t)n * sizeof *g);
            continue;
        }
        double row_loss = 0.0;
        for (int64_t j = 0; j < n; j++) {
            struct point p = point((double)x[j], (double)t[j]);
            row_loss += p.loss;
            if (g != NULL)
                g[j] = (float)(p.derivative * call->scale / call->divisor);
        }
        loss += row_loss / call->divisor;
        number++;
    }
    store_count(counted, number);
    return loss;
}

void loss_binary_cross_entropy(const float *logits, const float *targets, int64_t rows, int64_t n, double scale,
                               double *loss_sum, float *dlogits, int64_t *correct, int64_t *counted)
{
    struct pointwise_call call = {logits, targets, rows, n, (double)n, scale, dlogits};
    int64_t right = 0;
    for (int64_t r = 0; n == 1 && r < rows; r++) /* before dlogits, which may be logits, is written */
        right += !isnan(targets[r]) && !isnan(logits[r]) && (logits[r] > 0.0f) == (targets[r] > 0.5f);
    *loss_sum = pointwise_loss(binary_cross_entropy_point, &call, counted);
    store_count(correct, right);
}

void loss_mse(const float *outputs, const float *targets, int64_t rows, int64_t n, double scale, double *loss_sum,
              float *doutputs, int64_t *counted)
{
    struct pointwise_call call = {outputs, targets, rows, n, (double)n, scale, doutputs};
    *loss_sum = pointwise_loss(squared_error_point, &call, counted);
}

void loss_half_squared_error(const float *outputs, const float *targets, int64_t rows, int64_t n, double scale,
                             double *loss_sum, float *doutputs, int64_t *counted)
{
    struct pointwise_call call = {outputs, targets, rows, n, 1.0, scale, doutputs};
    *loss_sum = pointwise_loss(half_squared_error_point, &call, counted);
}
