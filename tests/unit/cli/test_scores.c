#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "deploy/cli/scores.h"
#include "deploy/cli/scoring.h"

/* The definition: over all pairs of a positive and a negative, ties at half. */
static double slow_auc(const double *score, const uint8_t *positive, int count)
{
    double won = 0, pairs = 0;
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < count; j++) {
            if (!positive[i] || positive[j])
                continue;
            pairs++;
            won += score[i] > score[j] ? 1 : score[i] == score[j] ? 0.5 : 0;
        }
    }
    return won / pairs;
}

static double auc_of(const double *score, const uint8_t *positive, int count)
{
    double auc = -1;
    assert_int_equal(scores_auc(score, positive, count, &auc), 0);
    return auc;
}

static void auc_counts_pairs_and_ties_at_half(void **state)
{
    (void)state;
    const double score[] = {0.1, 0.4, 0.35, 0.8};
    const uint8_t positive[] = {0, 0, 1, 1};
    const double tied[] = {0.5, 0.5, 0.5, 0.5};
    assert_true(auc_of(score, positive, 4) == 0.75);
    assert_true(auc_of(tied, positive, 4) == 0.5);
}

static void auc_equals_the_definition_with_many_ties(void **state)
{
    (void)state;
    double score[300];
    uint8_t positive[300];
    uint32_t seed = 7;
    for (int i = 0; i < 300; i++) {
        seed = seed * 1664525 + 1013904223;
        score[i] = (double)(seed >> 28);
        positive[i] = (uint8_t)(seed >> 27 & 1);
    }
    assert_true(fabs(auc_of(score, positive, 300) - slow_auc(score, positive, 300)) < 1e-12);
}

static void auc_of_one_class_or_of_nan_is_undefined(void **state)
{
    (void)state;
    const double score[] = {1, 2}, broken[] = {NAN, 2};
    const uint8_t same[] = {1, 1}, both[] = {0, 1};
    assert_true(isnan(auc_of(score, same, 2)));
    assert_true(isnan(auc_of(broken, both, 2)));
    assert_true(isnan(auc_of(score, same, 0)));
}

static void log_loss_stays_finite_at_large_margins(void **state)
{
    (void)state;
    assert_true(fabs(scores_log_loss(0) - log(2)) < 1e-15);
    assert_true(fabs(scores_log_loss(-1000) - 1000) < 1e-9);
    assert_true(scores_log_loss(1000) >= 0 && scores_log_loss(1000) < 1e-300);
}

static void worst_confusions_are_ordered_and_never_on_the_diagonal(void **state)
{
    (void)state;
    const int64_t counts[] = {90, 3, 7, 7, 80, 0, 2, 9, 70};
    struct scores_confusion worst[3];
    assert_int_equal(scores_worst(counts, 3, worst, 3), 3);
    assert_int_equal(worst[0].count, 9);
    assert_int_equal(worst[0].truth, 2);
    assert_int_equal(worst[0].predicted, 1);
    assert_int_equal(worst[1].count, 7);
    assert_int_equal(worst[1].truth, 0);
    assert_int_equal(worst[2].count, 7);
    assert_int_equal(worst[2].truth, 1);
    const int64_t right[] = {5, 0, 0, 5};
    assert_int_equal(scores_worst(right, 2, worst, 3), 0);
}

static void data_settings_follow_names_and_pairs(void **state)
{
    (void)state;
    struct scoring_sets sets;
    struct errbuf err;
    errbuf_init(&err);
    const char *idx[] = {"/d/t10k-images-idx3-ubyte.gz", "/d/t10k-labels-idx1-ubyte.gz"};
    struct args_list data = {idx, 2};
    assert_int_equal(scoring_sets_make(&sets, &data, &err), 0);
    assert_int_equal(sets.count, 4);
    assert_string_equal(sets.items[1], "data.test.images=/d/t10k-images-idx3-ubyte.gz");
    assert_string_equal(sets.items[3], "data.test.labels=/d/t10k-labels-idx1-ubyte.gz");
    scoring_sets_close(&sets);
    const char *pairs[] = {"kind=csv,file=/d/a.csv,header_lines=1"};
    data = (struct args_list){pairs, 1};
    assert_int_equal(scoring_sets_make(&sets, &data, &err), 0);
    assert_string_equal(sets.items[0], "data.kind=csv");
    assert_string_equal(sets.items[1], "data.test.file=/d/a.csv");
    assert_string_equal(sets.items[2], "data.header_lines=1");
    scoring_sets_close(&sets);
    const char *unknown[] = {"/d/a.bin"};
    data = (struct args_list){unknown, 1};
    assert_int_equal(scoring_sets_make(&sets, &data, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "kind=csv,file="));
    scoring_sets_close(&sets);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(auc_counts_pairs_and_ties_at_half),
        cmocka_unit_test(auc_equals_the_definition_with_many_ties),
        cmocka_unit_test(auc_of_one_class_or_of_nan_is_undefined),
        cmocka_unit_test(log_loss_stays_finite_at_large_margins),
        cmocka_unit_test(worst_confusions_are_ordered_and_never_on_the_diagonal),
        cmocka_unit_test(data_settings_follow_names_and_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
