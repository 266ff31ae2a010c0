/* Jobs on a ring under a network that delays, ranks that pause, die and come back as a smaller ring, connections
 * that are cut and ranks that call the wrong thing, each from its seed: no job hangs, no sum is wrong, payload is
 * what the forms say, and what goes wrong is found or leaves everybody waiting for the one at fault (whom the
 * time-out then names). SHOAL_SEED runs one seed, SHOAL_JOBS that many from 1. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/ring_world.h"

enum { JOBS = 2000, TURNS_MAX = 2000000 };
enum trouble { CALM_1, CALM_2, CALM_3, DEATH, CUT, WRONG_CALL, TROUBLES };

struct tally {
    int lost, other, deaths;
};

static void choose_vectors(struct ring_world *world)
{
    for (int i = 0; i < RING_LAYOUTS; i++) {
        static const int64_t lengths[] = {0, 1, 2, 7, 40, 200, 900};
        int64_t n = lengths[ring_world_draw(world, 7)];
        struct ring_cut cut = {.n = n + (n > 7 ? ring_world_draw(world, 60) : 0),
                               .most = 1 + (int32_t)ring_world_draw(world, 40),
                               .odd = (int)ring_world_draw(world, 2),
                               .one_owner = -1,
                               .own_apart = (int)ring_world_draw(world, 2)};
        if (ring_world_draw(world, 4) == 0)
            cut.one_owner = (int)ring_world_draw(world, (uint32_t)world->world);
        ring_world_vector(world, i, &cut);
    }
}

static struct ring_op random_op(struct ring_world *world)
{
    struct ring_op op = {.kind = (enum ring_kind)ring_world_draw(world, 3)};
    op.layout = (int)ring_world_draw(world, RING_LAYOUTS);
    return op;
}

static void begin(struct ring_world *world)
{
    choose_vectors(world);
    world->ops_count = 1 + (int)ring_world_draw(world, RING_OPS_MAX);
    for (int i = 0; i < world->ops_count; i++)
        world->ops[i] = random_op(world);
    ring_world_begin(world);
}

static const char *wrong_result(const struct ring_world *world)
{
    for (int rank = 0; rank < world->world; rank++) {
        const struct ring_node *node = &world->nodes[rank];
        if (node->wrong)
            return node->wrong;
        if (node->held_most > ring_pass_held_max(world->world))
            return "too much held";
    }
    return NULL;
}

/* Turns until nothing moves; something happens at turn `when`. */
static int run(struct ring_world *world, enum trouble trouble, uint32_t when)
{
    uint32_t victim = ring_world_draw(world, (uint32_t)world->world);
    for (uint32_t turn = 0; turn < TURNS_MAX; turn++) {
        if (turn == when && trouble == DEATH)
            ring_world_kill(world, (int)victim);
        if (turn == when && (trouble == DEATH || trouble == CUT))
            ring_world_cut(world, (int)victim, 1 + (int)ring_world_draw(world, 4));
        if (!ring_world_turn(world))
            return 0;
    }
    return -1;
}

static int64_t payload_due(const struct ring_world *world, enum ring_kind kind, int rank)
{
    int64_t bytes = 0;
    int spared = kind == RING_REDUCE_SCATTER ? rank : (rank + 1) % world->world;
    for (int i = 0; i < world->ops_count; i++) {
        const struct ring_vector *vector = &world->vectors[world->ops[i].layout];
        for (int s = 0; world->ops[i].kind == kind && s < vector->count; s++)
            bytes += vector->segments[s].owner == spared ? 0 : 4 * (int64_t)vector->segments[s].count;
    }
    return bytes;
}

static const char *calm_run(struct ring_world *world)
{
    if (run(world, CALM_1, 0) || !ring_world_all_through(world))
        return "hangs";
    for (int rank = 0; rank < world->world; rank++) {
        for (int kind = RING_REDUCE_SCATTER; kind <= RING_ALL_GATHER; kind++) {
            if (world->nodes[rank].sent[kind] != payload_due(world, (enum ring_kind)kind, rank))
                return "payload";
        }
    }
    return wrong_result(world);
}

static void count_findings(const struct ring_world *world, struct tally *tally)
{
    for (int rank = 0; rank < world->world; rank++) {
        tally->lost += world->nodes[rank].trouble == RING_TOLD_LOST;
        tally->other += world->nodes[rank].trouble == RING_TOLD_OTHER;
    }
}

static const char *troubled_run(struct ring_world *world, enum trouble trouble, struct tally *tally)
{
    if (trouble == WRONG_CALL) {
        struct ring_node *node = &world->nodes[ring_world_draw(world, (uint32_t)world->world)];
        if (node->op + 1 < world->ops_count)
            node->ops[node->op + 1] = random_op(world);
    }
    if (run(world, trouble, ring_world_draw(world, 300)))
        return "never comes to rest";
    count_findings(world, tally);
    if (wrong_result(world))
        return wrong_result(world);
    int alive = 0;
    for (int rank = 0; rank < world->world; rank++)
        alive += world->nodes[rank].alive;
    tally->deaths += alive < world->world;
    if (alive == 0)
        return NULL;
    ring_world_reform(world); /* the same job again, by who is left */
    begin(world);
    return calm_run(world);
}

static const char *run_job(uint64_t seed, struct tally *tally)
{
    struct ring_world *world = malloc(sizeof *world);
    assert_non_null(world);
    ring_world_open(world, seed, 1, 1);
    int ranks = 1 + (int)ring_world_draw(world, RING_WORLD_MAX), queue = 1 + (int)ring_world_draw(world, 6);
    uint64_t random = world->random;
    ring_world_open(world, seed, ranks, queue);
    world->random = random;
    enum trouble trouble = (enum trouble)ring_world_draw(world, TROUBLES);
    begin(world);
    const char *wrong = trouble <= CALM_3 ? calm_run(world) : troubled_run(world, trouble, tally);
    ring_world_close(world);
    free(world);
    return wrong;
}

static void no_job_hangs_and_no_sum_is_wrong(void **state)
{
    (void)state;
    const char *given = getenv("SHOAL_SEED"), *jobs = getenv("SHOAL_JOBS");
    uint64_t first = given ? strtoull(given, NULL, 0) : 1;
    uint64_t last = given ? first : jobs ? strtoull(jobs, NULL, 0) : JOBS;
    struct tally tally = {0};
    for (uint64_t seed = first; seed <= last; seed++) {
        const char *wrong = run_job(seed, &tally);
        if (wrong)
            fail_msg("SHOAL_SEED=%llu: %s", (unsigned long long)seed, wrong);
    }
    print_message("seeds %llu to %llu: %d deaths, %d cuts and %d wrong calls found\n", (unsigned long long)first,
                  (unsigned long long)last, tally.deaths, tally.lost, tally.other);
    if (!given && !jobs) /* the troubles were real ones */
        assert_true(tally.deaths > 50 && tally.lost > 50 && tally.other > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_job_hangs_and_no_sum_is_wrong)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
