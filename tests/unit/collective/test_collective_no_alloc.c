/* After warm-up an operation allocates nothing: every allocation of Shoal's own code is counted (ZeroMQ's are in
 * its library, which keeps the buffers of its messages by itself). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ranks.h"

static _Atomic int counting, counted;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);

static void count(void)
{
    if (atomic_load(&counting))
        atomic_fetch_add(&counted, 1);
}

void *__wrap_malloc(size_t bytes)
{
    count();
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t number, size_t bytes)
{
    count();
    return __real_calloc(number, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    count();
    return __real_realloc(memory, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    count();
    return __real_aligned_alloc(alignment, bytes);
}

static void operate(struct rank *rank)
{
    enum { N = 300000 };
    struct collective_segment *segments;
    struct collective_plan *plan = NULL;
    int64_t held[2] = {0, 0};
    int number = segments_make(&segments, N, rank->world, 30000);
    float *whole = collective_alloc(rank->group, ACCOUNT_GRADIENTS, N * sizeof *whole);
    const struct collective_layout layout = {
        .segments = segments, .segments_count = number, .whole = whole, .name = "x"};
    size_t offsets[3] = {0, 20000, 40000}, sizes[3] = {20000, 20000, 20000};
    uint8_t *all = calloc(1, 60000);
    const struct collective_blobs blobs = {all, offsets, sizes};
    rank_check(rank, collective_plan_create(&plan, rank->group, &layout, &rank->err) == 0);
    for (int round = 0; round < 12 && !rank->failed; round++) {
        if (round == 2) { /* warm by now */
            pthread_barrier_wait(&rank->ranks->barrier);
            held[0] = atomic_load(&rank->account.peak[ACCOUNT_GRADIENTS]);
            atomic_store(&counting, 1);
        }
        rank_check(rank, collective_reduce_scatter(plan, NULL, NULL, &rank->err) == 0);
        rank_check(rank, collective_all_gather(plan, &rank->err) == 0);
        rank_check(rank, collective_all_reduce(plan, &rank->err) == 0);
        rank_check(rank, collective_exchange(rank->group, &blobs, &rank->err) == 0);
        rank_check(rank, collective_barrier(rank->group, &rank->err) == 0);
    }
    pthread_barrier_wait(&rank->ranks->barrier);
    atomic_store(&counting, 0);
    held[1] = atomic_load(&rank->account.peak[ACCOUNT_GRADIENTS]);
    rank_check(rank, held[0] == held[1]);
    /* Arrivals are held one hop long at most, whatever the vector's length. */
    rank_check(rank, atomic_load(&rank->account.peak[ACCOUNT_BUFFERS]) <= 4 * 30000 * 4);
    collective_plan_destroy(plan);
    collective_free(rank->group, ACCOUNT_GRADIENTS, whole, N * sizeof *whole);
    free(segments);
    free(all);
}

static void after_warm_up_an_operation_allocates_nothing(void **state)
{
    (void)state;
    ranks_do(3, operate, NULL);
    assert_int_equal(atomic_load(&counted), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(after_warm_up_an_operation_allocates_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
