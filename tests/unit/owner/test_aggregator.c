/* Median, trimmed mean and plug-ins against a sort of each element in double. */
#include "base/errbuf.h"
#include "base/status.h"
#include "config/job.h"
#include "owner/aggregator.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { SHARES = 40, COUNT = 2500 };

static float values[SHARES][COUNT];

static const float *const *share_pointers(const float **pointers, int shares)
{
    for (int s = 0; s < shares; s++)
        pointers[s] = values[s];
    return pointers;
}

static void fill(uint32_t seed)
{
    for (int s = 0; s < SHARES; s++)
        for (int i = 0; i < COUNT; i++) {
            seed = seed * 1664525u + 1013904223u;
            values[s][i] = (float)((int32_t)(seed >> 8) % 1000) / 64.0f; /* ties are frequent */
        }
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The mean of the sorted used values without `trim` at each end. */
static double twin(const double *weights, int shares, int64_t i, int trim)
{
    double sorted[SHARES], sum = 0;
    int used = 0;

    for (int s = 0; s < shares; s++)
        if (weights[s] > 0)
            sorted[used++] = values[s][i];
    qsort(sorted, (size_t)used, sizeof(double), ascending);
    for (int r = trim; r < used - trim; r++)
        sum += sorted[r];
    return sum / (used - 2 * trim);
}

static void median_of_any_number_of_shares_matches_a_sort(void **state)
{
    (void)state;
    const float *pointers[SHARES];
    double weights[SHARES];
    float out[COUNT];

    fill(1);
    for (int s = 0; s < SHARES; s++)
        weights[s] = 1 + s;
    for (int shares = 1; shares <= SHARES; shares++) {
        aggregator_find("median")->combine(NULL, share_pointers(pointers, shares), weights, shares, out, COUNT);
        for (int64_t i = 0; i < COUNT; i++)
            assert_true(out[i] == (float)twin(weights, shares, i, (shares - 1) / 2));
    }
}

static void trimmed_mean_leaves_the_fraction_rounded_down_out_at_each_end(void **state)
{
    (void)state;
    static const struct {
        double fraction;
        int shares, trim;
    } rows[] = {{0.1, 9, 0},    {0.1, 10, 1}, {0.1, 19, 1}, {0.1, 20, 2}, {0.25, 4, 1}, {0.3, 10, 3}, {0.0, 5, 0},
                {0.29, 40, 11}, {0.5, 4, 1},  {0.5, 5, 2},  {0.49, 2, 0}, {0.45, 1, 0}, {0.1, 30, 3}, {0.7, 10, 4}};
    const float *pointers[SHARES];
    double weights[SHARES];
    float out[COUNT];

    fill(2);
    for (int s = 0; s < SHARES; s++)
        weights[s] = 3;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        struct aggregator_params params = {rows[r].fraction};
        aggregator_find("trimmed_mean")
            ->combine(&params, share_pointers(pointers, rows[r].shares), weights, rows[r].shares, out, COUNT);
        for (int64_t i = 0; i < COUNT; i++)
            if (fabs(out[i] - twin(weights, rows[r].shares, i, rows[r].trim)) > 1e-6)
                fail_msg("row %zu, element %lld is %.9g", r, (long long)i, (double)out[i]);
    }
}

static void empty_shares_are_left_out_unread(void **state)
{
    (void)state;
    const float a[2] = {1, 10}, b[2] = {5, 20}, c[2] = {100, -1};
    const float *shares[5] = {NULL, a, b, NULL, c};
    const double weights[5] = {0, 3, 3, 0, 2}, none[5] = {0};
    float out[2];

    aggregator_find("median")->combine(NULL, shares, weights, 5, out, 2);
    assert_true(out[0] == 5 && out[1] == 10);
    aggregator_find("median")->combine(NULL, shares, none, 5, out, 2);
    assert_true(out[0] == 0 && out[1] == 0);
}

static void the_result_may_overwrite_a_share_and_does_not_depend_on_their_order(void **state)
{
    (void)state;
    const float *forward[SHARES], *backward[SHARES];
    double weights[SHARES];
    float want[COUNT], turned[COUNT];

    for (int row = 0; aggregator_at(row); row++) {
        struct aggregator_params params = {0.2};
        fill(3);
        for (int s = 0; s < 11; s++) {
            forward[s] = values[s];
            backward[s] = values[10 - s];
            weights[s] = 1;
        }
        aggregator_at(row)->combine(&params, forward, weights, 11, want, COUNT);
        aggregator_at(row)->combine(&params, backward, weights, 11, turned, COUNT);
        assert_memory_equal(want, turned, sizeof want);
        aggregator_at(row)->combine(&params, forward, weights, 11, values[0], COUNT);
        assert_memory_equal(want, values[0], sizeof want);
    }
}

static void a_value_that_is_not_finite_stays_visible_wherever_it_sorts(void **state)
{
    (void)state;
    static const float bad[3] = {INFINITY, -INFINITY, NAN};

    for (int row = 0; aggregator_at(row); row++)
        for (int kind = 0; kind < 3; kind++)
            for (int at = 0; at < 7; at++) {
                struct aggregator_params params = {0.3};
                const float *pointers[SHARES];
                const double weights[7] = {1, 1, 1, 1, 1, 1, 1};
                float out[3];
                fill(4);
                values[at][1] = bad[kind];
                aggregator_at(row)->combine(&params, share_pointers(pointers, 7), weights, 7, out, 3);
                assert_true(isfinite(out[0]) && !isfinite(out[1]) && isfinite(out[2]));
            }
}

static void a_thousand_shares_and_the_largest_floats_work(void **state)
{
    (void)state;
    static float low[20], high[20];
    static const float *pointers[AGGREGATOR_SHARES_MAX];
    static double weights[AGGREGATOR_SHARES_MAX];
    float out[20];

    for (int i = 0; i < 20; i++)
        high[i] = 3e38f;

    for (int s = 0; s < AGGREGATOR_SHARES_MAX; s++) {
        pointers[s] = s % 2 ? high : low;
        weights[s] = 1;
    }
    aggregator_find("median")->combine(NULL, pointers, weights, AGGREGATOR_SHARES_MAX, out, 20);
    assert_true(out[0] == 1.5e38f && out[19] == 1.5e38f);
    aggregator_find("median")->combine(NULL, pointers + 1, weights, AGGREGATOR_SHARES_MAX - 1, out, 20);
    assert_true(out[0] == 3e38f);
}

/* --- the job's choice ------------------------------------------------------------------------------ */

static int choose(enum job_aggregate kind, const char *plugin, int64_t workers, const struct shoal_aggregator **row,
                  struct aggregator_params *params, void **handle, struct errbuf *err)
{
    struct job job = {0};
    char copy[1024];

    strncpy(copy, plugin, sizeof copy - 1);
    copy[sizeof copy - 1] = 0;
    job.parallel.aggregate = kind;
    job.parallel.aggregate_plugin = copy;
    job.parallel.trim_fraction = 0.2;
    job.cluster.workers = workers;
    errbuf_init(err);
    return aggregator_of_job(&job, row, params, handle, err);
}

static void the_job_chooses_the_row(void **state)
{
    (void)state;
    const struct shoal_aggregator *row;
    struct aggregator_params params;
    void *handle;
    struct errbuf err;

    assert_int_equal(choose(JOB_MEAN, "", 5000, &row, &params, &handle, &err), STATUS_OK);
    assert_null(row);
    assert_int_equal(choose(JOB_SUM, "", 2, &row, &params, &handle, &err), STATUS_OK);
    assert_null(row);
    assert_int_equal(choose(JOB_MEDIAN, "", 2, &row, &params, &handle, &err), STATUS_OK);
    assert_string_equal(row->name, "median");
    assert_int_equal(choose(JOB_TRIMMED_MEAN, "", 2, &row, &params, &handle, &err), STATUS_OK);
    assert_string_equal(row->name, "trimmed_mean");
    assert_true(params.trim_fraction == 0.2);
    assert_null(handle);
    assert_int_equal(choose(JOB_MEDIAN, "", 1025, &row, &params, &handle, &err), STATUS_RANGE);
    assert_non_null(strstr(err.text, "1025 workers"));
}

static void the_example_plug_in_clips_each_share(void **state)
{
    (void)state;
    const struct shoal_aggregator *row;
    struct aggregator_params params;
    void *handle;
    struct errbuf err;
    const float a[3] = {0.5f, 900, INFINITY}, b[3] = {0.25f, -0.5f, 0};
    const float *shares[3] = {a, NULL, b};
    const double weights[3] = {1, 0, 3};
    float out[3];

    assert_int_equal(choose(JOB_AGGREGATE_PLUGIN, PLUGIN_CLIPPED_MEAN, 3, &row, &params, &handle, &err), STATUS_OK);
    assert_string_equal(row->name, "clipped_mean");
    row->combine(&params, shares, weights, 3, out, 3);
    assert_true(out[0] == 0.3125f && out[1] == -0.125f && !isfinite(out[2]));
    aggregator_unload(handle);
}

static void a_plug_in_that_cannot_be_used_is_refused_with_the_reason(void **state)
{
    (void)state;
    const struct shoal_aggregator *row;
    struct aggregator_params params;
    void *handle;
    struct errbuf err;

    assert_int_equal(choose(JOB_AGGREGATE_PLUGIN, "/nowhere/a.so", 3, &row, &params, &handle, &err), STATUS_IO);
    assert_non_null(strstr(err.text, "/nowhere/a.so"));
    assert_int_equal(choose(JOB_AGGREGATE_PLUGIN, PLUGIN_SIGNSGD, 3, &row, &params, &handle, &err),
                     STATUS_PROTOCOL);
    assert_non_null(strstr(err.text, "does not export `shoal_aggregator`"));
    assert_int_equal(choose(JOB_AGGREGATE_PLUGIN, PLUGIN_OTHER_VERSION, 3, &row, &params, &handle, &err),
                     STATUS_PROTOCOL);
    assert_non_null(strstr(err.text, "has version 3, this program needs version 1"));
    assert_null(row);
    assert_null(handle);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(median_of_any_number_of_shares_matches_a_sort),
        cmocka_unit_test(trimmed_mean_leaves_the_fraction_rounded_down_out_at_each_end),
        cmocka_unit_test(empty_shares_are_left_out_unread),
        cmocka_unit_test(the_result_may_overwrite_a_share_and_does_not_depend_on_their_order),
        cmocka_unit_test(a_value_that_is_not_finite_stays_visible_wherever_it_sorts),
        cmocka_unit_test(a_thousand_shares_and_the_largest_floats_work),
        cmocka_unit_test(the_job_chooses_the_row),
        cmocka_unit_test(the_example_plug_in_clips_each_share),
        cmocka_unit_test(a_plug_in_that_cannot_be_used_is_refused_with_the_reason),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
