#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "config/job.h"
#include "step/schedule.h"
#include "step/step.h"

static double lr_of_t(const void *context, int64_t t)
{
    (void)context;
    return 0.1 * (double)t;
}

static struct step_rules rules_of(int owners, int workers, int64_t runs, const int *run_owner)
{
    return (struct step_rules){.owners = owners, .workers = workers, .runs = runs, .run_owner = run_owner,
                               .lr_at = lr_of_t};
}

static int sums(struct step *step, int owner, int64_t run, double squares, uint8_t finite)
{
    struct step_sums input = {owner, 7, step->step, run, 1, &squares, &finite, 2};
    return step_prepared(step, &input);
}

static void decides_when_all_is_in(void **state)
{
    (void)state;
    struct step step;
    struct step_rules rules = rules_of(2, 2, 3, (int[]){0, 1, 0});
    assert_int_equal(step_init(&step, &rules), 0);
    step_begin(&step, 7, 5, 4);
    assert_int_equal(sums(&step, 0, 0, 9, 1), 0);
    assert_int_equal(step_report(&step, 7, 5, 1), 0);
    assert_int_equal(sums(&step, 0, 2, 144, 1), 0);
    assert_int_equal(step_owner_missing(&step, 0), 0);
    assert_int_equal(step_owner_missing(&step, 1), 1);
    assert_int_equal(step_worker_missing(&step, 0), 1);
    assert_int_equal(sums(&step, 1, 1, 16, 1), 0);
    assert_null(step_verdict_of(&step));
    assert_int_equal(step_report(&step, 7, 5, 0), 0);
    const struct step_verdict *verdict = step_verdict_of(&step);
    assert_non_null(verdict);
    assert_int_equal(verdict->decision, STEP_APPLY);
    assert_int_equal(verdict->t, 5);
    assert_true(verdict->grad_norm == 13 && verdict->grad_scale == 1.0f);
    assert_true(verdict->lr == 0.5 && verdict->next_lr == 0.1 * 6);
    step_close(&step);
}

/* N04: shards (3,4) and (12), clip 1; then with a bias of 5 that is counted once. */
static void N04_clips_by_the_one_global_norm(void **state)
{
    (void)state;
    for (int bias = 0; bias < 2; bias++) {
        struct step step;
        struct step_rules rules = rules_of(2, 1, 2 + bias, (int[]){0, 1, 0});
        rules.clip_norm = 1;
        assert_int_equal(step_init(&step, &rules), 0);
        step_begin(&step, 7, 1, 0);
        assert_int_equal(sums(&step, 1, 1, 144, 1), 0);
        if (bias)
            assert_int_equal(sums(&step, 0, 2, 25, 1), 0);
        assert_int_equal(sums(&step, 0, 0, 25, 1), 0);
        assert_int_equal(step_report(&step, 7, 1, 0), 0);
        const struct step_verdict *verdict = step_verdict_of(&step);
        assert_true(fabs(verdict->grad_norm - (bias ? 13.92838828 : 13)) < 5e-9);
        if (!bias) {
            assert_true(fabs(3 * (double)verdict->grad_scale - 0.23076921) < 2e-8);
            assert_true(fabs(4 * (double)verdict->grad_scale - 0.30769229) < 2e-8);
            assert_true(fabs(12 * (double)verdict->grad_scale - 0.92307685) < 6e-8);
            assert_true(verdict->grad_scale == (float)(1 / (13 + 1e-6)));
        }
        step_close(&step);
    }
    assert_true(step_clip_coefficient(20, 13) == 1 && step_clip_coefficient(0, 13) == 1);
}

static void divides_by_the_weight_when_the_mean_is_open(void **state)
{
    (void)state;
    struct step step;
    struct step_rules rules = rules_of(1, 1, 1, NULL);
    rules.divide = 1;
    rules.clip_norm = 3.25;
    assert_int_equal(step_init(&step, &rules), 0);
    step_begin(&step, 7, 1, 0);
    assert_int_equal(sums(&step, 0, 0, 169, 1), 0); /* weight 2: norm 6.5 */
    assert_int_equal(step_report(&step, 7, 1, 0), 0);
    const struct step_verdict *verdict = step_verdict_of(&step);
    assert_true(verdict->grad_norm == 6.5);
    assert_true(verdict->grad_scale == (float)(3.25 / (6.5 + 1e-6) / 2));
    step_close(&step);
}

static void skips_or_stops_at_the_first_run_that_is_not_finite(void **state)
{
    (void)state;
    for (int stop = 0; stop < 2; stop++) {
        struct step step;
        struct step_rules rules = rules_of(1, 1, 3, NULL);
        rules.nonfinite_stop = stop;
        assert_int_equal(step_init(&step, &rules), 0);
        step_begin(&step, 7, 9, 3);
        assert_int_equal(sums(&step, 0, 2, INFINITY, 0), 0);
        assert_int_equal(sums(&step, 0, 1, NAN, 2 + 4), 0);
        assert_int_equal(sums(&step, 0, 0, 1, 1), 0);
        assert_int_equal(step_report(&step, 7, 9, 0), 0);
        const struct step_verdict *verdict = step_verdict_of(&step);
        assert_int_equal(verdict->decision, stop ? STEP_STOP : STEP_SKIP);
        assert_int_equal(verdict->nonfinite_run, 1);
        assert_int_equal(verdict->nonfinite_rank, 4);
        assert_int_equal(verdict->t, 3);
        assert_true(isnan(verdict->grad_norm));
        assert_true(verdict->next_lr == 0.1 * 4); /* the same lr again */
        step_close(&step);
    }
}

static void skips_when_nothing_was_counted(void **state)
{
    (void)state;
    struct step step;
    struct step_rules rules = rules_of(1, 1, 1, NULL);
    rules.divide = 1;
    assert_int_equal(step_init(&step, &rules), 0);
    step_begin(&step, 7, 1, 0);
    double zero = 0;
    uint8_t finite = 1;
    struct step_sums input = {0, 7, 1, 0, 1, &zero, &finite, 0};
    assert_int_equal(step_prepared(&step, &input), 0);
    assert_int_equal(step_report(&step, 7, 1, 0), 0);
    assert_int_equal(step_verdict_of(&step)->decision, STEP_SKIP);
    assert_int_equal(step_verdict_of(&step)->nonfinite_run, -1);
    step_close(&step);
}

static void ignores_repeats_and_refuses_what_is_not_of_the_step(void **state)
{
    (void)state;
    struct step step;
    double squares[3] = {1, 1, 1};
    uint8_t finite[3] = {1, 1, 1};
    struct step_rules rules = rules_of(2, 2, 3, (int[]){0, 0, 1});
    assert_int_equal(step_init(&step, &rules), 0);
    struct step_sums input = {0, 7, 5, 0, 2, squares, finite, 2};
    assert_int_equal(step_prepared(&step, &input), STATUS_RANGE); /* nothing was begun */
    step_begin(&step, 7, 5, 0);
    assert_int_equal(step_prepared(&step, &input), 0);
    squares[0] = 100; /* a repeat with other numbers changes nothing */
    assert_int_equal(step_prepared(&step, &input), 1);
    assert_int_equal(step_report(&step, 7, 5, 0), 0);
    assert_int_equal(step_report(&step, 7, 5, 0), 1);
    input.cluster_epoch = 6;
    assert_int_equal(step_prepared(&step, &input), STATUS_ABORTED);
    input.cluster_epoch = 7;
    input.step = 4;
    assert_int_equal(step_prepared(&step, &input), STATUS_EXISTS);
    input.step = 6;
    assert_int_equal(step_prepared(&step, &input), STATUS_RANGE);
    input.step = 5;
    input.run_first = 1;
    assert_int_equal(step_prepared(&step, &input), STATUS_DENIED); /* run 2 is owner 1's */
    input.run_first = 2;
    assert_int_equal(step_prepared(&step, &input), STATUS_RANGE);
    input.run_first = INT64_MAX;
    assert_int_equal(step_prepared(&step, &input), STATUS_RANGE);
    input.owner = 2;
    assert_int_equal(step_prepared(&step, &input), STATUS_UNKNOWN);
    assert_int_equal(step_report(&step, 7, 5, 2), STATUS_UNKNOWN);
    assert_int_equal(sums(&step, 1, 2, 1, 1), 0);
    assert_int_equal(step_report(&step, 7, 5, 1), 0);
    assert_true(fabs(step_verdict_of(&step)->grad_norm - sqrt(3)) < 1e-15);
    assert_int_equal(step_report(&step, 7, 5, 1), 1);
    step_close(&step);
}

static void aborts_before_the_verdict_only(void **state)
{
    (void)state;
    struct step step;
    struct step_rules rules = rules_of(1, 1, 1, NULL);
    assert_int_equal(step_init(&step, &rules), 0);
    assert_int_equal(step_abort(&step), STATUS_UNKNOWN);
    step_begin(&step, 7, 1, 0);
    assert_int_equal(sums(&step, 0, 0, 1, 1), 0);
    assert_int_equal(step_abort(&step), 0);
    assert_int_equal(step_abort(&step), 0);
    assert_int_equal(step_report(&step, 7, 1, 0), STATUS_ABORTED);
    step_begin(&step, 7, 1, 0); /* the same step again, from nothing */
    assert_int_equal(step_report(&step, 7, 1, 0), 0);
    assert_null(step_verdict_of(&step));
    assert_int_equal(sums(&step, 0, 0, 4, 1), 0);
    assert_true(step_verdict_of(&step)->grad_norm == 2);
    assert_int_equal(step_abort(&step), STATUS_EXISTS);
    step_close(&step);
}

static void gives_the_same_norm_for_any_arrival(void **state)
{
    (void)state;
    enum { RUNS = 64 };
    double norms[2];
    for (int order = 0; order < 2; order++) {
        struct step step;
        struct step_rules rules = rules_of(1, 1, RUNS, NULL);
        assert_int_equal(step_init(&step, &rules), 0);
        step_begin(&step, 7, 1, 0);
        for (int i = 0; i < RUNS; i++) {
            int run = order ? RUNS - 1 - i : i;
            assert_int_equal(sums(&step, 0, run, exp(run * 0.7), 1), 0);
        }
        assert_int_equal(step_report(&step, 7, 1, 0), 0);
        norms[order] = step_verdict_of(&step)->grad_norm;
        step_close(&step);
    }
    assert_true(norms[0] == norms[1]);
}

static void evaluates_when_due_and_at_the_end_that_nobody_asked_for(void **state)
{
    (void)state;
    struct job job = {.evaluate.every = 3};
    assert_false(schedule_evaluates(&job, 4, 0, 0));
    assert_true(schedule_evaluates(&job, 6, 0, 0));
    assert_true(schedule_evaluates(&job, 4, 1, 0));
    assert_false(schedule_evaluates(&job, 4, 1, 1));
    assert_true(schedule_evaluates(&job, 6, 1, 1));
    job.evaluate.every = 0;
    assert_false(schedule_evaluates(&job, 6, 0, 0));
    assert_true(schedule_evaluates(&job, 6, 1, 0));
}

static void saves_when_due_and_at_the_end_when_there_is_a_folder(void **state)
{
    (void)state;
    struct job job = {.snapshot = {.dir = "/s", .every = 4}};
    assert_true(schedule_saves(&job, 8, 0));
    assert_false(schedule_saves(&job, 9, 0));
    assert_true(schedule_saves(&job, 9, 1));
    job.snapshot.every = 0;
    assert_false(schedule_saves(&job, 8, 0));
    assert_true(schedule_saves(&job, 8, 1));
    job.snapshot.dir = "";
    assert_false(schedule_saves(&job, 8, 1));
}

static void every_rank_writes_its_parts_and_one_what_all_hold(void **state)
{
    (void)state;
    for (int data = JOB_DDP; data <= JOB_ZERO3; data++) {
        struct job job = {.parallel = {.data = (enum job_parallel_data)data}};
        assert_true(schedule_writes(&job, 0));
        assert_int_equal(schedule_writes(&job, 3), data != JOB_DDP);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decides_when_all_is_in),
        cmocka_unit_test(N04_clips_by_the_one_global_norm),
        cmocka_unit_test(divides_by_the_weight_when_the_mean_is_open),
        cmocka_unit_test(skips_or_stops_at_the_first_run_that_is_not_finite),
        cmocka_unit_test(skips_when_nothing_was_counted),
        cmocka_unit_test(ignores_repeats_and_refuses_what_is_not_of_the_step),
        cmocka_unit_test(aborts_before_the_verdict_only),
        cmocka_unit_test(gives_the_same_norm_for_any_arrival),
        cmocka_unit_test(evaluates_when_due_and_at_the_end_that_nobody_asked_for),
        cmocka_unit_test(saves_when_due_and_at_the_end_when_there_is_a_folder),
        cmocka_unit_test(every_rank_writes_its_parts_and_one_what_all_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
