/* Batch normalisation (Ioffe, Szegedy, 2015) in pieces: statistics of one micro-batch, their merge over
 * micro-batches and ranks (Chan, Golub, LeVeque, 1979), the commit to running statistics, forward, backward.
 * Statistics and intermediate values are double. Any thread; see tensor.h. */
#ifndef SHOAL_TENSOR_NORM_H
#define SHOAL_TENSOR_NORM_H

#include <stdint.h>

/* Statistics of each feature over rows. */
struct norm_stats { /* arrays of `features` doubles, caller's */
    double count;
    double *mean;
    double *m2; /* sum of squared deviations from mean */
};
/* Statistics of x (rows, features): two passes, rows taken in order. rows = 0 gives zeros. */
void batch_norm_stats(const float *x, int64_t rows, int64_t features, struct norm_stats *stats);
/* a = a merged with b by Chan's formula (b after a). Counts of 0 are neutral. */
void batch_norm_merge(struct norm_stats *a, const struct norm_stats *b, int64_t features);
/* running = (1-momentum) running + momentum (mean, M2/(n-1)), in double, rounded to float32; n < 2 leaves them. */
void batch_norm_commit(float *running_mean, float *running_var, const struct norm_stats *stats, int64_t features,
                       double momentum);
/* y = (x-mean)*rstd*gamma + beta with rstd = 1/sqrt(var+eps); mean and rstd are the caller's double arrays; xhat
 * (rows, features), (x-mean)*rstd, is saved for backward (NULL in evaluation). y may be x, xhat may not. */
void batch_norm_forward(const float *x, const double *mean, const double *rstd, const float *gamma,
                        const float *beta, float *y, float *xhat, int64_t rows, int64_t features);
/* sums[0..f) = Σ dy, sums[f..2f) = Σ dy·xhat over rows, in double, rows in order. */
void batch_norm_backward_sums(const float *dy, const float *xhat, int64_t rows, int64_t features, double *sums);
/* dx = gamma·rstd·(dy - Σdy/n - xhat·Σ(dy·xhat)/n) with the sums and n of the normalisation group. dx may be dy. */
void batch_norm_backward(const float *dy, const float *xhat, const double *rstd, const float *gamma,
                         const double *sums, double n, float *dx, int64_t rows, int64_t features);

#endif
