/* Counter-based random numbers, Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC 2011). The value depends only on
 * (seed, site, step, index), never on who asks or in which order. Pure; any thread.
 * key = the two halves of seed; counter = (index low, index high, site, step), and of the four words of one
 * block, element index i uses word i mod 4 of block i div 4. */
#ifndef SHOAL_BASE_RNG_H
#define SHOAL_BASE_RNG_H

#include <stdint.h>

enum rng_site_base {
    RNG_SITE_INIT = 0x10000,    /* + global tensor number */
    RNG_SITE_DROPOUT = 0x20000, /* + layer number */
    RNG_SITE_SHUFFLE = 0x30000,
    RNG_SITE_SPLIT = 0x30001,
    RNG_SITE_SYNTHETIC = 0x40000,
    RNG_SITE_SAMPLE = 0x50000
};

void rng_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
uint32_t rng_u32(uint64_t seed, uint32_t site, uint32_t step, uint64_t index);
/* (u32 >> 8) * 2^-24, in [0, 1). */
float rng_uniform(uint64_t seed, uint32_t site, uint32_t step, uint64_t index);
/* out[i] = rng_uniform(seed, site, step, first + i), i < count; four at a time. */
void rng_uniform_fill(uint64_t seed, uint32_t site, uint32_t step, uint64_t first, float *out, int64_t count);
/* Standard normal by Box-Muller in double from the elements 2*index and 2*index+1 of the same site. */
double rng_normal(uint64_t seed, uint32_t site, uint32_t step, uint64_t index);
/* out = a permutation of 0..n-1 by Fisher-Yates, from (seed, site, step) alone. */
void rng_permutation(uint64_t seed, uint32_t site, uint32_t step, int64_t n, int64_t *out);

#endif
