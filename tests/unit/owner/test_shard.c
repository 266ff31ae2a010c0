#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/status.h"
#include "lib/shard_world.h"

static void every_order_of_arrival_gives_the_bits_of_the_canonical_sum(void **state)
{
    (void)state;
    static const int orders[] = {0, 1, 2, 6, 24};
    for (int ranks = 1; ranks <= 4; ranks++) {
        struct shard_world world;
        uint64_t clock = 0;
        shard_world_open(&world, &(struct shard_world_setup){.ranks = ranks, .server = -1, .threads = 2, .mean = 1}, 1, 1);
        for (int code = 0; code < 256; code++) {
            int order[4] = {code & 3, code >> 2 & 3, code >> 4 & 3, code >> 6};
            int seen = 0;
            for (int i = 0; i < ranks; i++)
                seen |= 1 << order[i];
            if (seen == (1 << ranks) - 1 && code < 1 << 2 * ranks)
                shard_world_whole_step(&world, ++clock, order);
        }
        assert_int_equal(clock, orders[ranks]);
        shard_world_close(&world);
    }
}

/* Whole layers in turn: the order of the sums follows the layer's owner, whoever the server is. */
static void sums_follow_the_owners_of_whole_layers(void **state)
{
    (void)state;
    static const int layers[] = {20000, 7, SHARD_WORLD_LAYER, 40, SHARD_WORLD_LAYER, 17000, 9 + SHARD_WORLD_FROZEN, 3,
                                 SHARD_WORLD_LAYER, 5, SHARD_WORLD_LAYER, 33, SHARD_WORLD_LAYER, SHARD_WORLD_END};
    static const int order[] = {3, 0, 4, 2, 1};
    for (int eager = 0; eager < 2; eager++)
        for (int server = 0; server < 2; server++) {
            struct shard_world world;
            struct shard_world_setup setup = {.lengths = layers, .ranks = 5, .servers = 2, .server = server, .threads = 2,
                                              .eager = eager, .mean = 1, .placement = CANONICAL_LAYER};
            shard_world_open(&world, &setup, 3, 1);
            for (uint64_t clock = 1; clock <= 4; clock++)
                shard_world_whole_step(&world, clock, clock % 2 ? order : NULL);
            shard_world_close(&world);
        }
}

static void any_mix_of_arrivals_on_any_server_gives_the_same_bits(void **state)
{
    (void)state;
    for (int server = 0; server < 3; server++) {
        struct shard_world world;
        shard_world_open(&world, &(struct shard_world_setup){.ranks = 5, .servers = 3, .server = server, .threads = 2,
                                                             .message_bytes = 1 << 20, .optimizer = "sgd",
                                                             .momentum = 0.9, .mean = 1}, 7, 1);
        for (uint64_t clock = 1; clock <= 10; clock++) {
            shard_world_gradients(&world);
            shard_world_expect_sums(&world);
            char sent[64][5] = {{0}};
            for (int left = 0, r; left < 5 * world.map.ranges_count;) {
                r = (int)shard_world_random(&world, (uint64_t)world.map.ranges_count);
                int rank = (int)shard_world_random(&world, 5);
                if (sent[r][rank]++)
                    continue;
                left++;
                if (shard_world_mine(&world, r))
                    assert_int_equal(shard_world_push(&world, r, rank, clock), SHARD_TAKEN);
                uv_run(&world.loop, UV_RUN_NOWAIT);
                for (int i = 0; i < 64; i++)
                    for (int k = 0; k < 5; k++)
                        sent[i][k] = sent[i][k] > 0;
            }
            shard_world_settle(&world);
            shard_world_check_norms(&world);
            struct optimizer_step step = shard_world_step(&world, clock);
            assert_int_equal(shard_verdict(world.shard, clock, SHARD_APPLY, &step), 0);
            shard_world_settle(&world);
            shard_world_expect_update(&world, &step);
            shard_world_check_values(&world);
        }
        shard_world_close(&world);
    }
}

/* A client program's push can overtake rank 0's first values. */
static void pushes_before_the_first_values_wait_for_them(void **state)
{
    (void)state;
    struct shard_world world;
    shard_world_open(&world, &(struct shard_world_setup){.ranks = 3, .servers = 1, .server = 0, .threads = 2}, 23, 0);
    shard_world_gradients(&world);
    shard_world_push_all(&world, 1, NULL);
    shard_world_settle(&world);
    assert_int_equal(world.completes, 0);
    for (int r = 0; r < world.map.ranges_count; r++)
        shard_world_init(&world, r);
    shard_world_expect_sums(&world);
    shard_world_settle(&world);
    assert_int_equal(world.completes, 1);
    struct optimizer_step step = shard_world_step(&world, 1);
    assert_int_equal(shard_verdict(world.shard, 1, SHARD_APPLY, &step), 0);
    shard_world_settle(&world);
    shard_world_expect_update(&world, &step);
    shard_world_check_values(&world);
    shard_world_close(&world);
}

static void what_is_not_a_next_contribution_is_refused(void **state)
{
    (void)state;
    struct shard_world world;
    shard_world_open(&world, &(struct shard_world_setup){.ranks = 3, .servers = 2, .server = 0, .threads = 1}, 5, 0);
    int small = shard_world_range(&world, 0);
    assert_int_equal(shard_has_values(world.shard), 0);
    assert_null(shard_share(world.shard, small));
    for (int r = 0; r < world.map.ranges_count; r++)
        shard_world_init(&world, r);
    assert_int_equal(shard_has_values(world.shard), 1);
    for (int r = 0; r < world.map.ranges_count; r++)
        if (!shard_world_mine(&world, r))
            assert_int_equal(shard_world_push(&world, r, 0, 1), STATUS_UNKNOWN);
    assert_int_equal(shard_clock(world.shard, 99), 0);
    assert_int_equal(shard_world_push(&world, small, 3, 1), STATUS_UNKNOWN);
    assert_int_equal(shard_world_push(&world, small, -1, 1), STATUS_UNKNOWN);
    assert_int_equal(shard_world_push(&world, small, 0, 2), STATUS_RANGE);
    assert_int_equal(shard_world_push(&world, small, 0, UINT64_MAX), STATUS_RANGE);
    assert_int_equal(shard_world_push(&world, small, 0, 0), SHARD_REPEAT_DONE);
    assert_int_equal(world.held, 0);
    shard_world_whole_step(&world, 1, NULL);
    shard_world_close(&world);
}

static void a_repeat_is_never_added_twice(void **state)
{
    (void)state;
    struct shard_world world;
    shard_world_open(&world, &(struct shard_world_setup){.ranks = 3, .server = -1, .threads = 1, .mean = 1}, 6, 1);
    for (int large = 0; large < 2; large++) {
        int r = shard_world_range(&world, large);
        struct keymap_run run[64];
        keymap_runs(&world.map, &world.map.ranges[r], run);
        int first = (run[0].owner + 1) % 3; /* has the first turn of the first run */
        int last = run[0].owner;
        assert_int_equal(shard_world_push(&world, r, last, 1), SHARD_TAKEN);
        shard_world_settle(&world);
        assert_int_equal(world.held, 1);
        assert_int_equal(shard_world_push(&world, r, last, 1), SHARD_REPEAT_WAITING);
        assert_int_equal(world.returned[-STATUS_BUSY], large + 1); /* the old token */
        assert_int_equal(world.held, 1);
        assert_int_equal(shard_world_push(&world, r, first, 1), SHARD_TAKEN);
        assert_int_equal(shard_world_push(&world, r, (first + 1) % 3, 1), SHARD_TAKEN);
        shard_world_settle(&world);
        assert_int_equal(world.held, 0);
        assert_int_equal(shard_world_push(&world, r, last, 1), SHARD_REPEAT_DONE);
        assert_int_equal(shard_world_push(&world, r, first, 1), SHARD_REPEAT_DONE);
    }
    for (int rank = 0; rank < 3; rank++)
        for (int r = 0; r < world.map.ranges_count; r++)
            if (shard_world_mine(&world, r))
                assert_true(shard_world_push(&world, r, rank, 1) >= 0);
    shard_world_settle(&world);
    struct optimizer_step step = shard_world_step(&world, 1);
    assert_int_equal(shard_verdict(world.shard, 1, SHARD_APPLY, &step), 0);
    shard_world_settle(&world);
    assert_int_equal(shard_verdict(world.shard, 1, SHARD_APPLY, &step), 0); /* a repeat of the verdict */
    assert_int_equal(shard_verdict(world.shard, 1, SHARD_ABORT, NULL), 0);  /* cannot be taken back */
    shard_world_settle(&world);
    shard_world_expect_sums(&world);
    shard_world_expect_update(&world, &step);
    shard_world_check_values(&world);
    assert_int_equal(world.finishes, 1);
    for (int r = 0; r < world.map.ranges_count; r++)
        if (shard_world_mine(&world, r))
            assert_int_equal(shard_world_push(&world, r, 1, 1), SHARD_REPEAT_DONE);
    shard_world_whole_step(&world, 2, NULL);
    shard_world_close(&world);
}

static void the_first_values_stay(void **state)
{
    (void)state;
    struct shard_world world;
    shard_world_open(&world, &(struct shard_world_setup){.ranks = 2, .server = -1, .threads = 1}, 8, 1);
    float *other = calloc((size_t)world.table.count, sizeof *other);
    for (int r = 0; r < world.map.ranges_count; r++)
        assert_int_equal(shard_init_values(world.shard, r, other), 1);
    assert_int_equal(shard_init_values(world.shard, world.map.ranges_count, other), STATUS_UNKNOWN);
    shard_world_check_values(&world);
    free(other);
    shard_world_close(&world);
}

static void a_verdict_that_does_not_fit_changes_nothing(void **state)
{
    (void)state;
    struct shard_world world;
    shard_world_open(&world, &(struct shard_world_setup){.ranks = 2, .server = -1, .threads = 1}, 9, 1);
    struct optimizer_step step = shard_world_step(&world, 1);
    assert_int_equal(shard_verdict(world.shard, 1, SHARD_APPLY, &step), STATUS_RANGE); /* nothing is complete */
    assert_int_equal(shard_verdict(world.shard, 2, SHARD_ABORT, NULL), STATUS_RANGE);
    assert_int_equal(shard_verdict(world.shard, 0, SHARD_APPLY, &step), 0);
    shard_world_whole_step(&world, 1, NULL);
    shard_world_close(&world);
}

static void a_skipped_step_changes_no_value_and_advances_the_clock(void **state)
{
    (void)state;
    struct shard_world world;
    shard_world_open(&world, &(struct shard_world_setup){.ranks = 3, .server = -1, .threads = 1, .mean = 1}, 10, 1);
    shard_world_whole_step(&world, 1, NULL);
    shard_world_push_all(&world, 2, NULL);
    shard_world_settle(&world);
    assert_int_equal(shard_verdict(world.shard, 2, SHARD_SKIP, NULL), 0);
    shard_world_settle(&world);
    assert_int_equal(world.finished_clock, 2);
    shard_world_check_values(&world);
    shard_world_whole_step(&world, 3, (int[]){2, 1, 0});
    shard_world_close(&world);
}

/* Aborts after `pushes` contributions, with tasks under way or not; then the whole step again. */
static void abort_after(struct shard_world *world, uint64_t clock, int pushes, int settle)
{
    shard_world_gradients(world);
    int given = 0;
    for (int rank = world->setup.ranks - 1; rank >= 0; rank--)
        for (int r = 0; r < world->map.ranges_count && given < pushes; r++)
            given += shard_world_mine(world, r) && shard_world_push(world, r, rank, clock) == SHARD_TAKEN;
    if (settle)
        shard_world_settle(world);
    assert_int_equal(shard_verdict(world->shard, clock, SHARD_ABORT, NULL), 0);
    assert_int_equal(world->held, 0); /* every token is back, so that what comes now is new */
    assert_int_equal(shard_held_bytes(world->shard), 0);
    shard_world_push_all(world, clock, NULL);
    shard_world_settle(world);
    struct optimizer_step step = shard_world_step(world, clock);
    shard_world_expect_sums(world);
    shard_world_check_norms(world);
    assert_int_equal(shard_verdict(world->shard, clock, SHARD_APPLY, &step), 0);
    shard_world_settle(world);
    shard_world_expect_update(world, &step);
    shard_world_check_values(world);
}

static void an_aborted_step_sent_again_gives_the_same_bits(void **state)
{
    (void)state;
    struct shard_world world;
    uint64_t clock = 0;
    shard_world_open(&world, &(struct shard_world_setup){.ranks = 3, .server = -1, .threads = 2, .mean = 1}, 11, 1);
    int ranges = 0;
    for (int r = 0; r < world.map.ranges_count; r++)
        ranges += shard_world_mine(&world, r);
    for (int settle = 0; settle < 2; settle++)
        for (int pushes = 0; pushes <= 3 * ranges; pushes++)
            abort_after(&world, ++clock, pushes, settle);
    assert_true(world.returned[-STATUS_ABORTED] > 0);
    shard_world_close(&world);
}

static void a_quick_range_may_be_complete_before_another_has_applied_the_last_step(void **state)
{
    (void)state;
    struct shard_world world;
    shard_world_open(&world, &(struct shard_world_setup){.ranks = 2, .server = -1, .threads = 1}, 12, 1);
    int small = shard_world_range(&world, 0);
    for (uint64_t clock = 1; clock <= 20; clock++) {
        if (clock == 1) {
            shard_world_push_all(&world, clock, NULL);
        } else {
            for (int rank = 0; rank < 2; rank++)
                for (int r = 0; r < world.map.ranges_count; r++)
                    if (shard_world_mine(&world, r) && r != small)
                        assert_int_equal(shard_world_push(&world, r, rank, clock), SHARD_TAKEN);
        }
        shard_world_settle(&world);
        assert_int_equal(world.complete_clock, clock);
        struct optimizer_step step = shard_world_step(&world, clock);
        shard_world_expect_sums(&world);
        assert_int_equal(shard_verdict(world.shard, clock, SHARD_APPLY, &step), 0);
        /* The small range has applied at once; the large ones are not told to be through before the loop runs. */
        assert_int_equal(world.finished_clock, clock - 1);
        for (int rank = 0; rank < 2; rank++)
            assert_int_equal(shard_world_push(&world, small, rank, clock + 1), SHARD_TAKEN);
        if (clock % 5 == 0) { /* the coming clock is aborted already */
            assert_int_equal(shard_verdict(world.shard, clock + 1, SHARD_ABORT, NULL), 0);
            assert_int_equal(world.finished_clock, clock);
            for (int rank = 0; rank < 2; rank++)
                assert_int_equal(shard_world_push(&world, small, rank, clock + 1), SHARD_TAKEN);
        }
        shard_world_settle(&world);
        assert_int_equal(world.finished_clock, clock);
        shard_world_expect_update(&world, &step);
        shard_world_check_values(&world);
    }
    shard_world_close(&world);
}

static void what_is_shared_never_changes(void **state)
{
    (void)state;
    for (int eager = 0; eager < 2; eager++) {
        struct shard_world world;
        struct buf *shared[64][4];
        float *copies[4];
        shard_world_open(&world, &(struct shard_world_setup){.ranks = 2, .server = -1, .threads = 2, .eager = eager}, 13, 1);
        size_t bytes = (size_t)world.table.count * sizeof(float);
        for (int k = 0; k < 4; k++) {
            copies[k] = malloc(bytes);
            memcpy(copies[k], world.w, bytes);
            for (int r = 0; r < world.map.ranges_count; r++) {
                shared[r][k] = shard_share(world.shard, r);
                assert_non_null(shared[r][k]);
            }
            shard_world_whole_step(&world, (uint64_t)k + 1, NULL);
        }
        for (int k = 0; k < 4; k++) {
            for (int r = 0; r < world.map.ranges_count; r++) {
                const struct keymap_range *range = &world.map.ranges[r];
                const float *want = copies[k] + world.table.layers[range->layer].offset + range->begin;
                assert_memory_equal(shared[r][k]->data, want, shared[r][k]->bytes);
                buf_release(shared[r][k]);
            }
            free(copies[k]);
        }
        shard_world_close(&world);
    }
}

static void nothing_is_shared_while_its_next_values_are_made(void **state)
{
    (void)state;
    struct shard_world world;
    shard_world_open(&world, &(struct shard_world_setup){.ranks = 2, .server = -1, .threads = 1}, 14, 1);
    int large = shard_world_range(&world, 1);
    shard_world_push_all(&world, 1, NULL);
    shard_world_settle(&world);
    struct buf *before = shard_share(world.shard, large);
    assert_non_null(before); /* complete, but not updated yet */
    buf_release(before);
    struct optimizer_step step = shard_world_step(&world, 1);
    assert_int_equal(shard_verdict(world.shard, 1, SHARD_APPLY, &step), 0);
    assert_null(shard_share(world.shard, large));
    shard_world_settle(&world);
    shard_world_expect_sums(&world);
    shard_world_expect_update(&world, &step);
    shard_world_check_values(&world);
    shard_world_close(&world);
}

static void a_number_that_is_not_finite_is_flagged_in_its_run_alone(void **state)
{
    (void)state;
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    struct shard_world world;
    shard_world_open(&world, &(struct shard_world_setup){.ranks = 3, .server = -1, .threads = 1, .prescaled = 1}, 18, 1);
    for (int k = 0; k < 3; k++) {
        uint64_t clock = (uint64_t)k + 1;
        const double *squares = NULL;
        const uint8_t *finite = NULL;
        double weight = 0;
        int64_t count = 0;
        shard_world_gradients(&world);
        float *poisoned = world.noise + (world.g[k] - world.noise) + 20 + k;
        float kept = *poisoned;
        *poisoned = bad[k];
        world.g[(k + 1) % 3] = world.g[(k + 2) % 3] = world.noise + (world.g[k] - world.noise) + 21 + k;
        shard_world_push_all(&world, clock, NULL);
        *poisoned = kept;
        shard_world_settle(&world);
        shard_norms(world.shard, &squares, &finite, &weight);
        for (int64_t i = 0; i < shard_runs(world.shard); i++)
            count += finite[i] != 1;
        assert_int_equal(count, 1);
        assert_int_equal(finite[0], 2 + k); /* whose it was */
        assert_int_equal(shard_verdict(world.shard, clock, SHARD_SKIP, NULL), 0);
        shard_world_check_values(&world);
    }
    shard_world_close(&world);
}

static void a_destroyed_shard_gives_every_token_back(void **state)
{
    (void)state;
    for (int pushes = 0; pushes < 12; pushes++) {
        struct shard_world world;
        shard_world_open(&world, &(struct shard_world_setup){.ranks = 3, .server = -1, .threads = 2}, 19, 1);
        for (int r = 0, left = pushes; r < world.map.ranges_count && left > 0; r++)
            for (int rank = 0; rank < 3 && left > 0; rank += 2)
                if (shard_world_mine(&world, r)) {
                    assert_int_equal(shard_world_push(&world, r, rank, 1), SHARD_TAKEN);
                    left--;
                }
        shard_world_close(&world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_order_of_arrival_gives_the_bits_of_the_canonical_sum),
        cmocka_unit_test(sums_follow_the_owners_of_whole_layers),
        cmocka_unit_test(any_mix_of_arrivals_on_any_server_gives_the_same_bits),
        cmocka_unit_test(pushes_before_the_first_values_wait_for_them),
        cmocka_unit_test(what_is_not_a_next_contribution_is_refused),
        cmocka_unit_test(a_repeat_is_never_added_twice),
        cmocka_unit_test(the_first_values_stay),
        cmocka_unit_test(a_verdict_that_does_not_fit_changes_nothing),
        cmocka_unit_test(a_skipped_step_changes_no_value_and_advances_the_clock),
        cmocka_unit_test(an_aborted_step_sent_again_gives_the_same_bits),
        cmocka_unit_test(a_quick_range_may_be_complete_before_another_has_applied_the_last_step),
        cmocka_unit_test(what_is_shared_never_changes),
        cmocka_unit_test(nothing_is_shared_while_its_next_values_are_made),
        cmocka_unit_test(a_number_that_is_not_finite_is_flagged_in_its_run_alone),
        cmocka_unit_test(a_destroyed_shard_gives_every_token_back),
    };
    return cmocka_run_group_tests_name("shard", tests, NULL, NULL);
}
