/* Ballots: from what each rank measured of its own sums, every rank comes to the same verdict, and it is the one of the
 * whole. The ranks are structs of this test; an exchange is tried once by every rank to hand in its blob, and works once
 * all are in. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "tests/unit/strategy/fixture.h"
#include "worker/collective/collective.h"
#include "worker/strategy/ballot.h"

enum { RANKS_MAX = 8, STATISTICS = 3 };

struct collective {
    int rank, world;
    int complete; /* all blobs are in */
    uint8_t *blob[RANKS_MAX];
    size_t bytes[RANKS_MAX], bytes_max;
    struct collective *all; /* [world] */
};

static void hand_in(struct collective *group, const struct collective_blobs *blobs)
{
    int me = group->rank;
    for (int k = 0; k < group->world; k++) {
        free(group->all[k].blob[me]);
        group->all[k].bytes[me] = blobs->sizes[me];
        group->all[k].blob[me] = malloc(blobs->sizes[me] + 1);
        memcpy(group->all[k].blob[me], blobs->all + blobs->offsets[me], blobs->sizes[me]);
    }
}

int collective_exchange(struct collective *group, const struct collective_blobs *blobs, struct errbuf *err)
{
    assert_true(blobs->sizes[group->rank] <= group->bytes_max);
    if (!group->complete) {
        hand_in(group, blobs);
        return errbuf_set(err, STATUS_BUSY, "not all are in");
    }
    for (int k = 0; k < group->world; k++) {
        assert_int_equal(blobs->sizes[k], group->bytes[k]); /* both ends know the size */
        memcpy(blobs->all + blobs->offsets[k], group->blob[k], group->bytes[k]);
    }
    return 0;
}

/* --- a world of ranks ----------------------------------------------------------------------------------------- */

struct world {
    const struct keymap *map;
    struct collective groups[RANKS_MAX];
    struct ballot ballots[RANKS_MAX];
    int ranks;
    int *owner;      /* (runs) */
    double *squares; /* (runs) what was measured, of all */
    uint8_t *finite;
};

static void world_open(struct world *world, const struct keymap *map, double clip_norm, int stop)
{
    *world = (struct world){.map = map, .ranks = map->ranks};
    size_t runs = (size_t)map->runs_count;
    world->owner = calloc(runs + 1, sizeof *world->owner);
    world->squares = calloc(runs + 1, sizeof *world->squares);
    world->finite = calloc(runs + 1, 1);
    for (int r = 0; r < map->ranges_count; r++) {
        struct keymap_run *of_range = calloc((size_t)map->ranges[r].runs + 1, sizeof *of_range);
        keymap_runs(map, &map->ranges[r], of_range);
        for (int i = 0; !map->ranges[r].frozen && i < map->ranges[r].runs; i++)
            world->owner[map->ranges[r].run_first + i] = of_range[i].owner;
        free(of_range);
    }
    for (int64_t run = 0; run < map->runs_count; run++) {
        world->squares[run] = 0.1 + 0.001 * (double)run;
        world->finite[run] = 1;
    }
    for (int k = 0; k < world->ranks; k++) {
        struct ballot_options options = {.map = map, .rank = k, .world = world->ranks, .statistics = STATISTICS,
                                         .clip_norm = clip_norm, .nonfinite_stop = stop};
        world->groups[k] = (struct collective){.rank = k, .world = world->ranks, .all = world->groups,
                                               .bytes_max = ballot_bytes_max(map, STATISTICS)};
        assert_int_equal(ballot_init(&world->ballots[k], &options, NULL), 0);
        world->ballots[k].cluster_epoch = 4;
        world->ballots[k].mine = (struct ballot_share){.loss_sum = 1.5 * k, .counted = 10 + k, .correct = k,
                                                       .samples = 10, .lr = 0.1 + k, .next_lr = 0.05 + k};
        for (int i = 0; i < STATISTICS; i++)
            world->ballots[k].statistics[i] = 100 * k + i;
    }
}

static void world_close(struct world *world)
{
    for (int k = 0; k < world->ranks; k++) {
        ballot_close(&world->ballots[k]);
        for (int j = 0; j < world->ranks; j++)
            free(world->groups[k].blob[j]);
    }
    free(world->owner);
    free(world->squares);
    free(world->finite);
}

/* Each rank knows what it owns; of other ranks' runs it has rubbish. */
static void measure(struct world *world)
{
    for (int k = 0; k < world->ranks; k++)
        for (int64_t run = 0; run < world->map->runs_count; run++) {
            int own = world->owner[run] == k;
            world->ballots[k].squares[run] = own ? world->squares[run] : 1e30;
            world->ballots[k].finite[run] = own ? world->finite[run] : 0;
        }
}

static void set_complete(struct world *world, int complete)
{
    for (int k = 0; k < world->ranks; k++)
        world->groups[k].complete = complete;
}

/* Hands in; then every rank decides. */
static void cast(struct world *world, uint64_t step, int64_t applied)
{
    measure(world);
    set_complete(world, 0);
    for (int k = 0; k < world->ranks; k++)
        assert_int_equal(ballot_cast(&world->ballots[k], &world->groups[k], step, applied, NULL), STATUS_BUSY);
    set_complete(world, 1);
    for (int k = 0; k < world->ranks; k++)
        assert_int_equal(ballot_cast(&world->ballots[k], &world->groups[k], step, applied, NULL), 0);
}

static double norm_of(const struct world *world)
{
    double sum = 0;
    for (int64_t run = 0; run < world->map->runs_count; run++)
        sum += world->squares[run];
    return sqrt(sum);
}

static void check_alike(const struct world *world)
{
    const struct ballot *first = &world->ballots[0];
    for (int k = 0; k < world->ranks; k++) {
        const struct ballot *b = &world->ballots[k];
        assert_int_equal(b->verdict.decision, first->verdict.decision);
        assert_int_equal(b->verdict.t, first->verdict.t);
        assert_int_equal(b->verdict.nonfinite_run, first->verdict.nonfinite_run);
        assert_int_equal(b->stop, first->stop);
        assert_memory_equal(&b->verdict.grad_scale, &first->verdict.grad_scale, sizeof(float));
        assert_memory_equal(&b->verdict.lr, &first->verdict.lr, sizeof(double));
        assert_memory_equal(&b->verdict.next_lr, &first->verdict.next_lr, sizeof(double));
        assert_memory_equal(&b->verdict.grad_norm, &first->verdict.grad_norm, sizeof(double));
        assert_memory_equal(b->shares, first->shares, (size_t)world->ranks * sizeof *b->shares);
        for (int j = 0; j < world->ranks; j++) {
            double statistics[STATISTICS];
            memcpy(statistics, ballot_statistics(b, j), sizeof statistics);
            for (int i = 0; i < STATISTICS; i++)
                assert_true(statistics[i] == 100 * j + i);
        }
    }
}

/* --- verdicts -------------------------------------------------------------------------------------------------- */

static void check_verdict(const struct keymap *map)
{
    struct world world;
    world_open(&world, map, 0.5, 0);
    for (uint64_t step = 3; step < 6; step++) { /* one memory for every step */
        cast(&world, step, (int64_t)step - 2);
        check_alike(&world);
        const struct step_verdict *verdict = &world.ballots[map->ranks - 1].verdict;
        double norm = norm_of(&world), clip = norm > 0.5 ? 0.5 / (norm + 1e-6) : 1;
        assert_int_equal(verdict->decision, STEP_APPLY);
        assert_int_equal(verdict->t, step - 1);
        assert_true(verdict->grad_norm == norm); /* to the last bit: runs are added in order of number */
        assert_true(verdict->grad_scale == (float)clip);
        assert_true(verdict->lr == 0.1 && verdict->next_lr == 0.05); /* rank 0's, whoever asks */
        for (int k = 0; k < map->ranks; k++) {
            assert_true(world.ballots[0].shares[k].loss_sum == 1.5 * k);
            assert_int_equal(world.ballots[0].shares[k].counted, 10 + k);
            assert_int_equal(world.ballots[0].shares[k].correct, k);
        }
        for (int64_t run = 0; run < map->runs_count; run++)
            world.squares[run] *= 1.25;
    }
    world_close(&world);
}

static void every_rank_comes_to_the_verdict_of_the_whole(void **state)
{
    (void)state;
    fixture_each(check_verdict);
}

/* The last run that anybody owns is not finite: its owner alone has seen it. */
static void check_nonfinite(const struct keymap *map)
{
    for (int stop = 0; stop < 2 && map->runs_count > 0; stop++) {
        struct world world;
        world_open(&world, map, 0, stop);
        world.squares[map->runs_count - 1] = INFINITY;
        world.finite[map->runs_count - 1] = 0;
        cast(&world, 8, 5);
        check_alike(&world);
        const struct step_verdict *verdict = &world.ballots[0].verdict;
        assert_int_equal(verdict->decision, stop ? STEP_STOP : STEP_SKIP);
        assert_int_equal(verdict->nonfinite_run, map->runs_count - 1);
        assert_int_equal(verdict->t, 5);
        assert_true(isnan(verdict->grad_norm));
        assert_true(verdict->next_lr == 0.1); /* t stands still, so the rate does */
        world_close(&world);
    }
}

static void a_rank_that_saw_a_number_that_is_not_finite_skips_or_stops_all(void **state)
{
    (void)state;
    fixture_each(check_nonfinite);
}

static void open_mlp(struct param_table *table, struct keymap *map, int ranks)
{
    struct keymap_layout layout = {.ranks = ranks, .servers = 1, .message_bytes = 1 << 20};
    fixture_build(table, &fixture_models[4]);
    assert_int_equal(keymap_init(map, table, &layout, NULL), 0);
}

static void a_batch_of_which_nobody_has_a_sample_is_skipped(void **state)
{
    struct param_table table;
    struct keymap map;
    struct world world;
    (void)state;
    open_mlp(&table, &map, 3);
    world_open(&world, &map, 0, 1);
    for (int k = 0; k < 3; k++)
        world.ballots[k].mine.samples = 0;
    cast(&world, 1, 0);
    check_alike(&world);
    assert_int_equal(world.ballots[2].verdict.decision, STEP_SKIP);
    assert_int_equal(world.ballots[2].verdict.nonfinite_run, -1);
    world.ballots[1].mine.samples = 1;
    cast(&world, 2, 0);
    assert_int_equal(world.ballots[2].verdict.decision, STEP_APPLY);
    world_close(&world);
    keymap_close(&map);
    param_table_close(&table);
}

static void one_vote_makes_the_step_the_last(void **state)
{
    struct param_table table;
    struct keymap map;
    struct world world;
    (void)state;
    open_mlp(&table, &map, 5);
    world_open(&world, &map, 0, 0);
    cast(&world, 1, 0);
    assert_int_equal(world.ballots[0].stop, 0);
    world.ballots[3].mine.stop = 1;
    cast(&world, 2, 1);
    check_alike(&world);
    assert_int_equal(world.ballots[0].stop, 1);
    world.ballots[3].mine.stop = 0;
    cast(&world, 3, 2);
    assert_int_equal(world.ballots[0].stop, 0);
    world_close(&world);
    keymap_close(&map);
    param_table_close(&table);
}

static void ranks_at_different_steps_are_named(void **state)
{
    struct param_table table;
    struct keymap map;
    struct world world;
    struct errbuf err;
    (void)state;
    open_mlp(&table, &map, 2);
    for (int epoch = 0; epoch < 2; epoch++) {
        world_open(&world, &map, 0, 0);
        measure(&world);
        world.ballots[1].cluster_epoch = epoch ? 5 : 4;
        for (int k = 0; k < 2; k++)
            ballot_cast(&world.ballots[k], &world.groups[k], epoch ? 7 : (uint64_t)(7 + k), 0, NULL);
        set_complete(&world, 1);
        for (int k = 0; k < 2; k++) {
            errbuf_init(&err);
            assert_int_equal(ballot_cast(&world.ballots[k], &world.groups[k], epoch ? 7 : (uint64_t)(7 + k), 0, &err),
                             STATUS_PROTOCOL);
            assert_non_null(strstr(err.text, "rank 0"));
            assert_non_null(strstr(err.text, "rank 1"));
            assert_non_null(strstr(err.text, !epoch ? "step 8" : k == 0 ? "cluster epoch 5" : "step 7 of 5"));
        }
        world_close(&world);
    }
    keymap_close(&map);
    param_table_close(&table);
}

/* --- trust norms ----------------------------------------------------------------------------------------------- */

static void check_norms(const struct keymap *map)
{
    struct world world;
    size_t count = 2 * (size_t)map->runs_count;
    double *norms[RANKS_MAX];
    world_open(&world, map, 0, 0);
    for (int k = 0; k < map->ranks; k++) {
        norms[k] = calloc(count + 1, sizeof(double));
        for (size_t i = 0; i < count; i++)
            norms[k][i] = world.owner[i / 2] == k ? 3 + (double)i : -1;
    }
    for (int complete = 0; complete < 2; complete++) {
        set_complete(&world, complete);
        for (int k = 0; k < map->ranks; k++)
            assert_int_equal(ballot_norms(&world.ballots[k], &world.groups[k], norms[k], NULL),
                             complete ? 0 : STATUS_BUSY);
    }
    for (int k = 0; k < map->ranks; k++) {
        for (size_t i = 0; i < count; i++)
            assert_true(norms[k][i] == 3 + (double)i);
        free(norms[k]);
    }
    world_close(&world);
}

static void trust_norms_of_all_runs_come_to_every_rank(void **state)
{
    (void)state;
    fixture_each(check_norms);
}

/* --- memory ----------------------------------------------------------------------------------------------------- */

static int failing_in; /* as in test_bucket.c */
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);

void *__wrap_calloc(size_t count, size_t bytes)
{
    return failing_in > 0 && --failing_in == 0 ? NULL : __real_calloc(count, bytes);
}

void *__wrap_malloc(size_t bytes)
{
    return failing_in > 0 && --failing_in == 0 ? NULL : __real_malloc(bytes);
}

static void every_allocation_may_fail(void **state)
{
    struct param_table table;
    struct keymap map;
    int nth = 0, status;
    (void)state;
    open_mlp(&table, &map, 3);
    do {
        struct ballot_options options = {.map = &map, .rank = 1, .world = 3, .statistics = STATISTICS};
        struct ballot ballot;
        struct errbuf err;
        errbuf_init(&err);
        failing_in = ++nth;
        status = ballot_init(&ballot, &options, &err);
        int done = failing_in > 0; /* none failed */
        failing_in = 0;
        ballot_close(&ballot);
        if (done)
            break;
        assert_true(status == STATUS_NOMEM || status == 0); /* a size that is only estimated may do without */
        if (status != 0)
            assert_true(err.text[0] != '\0');
    } while (nth < 1000);
    assert_int_equal(status, 0);
    assert_in_range(nth, 10, 999);
    keymap_close(&map);
    param_table_close(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_comes_to_the_verdict_of_the_whole),
        cmocka_unit_test(a_rank_that_saw_a_number_that_is_not_finite_skips_or_stops_all),
        cmocka_unit_test(a_batch_of_which_nobody_has_a_sample_is_skipped),
        cmocka_unit_test(one_vote_makes_the_step_the_last),
        cmocka_unit_test(ranks_at_different_steps_are_named),
        cmocka_unit_test(trust_norms_of_all_runs_come_to_every_rank),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
