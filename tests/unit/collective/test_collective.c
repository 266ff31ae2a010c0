/* Collectives over real sockets, threads as ranks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "cluster/canonical.h"
#include "ranks.h"

/* --- sums and payload
 * ----------------------------------------------------------------------------------------------- */

struct sized {
    int64_t n;
    int32_t most;
};

static float value_at(int rank, int64_t i)
{
    return (float)((i * 37 + rank * 1009) % 1000) * 0.001f + (float)rank;
}

/* The canonical sum: owner+1, owner+2, …, owner. */
static float sum_at(int world, int64_t n, int64_t i)
{
    int owner = canonical_owner(n, world, i);
    float sum = value_at((owner + 1) % world, i);
    for (int turn = 1; turn < world; turn++)
        sum += value_at((owner + 1 + turn) % world, i);
    return sum;
}

static void reduce_everywhere(struct rank *rank)
{
    const struct sized *sized = rank->context;
    struct collective_segment *segments;
    struct collective_plan *plan = NULL;
    struct collective_bytes sent, received;
    int count = segments_make(&segments, sized->n, rank->world, sized->most);
    size_t bytes = (size_t)sized->n * sizeof(float);
    rank_check(rank, rank->open_status == 0);
    float *whole = collective_alloc(rank->group, ACCOUNT_GRADIENTS, bytes);
    const struct collective_layout layout = {segments, count, whole, NULL, "all", 0};
    rank_check(rank, collective_plan_create(&plan, rank->group, &layout, &rank->err) == 0);
    for (int round = 0; round < 2 && !rank->failed; round++) {
        for (int64_t i = 0; i < sized->n; i++)
            whole[i] = value_at(rank->rank, i);
        rank_check(rank, collective_all_reduce(plan, &rank->err) == 0);
        for (int64_t i = 0; i < sized->n; i++)
            rank_check(rank, whole[i] == sum_at(rank->world, sized->n, i));
    }
    int r = rank->rank, next = (r + 1) % rank->world, last = (r + rank->world - 1) % rank->world;
    int64_t part[RANKS_MAX], phi = (int64_t)bytes;
    for (int k = 0; k < rank->world; k++)
        part[k] =
            4 * (canonical_part_end(sized->n, rank->world, k) - canonical_part_begin(sized->n, rank->world, k));
    collective_sent(rank->group, &sent);
    collective_received(rank->group, &received);
    rank_check(rank, sent.reduce_scatter == 2 * (phi - part[r]) && sent.all_gather == 2 * (phi - part[next]));
    rank_check(rank,
               received.reduce_scatter == 2 * (phi - part[last]) && received.all_gather == 2 * (phi - part[r]));
    collective_plan_destroy(plan);
    collective_free(rank->group, ACCOUNT_GRADIENTS, whole, bytes);
    rank_check(rank, atomic_load(&rank->account.bytes[ACCOUNT_BUFFERS]) == 0);
    free(segments);
}

static void all_reduce_sums_in_canonical_order_for_every_world_and_length(void **state)
{
    static const int worlds[] = {1, 2, 3, 5, 8};
    static const struct sized sizes[] = {{0, 100}, {1, 100}, {4, 1}, {1000, 7}, {100003, 4097}, {1000003, 65536}};
    (void)state;
    for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++) {
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            ranks_do(worlds[w], reduce_everywhere, (void *)&sizes[s]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_reduce_sums_in_canonical_order_for_every_world_and_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
