#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "cluster/canonical.h"
#include "deploy/cli/bench.h"
#include "deploy/cli/bench_report.h"
#include "deploy/cli/bench_vector.h"

static void segments_cover_the_vector_by_canonical_parts(void **state)
{
    static const int64_t counts[] = {1, 15, 16, 17, 1000, COLLECTIVE_SEGMENT_MAX, 5 * COLLECTIVE_SEGMENT_MAX + 3};
    (void)state;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        for (int ranks = 1; ranks <= 5; ranks++) {
            int used;
            int64_t at = 0;
            struct collective_segment *segments = bench_segments(counts[c], ranks, &used);
            assert_non_null(segments);
            for (int i = 0; i < used; i++) {
                assert_int_equal(segments[i].begin, at);
                assert_in_range(segments[i].count, 1, COLLECTIVE_SEGMENT_MAX);
                at += segments[i].count;
                assert_int_equal(segments[i].owner, canonical_owner(counts[c], ranks, segments[i].begin));
                assert_int_equal(segments[i].owner, canonical_owner(counts[c], ranks, at - 1));
            }
            assert_int_equal(at, counts[c]);
            free(segments);
        }
    }
}

enum { COUNT = 3000, RANKS = 3 };

static void add(float *sums, int rank)
{
    static float more[COUNT];
    bench_fill(more, rank, 5, COUNT);
    for (int i = 0; i < COUNT; i++)
        sums[i] += more[i];
}

static void sums_in_another_order_are_counted_as_wrong(void **state)
{
    static float sums[COUNT];
    const struct collective_segment segment = {5, COUNT, 1};
    (void)state;
    bench_fill(sums, 2, 5, COUNT);
    add(sums, 0);
    add(sums, 1);
    assert_int_equal(bench_wrong_sums(sums, RANKS, &segment), 0);
    sums[1234] = 9;
    assert_int_equal(bench_wrong_sums(sums, RANKS, &segment), 1);
    bench_fill(sums, 0, 5, COUNT);
    add(sums, 1);
    add(sums, 2);
    assert_true(bench_wrong_sums(sums, RANKS, &segment) > COUNT / 20);
    assert_true(bench_wrong_copies(sums, &segment) > COUNT / 2);
}

static void sizes_grow_by_the_factor_up_to_the_last(void **state)
{
    const struct bench_options options = {.bytes_min = 4, .bytes_max = 100, .factor = 4};
    (void)state;
    assert_int_equal(bench_size_after(&options, 4), 16);
    assert_int_equal(bench_size_after(&options, 16), 64);
    assert_int_equal(bench_size_after(&options, 64), 0);
    assert_int_equal(bench_size_after(&options, 25), 100);
}

static void iterations_are_those_that_fit_or_those_asked_for(void **state)
{
    struct bench_options options = {.time_ms = 100};
    (void)state;
    assert_int_equal(bench_iterations(&options, 1000000), 100);
    assert_int_equal(bench_iterations(&options, 0), BENCH_ITERATIONS_MAX);
    assert_int_equal(bench_iterations(&options, 1000000000), BENCH_ITERATIONS_MIN);
    options.iterations = 2;
    assert_int_equal(bench_iterations(&options, 1000000), 2);
}

static void the_slowest_rank_counts_in_each_iteration(void **state)
{
    static int64_t samples[2 * BENCH_ITERATIONS_MAX];
    static const int64_t first[] = {1000, 9000, 2000, 4000}, second[] = {3000, 1000, 1000, 4000};
    double median_us, max_us;
    (void)state;
    for (int i = 0; i < 4; i++) {
        samples[i] = first[i];
        samples[BENCH_ITERATIONS_MAX + i] = second[i];
    }
    bench_summarise(samples, 2, 4, &median_us, &max_us); /* 3, 9, 2, 4 */
    assert_true(median_us == 3.5);
    assert_true(max_us == 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(segments_cover_the_vector_by_canonical_parts),
        cmocka_unit_test(sums_in_another_order_are_counted_as_wrong),
        cmocka_unit_test(sizes_grow_by_the_factor_up_to_the_last),
        cmocka_unit_test(iterations_are_those_that_fit_or_those_asked_for),
        cmocka_unit_test(the_slowest_rank_counts_in_each_iteration),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
