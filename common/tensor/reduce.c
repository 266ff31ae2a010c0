#include "tensor/reduce.h"

#include <math.h>
#include <string.h>

#include "tensor/kernels.h"

void reduce_copy(float *acc, const float *x, int64_t count)
{
    if (count > 0)
        memmove(acc, x, (size_t)count * sizeof *acc);
}

void reduce_add(float *acc, const float *x, int64_t count)
{
    kernel_ops_best()->reduce_add(acc, x, count);
}

void reduce_add_many(float *acc, const float *const *sources, int sources_count, int first, int64_t count)
{
    kernel_ops_best()->reduce_add_many(acc, sources, sources_count, first, count);
}

void reduce_sum_to(float *out, const float *const *sources, int sources_count, int64_t count)
{
    kernel_ops_best()->reduce_sum_to(out, sources, sources_count, count);
}

void reduce_scale(float *acc, float factor, int64_t count)
{
    kernel_ops_best()->reduce_scale(acc, factor, count);
}

/* Squares of float32 cannot overflow a double sum, so the sum is finite exactly when every element is. */
double reduce_norm_squared(const float *x, int64_t count, int *finite)
{
    double sum = kernel_ops_best()->reduce_norm_squared(x, count);
    if (!isfinite(sum))
        *finite = 0;
    return sum;
}

double reduce_sum(const float *x, int64_t count)
{
    return kernel_ops_best()->reduce_sum(x, count);
}
