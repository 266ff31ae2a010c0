/* The row `shared` with threads as ranks: sums, payload, books, and ranks that disagree, lie or give up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/doorbell.h"
#include "base/status.h"
#include "cluster/canonical.h"
#include "ranks.h"
#include "worker/collective/shared.h"

static void shared_ranks_init(struct ranks *ranks, int world)
{
    ranks_init(ranks, world);
    for (int i = 0; i < world; i++)
        ranks->transport[i] = COLLECTIVE_SHM;
}

static void shared_ranks_do(int world, rank_fn *fn, void *context)
{
    struct ranks ranks;
    shared_ranks_init(&ranks, world);
    ranks_ports(&ranks);
    ranks_run(&ranks, fn, context);
    ranks_close(&ranks);
}

/* --- sums and payload --- */

struct sized {
    int64_t n;
    int32_t most;
};

/* Numbers whose sum depends on the order. */
static float value_at(int rank, int64_t i)
{
    uint32_t bits = (uint32_t)(i * 2654435761u) ^ (uint32_t)(rank * 40503u + 17);
    bits ^= bits >> 13;
    bits *= 2246822519u;
    return (float)(bits >> 8) * 0x1p-24f * (rank % 2 ? 1000.0f : 1.0f) - 0.25f;
}

static float sum_at(int world, int owner, int64_t i)
{
    float sum = value_at(canonical_rank_at(world, owner, 0), i);
    for (int turn = 1; turn < world; turn++)
        sum += value_at(canonical_rank_at(world, owner, turn), i);
    return sum;
}

static void fill(const struct rank *rank, float *whole, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        whole[i] = value_at(rank->rank, i);
}

static int holds_sums(const struct rank *rank, const float *whole, int64_t n, int owner)
{
    for (int64_t i = owner < 0 ? 0 : canonical_part_begin(n, rank->world, owner);
         i < (owner < 0 ? n : canonical_part_end(n, rank->world, owner)); i++) {
        float sum = sum_at(rank->world, canonical_owner(n, rank->world, i), i);
        if (memcmp(&sum, &whole[i], sizeof sum) != 0)
            return 0;
    }
    return 1;
}

static int64_t part_bytes(int64_t n, int world, int k)
{
    return 4 * (canonical_part_end(n, world, k) - canonical_part_begin(n, world, k));
}

static void check_payload(struct rank *rank, int64_t n, int rounds)
{
    struct collective_bytes sent, received;
    int r = rank->rank, world = rank->world;
    int64_t whole = 4 * n, own = part_bytes(n, world, r);
    collective_sent(rank->group, &sent);
    collective_received(rank->group, &received);
    if (world == 1) {
        rank_check(rank, sent.reduce_scatter == 0 && sent.all_gather == 0);
        return;
    }
    rank_check(rank, sent.reduce_scatter == rounds * (whole - own));
    rank_check(rank, sent.all_gather == rounds * (whole - part_bytes(n, world, (r + 1) % world)));
    rank_check(rank, received.reduce_scatter == rounds * (world - 1) * own);
    rank_check(rank, received.all_gather == rounds * (whole - own));
}

static void reduce_in_place(struct rank *rank)
{
    const struct sized *sized = rank->context;
    struct collective_segment *segments;
    struct collective_plan *plan = NULL;
    int64_t n = sized->n;
    int count = segments_make(&segments, n, rank->world, sized->most);
    rank_check(rank, rank->open_status == 0);
    float *whole = rank->failed ? NULL : collective_alloc(rank->group, ACCOUNT_GRADIENTS, (size_t)n * 4);
    const struct collective_layout layout = {.segments = segments, .segments_count = count, .whole = whole, .name = "all"};
    rank_check(rank, whole && collective_plan_create(&plan, rank->group, &layout, &rank->err) == 0);
    rank_check(rank, atomic_load(&rank->account.bytes[ACCOUNT_GRADIENTS]) == n * 4);
    int rounds = n > 500000 ? 1 : 2;
    for (int round = 0; round < rounds && !rank->failed; round++) {
        fill(rank, whole, n);
        rank_check(rank, collective_all_reduce(plan, &rank->err) == 0);
        rank_check(rank, holds_sums(rank, whole, n, -1));
        fill(rank, whole, n);
        rank_check(rank, collective_reduce_scatter(plan, NULL, NULL, &rank->err) == 0);
        rank_check(rank, holds_sums(rank, whole, n, rank->rank));
        for (int64_t i = 0; i < n; i++) { /* the rest is free to write now */
            if (canonical_owner(n, rank->world, i) != rank->rank)
                whole[i] = -1;
        }
        rank_check(rank, collective_all_gather(plan, &rank->err) == 0);
        rank_check(rank, holds_sums(rank, whole, n, -1));
    }
    if (!rank->failed)
        check_payload(rank, n, 2 * rounds);
    collective_plan_destroy(plan);
    if (rank->group)
        collective_free(rank->group, ACCOUNT_GRADIENTS, whole, (size_t)n * 4);
    rank_check(rank, atomic_load(&rank->account.bytes[ACCOUNT_GRADIENTS]) == 0);
    free(segments);
}

static const int worlds[] = {1, 2, 3, 5, 8};
enum { WORLDS = sizeof worlds / sizeof *worlds };

static void test_sums_are_canonical_for_every_world_and_length(void **state)
{
    static const struct sized sizes[] = {{0, 100}, {1, 100}, {4, 1}, {100, 7}, {1920, 100}, {8192, 8192}, {100003, 4097}, {1000003, 262144}};
    (void)state;
    for (int w = 0; w < WORLDS; w++) {
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            shared_ranks_do(worlds[w], reduce_in_place, (void *)(uintptr_t)&sizes[s]);
    }
}

struct sunk {
    float *const *own;
    const struct collective_segment *segments;
    int calls, sources;
};

static void sink_sum(void *context, int segment, const float *const *sources, int sources_count)
{
    struct sunk *sunk = context;
    sunk->calls++;
    sunk->sources = sources_count;
    for (int32_t i = 0; i < sunk->segments[segment].count; i++) {
        float sum = sources[0][i];
        for (int s = 1; s < sources_count; s++)
            sum += sources[s][i];
        sunk->own[segment][i] = sum;
    }
}

/* Own places in another block than `whole`, as zero1 and zero3 have them; the sink of an optimizer. */
static void reduce_to_parts(struct rank *rank)
{
    enum { N = 70003, MOST = 9000 };
    struct collective_segment *segments;
    struct collective_plan *plan = NULL;
    int count = segments_make(&segments, N, rank->world, MOST), owned = 0;
    float **own = calloc((size_t)count, sizeof *own);
    rank_check(rank, own && rank->open_status == 0);
    size_t part = (size_t)part_bytes(N, rank->world, rank->rank);
    float *whole = collective_alloc(rank->group, ACCOUNT_BUFFERS, N * 4 + 64);
    float *parts = collective_alloc(rank->group, ACCOUNT_PARAMETERS, part);
    float *at = parts;
    for (int i = 0; i < count; i++) {
        if (segments[i].owner != rank->rank)
            continue;
        own[i] = at;
        at += segments[i].count;
        owned++;
    }
    const struct collective_layout layout = {
        .segments = segments, .segments_count = count, .whole = whole + 16, .own = own, .name = "parts"};
    rank_check(rank, collective_plan_create(&plan, rank->group, &layout, &rank->err) == 0);
    struct sunk sunk = {.own = own, .segments = segments};
    for (int round = 0; round < 3 && !rank->failed; round++) {
        fill(rank, whole + 16, N);
        sunk.calls = 0;
        rank_check(rank, collective_reduce_scatter(plan, sink_sum, &sunk, &rank->err) == 0);
        rank_check(rank, sunk.calls == owned && (owned == 0 || sunk.sources == rank->world));
        rank_check(rank, collective_all_gather(plan, &rank->err) == 0);
        rank_check(rank, holds_sums(rank, whole + 16, N, -1));
        fill(rank, whole + 16, N);
        rank_check(rank, collective_all_reduce(plan, &rank->err) == 0);
        rank_check(rank, holds_sums(rank, whole + 16, N, -1));
    }
    collective_plan_destroy(plan);
    collective_free(rank->group, ACCOUNT_PARAMETERS, parts, part);
    collective_free(rank->group, ACCOUNT_BUFFERS, whole, N * 4 + 64);
    free(own);
    free(segments);
}

static void test_own_places_may_lie_elsewhere_and_a_sink_takes_what_comes(void **state)
{
    (void)state;
    for (int w = 0; w < WORLDS; w++)
        shared_ranks_do(worlds[w], reduce_to_parts, NULL);
}

/* First values and evaluation: the payload is in the books as control. */
static void reduce_apart(struct rank *rank)
{
    enum { N = 4096 };
    struct collective_segment *segments;
    struct collective_plan *plan = NULL;
    struct collective_bytes before, after;
    int count = segments_make(&segments, N, rank->world, 1000);
    float *whole = collective_alloc(rank->group, ACCOUNT_PARAMETERS, N * 4);
    const struct collective_layout layout = {
        .segments = segments, .segments_count = count, .whole = whole, .name = "apart", .apart = 1};
    rank_check(rank, collective_plan_create(&plan, rank->group, &layout, &rank->err) == 0);
    rank_check(rank, collective_barrier(rank->group, &rank->err) == 0);
    collective_sent(rank->group, &before);
    for (int round = 0; round < 3 && !rank->failed; round++)
        rank_check(rank, collective_all_gather(plan, &rank->err) == 0);
    collective_sent(rank->group, &after);
    int64_t moved = 4 * N - part_bytes(N, rank->world, (rank->rank + 1) % rank->world);
    rank_check(rank, after.control - before.control == 3 * moved);
    rank_check(rank, after.all_gather == 0 && after.reduce_scatter == 0);
    collective_plan_destroy(plan);
    collective_free(rank->group, ACCOUNT_PARAMETERS, whole, N * 4);
    free(segments);
}

static void test_payload_apart_is_booked_as_control(void **state)
{
    (void)state;
    shared_ranks_do(3, reduce_apart, NULL);
}

/* One owner of everything: a broadcast; and parts of different sizes. */
static void gather_uneven(struct rank *rank)
{
    enum { N = 1000 };
    static const struct collective_segment from_2[] = {{0, 600, 2}, {600, 400, 2}};
    static const struct collective_segment uneven[] = {{0, 1, 1}, {10, 500, 0}, {510, 5, 2}, {700, 300, 1}};
    struct collective_plan *plans[2] = {NULL, NULL};
    float *whole = collective_alloc(rank->group, ACCOUNT_PARAMETERS, N * 4);
    const struct collective_layout layouts[2] = {
        {.segments = from_2, .segments_count = 2, .whole = whole, .name = "one owner"},
        {.segments = uneven, .segments_count = 4, .whole = whole, .name = "uneven"}};
    for (int p = 0; p < 2; p++)
        rank_check(rank, collective_plan_create(&plans[p], rank->group, &layouts[p], &rank->err) == 0);
    for (int round = 0; round < 20 && !rank->failed; round++) {
        for (int i = 0; i < N; i++)
            whole[i] = (float)(rank->rank * 10000 + i + round);
        rank_check(rank, collective_all_gather(plans[round % 2], &rank->err) == 0);
        for (int s = 0; s < layouts[round % 2].segments_count; s++) {
            const struct collective_segment *segment = &layouts[round % 2].segments[s];
            for (int64_t i = segment->begin; i < segment->begin + segment->count; i++)
                rank_check(rank, whole[i] == (float)(segment->owner * 10000 + i + round));
        }
    }
    collective_plan_destroy(plans[0]);
    collective_plan_destroy(plans[1]);
    collective_free(rank->group, ACCOUNT_PARAMETERS, whole, N * 4);
}

static void test_owners_may_have_any_share(void **state)
{
    (void)state;
    shared_ranks_do(3, gather_uneven, NULL);
    shared_ranks_do(5, gather_uneven, NULL);
}

/* --- exchanges --- */

static void exchange_many(struct rank *rank)
{
    uint8_t all[RANKS_MAX * 100];
    size_t offsets[RANKS_MAX], sizes[RANKS_MAX];
    for (int k = 0; k < rank->world; k++) {
        offsets[k] = (size_t)k * 100;
        sizes[k] = (size_t)k * 7; /* rank 0 has nothing to say */
    }
    const struct collective_blobs blobs = {all, offsets, sizes};
    for (int round = 0; round < 500 && !rank->failed; round++) {
        memset(all, 0xff, sizeof all);
        memset(all + offsets[rank->rank], rank->rank + round, sizes[rank->rank]);
        rank_check(rank, collective_exchange(rank->group, &blobs, &rank->err) == 0);
        for (int k = 0; k < rank->world; k++) {
            for (size_t i = 0; i < sizes[k]; i++)
                rank_check(rank, all[offsets[k] + i] == (uint8_t)(k + round));
        }
        if (round % 50 == 0)
            rank_check(rank, collective_barrier(rank->group, &rank->err) == 0);
    }
}

static void test_blobs_of_any_size_reach_everybody(void **state)
{
    (void)state;
    for (int w = 0; w < WORLDS; w++)
        shared_ranks_do(worlds[w], exchange_many, NULL);
}

/* --- what goes wrong --- */

/* Each rank fails in bounded time, with the same status and a text that has the words. */
static void check_failed(struct rank *rank, int status, int wanted, const char *words)
{
    rank_check(rank, status == wanted);
    rank_check(rank, strstr(rank->err.text, words) != NULL);
}

static void mixed_lengths(struct rank *rank)
{
    struct collective_segment *segments;
    struct collective_plan *plan = NULL;
    int64_t n = rank->rank == 2 ? 4 : 3;
    int count = segments_make(&segments, n, rank->world, 100);
    float *whole = collective_alloc(rank->group, ACCOUNT_GRADIENTS, 64);
    const struct collective_layout layout = {.segments = segments, .segments_count = count, .whole = whole, .name = "all"};
    check_failed(rank, collective_plan_create(&plan, rank->group, &layout, &rank->err), STATUS_SHAPE, "rank 2");
    rank_check(rank, plan == NULL);
    collective_free(rank->group, ACCOUNT_GRADIENTS, whole, 64);
    free(segments);
}

static void test_mixed_lengths_are_named_on_every_rank(void **state)
{
    (void)state;
    shared_ranks_do(4, mixed_lengths, NULL);
}

static const struct collective_segment two_segments[] = {{0, 500, 0}, {500, 500, 1}};

static struct collective_plan *small_plan(struct rank *rank, float **whole)
{
    struct collective_plan *plan = NULL;
    *whole = collective_alloc(rank->group, ACCOUNT_GRADIENTS, 4000);
    const struct collective_layout layout = {
        .segments = two_segments, .segments_count = 2, .whole = *whole, .name = "small"};
    rank_check(rank, *whole && collective_plan_create(&plan, rank->group, &layout, &rank->err) == 0);
    return plan;
}

static void small_close(struct rank *rank, struct collective_plan *plan, float *whole)
{
    collective_plan_destroy(plan);
    collective_free(rank->group, ACCOUNT_GRADIENTS, whole, 4000);
}

static void other_order(struct rank *rank)
{
    float *whole;
    struct collective_plan *plan = small_plan(rank, &whole);
    int status = collective_all_reduce(plan, &rank->err);
    rank_check(rank, status == 0);
    status = rank->rank == 1 ? collective_all_gather(plan, &rank->err)
                             : collective_reduce_scatter(plan, NULL, NULL, &rank->err);
    check_failed(rank, status, STATUS_SHAPE, "all_gather \"small\"");
    check_failed(rank, status, STATUS_SHAPE, "rank 1");
    check_failed(rank, collective_barrier(rank->group, &rank->err), STATUS_SHAPE, "all_gather");
    small_close(rank, plan, whole);
}

static void test_another_operation_is_named_on_every_rank(void **state)
{
    (void)state;
    shared_ranks_do(2, other_order, NULL);
    shared_ranks_do(4, other_order, NULL);
}

static void one_is_late(struct rank *rank)
{
    float *whole;
    struct collective_plan *plan = small_plan(rank, &whole);
    if (rank->rank != 1)
        check_failed(rank, collective_all_reduce(plan, &rank->err), STATUS_TIMEOUT, "rank 1 is late");
    pthread_barrier_wait(&rank->ranks->barrier); /* until then rank 1 is busy elsewhere */
    small_close(rank, plan, whole);
}

static void test_who_does_not_come_is_named(void **state)
{
    (void)state;
    struct ranks ranks;
    shared_ranks_init(&ranks, 3);
    ranks.timeout_s = 0.4;
    ranks_ports(&ranks);
    ranks_run(&ranks, one_is_late, NULL);
    ranks_close(&ranks);
}

static void one_leaves(struct rank *rank)
{
    float *whole;
    struct collective_plan *plan = small_plan(rank, &whole);
    rank_check(rank, collective_all_reduce(plan, &rank->err) == 0);
    if (rank->rank != 1) {
        int status = collective_all_reduce(plan, &rank->err);
        rank_check(rank, status != 0);
        rank_check(rank, strstr(rank->err.text, "rank 1") != NULL);
    }
    small_close(rank, plan, whole);
}

static void test_who_leaves_ends_the_others(void **state)
{
    (void)state;
    shared_ranks_do(2, one_leaves, NULL);
    shared_ranks_do(3, one_leaves, NULL);
}

static void *cancel_main(void *context)
{
    struct rank *rank = context;
    const struct shared *row = rank->group->row;
    while (!atomic_load(&row->control->note)) /* it sleeps, or is about to */
        doorbell_pause();
    collective_cancel(rank->group, STATUS_STOPPED, "enough");
    return NULL;
}

static void one_is_cancelled(struct rank *rank)
{
    float *whole;
    struct collective_plan *plan = small_plan(rank, &whole);
    if (rank->rank == 0) {
        pthread_t thread;
        rank_check(rank, pthread_create(&thread, NULL, cancel_main, rank) == 0);
        check_failed(rank, collective_all_reduce(plan, &rank->err), STATUS_STOPPED, "enough");
        pthread_join(thread, NULL);
    } else if (rank->rank == 1) {
        int status = collective_all_reduce(plan, &rank->err);
        rank_check(rank, status != 0);
        rank_check(rank, strstr(rank->err.text, "enough") != NULL);
    }
    pthread_barrier_wait(&rank->ranks->barrier);
    small_close(rank, plan, whole);
}

static void test_a_cancel_ends_a_wait_here_and_elsewhere(void **state)
{
    (void)state;
    shared_ranks_do(3, one_is_cancelled, NULL);
}

/* A rank whose counters say what cannot be. */
static void one_lies(struct rank *rank)
{
    float *whole;
    struct collective_plan *plan = small_plan(rank, &whole);
    const struct shared *row = rank->group->row;
    if (rank->rank == 1) {
        row->control->slots[1].text[0] = '\n';
        memset(row->control->slots[0].text, 'x', sizeof row->control->slots[0].text);
        memset(row->control->slots[1].text + 1, 'x', sizeof row->control->slots[1].text - 1);
        atomic_store(&row->control->note, UINT64_MAX);
        atomic_store(&row->control->posted, UINT64_MAX);
        pthread_barrier_wait(&rank->ranks->barrier);
        pthread_barrier_wait(&rank->ranks->barrier);
    } else {
        pthread_barrier_wait(&rank->ranks->barrier);
        int status = collective_all_reduce(plan, &rank->err);
        rank_check(rank, status == STATUS_PROTOCOL || status == STATUS_SHAPE);
        rank_check(rank, strstr(rank->err.text, "rank 1") != NULL);
        pthread_barrier_wait(&rank->ranks->barrier);
    }
    small_close(rank, plan, whole);
}

static void test_counters_that_cannot_be_are_refused(void **state)
{
    (void)state;
    shared_ranks_do(2, one_lies, NULL);
    shared_ranks_do(3, one_lies, NULL);
}

static void memory_from_elsewhere(struct rank *rank)
{
    struct collective_plan *plan = NULL;
    float *whole = collective_alloc(rank->group, ACCOUNT_GRADIENTS, rank->rank == 1 ? 3996 : 4000);
    const struct collective_layout layout = {
        .segments = two_segments, .segments_count = 2, .whole = whole, .name = "small"};
    int status = collective_plan_create(&plan, rank->group, &layout, &rank->err);
    check_failed(rank, status, STATUS_INVALID, "rank 1: \"small\"");
    collective_free(rank->group, ACCOUNT_GRADIENTS, whole, rank->rank == 1 ? 3996 : 4000);
}

static void test_a_vector_beyond_its_memory_is_refused_everywhere(void **state)
{
    (void)state;
    shared_ranks_do(3, memory_from_elsewhere, NULL);
}

static void too_much_memory(struct rank *rank)
{
    rank_check(rank, collective_alloc(rank->group, ACCOUNT_GRADIENTS, rank->rank ? 64 : (size_t)1 << 50) == NULL);
    float *whole = collective_alloc(rank->group, ACCOUNT_GRADIENTS, 64);
    rank_check(rank, whole != NULL);
    for (int i = 0; i < 16 && whole; i++)
        rank_check(rank, whole[i] == 0);
    collective_free(rank->group, ACCOUNT_GRADIENTS, whole, 64);
    rank_check(rank, atomic_load(&rank->account.bytes[ACCOUNT_GRADIENTS]) == 0);
}

static void test_memory_that_one_rank_cannot_have_no_rank_gets(void **state)
{
    (void)state;
    shared_ranks_do(3, too_much_memory, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_are_canonical_for_every_world_and_length),
        cmocka_unit_test(test_own_places_may_lie_elsewhere_and_a_sink_takes_what_comes),
        cmocka_unit_test(test_payload_apart_is_booked_as_control),
        cmocka_unit_test(test_owners_may_have_any_share),
        cmocka_unit_test(test_blobs_of_any_size_reach_everybody),
        cmocka_unit_test(test_mixed_lengths_are_named_on_every_rank),
        cmocka_unit_test(test_another_operation_is_named_on_every_rank),
        cmocka_unit_test(test_who_does_not_come_is_named),
        cmocka_unit_test(test_who_leaves_ends_the_others),
        cmocka_unit_test(test_a_cancel_ends_a_wait_here_and_elsewhere),
        cmocka_unit_test(test_counters_that_cannot_be_are_refused),
        cmocka_unit_test(test_a_vector_beyond_its_memory_is_refused_everywhere),
        cmocka_unit_test(test_memory_that_one_rank_cannot_have_no_rank_gets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
