/* The ring's arithmetic against a naive sum in canonical order, one thread, no sockets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "lib/ring_world.h"

static void run_one(int ranks, const struct ring_cut *cut, int queue)
{
    struct ring_world *world = malloc(sizeof *world);
    assert_non_null(world);
    ring_world_open(world, 17, ranks, queue);
    ring_world_vector(world, 0, cut);
    world->ops_count = 2;
    world->ops[0] = (struct ring_op){RING_REDUCE_SCATTER, 0};
    world->ops[1] = (struct ring_op){RING_ALL_GATHER, 0};
    ring_world_begin(world);
    while (ring_world_turn(world)) {
    }
    assert_true(ring_world_all_through(world));
    for (int rank = 0; rank < ranks; rank++) {
        const struct ring_node *node = &world->nodes[rank];
        const struct ring_vector *vector = &world->vectors[0];
        int64_t part = 0, next_part = 0;
        for (int s = 0; s < vector->count; s++) {
            part += vector->segments[s].owner == rank ? 4 * (int64_t)vector->segments[s].count : 0;
            next_part +=
                vector->segments[s].owner == (rank + 1) % ranks ? 4 * (int64_t)vector->segments[s].count : 0;
        }
        assert_null(node->wrong);
        assert_int_equal(node->sent[RING_REDUCE_SCATTER], 4 * cut->n - part);
        assert_int_equal(node->sent[RING_ALL_GATHER], 4 * cut->n - next_part);
        assert_true(node->held_most <= ring_pass_held_max(ranks));
    }
    ring_world_close(world);
    free(world);
}

static void sums_are_canonical_for_every_world_length_and_cut(void **state)
{
    static const int worlds[] = {1, 2, 3, 5, 8};
    static const int64_t lengths[] = {0, 1, 2, 3, 4, 5, 7, 100, 1000, 1000003};
    (void)state;
    for (size_t w = 0; w < 5; w++) {
        for (size_t l = 0; l < 10; l++) {
            const struct ring_cut even = {lengths[l], 30011, 0, -1, 0}, odd = {lengths[l], 20001, 1, -1, 1};
            run_one(worlds[w], &even, 1);
            run_one(worlds[w], &odd, 3);
        }
    }
}

/* A vector of 2^32 + 5 elements without its memory: addresses and bytes are reckoned in 64 bits. */
static void a_vector_beyond_32_bits_is_reckoned_rightly(void **state)
{
    enum { COUNT = COLLECTIVE_SEGMENT_MAX };
    const int64_t n = ((int64_t)1 << 32) + 5;
    const int number = (int)(n / COUNT) + 1;
    (void)state;
    size_t bytes = (size_t)n * sizeof(float);
    float *whole = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (whole == MAP_FAILED)
        skip();
    struct collective_segment *segments = calloc((size_t)number, sizeof *segments);
    int *by_owner = calloc((size_t)number, sizeof *by_owner), owner_first[4] = {0, 0, 0, number};
    for (int i = 0; i < number; i++) {
        int64_t begin = (int64_t)i * COUNT;
        segments[i] = (struct collective_segment){begin, n - begin < COUNT ? (int32_t)(n - begin) : COUNT, 2};
        by_owner[i] = i;
    }
    const struct ring_task task = {.kind = RING_REDUCE_SCATTER,
                                   .rank = 0, /* the first in the order of what rank 2 owns */
                                   .world = 3,
                                   .segments = segments,
                                   .by_owner = by_owner,
                                   .owner_first = owner_first,
                                   .whole = whole};
    struct ring_pass pass;
    struct ring_move move;
    int64_t at = 0;
    ring_pass_begin(&pass, &task);
    while (ring_pass_next_send(&pass, &move) == RING_OWN) {
        assert_int_equal((const char *)move.data - (const char *)whole, at);
        at += (int64_t)move.bytes;
        ring_pass_sent(&pass);
    }
    assert_int_equal(at, bytes);
    assert_true(ring_pass_done(&pass)); /* and nothing comes: the others' sums are not this rank's to carry */
    munmap(whole, bytes);
    free(segments);
    free(by_owner);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_canonical_for_every_world_length_and_cut),
        cmocka_unit_test(a_vector_beyond_32_bits_is_reckoned_rightly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
