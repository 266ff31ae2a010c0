#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void check_block(const uint32_t counter[4], const uint32_t key[2], const uint32_t wanted[4])
{
    uint32_t out[4];
    rng_philox(counter, key, out);
    assert_memory_equal(out, wanted, sizeof out);
}

/* The three vectors that the authors of Philox publish with their library. */
static void philox_gives_the_published_vectors(void **state)
{
    (void)state;
    const uint32_t zero[4] = {0}, ones[4] = {~0u, ~0u, ~0u, ~0u};
    check_block(zero, zero, (const uint32_t[]){0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    check_block(ones, ones, (const uint32_t[]){0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    const uint32_t counter[4] = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344};
    const uint32_t key[2] = {0xa4093822, 0x299f31d0};
    check_block(counter, key, (const uint32_t[]){0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

static void element_uses_word_of_its_block(void **state)
{
    (void)state;
    const uint64_t seed = 0x299f31d0a4093822, block = 0x3000000001;
    const uint32_t key[2] = {0xa4093822, 0x299f31d0};
    const uint32_t counter[4] = {1, 0x30, 0x10005, 9};
    uint32_t out[4];
    rng_philox(counter, key, out);
    for (uint32_t word = 0; word < 4; word++) {
        assert_int_equal(rng_u32(seed, 0x10005, 9, 4 * block + word), out[word]);
        float wanted = (float)(out[word] >> 8) * 0x1p-24f;
        assert_true(rng_uniform(seed, 0x10005, 9, 4 * block + word) == wanted);
    }
}

/* Every start, length and the carry of the block number into its high half. */
static void fill_equals_single_elements(void **state)
{
    (void)state;
    float out[160];
    const uint64_t starts[] = {0, 1, 2, 3, 4, 31, 33, 4 * 0xffffffffull - 21, 0x123456789abull};
    for (size_t s = 0; s < sizeof starts / sizeof *starts; s++) {
        for (int64_t count = 0; count <= 150; count++) {
            for (int64_t i = 0; i < 160; i++)
                out[i] = -1;
            rng_uniform_fill(77, RNG_SITE_DROPOUT, 3, starts[s], out, count);
            for (int64_t i = 0; i < 160; i++) {
                float wanted = i < count ? rng_uniform(77, RNG_SITE_DROPOUT, 3, starts[s] + (uint64_t)i) : -1;
                assert_true(out[i] == wanted);
            }
        }
    }
}

static void uniform_stays_below_one_and_is_even(void **state)
{
    (void)state;
    enum { N = 1 << 16 };
    float *out = malloc(N * sizeof *out);
    assert_non_null(out);
    rng_uniform_fill(1, RNG_SITE_SYNTHETIC, 0, 0, out, N);
    int64_t bins[16] = {0};
    for (int64_t i = 0; i < N; i++) {
        assert_true(out[i] >= 0 && out[i] < 1);
        bins[(int)(out[i] * 16)]++;
    }
    double chi = 0;
    for (int b = 0; b < 16; b++)
        chi += ((double)bins[b] - N / 16) * ((double)bins[b] - N / 16) / (N / 16);
    assert_true(chi < 45); /* 15 degrees of freedom: far beyond the 1e-4 tail */
    free(out);
}

static void normal_has_mean_zero_and_variance_one(void **state)
{
    (void)state;
    enum { N = 100000 };
    double sum = 0, squares = 0, fourth = 0;
    for (uint64_t i = 0; i < N; i++) {
        double z = rng_normal(5, RNG_SITE_INIT + 2, 0, i);
        assert_true(isfinite(z));
        sum += z;
        squares += z * z;
        fourth += z * z * z * z;
    }
    assert_true(fabs(sum / N) < 0.02);
    assert_true(fabs(squares / N - 1) < 0.03);
    assert_true(fabs(fourth / N - 3) < 0.2);
}

static void normal_is_box_muller_of_two_elements(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 10; i++) {
        double u = rng_uniform(5, 7, 1, 2 * i), v = rng_uniform(5, 7, 1, 2 * i + 1);
        double wanted = sqrt(-2 * log(1 - u)) * cos(2 * acos(-1.0) * v);
        assert_true(fabs(rng_normal(5, 7, 1, i) - wanted) < 1e-12);
    }
}

static void permutation_holds_every_number_once(void **state)
{
    (void)state;
    for (int64_t n = 0; n < 200; n++) {
        int64_t out[200];
        char seen[200] = {0};
        rng_permutation(9, RNG_SITE_SHUFFLE, 4, n, out);
        for (int64_t i = 0; i < n; i++) {
            assert_true(out[i] >= 0 && out[i] < n && !seen[out[i]]);
            seen[out[i]] = 1;
        }
    }
}

static void permutation_depends_on_seed_site_and_step_alone(void **state)
{
    (void)state;
    int64_t a[50], b[50];
    rng_permutation(9, RNG_SITE_SHUFFLE, 4, 50, a);
    rng_permutation(9, RNG_SITE_SHUFFLE, 4, 50, b);
    assert_memory_equal(a, b, sizeof a);
    rng_permutation(9, RNG_SITE_SHUFFLE, 5, 50, b);
    assert_memory_not_equal(a, b, sizeof a);
    rng_permutation(9, RNG_SITE_SPLIT, 4, 50, b);
    assert_memory_not_equal(a, b, sizeof a);
    rng_permutation(9 + (1ull << 40), RNG_SITE_SHUFFLE, 4, 50, b);
    assert_memory_not_equal(a, b, sizeof a);
}

/* All 24 orders of four appear about equally often. */
static void permutation_is_even_over_orders(void **state)
{
    (void)state;
    enum { N = 24000 };
    int64_t bins[256] = {0};
    for (uint32_t step = 0; step < N; step++) {
        int64_t p[4];
        rng_permutation(3, RNG_SITE_SHUFFLE, step, 4, p);
        bins[p[0] | p[1] << 2 | p[2] << 4 | p[3] << 6]++;
    }
    double chi = 0;
    int orders = 0;
    for (int b = 0; b < 256; b++) {
        if (bins[b]) {
            orders++;
            chi += ((double)bins[b] - N / 24) * ((double)bins[b] - N / 24) / (N / 24);
        }
    }
    assert_int_equal(orders, 24);
    assert_true(chi < 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_vectors),
        cmocka_unit_test(element_uses_word_of_its_block),
        cmocka_unit_test(fill_equals_single_elements),
        cmocka_unit_test(uniform_stays_below_one_and_is_even),
        cmocka_unit_test(normal_has_mean_zero_and_variance_one),
        cmocka_unit_test(normal_is_box_muller_of_two_elements),
        cmocka_unit_test(permutation_holds_every_number_once),
        cmocka_unit_test(permutation_depends_on_seed_site_and_step_alone),
        cmocka_unit_test(permutation_is_even_over_orders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
