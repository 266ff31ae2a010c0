/* The row `shared` with processes as ranks: what a death, a stop or another user does, and what is left behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <malloc.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/doorbell.h"
#include "base/status.h"
#include "cluster/canonical.h"
#include "rank_processes.h"

/* A check in a child: where it failed is its exit code. */
#define expect(condition)                                                                                          \
    do {                                                                                                           \
        if (!(condition)) {                                                                                        \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                                \
            return 1;                                                                                              \
        }                                                                                                          \
    } while (0)

struct board {
    doorbell turns; /* rounds that the victim has begun */
};

/* Mappings of shared segments in this process. */
static int mapped_segments(void)
{
    FILE *file = fopen("/proc/self/maps", "re");
    char line[512];
    int count = 0;
    while (file && fgets(line, sizeof line, file))
        count += strstr(line, "memfd:shoal-") != NULL;
    if (file)
        fclose(file);
    return count;
}

/* Parts as cluster/canonical.h has them. */
static struct collective_plan *plan_over(struct rank_process *rank, float *whole, int64_t n)
{
    struct collective_segment segments[64];
    struct collective_plan *plan = NULL;
    int count = 0;
    for (int owner = 0; owner < rank->world; owner++) {
        int64_t end = canonical_part_end(n, rank->world, owner);
        for (int64_t at = canonical_part_begin(n, rank->world, owner); at < end; at += COLLECTIVE_SEGMENT_MAX) {
            int64_t here = end - at < COLLECTIVE_SEGMENT_MAX ? end - at : COLLECTIVE_SEGMENT_MAX;
            segments[count++] = (struct collective_segment){at, (int32_t)here, owner};
        }
    }
    const struct collective_layout layout = {.segments = segments, .segments_count = count, .whole = whole, .name = "all"};
    return collective_plan_create(&plan, rank->group, &layout, &rank->err) == 0 ? plan : NULL;
}

static void fill(const struct rank_process *rank, float *whole, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        whole[i] = (float)(rank->rank + 1) * 0.1f + (float)(i % 1000) * 0.001f;
}

static float sum_at(int world, int64_t n, int64_t i)
{
    int owner = canonical_owner(n, world, i);
    float sum = 0;
    for (int turn = 0; turn < world; turn++) {
        float value = (float)(canonical_rank_at(world, owner, turn) + 1) * 0.1f + (float)(i % 1000) * 0.001f;
        sum = turn ? sum + value : value;
    }
    return sum;
}

/* --- sums --- */

static int reduce_lengths(struct rank_process *rank)
{
    static const int64_t lengths[] = {0, 1, 3, 1000, 8192, 8193, 1000003};
    expect(rank->open_status == 0 && collective_transport_of(rank->group) == COLLECTIVE_SHM);
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        int64_t n = lengths[l];
        float *whole = collective_alloc(rank->group, ACCOUNT_GRADIENTS, (size_t)n * 4);
        struct collective_plan *plan = whole ? plan_over(rank, whole, n) : NULL;
        expect(plan);
        for (int round = 0; round < 3; round++) {
            fill(rank, whole, n);
            expect(collective_all_reduce(plan, &rank->err) == 0);
            for (int64_t i = 0; i < n; i++)
                expect(whole[i] == sum_at(rank->world, n, i));
        }
        collective_plan_destroy(plan);
        collective_free(rank->group, ACCOUNT_GRADIENTS, whole, (size_t)n * 4);
    }
    return 0;
}

static void test_sums_between_processes_are_canonical(void **state)
{
    static const int worlds[] = {2, 3, 5, 8};
    (void)state;
    for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++) {
        struct rank_processes processes = {.world = worlds[w], .transport = COLLECTIVE_SHM, .timeout_s = 60};
        rank_processes_start(&processes, reduce_lengths);
        assert_int_equal(rank_processes_end(&processes), 0);
    }
}

/* Mallocs of a process: what its heap holds. */
static int reduce_without_memory(struct rank_process *rank)
{
    enum { N = 100000, BLOB = 64 };
    uint8_t all[BLOB * RANK_PROCESSES_MAX] = {0};
    size_t offsets[RANK_PROCESSES_MAX], sizes[RANK_PROCESSES_MAX], before = 0;
    expect(rank->open_status == 0);
    for (int k = 0; k < rank->world; k++) {
        offsets[k] = (size_t)k * BLOB;
        sizes[k] = BLOB;
    }
    const struct collective_blobs blobs = {all, offsets, sizes};
    float *whole = collective_alloc(rank->group, ACCOUNT_GRADIENTS, N * 4);
    struct collective_plan *plan = whole ? plan_over(rank, whole, N) : NULL;
    expect(plan);
    int64_t buffers = atomic_load(&rank->account.bytes[ACCOUNT_BUFFERS]);
    account_forget_peaks(&rank->account);
    for (int round = 0; round < 100; round++) {
        struct mallinfo2 heap = mallinfo2();
        if (round == 3)
            before = heap.uordblks + heap.hblkhd;
        expect(round < 3 || heap.uordblks + heap.hblkhd == before);
        expect(collective_reduce_scatter(plan, NULL, NULL, &rank->err) == 0);
        expect(collective_all_gather(plan, &rank->err) == 0);
        expect(collective_all_reduce(plan, &rank->err) == 0);
        expect(collective_exchange(rank->group, &blobs, &rank->err) == 0);
    }
    expect(atomic_load(&rank->account.peak[ACCOUNT_BUFFERS]) == buffers);
    collective_plan_destroy(plan);
    collective_free(rank->group, ACCOUNT_GRADIENTS, whole, N * 4);
    return 0;
}

static void test_nothing_is_allocated_after_the_first_operations(void **state)
{
    (void)state;
    struct rank_processes processes = {.world = 3, .transport = COLLECTIVE_SHM, .timeout_s = 60};
    rank_processes_start(&processes, reduce_without_memory);
    assert_int_equal(rank_processes_end(&processes), 0);
}

/* --- deaths --- */

enum { VICTIM = 1, LONG = 1 << 20 };

/* Reduces until something happens; the victim goes on until it is killed or stopped. */
static int reduce_until_failure(struct rank_process *rank, int wanted, const char *words)
{
    struct board *board = rank->board;
    expect(rank->open_status == 0);
    float *whole = collective_alloc(rank->group, ACCOUNT_GRADIENTS, LONG * 4);
    struct collective_plan *plan = whole ? plan_over(rank, whole, LONG) : NULL;
    expect(plan);
    expect(mapped_segments() == 2 * rank->world); /* control and vector of each */
    int status = 0;
    while (!status) {
        status = collective_all_reduce(plan, &rank->err);
        if (rank->rank == VICTIM)
            doorbell_ring(&board->turns, ~0u);
    }
    expect(rank->rank != VICTIM);
    expect(status == wanted && strstr(rank->err.text, words));
    rank->err.text[0] = '\0';
    expect(collective_barrier(rank->group, &rank->err) == wanted);
    collective_plan_destroy(plan);
    collective_free(rank->group, ACCOUNT_GRADIENTS, whole, LONG * 4);
    collective_close(rank->group);
    rank->group = NULL;
    expect(mapped_segments() == 0);
    return 0;
}

static int until_death(struct rank_process *rank)
{
    return reduce_until_failure(rank, STATUS_CLOSED, "rank 1 is gone");
}

static int until_late(struct rank_process *rank)
{
    return reduce_until_failure(rank, STATUS_TIMEOUT, "rank 1 is late");
}

static void wait_for_turns(struct board *board, uint32_t turns)
{
    uint32_t seen;
    while ((seen = atomic_load(&board->turns)) < turns)
        doorbell_wait(&board->turns, seen, 1, INT64_MAX);
}

static void test_a_killed_rank_ends_the_others_and_leaves_nothing(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) {
        struct rank_processes processes = {.world = world, .transport = COLLECTIVE_SHM, .timeout_s = 60,
                                           .board_bytes = sizeof(struct board)};
        rank_processes_start(&processes, until_death);
        wait_for_turns(processes.board, 5);
        assert_int_equal(kill(processes.pids[VICTIM], SIGKILL), 0);
        assert_int_equal(rank_processes_wait(&processes, VICTIM), -SIGKILL);
        assert_int_equal(rank_processes_end(&processes), 0);
    }
    assert_int_equal(mapped_segments(), 0);
}

static void test_a_stopped_rank_is_late_and_named_by_all(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) {
        struct rank_processes processes = {.world = world, .transport = COLLECTIVE_SHM, .timeout_s = 1.5,
                                           .board_bytes = sizeof(struct board)};
        rank_processes_start(&processes, until_late);
        wait_for_turns(processes.board, 5);
        assert_int_equal(kill(processes.pids[VICTIM], SIGSTOP), 0);
        for (int i = 0; i < world; i++) {
            if (i != VICTIM)
                assert_int_equal(rank_processes_wait(&processes, i), 0);
        }
        assert_int_equal(kill(processes.pids[VICTIM], SIGKILL), 0);
        assert_int_equal(rank_processes_wait(&processes, VICTIM), -SIGKILL);
        rank_processes_end(&processes);
    }
}

/* --- another user --- */

static void become_somebody_else(struct rank_process *rank)
{
    if (rank->rank == 1 && setuid(65534) != 0)
        _exit(97);
}

static int refused(struct rank_process *rank)
{
    expect(rank->open_status == STATUS_PROTOCOL);
    expect(strstr(rank->err.text, "cannot reach rank") && strstr(rank->err.text, "65534"));
    expect(rank->group == NULL && mapped_segments() == 0);
    return 0;
}

static int over_tcp(struct rank_process *rank)
{
    expect(rank->open_status == 0 && collective_transport_of(rank->group) == COLLECTIVE_TCP);
    expect(mapped_segments() == 0);
    expect(collective_barrier(rank->group, &rank->err) == 0);
    return 0;
}

static void test_another_user_gets_no_memory(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip(); /* only root can become somebody else */
    struct rank_processes forced = {.world = 3, .transport = COLLECTIVE_SHM, .timeout_s = 30,
                                    .before_port = become_somebody_else};
    rank_processes_start(&forced, refused);
    assert_int_equal(rank_processes_end(&forced), 0);
    struct rank_processes automatic = {.world = 3, .transport = COLLECTIVE_AUTO, .timeout_s = 30,
                                       .before_port = become_somebody_else};
    rank_processes_start(&automatic, over_tcp);
    assert_int_equal(rank_processes_end(&automatic), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_between_processes_are_canonical),
        cmocka_unit_test(test_nothing_is_allocated_after_the_first_operations),
        cmocka_unit_test(test_a_killed_rank_ends_the_others_and_leaves_nothing),
        cmocka_unit_test(test_a_stopped_rank_is_late_and_named_by_all),
        cmocka_unit_test(test_another_user_gets_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
