/* The slow twin of every kernel: one scalar loop each, to test and to read. Twins take the same arguments without
 * the pool. "Same bits" twins must equal their kernel exactly; the others compute in double with libm and are
 * compared within a tolerance. Any thread. */
#ifndef SHOAL_TENSOR_NAIVE_H
#define SHOAL_TENSOR_NAIVE_H

#include <stdint.h>

#include "tensor/elementwise.h"
#include "tensor/norm.h"

/* Within a tolerance (sums in double). */
void naive_gemm(int trans_a, int trans_b, int64_t m, int64_t n, int64_t k, const float *a, const float *b,
                float beta, float *c);
void naive_activation_forward(enum activation kind, const float *x, float *y, int64_t count);
void naive_activation_backward(enum activation kind, const float *x, const float *dy, float *dx, int64_t count);
void naive_softmax_rows(const float *logits, float *probabilities, int64_t rows, int64_t classes);
void naive_softmax_cross_entropy(const float *logits, const int32_t *labels, int64_t rows, int64_t classes,
                                 double scale, double *loss_sum, float *dlogits, int64_t *correct,
                                 int64_t *counted);
void naive_binary_cross_entropy(const float *logits, const float *targets, int64_t rows, int64_t n, double scale,
                                double *loss_sum, float *dlogits, int64_t *correct, int64_t *counted);

/* Same bits. */
void naive_bias_add(float *y, const float *bias, int64_t rows, int64_t n);
void naive_bias_grad(float *dbias, const float *dy, int64_t rows, int64_t n);
void naive_dropout_apply(double p, uint64_t seed, uint32_t layer, uint32_t step, int64_t first_element,
                         const float *x, float *y, int64_t count);
void naive_reduce_add_many(float *acc, const float *const *sources, int sources_count, int first, int64_t count);
void naive_reduce_scale(float *acc, float factor, int64_t count);
double naive_reduce_norm_squared(const float *x, int64_t count, int *finite);
double naive_reduce_sum(const float *x, int64_t count);
/* divisor: n for mse; half: 1 for half squared error, whose divisor is 1. */
void naive_squared_error(const float *outputs, const float *targets, int64_t rows, int64_t n, int half,
                         double scale, double *loss_sum, float *doutputs, int64_t *counted);
void naive_batch_norm_stats(const float *x, int64_t rows, int64_t features, struct norm_stats *stats);
void naive_batch_norm_forward(const float *x, const double *mean, const double *rstd, const float *gamma,
                              const float *beta, float *y, float *xhat, int64_t rows, int64_t features);
void naive_batch_norm_backward_sums(const float *dy, const float *xhat, int64_t rows, int64_t features,
                                    double *sums);
void naive_batch_norm_backward(const float *dy, const float *xhat, const double *rstd, const float *gamma,
                               const double *sums, double n, float *dx, int64_t rows, int64_t features);

#endif
