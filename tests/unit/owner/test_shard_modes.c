#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/status.h"
#include "lib/shard_world.h"
#include "owner/trust.h"

static void mean_sum_and_prescaled_gradients_are_weighted_as_they_say(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        struct shard_world world;
        shard_world_open(&world, &(struct shard_world_setup){.ranks = 3, .server = -1, .threads = 1, .mean = kind > 0,
                                                             .prescaled = kind == 2}, 3, 1);
        world.weight[0] = 2.5;
        for (uint64_t clock = 1; clock <= 3; clock++)
            shard_world_whole_step(&world, clock, (int[]){2, 0, 1});
        shard_world_close(&world);
    }
}

static void robust_means_leave_an_empty_share_out(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        struct shard_world world;
        shard_world_open(&world, &(struct shard_world_setup){.ranks = 5 - kind % 2, .server = -1, .threads = 2,
                                                             .aggregator = kind < 2 ? "median" : "trimmed_mean",
                                                             .trim_fraction = 0.3}, 4, 1);
        for (uint64_t clock = 1; clock <= 4; clock++) {
            shard_world_gradients(&world);
            world.weight[0] = 2;
            world.weight[3] = 0;
            shard_world_push_all(&world, clock, NULL);
            shard_world_settle(&world);
            shard_world_expect_sums(&world);
            shard_world_check_norms(&world);
            struct optimizer_step step = shard_world_step(&world, clock);
            shard_verdict(world.shard, clock, SHARD_APPLY, &step);
            shard_world_settle(&world);
            shard_world_expect_update(&world, &step);
            shard_world_check_values(&world);
        }
        shard_world_close(&world);
    }
}

static void eager_updates_wait_for_the_verdict_of_the_step_before(void **state)
{
    (void)state;
    struct shard_world world;
    shard_world_open(&world, &(struct shard_world_setup){.ranks = 3, .server = -1, .threads = 2, .eager = 1, .mean = 1}, 15,
                     1);
    for (uint64_t clock = 1; clock <= 6; clock++) {
        struct optimizer_step step = shard_world_step(&world, clock);
        if (clock == 1) {
            shard_next_step(world.shard, &step);
            shard_world_push_all(&world, clock, (int[]){1, 2, 0});
        }
        shard_world_settle(&world);
        assert_int_equal(world.finished_clock, clock); /* without a verdict */
        assert_int_equal(world.complete_clock, clock);
        shard_world_expect_sums(&world);
        shard_world_check_norms(&world);
        shard_world_expect_update(&world, &step);
        shard_world_check_values(&world);
        /* The next step's contributions come before this one's verdict: nothing moves. */
        shard_world_gradients(&world);
        shard_world_push_all(&world, clock + 1, (int[]){2, 0, 1});
        shard_world_settle(&world);
        assert_int_equal(world.finished_clock, clock);
        shard_world_check_values(&world);
        struct optimizer_step next = shard_world_step(&world, clock + 1);
        shard_next_step(world.shard, &next);
        assert_int_equal(shard_verdict(world.shard, clock, SHARD_APPLY, &step), 0);
    }
    shard_world_settle(&world);
    shard_world_close(&world);
}

/* A rank pushes only when it has the values, so they must stay to be had while the others' sums begin. */
static void eager_values_can_be_pulled_until_every_rank_has_pushed(void **state)
{
    (void)state;
    struct shard_world world;
    shard_world_open(&world, &(struct shard_world_setup){.ranks = 3, .server = -1, .threads = 2, .eager = 1}, 24, 1);
    int large = shard_world_range(&world, 1);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(shard_world_push(&world, large, rank, 1), SHARD_TAKEN);
        shard_world_check_values(&world);
    }
    shard_world_settle(&world);
    shard_world_check_values(&world);
    struct optimizer_step step = shard_world_step(&world, 1);
    shard_next_step(world.shard, &step);
    assert_int_equal(shard_world_push(&world, large, 2, 1), SHARD_TAKEN);
    assert_null(shard_share(world.shard, large));
    shard_world_settle(&world);
    struct buf *after = shard_share(world.shard, large);
    assert_non_null(after);
    buf_release(after);
    shard_world_close(&world);
}

static void eager_steps_claim_no_norm(void **state)
{
    (void)state;
    struct shard_world world;
    shard_world_open(&world, &(struct shard_world_setup){.ranks = 1, .server = -1, .threads = 1, .eager = 1}, 16, 1);
    for (uint64_t clock = 1; clock <= 3; clock++)
        shard_world_whole_step(&world, clock, NULL);
    shard_world_close(&world);
}

static void sums_without_values_stay_until_every_rank_pushes_again(void **state)
{
    (void)state;
    struct shard_world world;
    shard_world_open(&world, &(struct shard_world_setup){.ranks = 3, .servers = 1, .server = 0, .threads = 2,
                                                         .sums_only = 1, .mean = 1}, 17, 0);
    int large = shard_world_range(&world, 1);
    memcpy(world.sums, world.w, (size_t)world.table.count * sizeof(float)); /* first values are pulled as sums are */
    for (int r = 0; r < world.map.ranges_count; r++)
        shard_world_init(&world, r);
    for (uint64_t clock = 1; clock <= 5; clock++) {
        shard_world_check_values(&world);
        shard_world_gradients(&world);
        for (int rank = 0; rank < 2; rank++)
            for (int r = 0; r < world.map.ranges_count; r++)
                if (shard_world_mine(&world, r))
                    assert_int_equal(shard_world_push(&world, r, rank, clock), SHARD_TAKEN);
        shard_world_settle(&world);
        shard_world_check_values(&world); /* rank 2 may ask again for what was lost on its way */
        if (clock == 3) {
            assert_int_equal(shard_verdict(world.shard, clock, SHARD_ABORT, NULL), 0);
            shard_world_check_values(&world);
            shard_world_push_all(&world, clock, NULL);
        } else {
            for (int r = 0; r < world.map.ranges_count; r++)
                if (shard_world_mine(&world, r))
                    assert_int_equal(shard_world_push(&world, r, 2, clock), SHARD_TAKEN);
        }
        assert_null(shard_share(world.shard, large));
        shard_world_settle(&world);
        assert_int_equal(world.complete_clock, clock);
        shard_world_expect_sums(&world);
        shard_world_check_norms(&world);
        assert_int_equal(shard_verdict(world.shard, clock, clock == 2 ? SHARD_SKIP : SHARD_APPLY, NULL), 0);
        assert_int_equal(world.finished_clock, clock);
    }
    shard_world_close(&world);
}

static void the_books_are_the_formulas(void **state)
{
    (void)state;
    for (int only = 0; only < 2; only++) {
        struct shard_world world;
        shard_world_open(&world, &(struct shard_world_setup){.ranks = 2, .servers = 2, .server = 1, .threads = 1,
                                                             .sums_only = only}, 20, 1);
        int64_t all = keymap_server_elements(&world.map, 1) * 4;
        int64_t trained = keymap_server_trainable(&world.map, 1) * 4;
        assert_int_equal(world.account.bytes[ACCOUNT_PARAMETERS], only ? all - trained : all);
        assert_int_equal(world.account.bytes[ACCOUNT_GRADIENTS], trained);
        assert_int_equal(world.account.bytes[ACCOUNT_OPTIMIZER], only ? 0 : 2 * trained);
        assert_int_equal(world.account.bytes[ACCOUNT_BUFFERS], 0);
        shard_world_push_all(&world, 1, NULL);
        shard_world_settle(&world);
        assert_int_equal(world.account.bytes[ACCOUNT_BUFFERS], 0);
        assert_true(world.account.peak[ACCOUNT_BUFFERS] > 0 && world.account.peak[ACCOUNT_BUFFERS] <= 2 * trained);
        shard_world_close(&world);
    }
}

static void no_memory_for_the_optimizer_is_told(void **state)
{
    (void)state;
    struct shard_world world;
    shard_world_open(&world, &(struct shard_world_setup){.ranks = 2, .server = -1, .threads = 1}, 21, 1);
    for (int n = 1; n <= 3; n++) {
        struct shard *second = NULL;
        account_fail_after(&world.account, n);
        assert_int_equal(shard_create(&second, &world.options, NULL), STATUS_NOMEM);
        assert_null(second);
    }
    shard_world_close(&world); /* whose books are as before */
}

static void a_shard_without_trained_keys_follows_the_verdicts(void **state)
{
    (void)state;
    static const int frozen[] = {5 + SHARD_WORLD_FROZEN, SHARD_WORLD_LAYER, SHARD_WORLD_END};
    for (int eager = 0; eager < 2; eager++) {
        struct shard_world world;
        struct optimizer_step step = {.lr = 1, .t = 1, .grad_scale = 1, .trust_ratio = 1};
        shard_world_open(&world, &(struct shard_world_setup){.lengths = frozen, .ranks = 2, .server = -1, .threads = 1,
                                                             .eager = eager}, 22, 1);
        assert_int_equal(shard_world_push(&world, 0, 0, 1), STATUS_UNKNOWN);
        assert_true(shard_clock(world.shard, 0) == UINT64_MAX);
        assert_int_equal(shard_verdict(world.shard, 1, SHARD_ABORT, NULL), 0);
        assert_int_equal(world.finished_clock, 0);
        for (uint64_t clock = 1; clock <= 3; clock++) {
            assert_int_equal(shard_verdict(world.shard, clock, SHARD_APPLY, &step), 0);
            assert_int_equal(shard_verdict(world.shard, clock, SHARD_APPLY, &step), 0);
            assert_int_equal(world.finished_clock, clock);
        }
        shard_world_check_values(&world);
        shard_world_close(&world);
    }
}

/* lamb: norms by run, one ratio a tensor, then the update with it. */
static void expect_lamb(struct shard_world *world, const struct optimizer_step *step, double *norms)
{
    const struct optimizer_ops *ops = world->options.optimizer;
    double *ratios = calloc((size_t)world->table.tensor_count, sizeof *ratios);
    memset(norms, 0, 2 * (size_t)world->map.runs_count * sizeof *norms);
    memcpy(world->scratch, world->sums, (size_t)world->table.count * sizeof(float));
    for (int pass = 0; pass < 2; pass++) {
        for (int r = 0; r < world->map.ranges_count; r++) {
            const struct keymap_range *range = &world->map.ranges[r];
            struct keymap_run *runs = calloc((size_t)range->runs + 1, sizeof *runs);
            keymap_runs(&world->map, range, runs);
            for (int i = 0; i < range->runs; i++) {
                int64_t at = world->table.layers[range->layer].offset + runs[i].begin;
                int tensor = world->map.keys[runs[i].key].tensor;
                float *slots[2] = {world->slots[0] + at, world->slots[1] + at};
                struct optimizer_step s = *step;
                int decay = !world->table.tensors[tensor].no_decay;
                int64_t count = runs[i].end - runs[i].begin;
                if (pass == 0) {
                    ops->prepare(&world->options.params, &s, decay, world->w + at, world->scratch + at, slots, count,
                                 norms + 2 * (range->run_first + i));
                } else {
                    s.trust_ratio = ratios[tensor];
                    ops->update(&world->options.params, &s, decay, world->w + at, world->scratch + at, slots, count);
                }
            }
            free(runs);
        }
        trust_ratios(&world->map, norms, ratios);
    }
    free(ratios);
}

static void lamb_applies_when_the_trust_ratios_come(void **state)
{
    (void)state;
    struct shard_world world;
    shard_world_open(&world, &(struct shard_world_setup){.ranks = 3, .server = -1, .threads = 2, .optimizer = "lamb",
                                                         .mean = 1}, 23, 1);
    size_t bytes = 2 * (size_t)world.map.runs_count * sizeof(double);
    double *norms = malloc(bytes);
    double *ratios = calloc((size_t)world.table.tensor_count, sizeof *ratios);
    for (uint64_t clock = 1; clock <= 4; clock++) {
        shard_world_gradients(&world);
        shard_world_push_all(&world, clock, NULL);
        shard_world_settle(&world);
        struct optimizer_step step = shard_world_step(&world, clock);
        assert_int_equal(shard_trust_ratios(world.shard, clock, ratios), STATUS_RANGE);
        assert_int_equal(shard_verdict(world.shard, clock, SHARD_APPLY, &step), 0);
        shard_world_settle(&world);
        assert_int_equal(world.trust_clock, clock);
        shard_world_check_values(&world); /* of the step before */
        shard_world_expect_sums(&world);
        expect_lamb(&world, &step, norms);
        assert_memory_equal(shard_trust_norms(world.shard), norms, bytes);
        trust_ratios(&world.map, norms, ratios);
        assert_int_equal(shard_trust_ratios(world.shard, clock, ratios), 0);
        shard_world_settle(&world);
        assert_int_equal(shard_trust_ratios(world.shard, clock, ratios), 0);
        assert_int_equal(world.finished_clock, clock);
        shard_world_check_values(&world);
    }
    free(norms);
    free(ratios);
    shard_world_close(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mean_sum_and_prescaled_gradients_are_weighted_as_they_say),
        cmocka_unit_test(robust_means_leave_an_empty_share_out),
        cmocka_unit_test(eager_updates_wait_for_the_verdict_of_the_step_before),
        cmocka_unit_test(eager_values_can_be_pulled_until_every_rank_has_pushed),
        cmocka_unit_test(eager_steps_claim_no_norm),
        cmocka_unit_test(sums_without_values_stay_until_every_rank_pushes_again),
        cmocka_unit_test(the_books_are_the_formulas),
        cmocka_unit_test(no_memory_for_the_optimizer_is_told),
        cmocka_unit_test(a_shard_without_trained_keys_follows_the_verdicts),
        cmocka_unit_test(lamb_applies_when_the_trust_ratios_come),
    };
    return cmocka_run_group_tests_name("shard_modes", tests, NULL, NULL);
}
