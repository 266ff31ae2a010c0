/* Which samples a step takes. Pure arithmetic on (seed, step); restarting at any step needs no state but the
 * step. The permutation of the current epoch is cached (8 bytes a sample). One thread. */
#ifndef SHOAL_DATA_SAMPLER_H
#define SHOAL_DATA_SAMPLER_H

#include <stdint.h>

struct sampler;

/* last_batch is enum job_last_batch: the last batch of an epoch that would be smaller than batch_size is taken
 * short, filled up with the epoch's first samples (wrap), or left out (drop). NULL when out of memory or when rows
 * < 0 or batch_size < 1. */
struct sampler *sampler_create(int64_t rows, int64_t batch_size, int shuffled, int last_batch, uint64_t seed);
void sampler_destroy(struct sampler *sampler);
/* 0 when there is no row, or with drop when rows < batch_size. */
int64_t sampler_steps_per_epoch(const struct sampler *sampler);
/* Samples of the global batch of step (from 1). */
int64_t sampler_batch(const struct sampler *sampler, int64_t step);
/* The share of (rank of world, micro of accumulate): contiguous, remainders to the first ranks, then within the
 * rank the same rule over its micro-steps. Writes indices (NULL: count only), *first (NULL ok) = position of the
 * share's first sample in the global batch; returns the count (may be 0). */
int64_t sampler_share(struct sampler *sampler, int64_t step, int rank, int world, int micro, int accumulate,
                      int64_t *indices, int64_t *first);

#endif
