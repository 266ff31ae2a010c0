#include "tensor_support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/pool.h"
#include "base/rng.h"
#include "tensor/elementwise.h"
#include "tensor/kernels.h"
#include "tensor/naive.h"
#include "tensor/vector_math.h"

static const enum activation kinds[] = {ACTIVATION_RELU, ACTIVATION_GELU, ACTIVATION_GELU_TANH, ACTIVATION_TANH,
                                        ACTIVATION_NONE};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* All instruction sets at all offsets against the portable set at offset 0. */
static void activations_give_the_same_bits_on_every_instruction_set_at_every_offset(void **state)
{
    (void)state;
    enum { N = 1031 };
    float *x0 = test_array(N, 0), *dy0 = test_array(N, 0), *y0 = test_array(N, 0), *dx0 = test_array(N, 0);
    test_fill(x0, N, 12.0f, 1);
    test_fill(dy0, N, 1.0f, 2);
    x0[3] = NAN, x0[4] = INFINITY, x0[5] = -INFINITY, x0[6] = -0.0f, x0[7] = 1e-42f, x0[8] = 1e30f, x0[9] = -1e30f;
    for (int k = 0; k < KINDS; k++) {
        kernel_ops_at(0)->activation_forward(kinds[k], x0, y0, N);
        kernel_ops_at(0)->activation_backward(kinds[k], x0, y0, dy0, dx0, N);
        for (int i = 0; kernel_ops_at(i) != NULL; i++)
            for (int offset = 0; offset < OFFSETS; offset++) {
                float *x = test_array(N, offset), *y = test_array(N, offset), *dx = test_array(N, offset);
                memcpy(x, x0, N * sizeof *x);
                memcpy(dx, dy0, N * sizeof *x);
                kernel_ops_at(i)->activation_forward(kinds[k], x, y, N);
                assert_same_bits(y, y0, N);
                kernel_ops_at(i)->activation_backward(kinds[k], x, y, dx, dx, N); /* dx is dy */
                assert_same_bits(dx, dx0, N);
                kernel_ops_at(i)->activation_forward(kinds[k], x, x, N);
                assert_same_bits(x, y0, N);
                test_release(x, offset);
                test_release(y, offset);
                test_release(dx, offset);
            }
    }
    test_release(x0, 0);
    test_release(dy0, 0);
    test_release(y0, 0);
    test_release(dx0, 0);
}

static void activations_are_the_slow_twins_within_rounding(void **state)
{
    (void)state;
    for (int l = 0; l < LENGTHS; l++)
        for (int k = 0; k < KINDS; k++) {
            int64_t n = test_lengths[l];
            float *x = test_array(n, 3), *y = test_array(n, 1), *slow = test_array(n, 0), *dy = test_array(n, 2);
            test_fill(x, n, 8.0f, 3);
            test_fill(dy, n, 1.0f, 4);
            activation_forward(kinds[k], NULL, x, y, n);
            naive_activation_forward(kinds[k], x, slow, n);
            for (int64_t i = 0; i < n; i++)
                if (!(fabs((double)y[i] - (double)slow[i]) <= 5e-7 + 4e-7 * fabs((double)slow[i])))
                    fail_msg("kind %d at %.9g: %.9g, slow %.9g", k, (double)x[i], (double)y[i], (double)slow[i]);
            naive_activation_backward(kinds[k], x, dy, slow, n);
            activation_backward(kinds[k], NULL, x, y, dy, dy, n);
            for (int64_t i = 0; i < n; i++)
                if (!(fabs((double)dy[i] - (double)slow[i]) <= 1e-6))
                    fail_msg("kind %d' at %.9g: %.9g, slow %.9g", k, (double)x[i], (double)dy[i], (double)slow[i]);
            test_release(x, 3);
            test_release(y, 1);
            test_release(slow, 0);
            test_release(dy, 2);
        }
}

static void activations_of_far_values_have_finite_derivatives(void **state)
{
    (void)state;
    float x[] = {1e30f, -1e30f, 3e38f, -3e38f, 20.0f, -20.0f}, dy[] = {1, 1, 1, 1, 1, 1}, y[6], dx[6];
    for (int k = 0; k < KINDS; k++) {
        activation_forward(kinds[k], NULL, x, y, 6);
        activation_backward(kinds[k], NULL, x, y, dy, dx, 6);
        for (int i = 0; i < 6; i++)
            assert_true(isfinite(y[i]) && isfinite(dx[i]));
    }
}

static void nan_passes_through_every_activation(void **state)
{
    (void)state;
    float x = NAN, y;
    for (int k = 0; k < KINDS; k++) {
        activation_forward(kinds[k], NULL, &x, &y, 1);
        assert_true(isnan(y));
    }
}

struct activation_context {
    enum activation kind;
    const float *x, *weights;
    int64_t count;
};

static double weighted_activation(void *context)
{
    struct activation_context *c = context;
    double sum = 0.0;
    for (int64_t i = 0; i < c->count; i++) {
        float y;
        activation_forward(c->kind, NULL, c->x + i, &y, 1);
        sum += (double)c->weights[i] * (double)y;
    }
    return sum;
}

static void activation_backward_is_the_slope_of_forward(void **state)
{
    (void)state;
    enum { N = 40 };
    float x[N], y[N], dy[N], dx[N];
    test_fill(dy, N, 1.0f, 5);
    for (int i = 0; i < N; i++)
        x[i] = (float)i * 0.2f - 4.1f; /* no kink of relu within the difference */
    for (int k = 0; k < KINDS; k++) {
        struct activation_context c = {kinds[k], x, dy, N};
        activation_forward(kinds[k], NULL, x, y, N);
        activation_backward(kinds[k], NULL, x, y, dy, dx, N);
        assert_gradient(weighted_activation, &c, x, dx, N, 2e-4);
    }
}

static void pool_size_does_not_change_a_bit(void **state)
{
    (void)state;
    enum { N = 100003 };
    float *x = test_array(N, 0), *one = test_array(N, 0), *many = test_array(N, 0), *dy = test_array(N, 0);
    test_fill(x, N, 5.0f, 6);
    test_fill(dy, N, 5.0f, 7);
    for (int threads = 1; threads <= 3; threads++) {
        struct pool *pool = pool_create(threads, 0);
        assert_non_null(pool);
        for (int k = 0; k < KINDS; k++) {
            activation_forward(kinds[k], NULL, x, one, N);
            activation_forward(kinds[k], pool, x, many, N);
            assert_same_bits(one, many, N);
            activation_backward(kinds[k], NULL, x, x, dy, one, N);
            activation_backward(kinds[k], pool, x, x, dy, many, N);
            assert_same_bits(one, many, N);
        }
        dropout_apply(NULL, 0.3, 9, 1, 5, 77, x, one, N);
        dropout_apply(pool, 0.3, 9, 1, 5, 77, x, many, N);
        assert_same_bits(one, many, N);
        pool_destroy(pool);
    }
    test_release(x, 0);
    test_release(one, 0);
    test_release(many, 0);
    test_release(dy, 0);
}

static void dropout_is_its_slow_twin_and_does_not_depend_on_the_cut(void **state)
{
    (void)state;
    for (int l = 0; l < LENGTHS; l++) {
        int64_t n = test_lengths[l], cut = n / 3;
        float *x = test_array(n, 1), *y = test_array(n, 2), *slow = test_array(n, 0);
        test_fill(x, n, 1.0f, 8);
        naive_dropout_apply(0.25, 42, 3, 11, 1001, x, slow, n);
        dropout_apply(NULL, 0.25, 42, 3, 11, 1001, x, y, n);
        assert_same_bits(y, slow, n);
        dropout_apply(NULL, 0.25, 42, 3, 11, 1001, x, y, cut);
        dropout_apply(NULL, 0.25, 42, 3, 11, 1001 + cut, x + cut, y + cut, n - cut);
        assert_same_bits(y, slow, n);
        dropout_apply(NULL, 0.25, 42, 3, 11, 1001, x, x, n);
        assert_same_bits(x, slow, n);
        test_release(x, 1);
        test_release(y, 2);
        test_release(slow, 0);
    }
}

static void dropout_keeps_the_right_share_and_mean(void **state)
{
    (void)state;
    enum { N = 200000 };
    float *x = test_array(N, 0);
    int64_t kept = 0;
    for (int i = 0; i < N; i++)
        x[i] = 1.0f;
    dropout_apply(NULL, 0.1, 1, 0, 1, 0, x, x, N);
    for (int i = 0; i < N; i++) {
        assert_true(x[i] == 0.0f || x[i] == (float)(1.0 / 0.9));
        kept += x[i] != 0.0f;
    }
    assert_near((double)kept / N, 0.9, 0.003);
    dropout_apply(NULL, 1.0, 1, 0, 1, 0, x, x, N);
    assert_true(x[0] == 0.0f && x[N - 1] == 0.0f);
    test_release(x, 0);
}

static void dropout_of_zero_copies(void **state)
{
    (void)state;
    float x[3] = {1.0f, NAN, -0.0f}, y[3];
    dropout_apply(NULL, 0.0, 1, 0, 1, 0, x, y, 3);
    assert_same_bits(x, y, 3);
}

static void bias_kernels_are_their_slow_twins_at_odd_sizes(void **state)
{
    (void)state;
    static const int64_t rows[] = {0, 1, 3, 17}, widths[] = {0, 1, 15, 16, 17, 127, 128, 129, 300};
    for (int r = 0; r < 4; r++)
        for (int w = 0; w < 9; w++)
            for (int i = 0; kernel_ops_at(i) != NULL; i++) {
                int64_t n = widths[w], all = rows[r] * n;
                float *y = test_array(all, 5), *slow = test_array(all, 0), *bias = test_array(n, 1);
                float *slow_bias = test_array(n, 0);
                test_fill(y, all, 2.0f, 10);
                test_fill(slow, all, 2.0f, 10);
                test_fill(bias, n, 1.0f, 11);
                test_fill(slow_bias, n, 1.0f, 11);
                kernel_ops_at(i)->bias_add(y, bias, rows[r], n);
                naive_bias_add(slow, slow_bias, rows[r], n);
                assert_same_bits(y, slow, all);
                kernel_ops_at(i)->bias_grad(bias, y, rows[r], n);
                naive_bias_grad(slow_bias, slow, rows[r], n);
                assert_same_bits(bias, slow_bias, n);
                test_release(y, 5);
                test_release(slow, 0);
                test_release(bias, 1);
                test_release(slow_bias, 0);
            }
}

static void vectorised_loops_equal_the_scalar_functions(void **state)
{
    (void)state;
    enum { N = 4099 };
    float *x = test_array(N, 0), *y = test_array(N, 0);
    test_fill(x, N, 6.0f, 12);
    activation_forward(ACTIVATION_TANH, NULL, x, y, N);
    for (int i = 0; i < N; i++) {
        float scalar = math_tanhf(x[i]);
        assert_same_bits(&y[i], &scalar, 1);
    }
    test_release(x, 0);
    test_release(y, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations_give_the_same_bits_on_every_instruction_set_at_every_offset),
        cmocka_unit_test(activations_are_the_slow_twins_within_rounding),
        cmocka_unit_test(activations_of_far_values_have_finite_derivatives),
        cmocka_unit_test(nan_passes_through_every_activation),
        cmocka_unit_test(activation_backward_is_the_slope_of_forward),
        cmocka_unit_test(pool_size_does_not_change_a_bit),
        cmocka_unit_test(dropout_is_its_slow_twin_and_does_not_depend_on_the_cut),
        cmocka_unit_test(dropout_keeps_the_right_share_and_mean),
        cmocka_unit_test(dropout_of_zero_copies),
        cmocka_unit_test(bias_kernels_are_their_slow_twins_at_odd_sizes),
        cmocka_unit_test(vectorised_loops_equal_the_scalar_functions),
    };
    return cmocka_run_group_tests_name("tensor elementwise", tests, NULL, NULL);
}
