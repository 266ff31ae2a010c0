/* BatchNorm statistics of all norm layers of a model as one flat vector of doubles, for each norm in order: n,
 * mean[f], M2[f]. What ranks send and what the coordinator merges and commits. Pure; any thread. */
#ifndef SHOAL_CLUSTER_NORM_STATS_H
#define SHOAL_CLUSTER_NORM_STATS_H

#include <stdint.h>

/* Doubles in such a vector: Σ 1 + 2·features. */
int64_t norm_stats_count(const int64_t *features, int norms);
/* a = a merged with b by Chan's formula, b after a. A norm with n = 0 is neutral. Not associative to the last bit:
 * the caller keeps the order rank, then micro-batch. */
void norm_stats_merge(const int64_t *features, int norms, double *a, const double *b);
/* What ranks combine while a step runs, in order of rank into `into`, which begins as zeros: merge 1: one norm's (n, mean, M2)
 * of `count` doubles by Chan's formula; 0: sums. */
void norm_stats_combine(int merge, double *into, const double *of_rank, int64_t count);
/* One commit of a step's merged statistics: running holds, for each norm in order, mean[f] then variance[f]
 * (Σ 2·features floats). Momentum 0.1, unbiased variance; a norm with n < 2 is left alone. */
void norm_stats_commit(const int64_t *features, int norms, const double *merged, float *running);

#endif
