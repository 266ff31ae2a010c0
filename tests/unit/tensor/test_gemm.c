#include "tensor_support.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/pool.h"
#include "tensor/gemm.h"
#include "tensor/naive.h"

struct shape {
    int64_t m, n, k;
};

/* One block, several blocks, remainders in every direction, single rows and columns, narrow, deep. */
static const struct shape shapes[] = {
    {1, 1, 1},      {1, 17, 5},    {17, 1, 9},     {15, 16, 17},   {5, 3, 700},   {33, 10, 512},
    {128, 10, 300}, {130, 11, 64}, {127, 200, 65}, {100, 513, 40}, {32, 512, 98}, {600, 70, 33},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static int start(void **state)
{
    struct errbuf err;
    (void)state;
    errbuf_init(&err);
    if (gemm_start(&err) != 0)
        fail_msg("%s", err.text);
    return 0;
}

static void products_are_the_slow_twins_within_rounding(void **state)
{
    (void)state;
    for (int s = 0; s < SHAPES; s++)
        for (int form = 0; form < 8; form++) {
            int64_t m = shapes[s].m, n = shapes[s].n, k = shapes[s].k;
            int trans_a = form & 1, trans_b = form >> 1 & 1;
            float beta = form & 4 ? 1.0f : 0.0f;
            float *a = test_array(m * k, 1), *b = test_array(k * n, 2), *c = test_array(m * n, 3);
            float *slow = test_array(m * n, 0);
            test_fill(a, m * k, 1.0f, 1);
            test_fill(b, k * n, 1.0f, 2);
            test_fill(slow, m * n, 1.0f, 3);
            for (int64_t i = 0; i < m * n; i++)
                c[i] = beta == 0.0f ? NAN : slow[i];
            gemm(NULL, trans_a, trans_b, m, n, k, a, b, beta, c);
            naive_gemm(trans_a, trans_b, m, n, k, a, b, beta, slow);
            for (int64_t i = 0; i < m * n; i++)
                assert_near((double)c[i], (double)slow[i], 1e-6 * sqrt((double)k) + 1e-6);
            test_release(a, 1);
            test_release(b, 2);
            test_release(c, 3);
            test_release(slow, 0);
        }
}

/* pool NULL, then 1, 2, 3 threads. */
static void thread_count_does_not_change_a_bit(void **state)
{
    (void)state;
    static const struct shape large[] = {
        {128, 512, 96}, {96, 700, 64}, {513, 80, 70}, {128, 10, 512}, {700, 700, 9}};
    for (int threads = 1; threads <= 3; threads++) {
        struct pool *pool = pool_create(threads, 0);
        assert_non_null(pool);
        for (int s = 0; s < 5; s++)
            for (int form = 0; form < 4; form++) {
                int64_t m = large[s].m, n = large[s].n, k = large[s].k;
                float *a = test_array(m * k, 0), *b = test_array(k * n, 0), *one = test_array(m * n, 0);
                float *many = test_array(m * n, 0);
                test_fill(a, m * k, 1.0f, 4);
                test_fill(b, k * n, 1.0f, 5);
                gemm(NULL, form & 1, form >> 1, m, n, k, a, b, 0.0f, one);
                gemm(pool, form & 1, form >> 1, m, n, k, a, b, 0.0f, many);
                assert_same_bits(one, many, m * n);
                test_release(a, 0);
                test_release(b, 0);
                test_release(one, 0);
                test_release(many, 0);
            }
        pool_destroy(pool);
    }
}

static void alignment_of_operands_does_not_change_a_bit(void **state)
{
    (void)state;
    for (int s = 0; s < SHAPES; s++)
        for (int form = 0; form < 4; form++) {
            int64_t m = shapes[s].m, n = shapes[s].n, k = shapes[s].k;
            float *a0 = test_array(m * k, 0), *b0 = test_array(k * n, 0), *c0 = test_array(m * n, 0);
            test_fill(a0, m * k, 1.0f, 6);
            test_fill(b0, k * n, 1.0f, 7);
            gemm(NULL, form & 1, form >> 1, m, n, k, a0, b0, 0.0f, c0);
            for (int offset = 1; offset < OFFSETS; offset++) {
                int ao = offset, bo = offset * 5 % 16, co = offset * 11 % 16;
                float *a = test_array(m * k, ao), *b = test_array(k * n, bo), *c = test_array(m * n, co);
                memcpy(a, a0, (size_t)(m * k) * sizeof *a);
                memcpy(b, b0, (size_t)(k * n) * sizeof *b);
                gemm(NULL, form & 1, form >> 1, m, n, k, a, b, 0.0f, c);
                assert_same_bits(c, c0, m * n);
                test_release(a, ao);
                test_release(b, bo);
                test_release(c, co);
            }
            test_release(a0, 0);
            test_release(b0, 0);
            test_release(c0, 0);
        }
}

struct caller {
    const float *a, *b, *expected;
    float *c;
    int differs;
};

enum { CALL_M = 64, CALL_N = 160, CALL_K = 130, CALLERS = 4 };

static void *multiply_often(void *context)
{
    struct caller *caller = context;
    for (int i = 0; i < 50; i++) {
        gemm(NULL, 0, 1, CALL_M, CALL_N, CALL_K, caller->a, caller->b, 0.0f, caller->c);
        caller->differs |= memcmp(caller->c, caller->expected, CALL_M * CALL_N * sizeof(float)) != 0;
    }
    return NULL;
}

static void many_threads_may_multiply_at_once(void **state)
{
    (void)state;
    float *a = test_array(CALL_M * CALL_K, 0), *b = test_array(CALL_N * CALL_K, 0);
    float *expected = test_array(CALL_M * CALL_N, 0);
    struct caller callers[CALLERS];
    pthread_t threads[CALLERS];
    test_fill(a, CALL_M * CALL_K, 1.0f, 8);
    test_fill(b, CALL_N * CALL_K, 1.0f, 9);
    gemm(NULL, 0, 1, CALL_M, CALL_N, CALL_K, a, b, 0.0f, expected);
    for (int i = 0; i < CALLERS; i++) {
        callers[i] = (struct caller){a, b, expected, test_array(CALL_M * CALL_N, 0), 0};
        assert_int_equal(pthread_create(&threads[i], NULL, multiply_often, &callers[i]), 0);
    }
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(callers[i].differs, 0);
        test_release(callers[i].c, 0);
    }
    test_release(a, 0);
    test_release(b, 0);
    test_release(expected, 0);
}

static void empty_products_are_zero_or_leave_c(void **state)
{
    (void)state;
    float a[1] = {1.0f}, c[4] = {NAN, 1.0f, 2.0f, 3.0f};
    gemm(NULL, 0, 0, 2, 2, 0, a, a, 0.0f, c);
    for (int i = 0; i < 4; i++)
        assert_true(c[i] == 0.0f);
    c[0] = 5.0f;
    gemm(NULL, 0, 0, 2, 2, 0, a, a, 1.0f, c);
    assert_true(c[0] == 5.0f);
    gemm(NULL, 0, 0, 0, 2, 3, a, a, 0.0f, c);
    gemm(NULL, 0, 0, 2, 0, 3, a, a, 0.0f, c);
    assert_true(c[0] == 5.0f);
}

static void blocks_cover_every_shape_and_share_large_ones(void **state)
{
    (void)state;
    int64_t bm, bn;
    for (int64_t m = 0; m < 3000; m = m * 3 / 2 + 1)
        for (int64_t n = 0; n < 3000; n = n * 3 / 2 + 1)
            for (int64_t k = 1; k < 3000; k = k * 5 + 1) {
                gemm_block_size(m, n, k, &bm, &bn);
                assert_true(bm >= 1 && bn >= 1 && (bm <= m || m == 0) && (bn <= n || n == 0));
            }
    gemm_block_size(128, 512, 784, &bm, &bn);
    assert_true((128 + bm - 1) / bm * ((512 + bn - 1) / bn) >= 4);
}

static void starting_again_changes_nothing_and_core_type_has_a_name(void **state)
{
    char before[64];
    strncpy(before, gemm_core_type(), sizeof before - 1);
    before[sizeof before - 1] = '\0';
    assert_true(before[0] != '\0');
    start(state);
    assert_string_equal(before, gemm_core_type());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_the_slow_twins_within_rounding),
        cmocka_unit_test(thread_count_does_not_change_a_bit),
        cmocka_unit_test(alignment_of_operands_does_not_change_a_bit),
        cmocka_unit_test(many_threads_may_multiply_at_once),
        cmocka_unit_test(empty_products_are_zero_or_leave_c),
        cmocka_unit_test(blocks_cover_every_shape_and_share_large_ones),
        cmocka_unit_test(starting_again_changes_nothing_and_core_type_has_a_name),
    };
    return cmocka_run_group_tests_name("tensor gemm", tests, start, NULL);
}
