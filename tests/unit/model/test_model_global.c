/* batch_norm_stats: global, on ranks that are threads with a reducer between them. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/pool.h"
#include "base/status.h"
#include "cluster/norm_stats.h"
#include "tests/lib/reference.h"
#include "tests/unit/model/fixture.h"

enum { RANKS_MAX = 16, VALUES_MAX = 64, PARAMS_MAX = 512 };

struct group {
    int ranks;
    pthread_barrier_t barrier;
    double *values[RANKS_MAX];
    double result[VALUES_MAX];
    int reduces;
};

struct rank_reducer {
    struct model_reducer base;
    struct group *group;
    int rank;
};

/* Everybody hands in, rank 0 reduces in order of rank, everybody takes. */
static int reduce(struct model_reducer *self, int merge, double *values, int64_t count, struct errbuf *err)
{
    (void)err;
    struct rank_reducer *reducer = (struct rank_reducer *)self;
    struct group *group = reducer->group;
    group->values[reducer->rank] = values;
    pthread_barrier_wait(&group->barrier);
    if (reducer->rank == 0) {
        int64_t features = (count - 1) / 2;
        group->reduces++;
        memcpy(group->result, values, (size_t)count * sizeof *values);
        for (int rank = 1; rank < group->ranks; rank++) {
            if (merge)
                norm_stats_merge(&features, 1, group->result, group->values[rank]);
            for (int64_t i = 0; i < count && !merge; i++)
                group->result[i] += group->values[rank][i];
        }
    }
    pthread_barrier_wait(&group->barrier);
    memcpy(values, group->result, (size_t)count * sizeof *values);
    pthread_barrier_wait(&group->barrier);
    return STATUS_OK;
}

struct rank_run {
    struct fixture fixture;
    struct rank_reducer reducer;
    int64_t first, rows;
    double loss;
    double stats[VALUES_MAX];
};

static void *run_rank(void *context)
{
    struct rank_run *run = context;
    pool_thread_numerics();
    struct model_batch batch = fixture_batch(&run->fixture, run->first, run->rows);
    run->loss = fixture_gradient(&run->fixture, &batch, 0, &run->reducer.base);
    model_stats_collect(run->fixture.model, run->stats);
    return NULL;
}

static void global_job(struct fixture *fixture)
{
    fixture_job(fixture);
    fixture->job.model.batch_norm = 1;
    fixture->job.model.dropout = 0.2;
    fixture->job.parallel.batch_norm_stats = JOB_BN_GLOBAL;
}

static struct rank_run runs[RANKS_MAX];

static void run_group(struct group *group)
{
    pthread_t threads[RANKS_MAX];
    pthread_barrier_init(&group->barrier, NULL, (unsigned)group->ranks);
    for (int r = 0; r < group->ranks; r++) {
        runs[r].reducer = (struct rank_reducer){.base = {.reduce = reduce}, .group = group, .rank = r};
        global_job(&runs[r].fixture);
        fixture_open(&runs[r].fixture, NULL);
        reference_share(FIXTURE_ROWS, group->ranks, r, &runs[r].first, &runs[r].rows);
        pthread_create(&threads[r], NULL, run_rank, &runs[r]);
    }
    for (int r = 0; r < group->ranks; r++)
        pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&group->barrier);
}

/* 16 ranks share 13 rows: three of them have none and still take part. */
static void ranks_sum_to_the_gradient_of_one_batch(void **state)
{
    (void)state;
    struct fixture whole;
    double whole_stats[VALUES_MAX], merged[VALUES_MAX];
    global_job(&whole);
    fixture_open(&whole, NULL);
    struct model_batch batch = fixture_batch(&whole, 0, FIXTURE_ROWS);
    double loss = fixture_gradient(&whole, &batch, 0, NULL);
    int64_t size = model_stats_collect(whole.model, whole_stats);
    int64_t count = model_params(whole.model)->count;
    const int64_t *features;
    int norms = model_norms(whole.model, &features);
    const int ranks[] = {1, 2, 3, 4, 16};
    for (size_t g = 0; g < sizeof ranks / sizeof *ranks; g++) {
        struct group group = {.ranks = ranks[g]};
        run_group(&group);
        assert_int_equal(group.reduces, 4); /* two norms, forward and backward */
        double sum = 0, gradient[PARAMS_MAX] = {0};
        memset(merged, 0, sizeof merged);
        for (int r = 0; r < group.ranks; r++) {
            sum += runs[r].loss;
            norm_stats_merge(features, norms, merged, runs[r].stats);
            for (int64_t i = 0; i < count; i++)
                gradient[i] += runs[r].fixture.grad[i];
            fixture_close(&runs[r].fixture);
        }
        assert_true(fabs(sum - loss) < 1e-5);
        for (int64_t i = 0; i < count; i++)
            assert_true(fabs(gradient[i] - whole.grad[i]) < 1e-5);
        for (int64_t i = 0; i < size; i++)
            assert_true(fabs(merged[i] - whole_stats[i]) < 1e-5);
    }
    fixture_close(&whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_sum_to_the_gradient_of_one_batch)};
    return cmocka_run_group_tests_name("model_global", tests, NULL, NULL);
}
