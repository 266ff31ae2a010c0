#include "base/rng.h"

#include <math.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { PHILOX_ROUNDS = 10 };
#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_W0 0x9E3779B9u
#define PHILOX_W1 0xBB67AE85u

/* The 24 high bits as a float in [0, 1): exact, so the order of conversion and scaling cannot matter. */
static float rng_to_float(uint32_t word)
{
    return (float)(int32_t)(word >> 8) * 0x1p-24f;
}

void rng_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)PHILOX_M0 * c0;
        uint64_t p1 = (uint64_t)PHILOX_M1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

static void rng_block(uint64_t seed, uint32_t site, uint32_t step, uint64_t block, uint32_t out[4])
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), site, step};
    rng_philox(counter, key, out);
}

uint32_t rng_u32(uint64_t seed, uint32_t site, uint32_t step, uint64_t index)
{
    uint32_t words[4];
    rng_block(seed, site, step, index / 4, words);
    return words[index % 4];
}

float rng_uniform(uint64_t seed, uint32_t site, uint32_t step, uint64_t index)
{
    return rng_to_float(rng_u32(seed, site, step, index));
}

#if defined(__x86_64__)
/* Four blocks: word w of block b is the low half of 64-bit lane b of c[w]; high halves hold rubbish, which
 * vpmuludq does not read. */
struct rng_lanes {
    __m256i c[4];
};

__attribute__((target("avx2"), always_inline)) static inline void
rng_lanes_start(struct rng_lanes *lanes, uint64_t block, uint32_t site, uint32_t step)
{
    __m256i index = _mm256_add_epi64(_mm256_set1_epi64x((int64_t)block), _mm256_setr_epi64x(0, 1, 2, 3));
    lanes->c[0] = index;
    lanes->c[1] = _mm256_srli_epi64(index, 32);
    lanes->c[2] = _mm256_set1_epi64x(site);
    lanes->c[3] = _mm256_set1_epi64x(step);
}

__attribute__((target("avx2"), always_inline)) static inline void rng_lanes_round(struct rng_lanes *lanes,
                                                                                  uint32_t k0, uint32_t k1)
{
    __m256i p0 = _mm256_mul_epu32(lanes->c[0], _mm256_set1_epi64x(PHILOX_M0));
    __m256i p1 = _mm256_mul_epu32(lanes->c[2], _mm256_set1_epi64x(PHILOX_M1));
    __m256i mixed0 = _mm256_xor_si256(lanes->c[1], _mm256_set1_epi64x(k0));
    __m256i mixed1 = _mm256_xor_si256(lanes->c[3], _mm256_set1_epi64x(k1));
    lanes->c[0] = _mm256_xor_si256(_mm256_srli_epi64(p1, 32), mixed0);
    lanes->c[1] = p1;
    lanes->c[2] = _mm256_xor_si256(_mm256_srli_epi64(p0, 32), mixed1);
    lanes->c[3] = p0;
}

/* out[4b + w] = word w of block b as a float. */
__attribute__((target("avx2"), always_inline)) static inline void rng_lanes_store(const struct rng_lanes *lanes,
                                                                                  float *out)
{
    __m256i low = _mm256_blend_epi32(lanes->c[0], _mm256_slli_epi64(lanes->c[1], 32), 0xAA);
    __m256i high = _mm256_blend_epi32(lanes->c[2], _mm256_slli_epi64(lanes->c[3], 32), 0xAA);
    __m256i even = _mm256_srli_epi32(_mm256_unpacklo_epi64(low, high), 8); /* blocks 0, 2 */
    __m256i odd = _mm256_srli_epi32(_mm256_unpackhi_epi64(low, high), 8);  /* blocks 1, 3 */
    const __m256 scale = _mm256_set1_ps(0x1p-24f);
    __m256 first = _mm256_cvtepi32_ps(_mm256_permute2x128_si256(even, odd, 0x20));
    __m256 second = _mm256_cvtepi32_ps(_mm256_permute2x128_si256(even, odd, 0x31));
    _mm256_storeu_ps(out, _mm256_mul_ps(first, scale));
    _mm256_storeu_ps(out + 8, _mm256_mul_ps(second, scale));
}

/* Whole groups of eight blocks; two chains in flight hide the multiplier's latency. */
__attribute__((target("avx2"))) static int64_t rng_fill_avx2(uint64_t seed, uint32_t site, uint32_t step,
                                                             uint64_t block, float *out, int64_t blocks)
{
    int64_t done = 0;
    for (; done + 8 <= blocks; done += 8) {
        struct rng_lanes a, b;
        uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
        rng_lanes_start(&a, block + (uint64_t)done, site, step);
        rng_lanes_start(&b, block + (uint64_t)done + 4, site, step);
        for (int round = 0; round < PHILOX_ROUNDS; round++) {
            rng_lanes_round(&a, k0, k1);
            rng_lanes_round(&b, k0, k1);
            k0 += PHILOX_W0;
            k1 += PHILOX_W1;
        }
        rng_lanes_store(&a, out + 4 * done);
        rng_lanes_store(&b, out + 4 * done + 16);
    }
    return done;
}
#endif

/* Blocks written by the fastest path of this processor, maybe fewer than asked. */
static int64_t rng_fill_wide(uint64_t seed, uint32_t site, uint32_t step, uint64_t block, float *out,
                             int64_t blocks)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        return rng_fill_avx2(seed, site, step, block, out, blocks);
#endif
    (void)seed, (void)site, (void)step, (void)block, (void)out, (void)blocks;
    return 0;
}

void rng_uniform_fill(uint64_t seed, uint32_t site, uint32_t step, uint64_t first, float *out, int64_t count)
{
    int64_t i = 0;
    while (i < count && (first + (uint64_t)i) % 4 != 0) {
        out[i] = rng_uniform(seed, site, step, first + (uint64_t)i);
        i++;
    }
    i += 4 * rng_fill_wide(seed, site, step, (first + (uint64_t)i) / 4, out + i, (count - i) / 4);
    while (i < count) {
        uint32_t words[4];
        rng_block(seed, site, step, (first + (uint64_t)i) / 4, words);
        for (int word = 0; word < 4 && i < count; word++)
            out[i++] = rng_to_float(words[word]);
    }
}

double rng_normal(uint64_t seed, uint32_t site, uint32_t step, uint64_t index)
{
    uint32_t words[4];
    rng_block(seed, site, step, index / 2, words);
    const uint32_t *pair = words + 2 * (index % 2);
    /* 1 - u lies in (0, 1], so the logarithm is finite. */
    double radius = sqrt(-2.0 * log(1.0 - (double)rng_to_float(pair[0])));
    return radius * cos(6.283185307179586476925 * (double)rng_to_float(pair[1]));
}

void rng_permutation(uint64_t seed, uint32_t site, uint32_t step, int64_t n, int64_t *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = i;
    /* Position i draws from 64 bits, the words of half a block, so that n may pass 2^32. */
    for (int64_t i = n - 1; i > 0; i--) {
        uint32_t words[4];
        rng_block(seed, site, step, (uint64_t)i / 2, words);
        const uint32_t *pair = words + 2 * (i % 2);
        uint64_t draw = (uint64_t)pair[1] << 32 | pair[0];
        int64_t j = (int64_t)(uint64_t)((unsigned __int128)draw * ((uint64_t)i + 1) >> 64);
        int64_t kept = out[i];
        out[i] = out[j];
        out[j] = kept;
    }
}
