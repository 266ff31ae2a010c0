/* Element by element: bias, activations, dropout, and the functions they need.
 * Own exp, tanh, erf, log: libm's give other bits on other processors. Any thread; see tensor.h. */
#ifndef SHOAL_TENSOR_ELEMENTWISE_H
#define SHOAL_TENSOR_ELEMENTWISE_H

#include <stdint.h>

struct pool;

enum activation { ACTIVATION_RELU, ACTIVATION_GELU, ACTIVATION_GELU_TANH, ACTIVATION_TANH, ACTIVATION_NONE };

/* Same bits everywhere; NaN and infinities as in C. */
float math_expf(float x);  /* <= 2 ulp, denormal results included */
float math_tanhf(float x); /* <= 2 ulp */
float math_erff(float x);  /* <= 2 ulp */
float math_logf(float x);  /* <= 1 ulp */

/* y[r][j] += bias[j]; y (rows, n). */
void bias_add(float *y, const float *bias, int64_t rows, int64_t n);
/* dbias[j] += sum over rows of dy[r][j], summed in double in order of rows, added and rounded once. */
void bias_grad(float *dbias, const float *dy, int64_t rows, int64_t n);
/* y = f(x); y may be x. (gelu's backward needs x, so keep it then.) relu of NaN is NaN. */
void activation_forward(enum activation kind, struct pool *pool, const float *x, float *y, int64_t count);
/* dx = dy * f'(x). x and y are the forward's; relu and tanh read y only (x may be NULL), gelus x only (y may be
 * NULL), none neither. dx may be dy. relu's derivative at 0 is 0. */
void activation_backward(enum activation kind, struct pool *pool, const float *x, const float *y, const float *dy,
                         float *dx, int64_t count);
/* Keep with probability 1-p: u = rng_uniform(seed, RNG_SITE_DROPOUT + layer, step, element), kept where u >= p,
 * kept values times 1/(1-p). first_element: index of x[0] in the global mini-batch's (samples, width) array. y may
 * be x. Backward is the same call on dy. p = 0 copies. */
void dropout_apply(struct pool *pool, double p, uint64_t seed, uint32_t layer, uint32_t step, int64_t first_element,
                   const float *x, float *y, int64_t count);

#endif
