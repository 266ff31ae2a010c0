#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cluster/norm_stats.h"

static const int64_t features[2] = {1, 2};

static void merges_every_norm_of_the_vector(void **state)
{
    (void)state;
    assert_int_equal(norm_stats_count(features, 2), 8);
    /* norm 0: columns (1,2) and (3,4); norm 1: nobody, then one row (5, -1) */
    double a[8] = {2, 1.5, 0.5, 0, 9, 9, 9, 9}, b[8] = {2, 3.5, 0.5, 1, 5, -1, 0, 0};
    norm_stats_merge(features, 2, a, b);
    const double wanted[8] = {4, 2.5, 5, 1, 5, -1, 0, 0};
    for (int i = 0; i < 8; i++)
        assert_true(a[i] == wanted[i]);
    const double empty[8] = {0};
    norm_stats_merge(features, 2, a, empty);
    assert_memory_equal(a, wanted, sizeof wanted);
}

static void commits_unbiased_variance_and_leaves_a_norm_of_fewer_than_two_rows(void **state)
{
    (void)state;
    const double merged[8] = {4, 2.5, 5, 1, 5, -1, 0, 0};
    float running[6] = {0, 1, 7, 7, 8, 8};
    norm_stats_commit(features, 2, merged, running);
    assert_true(fabs(running[0] - 0.25) < 1e-7);
    assert_true(fabs(running[1] - (0.9 + 0.1 * 5 / 3)) < 1e-7);
    assert_true(running[2] == 7 && running[3] == 7 && running[4] == 8 && running[5] == 8);
}

static void no_norms_is_an_empty_vector(void **state)
{
    (void)state;
    assert_int_equal(norm_stats_count(NULL, 0), 0);
    norm_stats_merge(NULL, 0, NULL, NULL);
    norm_stats_commit(NULL, 0, NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_every_norm_of_the_vector),
        cmocka_unit_test(commits_unbiased_variance_and_leaves_a_norm_of_fewer_than_two_rows),
        cmocka_unit_test(no_norms_is_an_empty_vector),
    };
    return cmocka_run_group_tests_name("norm_stats", tests, NULL, NULL);
}
