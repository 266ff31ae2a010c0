#include "tensor_support.h"

#include <math.h>
#include <string.h>

#include "tensor/kernels.h"
#include "tensor/naive.h"
#include "tensor/norm.h"

enum { FEATURES_MAX = 300 };

static void rstd_of(const struct norm_stats *stats, int64_t features, double *rstd)
{
    for (int64_t j = 0; j < features; j++)
        rstd[j] = 1.0 / sqrt(stats->m2[j] / stats->count + 1e-5);
}

/* N08: column 1,2,3,4. */
static void n08_one_batch_gives_the_reported_outputs_and_running_values(void **state)
{
    (void)state;
    float x[4] = {1, 2, 3, 4}, y[4], xhat[4], gamma = 1.0f, beta = 0.0f, running_mean = 0.0f, running_var = 1.0f;
    double mean, m2, rstd;
    struct norm_stats stats = {0, &mean, &m2};
    batch_norm_stats(x, 4, 1, &stats);
    rstd_of(&stats, 1, &rstd);
    batch_norm_forward(x, &mean, &rstd, &gamma, &beta, y, xhat, 4, 1);
    assert_near((double)y[0], -1.34163542, 1e-7);
    assert_near((double)y[1], -0.44721181, 1e-7);
    assert_near((double)y[2], 0.44721181, 1e-7);
    assert_near((double)y[3], 1.34163542, 1e-7);
    batch_norm_commit(&running_mean, &running_var, &stats, 1, 0.1);
    assert_near((double)running_mean, 0.25, 1e-7);
    assert_near((double)running_var, 1.06666667, 1e-7);
}

static void n08_two_micro_batches_merged_give_the_same_running_values(void **state)
{
    (void)state;
    float x[4] = {1, 2, 3, 4}, running_mean = 0.0f, running_var = 1.0f;
    double mean_a, m2_a, mean_b, m2_b;
    struct norm_stats a = {0, &mean_a, &m2_a}, b = {0, &mean_b, &m2_b};
    batch_norm_stats(x, 2, 1, &a);
    batch_norm_stats(x + 2, 2, 1, &b);
    batch_norm_merge(&a, &b, 1);
    assert_near(a.count, 4.0, 0.0);
    batch_norm_commit(&running_mean, &running_var, &a, 1, 0.1);
    assert_near((double)running_mean, 0.25, 1e-7);
    assert_near((double)running_var, 1.06666667, 1e-7);
}

static void merging_parts_is_close_to_the_whole_and_empty_parts_are_neutral(void **state)
{
    (void)state;
    enum { ROWS = 40, F = 33 };
    float x[ROWS * F];
    double mean[4][F], m2[4][F];
    struct norm_stats whole = {0, mean[0], m2[0]}, sum = {0, mean[1], m2[1]}, part = {0, mean[2], m2[2]};
    test_fill(x, ROWS * F, 3.0f, 1);
    for (int j = 0; j < F; j++)
        mean[1][j] = m2[1][j] = NAN; /* an empty sum's arrays may hold anything */
    batch_norm_stats(x, ROWS, F, &whole);
    static const int cuts[] = {0, 7, 7, 8, 30, ROWS};
    for (int c = 0; c < 5; c++) {
        batch_norm_stats(x + cuts[c] * F, cuts[c + 1] - cuts[c], F, &part);
        batch_norm_merge(&sum, &part, F);
    }
    assert_near(sum.count, ROWS, 0.0);
    for (int j = 0; j < F; j++) {
        assert_near(sum.mean[j], whole.mean[j], 1e-14);
        assert_near(sum.m2[j], whole.m2[j], 1e-11);
    }
}

static void commit_of_fewer_than_two_rows_leaves_the_running_values(void **state)
{
    (void)state;
    float x[1] = {5.0f}, running_mean = 0.25f, running_var = 1.5f;
    double mean, m2;
    struct norm_stats stats = {0, &mean, &m2};
    for (int64_t rows = 0; rows < 2; rows++) {
        batch_norm_stats(x, rows, 1, &stats);
        batch_norm_commit(&running_mean, &running_var, &stats, 1, 0.1);
        assert_true(running_mean == 0.25f && running_var == 1.5f);
    }
}

static void a_large_mean_does_not_lose_the_variance(void **state)
{
    (void)state;
    float x[4] = {16777210.0f, 16777211.0f, 16777212.0f, 16777213.0f};
    double mean, m2;
    struct norm_stats stats = {0, &mean, &m2};
    batch_norm_stats(x, 4, 1, &stats);
    assert_near(stats.m2[0], 5.0, 1e-9);
}

/* One call of everything on every instruction set against the slow twin. */
static void compare_with_twins(int64_t rows, int64_t f, int offset)
{
    static double mean[2][FEATURES_MAX], m2[2][FEATURES_MAX], rstd[FEATURES_MAX], sums[2][2 * FEATURES_MAX];
    int64_t all = rows * f;
    float *x = test_array(all, offset), *y = test_array(all, offset), *xhat = test_array(all, offset);
    float *slow_y = test_array(all, 0), *slow_xhat = test_array(all, 0), *dy = test_array(all, offset);
    float *gamma = test_array(f, offset), *beta = test_array(f, offset);
    struct norm_stats slow = {0, mean[0], m2[0]};
    test_fill(x, all, 4.0f, 2);
    test_fill(gamma, f, 1.0f, 3);
    test_fill(beta, f, 1.0f, 4);
    naive_batch_norm_stats(x, rows, f, &slow);
    rstd_of(&slow, f, rstd);
    naive_batch_norm_forward(x, mean[0], rstd, gamma, beta, slow_y, slow_xhat, rows, f);
    for (int i = 0; kernel_ops_at(i) != NULL; i++) {
        const struct kernel_ops *ops = kernel_ops_at(i);
        ops->norm_moments(x, rows, f, mean[1], m2[1]);
        assert_memory_equal(mean[0], mean[1], (size_t)f * sizeof **mean);
        assert_memory_equal(m2[0], m2[1], (size_t)f * sizeof **m2);
        ops->norm_forward(x, mean[0], rstd, gamma, beta, y, xhat, rows, f);
        assert_same_bits(y, slow_y, all);
        assert_same_bits(xhat, slow_xhat, all);
        memset(y, 0, (size_t)all * sizeof *y);
        ops->norm_forward(x, mean[0], rstd, gamma, beta, y, NULL, rows, f);
        assert_same_bits(y, slow_y, all);
        test_fill(dy, all, 1.0f, 5);
        naive_batch_norm_backward_sums(dy, xhat, rows, f, sums[0]);
        ops->norm_backward_sums(dy, xhat, rows, f, sums[1]);
        assert_memory_equal(sums[0], sums[1], (size_t)(2 * f) * sizeof **sums);
        naive_batch_norm_backward(dy, xhat, rstd, gamma, sums[0], (double)rows, y, rows, f);
        ops->norm_backward(dy, xhat, rstd, gamma, sums[0], (double)rows, dy, rows, f); /* dx is dy */
        assert_same_bits(dy, y, all);
    }
    test_release(x, offset);
    test_release(y, offset);
    test_release(xhat, offset);
    test_release(slow_y, 0);
    test_release(slow_xhat, 0);
    test_release(dy, offset);
    test_release(gamma, offset);
    test_release(beta, offset);
}

static void every_instruction_set_is_the_slow_twin_at_odd_sizes_and_offsets(void **state)
{
    (void)state;
    static const int64_t features[] = {1, 15, 16, 17, 127, 128, 129, FEATURES_MAX};
    for (int f = 0; f < 8; f++)
        for (int64_t rows = 1; rows < 60; rows = rows * 3 + 1)
            for (int offset = 0; offset < OFFSETS; offset += 5)
                compare_with_twins(rows, features[f], offset);
}

enum { G_ROWS = 6, G_FEATURES = 3 };

struct norm_context {
    const float *x, *gamma, *beta, *weights;
};

static double weighted_norm(void *context)
{
    struct norm_context *c = context;
    double mean[G_FEATURES], m2[G_FEATURES], rstd[G_FEATURES], sum = 0.0;
    float y[G_ROWS * G_FEATURES];
    struct norm_stats stats = {0, mean, m2};
    batch_norm_stats(c->x, G_ROWS, G_FEATURES, &stats);
    rstd_of(&stats, G_FEATURES, rstd);
    batch_norm_forward(c->x, mean, rstd, c->gamma, c->beta, y, NULL, G_ROWS, G_FEATURES);
    for (int i = 0; i < G_ROWS * G_FEATURES; i++)
        sum += (double)c->weights[i] * (double)y[i];
    return sum;
}

static void backward_is_the_slope_of_forward(void **state)
{
    (void)state;
    float x[G_ROWS * G_FEATURES], dy[G_ROWS * G_FEATURES], dx[G_ROWS * G_FEATURES], y[G_ROWS * G_FEATURES];
    float xhat[G_ROWS * G_FEATURES], gamma[G_FEATURES] = {1.0f, -0.5f, 2.0f}, beta[G_FEATURES] = {0, 1, 2};
    float dgamma[G_FEATURES], dbeta[G_FEATURES];
    double mean[G_FEATURES], m2[G_FEATURES], rstd[G_FEATURES], sums[2 * G_FEATURES];
    struct norm_stats stats = {0, mean, m2};
    test_fill(x, G_ROWS * G_FEATURES, 2.0f, 6);
    test_fill(dy, G_ROWS * G_FEATURES, 1.0f, 7);
    batch_norm_stats(x, G_ROWS, G_FEATURES, &stats);
    rstd_of(&stats, G_FEATURES, rstd);
    batch_norm_forward(x, mean, rstd, gamma, beta, y, xhat, G_ROWS, G_FEATURES);
    batch_norm_backward_sums(dy, xhat, G_ROWS, G_FEATURES, sums);
    batch_norm_backward(dy, xhat, rstd, gamma, sums, G_ROWS, dx, G_ROWS, G_FEATURES);
    for (int j = 0; j < G_FEATURES; j++) {
        dbeta[j] = (float)sums[j];
        dgamma[j] = (float)sums[G_FEATURES + j];
    }
    struct norm_context c = {x, gamma, beta, dy};
    assert_gradient(weighted_norm, &c, x, dx, G_ROWS * G_FEATURES, 3e-4);
    assert_gradient(weighted_norm, &c, gamma, dgamma, G_FEATURES, 3e-4);
    assert_gradient(weighted_norm, &c, beta, dbeta, G_FEATURES, 3e-4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(n08_one_batch_gives_the_reported_outputs_and_running_values),
        cmocka_unit_test(n08_two_micro_batches_merged_give_the_same_running_values),
        cmocka_unit_test(merging_parts_is_close_to_the_whole_and_empty_parts_are_neutral),
        cmocka_unit_test(commit_of_fewer_than_two_rows_leaves_the_running_values),
        cmocka_unit_test(a_large_mean_does_not_lose_the_variance),
        cmocka_unit_test(every_instruction_set_is_the_slow_twin_at_odd_sizes_and_offsets),
        cmocka_unit_test(backward_is_the_slope_of_forward),
    };
    return cmocka_run_group_tests_name("tensor norm", tests, NULL, NULL);
}
