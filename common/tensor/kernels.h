/* The hot loops, compiled once for each instruction set from the same text (kernels_portable.c, kernels_avx2.c,
 * kernels_avx512.c include kernels_*_body.h). Private to the room and its tests. The functions work on one thread
 * and on whole arrays; meanings are those of the public headers. */
#ifndef SHOAL_TENSOR_KERNELS_H
#define SHOAL_TENSOR_KERNELS_H

#include <stdint.h>

#include "tensor/elementwise.h"

enum { KERNEL_LANES = 16 };

struct kernel_ops {
    const char *name;
    void (*bias_add)(float *y, const float *bias, int64_t rows, int64_t n);
    void (*bias_grad)(float *dbias, const float *dy, int64_t rows, int64_t n);
    void (*activation_forward)(enum activation kind, const float *x, float *y, int64_t count);
    void (*activation_backward)(enum activation kind, const float *x, const float *y, const float *dy, float *dx,
                                int64_t count);
    /* y = u >= p ? x * factor : 0 */
    void (*dropout_select)(const float *x, const float *u, double p, float factor, float *y, int64_t count);

    void (*reduce_add)(float *acc, const float *x, int64_t count);
    void (*reduce_add_many)(float *acc, const float *const *sources, int sources_count, int first, int64_t count);
    void (*reduce_sum_to)(float *out, const float *const *sources, int sources_count, int64_t count);
    void (*reduce_scale)(float *acc, float factor, int64_t count);
    double (*reduce_norm_squared)(const float *x, int64_t count);
    double (*reduce_sum)(const float *x, int64_t count);

    float (*row_maximum)(const float *x, int64_t n); /* NaN are passed over; -infinity when n = 0 */
    double (*row_exp_sum)(const float *x, double maximum, int64_t n); /* sum of e^(x - maximum), 16 lanes */
    /* y = e^(x - maximum) * factor */
    void (*row_exp_scale)(const float *x, double maximum, double factor, float *y, int64_t n);

    void (*norm_moments)(const float *x, int64_t rows, int64_t features, double *mean, double *m2);
    void (*norm_forward)(const float *x, const double *mean, const double *rstd, const float *gamma,
                         const float *beta, float *y, float *xhat, int64_t rows, int64_t features);
    void (*norm_backward_sums)(const float *dy, const float *xhat, int64_t rows, int64_t features, double *sums);
    void (*norm_backward)(const float *dy, const float *xhat, const double *rstd, const float *gamma,
                          const double *sums, double n, float *dx, int64_t rows, int64_t features);
};

/* The best set for this processor; asks only flags that were read at load time. */
const struct kernel_ops *kernel_ops_best(void);
/* Set number i of those this processor can run, from 0 (portable); NULL past the last. For tests. */
const struct kernel_ops *kernel_ops_at(int i);

extern const struct kernel_ops kernel_ops_portable;
#ifdef __x86_64__
extern const struct kernel_ops kernel_ops_avx2;
extern const struct kernel_ops kernel_ops_avx512;
#endif

#endif
