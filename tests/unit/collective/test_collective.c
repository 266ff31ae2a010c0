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

/* --- sums and payload ----------------------------------------------------------------------------- */

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
    const struct collective_layout layout = {
        .segments = segments, .segments_count = count, .whole = whole, .name = "all"};
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

/* --- blobs, broadcast, sinks ---------------------------------------------------------------------- */

static void exchange_blobs(struct rank *rank)
{
    size_t offsets[RANKS_MAX], sizes[RANKS_MAX], at = 0;
    for (int k = 0; k < rank->world; k++) {
        sizes[k] = k == 1 ? 0 : k == 2 ? 100001 : (size_t)k + 5; /* small ones are copied, large ones lent */
        offsets[k] = at;
        at += sizes[k];
    }
    uint8_t *all = calloc(1, at);
    const struct collective_blobs blobs = {all, offsets, sizes};
    for (int round = 0; round < 3; round++) {
        memset(all, 0, at);
        memset(all + offsets[rank->rank], 10 * round + rank->rank, sizes[rank->rank]);
        rank_check(rank, collective_exchange(rank->group, &blobs, &rank->err) == 0);
        for (int k = 0; k < rank->world; k++) {
            for (size_t i = 0; i < sizes[k]; i++)
                rank_check(rank, all[offsets[k] + i] == 10 * round + k);
        }
        rank_check(rank, collective_barrier(rank->group, &rank->err) == 0);
    }
    sizes[0] = rank->ranks->blob_bytes_max + 1;
    rank_check(rank, collective_exchange(rank->group, &blobs, &rank->err) == STATUS_RANGE);
    free(all);
}

static void an_exchange_gives_every_blob_to_every_rank(void **state)
{
    (void)state;
    for (int world = 1; world <= 5; world++)
        ranks_do(world, exchange_blobs, NULL);
}

static void broadcast(struct rank *rank)
{
    enum { N = 50000, MOST = 7000, ROOT = 1 };
    struct collective_segment segments[N / MOST + 1];
    struct collective_plan *plan = NULL;
    struct collective_bytes sent;
    int count = 0;
    for (int64_t at = 0; at < N; at += MOST)
        segments[count++] = (struct collective_segment){at, N - at < MOST ? (int32_t)(N - at) : MOST, ROOT};
    float *whole = collective_alloc(rank->group, ACCOUNT_PARAMETERS, N * sizeof *whole);
    for (int i = 0; i < N && rank->rank == ROOT; i++)
        whole[i] = (float)i;
    const struct collective_layout layout = {
        .segments = segments, .segments_count = count, .whole = whole, .name = "first values", .apart = 1};
    rank_check(rank, collective_plan_create(&plan, rank->group, &layout, &rank->err) == 0);
    rank_check(rank, collective_all_gather(plan, &rank->err) == 0);
    for (int i = 0; i < N; i++)
        rank_check(rank, whole[i] == (float)i);
    collective_sent(rank->group, &sent);
    rank_check(rank, sent.all_gather == 0 && sent.control >= (rank->rank == 0 ? 0 : N * 4)); /* booked apart */
    collective_plan_destroy(plan);
    collective_free(rank->group, ACCOUNT_PARAMETERS, whole, N * sizeof *whole);
}

static void an_all_gather_of_one_owner_is_a_broadcast(void **state)
{
    (void)state;
    ranks_do(2, broadcast, NULL);
    ranks_do(5, broadcast, NULL);
}

struct taken {
    struct rank *rank;
    float *sums;
    const struct collective_segment *segments;
    int calls;
};

static void take(void *context, int segment, const float *const *sources, int sources_count)
{
    struct taken *taken = context;
    const struct collective_segment *cut = &taken->segments[segment];
    rank_check(taken->rank, cut->owner == taken->rank->rank);
    for (int i = 0; i < cut->count; i++) {
        float sum = sources[0][i];
        for (int s = 1; s < sources_count; s++)
            sum += sources[s][i];
        taken->sums[cut->begin + i] = sum;
    }
    taken->calls++;
}

static void shard(struct rank *rank)
{
    enum { N = 10007 };
    struct collective_segment *segments;
    struct collective_plan *plan = NULL;
    int count = segments_make(&segments, N, rank->world, 1000), owned = 0;
    float *whole = collective_alloc(rank->group, ACCOUNT_GRADIENTS, N * sizeof *whole);
    float *part = collective_alloc(rank->group, ACCOUNT_PARAMETERS, N * sizeof *part);
    float **own = calloc((size_t)count, sizeof *own);
    struct taken taken = {rank, part, segments, 0};
    for (int s = 0; s < count; s++) {
        own[s] = part + segments[s].begin;
        owned += segments[s].owner == rank->rank;
    }
    const struct collective_layout layout = {
        .segments = segments, .segments_count = count, .whole = whole, .own = own, .name = "layer"};
    rank_check(rank, collective_plan_create(&plan, rank->group, &layout, &rank->err) == 0);
    for (int i = 0; i < N; i++)
        whole[i] = value_at(rank->rank, i);
    rank_check(rank, collective_reduce_scatter(plan, take, &taken, &rank->err) == 0);
    rank_check(rank, taken.calls == owned);
    memset(whole, 0, N * sizeof *whole);
    rank_check(rank, collective_all_gather(plan, &rank->err) == 0);
    for (int i = 0; i < N; i++)
        rank_check(rank, whole[i] == sum_at(rank->world, N, i));
    collective_plan_destroy(plan);
    collective_free(rank->group, ACCOUNT_GRADIENTS, whole, N * sizeof *whole);
    collective_free(rank->group, ACCOUNT_PARAMETERS, part, N * sizeof *part);
    free(own);
    free(segments);
}

static void sums_go_to_the_sink_and_come_back_from_places_of_their_own(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++)
        ranks_do(world, shard, NULL);
}

/* --- N09 ------------------------------------------------------------------------------------------ */

static void n09_sum_and_mean(struct rank *rank)
{
    static const int64_t lengths[] = {0, 1, 3, 4, 5, 1000003};
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        struct collective_segment *segments;
        struct collective_plan *plan = NULL;
        int64_t n = lengths[l];
        int count = segments_make(&segments, n, rank->world, 100000);
        float *x = collective_alloc(rank->group, ACCOUNT_GRADIENTS, (size_t)n * sizeof *x);
        const struct collective_layout layout = {
            .segments = segments, .segments_count = count, .whole = x, .name = "x"};
        static const float base[] = {1, 10, 100};
        for (int64_t i = 0; i < n; i++)
            x[i] = base[i % 3] * (float)(rank->rank + 1);
        rank_check(rank, collective_plan_create(&plan, rank->group, &layout, &rank->err) == 0);
        rank_check(rank, collective_all_reduce(plan, &rank->err) == 0);
        for (int64_t i = 0; i < n; i++) /* the mean is the caller's division */
            rank_check(rank, x[i] == 10 * base[i % 3] && x[i] / 4 == 2.5f * base[i % 3]);
        collective_plan_destroy(plan);
        collective_free(rank->group, ACCOUNT_GRADIENTS, x, (size_t)n * sizeof *x);
        free(segments);
    }
}

static void n09_mixed(struct rank *rank)
{
    struct collective_segment *segments;
    struct collective_plan *plan = NULL;
    int64_t n = rank->rank == 2 ? 4 : 3;
    int count = segments_make(&segments, n, rank->world, 100);
    float x[4] = {0};
    const struct collective_layout layout = {
        .segments = segments, .segments_count = count, .whole = x, .name = "x"};
    rank_check(rank, collective_plan_create(&plan, rank->group, &layout, &rank->err) == STATUS_SHAPE);
    rank_check(rank,
               strcmp(rank->err.text, "rank 0 plans \"x\" of 1 segments, 3 elements, rank 2 \"x\" of 1 segments, "
                                      "4 elements") == 0);
    free(segments);
    rank_check(rank, collective_barrier(rank->group, &rank->err) == 0); /* the group goes on */
}

static void n09_ring_all_reduce_for_any_length(void **state)
{
    (void)state;
    ranks_do(4, n09_sum_and_mean, NULL);
    ranks_do(4, n09_mixed, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_reduce_sums_in_canonical_order_for_every_world_and_length),
        cmocka_unit_test(an_exchange_gives_every_blob_to_every_rank),
        cmocka_unit_test(an_all_gather_of_one_owner_is_a_broadcast),
        cmocka_unit_test(sums_go_to_the_sink_and_come_back_from_places_of_their_own),
        cmocka_unit_test(n09_ring_all_reduce_for_any_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
