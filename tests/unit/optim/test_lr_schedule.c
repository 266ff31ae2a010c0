#include "config/job.h"
#include "optim/optimizer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

struct row {
    enum job_lr_kind kind;
    double lr, min_lr;
    int64_t warmup, total_steps, all_steps, t;
    double want;
};

/* cos(π/4) = √½, cos(π/3) = ½: the values are exact by hand. */
static const struct row rows[] = {
    /* constant: the warm-up only */
    {JOB_LR_CONSTANT, 0.1, 0.0, 0, 0, 10, 1, 0.1},
    {JOB_LR_CONSTANT, 0.1, 0.05, 0, 5, 10, 9, 0.1},
    {JOB_LR_CONSTANT, 0.1, 0.0, 4, 0, 10, 1, 0.025},
    {JOB_LR_CONSTANT, 0.1, 0.0, 4, 0, 10, 3, 0.075},
    {JOB_LR_CONSTANT, 0.1, 0.0, 4, 0, 10, 4, 0.1},
    {JOB_LR_CONSTANT, 0.1, 0.0, 4, 0, 10, 5, 0.1},
    /* linear without warm-up: p = t/D */
    {JOB_LR_LINEAR, 0.1, 0.0, 0, 0, 10, 1, 0.09},
    {JOB_LR_LINEAR, 0.1, 0.02, 0, 0, 10, 5, 0.06},
    {JOB_LR_LINEAR, 0.1, 0.02, 0, 0, 10, 9, 0.028},
    {JOB_LR_LINEAR, 0.1, 0.02, 0, 0, 10, 10, 0.02},
    {JOB_LR_LINEAR, 0.1, 0.02, 0, 0, 10, 11, 0.02},
    /* linear after warm-up, a total of its own: p = (t-W)/(D-W) */
    {JOB_LR_LINEAR, 0.1, 0.0, 2, 6, 100, 2, 0.1},
    {JOB_LR_LINEAR, 0.1, 0.0, 2, 6, 100, 3, 0.075},
    {JOB_LR_LINEAR, 0.1, 0.0, 2, 6, 100, 6, 0.0},
    {JOB_LR_LINEAR, 0.1, 0.0, 2, 6, 100, 99, 0.0},
    /* cosine */
    {JOB_LR_COSINE, 0.1, 0.0, 0, 0, 4, 1, 0.05 * (1 + 0.70710678118654752)},
    {JOB_LR_COSINE, 0.1, 0.0, 0, 0, 4, 2, 0.05},
    {JOB_LR_COSINE, 0.1, 0.02, 0, 0, 4, 2, 0.06},
    {JOB_LR_COSINE, 0.1, 0.02, 2, 5, 100, 1, 0.05},
    {JOB_LR_COSINE, 0.1, 0.02, 2, 5, 100, 2, 0.1},
    {JOB_LR_COSINE, 0.1, 0.02, 2, 5, 100, 3, 0.02 + 0.04 * 1.5},
    {JOB_LR_COSINE, 0.1, 0.02, 2, 5, 100, 4, 0.02 + 0.04 * 0.5},
    {JOB_LR_COSINE, 0.1, 0.02, 2, 5, 100, 5, 0.02},
    {JOB_LR_COSINE, 0.1, 0.02, 2, 5, 100, 6, 0.02},
    /* a warm-up as long as the schedule, or longer: warm-up first, then min */
    {JOB_LR_COSINE, 0.1, 0.02, 5, 5, 5, 5, 0.1},
    {JOB_LR_COSINE, 0.1, 0.02, 5, 5, 9, 6, 0.02},
    {JOB_LR_LINEAR, 0.1, 0.02, 8, 5, 9, 6, 0.075},
    {JOB_LR_LINEAR, 0.1, 0.02, 8, 5, 9, 9, 0.02},
};

static void lr_follows_the_table_of_schedules(void **state)
{
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        struct job job = {0};
        job.optimizer.lr = rows[r].lr;
        job.lr_schedule.kind = rows[r].kind;
        job.lr_schedule.warmup_steps = rows[r].warmup;
        job.lr_schedule.total_steps = rows[r].total_steps;
        job.lr_schedule.min_lr = rows[r].min_lr;
        double got = lr_schedule_at(&job, rows[r].t, rows[r].all_steps);
        if (fabs(got - rows[r].want) > 1e-15)
            fail_msg("row %zu: lr is %.17g, not %.17g", r, got, rows[r].want);
    }
}

static void lr_never_rises_after_the_warm_up_nor_leaves_its_bounds(void **state)
{
    (void)state;
    for (int kind = JOB_LR_COSINE; kind <= JOB_LR_LINEAR; kind++) {
        struct job job = {0};
        double before = 1e9;
        job.optimizer.lr = 0.1;
        job.lr_schedule.kind = (enum job_lr_kind)kind;
        job.lr_schedule.warmup_steps = 10;
        job.lr_schedule.min_lr = 0.001;
        for (int64_t t = 10; t <= 500; t++) {
            double lr = lr_schedule_at(&job, t, 400);
            assert_true(lr <= before && lr >= 0.001 && lr <= 0.1);
            before = lr;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lr_follows_the_table_of_schedules),
        cmocka_unit_test(lr_never_rises_after_the_warm_up_nor_leaves_its_bounds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
