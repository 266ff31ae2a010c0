/* A shard under random arrivals, repeats, stale and early pushes, aborts and pulls, against the plain reference.
 * SHOAL_SEED=N runs that seed alone; SHOAL_ROUNDS=N changes the number of seeds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/status.h"
#include "lib/shard_world.h"

enum { SEEDS = 100, CLOCKS = 14, RANGES_MAX = 16, SHARES = 6, ACTIONS_MAX = 100000 };

static const int lengths[] = {9001, 5, SHARD_WORLD_LAYER, 17000, 3 + SHARD_WORLD_FROZEN, 2, SHARD_WORLD_LAYER, 0, 40,
                              SHARD_WORLD_LAYER, SHARD_WORLD_END};

/* What somebody pulled and has not sent yet. */
struct shared {
    struct buf *buf;
    float *copy;
};

struct sim {
    struct shard_world world;
    struct shared shared[SHARES];
    char taken[RANGES_MAX][SHARD_WORLD_RANKS]; /* of this clock, since the last abort */
    uint64_t clock;
};

static uint64_t pick(struct sim *sim, uint64_t below)
{
    return shard_world_random(&sim->world, below);
}

static void open_random(struct sim *sim, uint64_t seed)
{
    static const char *const optimizers[] = {"adam", "sgd", "adagrad"};
    memset(sim, 0, sizeof *sim);
    sim->world.random = seed * 977;
    struct shard_world_setup setup = {.lengths = lengths, .threads = 2};
    setup.ranks = 1 + (int)pick(sim, 6);
    setup.servers = 1 + (int)pick(sim, 3);
    setup.server = (int)pick(sim, (uint64_t)setup.servers + 1) - 1;
    setup.message_bytes = 65536 * (1 + (int64_t)pick(sim, 3));
    setup.optimizer = optimizers[pick(sim, 3)];
    setup.momentum = pick(sim, 2) ? 0.9 : 0;
    setup.prescaled = pick(sim, 3) == 0;
    setup.mean = pick(sim, 3) > 0;
    setup.aggregator = setup.mean || pick(sim, 2) ? NULL : pick(sim, 2) ? "median" : "trimmed_mean";
    setup.trim_fraction = 0.25;
    setup.eager = pick(sim, 4) == 0;
    setup.sums_only = !setup.eager && pick(sim, 4) == 0;
    shard_world_open(&sim->world, &setup, seed, 1);
    if (setup.sums_only) {
        memcpy(sim->world.sums, sim->world.w, (size_t)sim->world.table.count * sizeof(float));
    }
    assert_true(sim->world.map.ranges_count <= RANGES_MAX);
}

static void give_back(struct shared *shared)
{
    if (shared->buf) {
        assert_memory_equal(shared->buf->data, shared->copy, shared->buf->bytes);
        buf_release(shared->buf);
        free(shared->copy);
        shared->buf = NULL;
    }
}

static void pull_some(struct sim *sim)
{
    struct shared *shared = &sim->shared[pick(sim, SHARES)];
    give_back(shared);
    shared->buf = shard_share(sim->world.shard, (int)pick(sim, (uint64_t)sim->world.map.ranges_count));
    if (shared->buf) {
        shared->copy = malloc(shared->buf->bytes);
        assert_non_null(shared->copy);
        memcpy(shared->copy, shared->buf->data, shared->buf->bytes);
    }
}

static void push_some(struct sim *sim)
{
    struct shard_world *world = &sim->world;
    int range = (int)pick(sim, (uint64_t)world->map.ranges_count);
    int rank = (int)pick(sim, (uint64_t)world->setup.ranks);
    int result = shard_world_push(world, range, rank, sim->clock);
    if (!shard_world_mine(world, range)) {
        assert_int_equal(result, STATUS_UNKNOWN);
    } else if (!sim->taken[range][rank]) {
        assert_int_equal(result, SHARD_TAKEN);
    } else {
        assert_true(result == SHARD_REPEAT_WAITING || result == SHARD_REPEAT_DONE);
    }
    sim->taken[range][rank] = 1;
}

static void push_of_another_clock(struct sim *sim)
{
    struct shard_world *world = &sim->world;
    int range = (int)pick(sim, (uint64_t)world->map.ranges_count);
    int rank = (int)pick(sim, (uint64_t)world->setup.ranks);
    uint64_t clock = pick(sim, 2) ? sim->clock - 1 - pick(sim, sim->clock) : sim->clock + 2 + pick(sim, 5);
    int result = shard_world_push(world, range, rank, clock);
    assert_int_equal(result, !shard_world_mine(world, range) ? STATUS_UNKNOWN
                             : clock < sim->clock            ? SHARD_REPEAT_DONE
                                                             : STATUS_RANGE);
}

static int is_whole(const struct sim *sim)
{
    for (int r = 0; r < sim->world.map.ranges_count; r++)
        for (int rank = 0; shard_world_mine(&sim->world, r) && rank < sim->world.setup.ranks; rank++)
            if (!sim->taken[r][rank])
                return 0;
    return 1;
}

static void abort_step(struct sim *sim)
{
    assert_int_equal(shard_verdict(sim->world.shard, sim->clock, SHARD_ABORT, NULL), 0);
    assert_int_equal(sim->world.held, 0);
    memset(sim->taken, 0, sizeof sim->taken);
}

static void one_clock(struct sim *sim)
{
    struct shard_world *world = &sim->world;
    sim->clock++;
    memset(sim->taken, 0, sizeof sim->taken);
    shard_world_gradients(world);
    world->weight[0] += world->weight[0] == 0;
    struct optimizer_step step = shard_world_step(world, sim->clock);
    shard_next_step(world->shard, &step);
    for (int actions = 0; !is_whole(sim); actions++) {
        uint64_t what = pick(sim, 100);
        assert_true(actions < ACTIONS_MAX);
        if (what < 80)
            push_some(sim);
        else if (what < 85)
            push_of_another_clock(sim);
        else if (what < 90)
            pull_some(sim);
        else if (what < 92 && !world->setup.eager)
            abort_step(sim);
        else if (what < 94)
            assert_int_equal(shard_verdict(world->shard, sim->clock - 1, SHARD_APPLY, &step), 0);
        else
            uv_run(&world->loop, UV_RUN_NOWAIT);
    }
    int mine = shard_runs(world->shard) > 0;
    shard_world_settle(world);
    assert_int_equal(world->held, 0);
    assert_int_equal(world->complete_clock, mine ? sim->clock : 0);
    shard_world_expect_sums(world);
    if (mine)
        shard_world_check_norms(world);
    int skip = !world->setup.eager && pick(sim, 6) == 0;
    assert_int_equal(shard_verdict(world->shard, sim->clock, skip ? SHARD_SKIP : SHARD_APPLY, &step), 0);
    while (pick(sim, 3))
        pull_some(sim);
    shard_world_settle(world);
    assert_int_equal(world->finished_clock, sim->clock);
    if (!skip)
        shard_world_expect_update(world, &step);
    shard_world_check_values(world);
}

/* cmocka's asserts leave by longjmp: the teardown says which seed it was. */
static void run_seed(uint64_t seed)
{
    struct sim *sim = malloc(sizeof *sim);
    assert_non_null(sim);
    open_random(sim, seed);
    for (int i = 0; i < CLOCKS; i++)
        one_clock(sim);
    if (pick(sim, 2)) { /* the end comes in the middle */
        sim->clock++;
        memset(sim->taken, 0, sizeof sim->taken);
        for (int i = 0; i < 10; i++)
            push_some(sim);
    }
    for (int i = 0; i < SHARES; i++)
        give_back(&sim->shared[i]);
    shard_world_close(&sim->world);
    free(sim);
}

static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 0) : otherwise;
}

struct progress {
    uint64_t seed;
    int done;
};

static int tell_seed(void **state)
{
    struct progress *progress = *state;
    if (!progress->done) {
        fprintf(stderr, "SHOAL_SEED=%llu failed\n", (unsigned long long)progress->seed);
    }
    free(progress);
    return 0;
}

static int begin(void **state)
{
    *state = calloc(1, sizeof(struct progress));
    return *state ? 0 : -1;
}

static void any_arrival_gives_the_bits_of_the_reference(void **state)
{
    struct progress *progress = *state;
    uint64_t first = number_of("SHOAL_SEED", 1);
    uint64_t count = getenv("SHOAL_SEED") ? 1 : number_of("SHOAL_ROUNDS", SEEDS);
    for (progress->seed = first; progress->seed < first + count; progress->seed++)
        run_seed(progress->seed);
    progress->done = 1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(any_arrival_gives_the_bits_of_the_reference, begin, tell_seed),
    };
    return cmocka_run_group_tests_name("shard_sim", tests, NULL, NULL);
}
