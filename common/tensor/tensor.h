/* Conventions of the room `tensor`.
 *
 * All matrices are row-major float32 with the leading dimension equal to the row length unless an argument
 * says otherwise. Pointers may have any alignment of 4 bytes. Every kernel gives the same bits at any offset,
 * for any number of pool threads and with any instruction set (paths are chosen at run time; no FMA outside
 * gemm; sums run in 16 fixed lanes, lane i taking elements i, i+16, …, lanes then added 0..15 in order).
 * Kernels never allocate. Each has a slow twin in naive.h. */
#ifndef SHOAL_TENSOR_TENSOR_H
#define SHOAL_TENSOR_TENSOR_H

#include <stdint.h>

struct pool;
struct errbuf;

enum activation { ACTIVATION_RELU, ACTIVATION_GELU, ACTIVATION_GELU_TANH, ACTIVATION_TANH, ACTIVATION_NONE };

/* --- gemm.h ---------------------------------------------------------------------------------------- */

/* Chooses OPENBLAS_CORETYPE for this processor unless the user set it, loads OpenBLAS, sets it to one thread.
 * Once a process, before other threads start; idempotent. STATUS_IO when the library cannot be loaded. */
int gemm_start(struct errbuf *err);
/* Core type in use as OpenBLAS reports it ("SkylakeX", "Haswell"), "" before gemm_start. */
const char *gemm_core_type(void);

/* c (m,n) = alpha_one * op(a) (m,k) * op(b) (k,n) + beta * c, beta 0 or 1. trans_a: a is stored (k,m); trans_b: b is
 * stored (n,k). c is cut into blocks that depend on (m, n, k) only; each is one single-threaded sgemm on a pool
 * thread (pool NULL: all on the caller). k = 0 gives zeros (beta 0). */
void gemm(struct pool *pool, int trans_a, int trans_b, int64_t m, int64_t n, int64_t k, const float *a,
          const float *b, float beta, float *c);

/* --- elementwise.h --------------------------------------------------------------------------------- */

float math_expf(float x);  /* own, <= 2 ulp, same bits everywhere */
float math_tanhf(float x); /* own, <= 2 ulp */
float math_erff(float x);  /* own, <= 4 ulp */
float math_logf(float x);  /* own, <= 2 ulp */

/* y[i] = x[i] + bias[i mod n], rows x n; in place allowed. */
void bias_add(float *y, const float *bias, int64_t rows, int64_t n);
/* dbias[j] += sum over rows of dy[r][j]. Per column in order of rows. */
void bias_grad(float *dbias, const float *dy, int64_t rows, int64_t n);
/* y = f(x); may be in place only for relu, tanh, none. */
void activation_forward(enum activation kind, struct pool *pool, const float *x, float *y, int64_t count);
/* dx = dy * f'(x). x and y are the forward's; relu and tanh read y only (x may be NULL), gelus x only. dx may
 * alias dy. */
void activation_backward(enum activation kind, struct pool *pool, const float *x, const float *y, const float *dy,
                         float *dx, int64_t count);
/* Keep with probability 1-p: u = rng_uniform(seed, RNG_SITE_DROPOUT + layer, step, element), kept where u >= p, kept
 * values times 1/(1-p). first_element: index of x[0] in the global mini-batch's (samples, width) array. In place
 * allowed. Backward is the same call on dy. p = 0 copies. */
void dropout_apply(struct pool *pool, double p, uint64_t seed, uint32_t layer, uint32_t step, int64_t first_element,
                   const float *x, float *y, int64_t count);

/* --- reduce.h --------------------------------------------------------------------------------------- */

/* acc = x (copy) or acc += x, for owners. */
void reduce_copy(float *acc, const float *x, int64_t count);
void reduce_add(float *acc, const float *x, int64_t count);
/* acc (+)= x[0] + … in the order of the sources, each addition rounded to float32 as if one after the other:
 * first != 0: acc = x[0], then acc += x[1], … ; first == 0: acc += x[0], … One pass over acc. */
void reduce_add_many(float *acc, const float *const *sources, int sources_count, int first, int64_t count);
/* acc[i] *= factor */
void reduce_scale(float *acc, float factor, int64_t count);
/* Sum of squares in 16 fixed double lanes; *finite is set to 0 when any element is not finite, else left. */
double reduce_norm_squared(const float *x, int64_t count, int *finite);
double reduce_sum(const float *x, int64_t count); /* 16 double lanes */

/* --- loss.h ----------------------------------------------------------------------------------------- */

/* Mean-free losses: *loss_sum = sum over rows in double, in order of rows; dlogits (NULL: not wanted) = gradient
 * of loss_sum times `scale`, rounded once to float32. A label of -1 is padding: no loss, zero gradient, not counted.
 * correct (NULL ok) counts rows whose largest logit is at the label, ties to the lowest class. counted (NULL ok). */
void loss_softmax_cross_entropy(const float *logits, const int32_t *labels, int64_t rows, int64_t classes,
                                double scale, double *loss_sum, float *dlogits, int64_t *correct, int64_t *counted);
/* Logits (rows, n), targets (rows, n) in [0,1]; per row the mean over n outputs as in PyTorch. correct: n = 1 and
 * (logit > 0) == (target > 0.5). A NaN target is padding. */
void loss_binary_cross_entropy(const float *logits, const float *targets, int64_t rows, int64_t n, double scale,
                               double *loss_sum, float *dlogits, int64_t *correct, int64_t *counted);
/* Per row the mean over outputs of (y-x)^2. */
void loss_mse(const float *outputs, const float *targets, int64_t rows, int64_t n, double scale, double *loss_sum,
              float *doutputs, int64_t *counted);
/* Per row ½ Σ over outputs (y-x)^2. */
void loss_half_squared_error(const float *outputs, const float *targets, int64_t rows, int64_t n, double scale,
                             double *loss_sum, float *doutputs, int64_t *counted);
/* probabilities = softmax of each row. In place allowed. */
void softmax_rows(const float *logits, float *probabilities, int64_t rows, int64_t classes);

/* --- norm.h ----------------------------------------------------------------------------------------- */

/* Welford/Chan statistics of a feature over rows, all in double. */
struct norm_stats { /* arrays of `features` doubles, caller's */
    double count;
    double *mean;
    double *m2;
};
/* Statistics of x (rows, features), rows taken in order. */
void batch_norm_stats(const float *x, int64_t rows, int64_t features, struct norm_stats *stats);
/* a = a merged with b by Chan's formula (b after a). Counts of 0 are neutral. */
void batch_norm_merge(struct norm_stats *a, const struct norm_stats *b, int64_t features);
/* running = (1-momentum) running + momentum (mean, M2/(n-1)), in double, rounded to float32; n < 2 leaves them. */
void batch_norm_commit(float *running_mean, float *running_var, const struct norm_stats *stats, int64_t features,
                       double momentum);
/* y = (x-mean)/sqrt(var+eps)*gamma + beta; mean and rstd are the caller's double arrays; xhat (rows, features) is saved
 * for backward (NULL in evaluation). */
void batch_norm_forward(const float *x, const double *mean, const double *rstd, const float *gamma,
                        const float *beta, float *y, float *xhat, int64_t rows, int64_t features);
/* sums[0..f) = Σ dy, sums[f..2f) = Σ dy·xhat over rows, in double, rows in order. */
void batch_norm_backward_sums(const float *dy, const float *xhat, int64_t rows, int64_t features, double *sums);
/* dx = gamma·rstd·(dy - Σdy/n - xhat·Σ(dy·xhat)/n) with the sums and n of the normalisation group. dx may alias dy. */
void batch_norm_backward(const float *dy, const float *xhat, const double *rstd, const float *gamma,
                         const double *sums, double n, float *dx, int64_t rows, int64_t features);

#endif
