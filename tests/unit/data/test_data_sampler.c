#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "config/job.h"
#include "worker/data/sampler.h"

enum { ROWS_MAX = 50 };

/* The union of all shares of a step, in order of rank and micro-step, checked to be contiguous. */
static int64_t gather(struct sampler *sampler, int64_t step, int world, int accumulate, int64_t *out)
{
    int64_t total = 0, share[ROWS_MAX + 64], smallest = INT64_MAX, largest = 0;
    for (int rank = 0; rank < world; rank++) {
        int64_t of_rank = 0;
        for (int micro = 0; micro < accumulate; micro++) {
            int64_t first, again;
            int64_t count = sampler_share(sampler, step, rank, world, micro, accumulate, share, &first);
            assert_int_equal(count, sampler_share(sampler, step, rank, world, micro, accumulate, NULL, &again));
            assert_int_equal(first, again);
            assert_int_equal(first, total);
            memcpy(out + total, share, (size_t)count * sizeof *share);
            total += count;
            of_rank += count;
        }
        smallest = of_rank < smallest ? of_rank : smallest;
        largest = of_rank > largest ? of_rank : largest;
    }
    assert_true(largest - smallest <= 1);
    assert_int_equal(total, sampler_batch(sampler, step));
    return total;
}

static void check_epochs(int64_t rows, int64_t batch, int shuffled, int last, int world, int accumulate)
{
    struct sampler *sampler = sampler_create(rows, batch, shuffled, last, 7);
    assert_non_null(sampler);
    int64_t steps = sampler_steps_per_epoch(sampler);
    for (int64_t epoch = 0; epoch < 2; epoch++) {
        int seen[ROWS_MAX + 1] = {0};
        int64_t used = 0, one[ROWS_MAX + 64], many[ROWS_MAX + 64];
        for (int64_t s = 1; s <= steps; s++) {
            int64_t step = epoch * steps + s;
            int64_t count = gather(sampler, step, 1, 1, one);
            assert_int_equal(gather(sampler, step, world, accumulate, many), count);
            assert_memory_equal(one, many, (size_t)count * sizeof *one);
            for (int64_t i = 0; i < count; i++) {
                assert_in_range(one[i], 0, rows - 1);
                seen[one[i]]++;
            }
            used += count;
        }
        for (int64_t r = 0; r < rows; r++) {
            if (last == JOB_LAST_SHORT)
                assert_int_equal(seen[r], 1);
            if (last == JOB_LAST_WRAP)
                assert_true(seen[r] >= 1);
            if (last == JOB_LAST_DROP)
                assert_true(seen[r] <= 1);
        }
        assert_int_equal(used, last == JOB_LAST_SHORT ? rows : steps * batch);
    }
    sampler_destroy(sampler);
}

static void every_sample_is_used_once_an_epoch_whatever_the_world(void **state)
{
    (void)state;
    static const int64_t batches[] = {1, 3, 8, 32, 64};
    for (int64_t rows = 0; rows <= ROWS_MAX; rows++)
        for (size_t b = 0; b < sizeof batches / sizeof batches[0]; b++)
            for (int world = 1; world <= 8; world++)
                for (int accumulate = 1; accumulate <= 3; accumulate++)
                    for (int last = JOB_LAST_SHORT; last <= JOB_LAST_DROP; last++)
                        check_epochs(rows, batches[b], (rows + world) % 2, last, world, accumulate);
}

static void sequential_takes_file_order_and_shuffled_another_each_epoch(void **state)
{
    (void)state;
    int64_t a[20], b[20], c[20];
    struct sampler *plain = sampler_create(20, 20, 0, JOB_LAST_SHORT, 1);
    sampler_share(plain, 1, 0, 1, 0, 1, a, NULL);
    for (int64_t i = 0; i < 20; i++)
        assert_int_equal(a[i], i);
    sampler_destroy(plain);

    struct sampler *first = sampler_create(20, 20, 1, JOB_LAST_SHORT, 1);
    struct sampler *second = sampler_create(20, 20, 1, JOB_LAST_SHORT, 1);
    struct sampler *other = sampler_create(20, 20, 1, JOB_LAST_SHORT, 2);
    sampler_share(first, 1, 0, 1, 0, 1, a, NULL);
    sampler_share(first, 2, 0, 1, 0, 1, b, NULL);
    sampler_share(second, 2, 0, 1, 0, 1, c, NULL); /* as a resumed process would: no step before */
    assert_memory_not_equal(a, b, sizeof a);
    assert_memory_equal(b, c, sizeof b);
    sampler_share(second, 1, 0, 1, 0, 1, c, NULL); /* and back */
    assert_memory_equal(a, c, sizeof a);
    sampler_share(other, 1, 0, 1, 0, 1, c, NULL);
    assert_memory_not_equal(a, c, sizeof a);
    sampler_destroy(first);
    sampler_destroy(second);
    sampler_destroy(other);
}

static void wrap_fills_up_with_the_epochs_first_samples(void **state)
{
    (void)state;
    int64_t taken[8];
    struct sampler *sampler = sampler_create(5, 4, 0, JOB_LAST_WRAP, 1);
    assert_int_equal(sampler_steps_per_epoch(sampler), 2);
    assert_int_equal(sampler_share(sampler, 2, 0, 1, 0, 1, taken, NULL), 4);
    const int64_t expected[] = {4, 0, 1, 2};
    assert_memory_equal(taken, expected, sizeof expected);
    sampler_destroy(sampler);
    sampler = sampler_create(3, 8, 0, JOB_LAST_WRAP, 1); /* fewer rows than one batch */
    assert_int_equal(sampler_share(sampler, 1, 0, 1, 0, 1, taken, NULL), 8);
    const int64_t again[] = {0, 1, 2, 0, 1, 2, 0, 1};
    assert_memory_equal(taken, again, sizeof again);
    sampler_destroy(sampler);
}

static void no_rows_give_no_steps(void **state)
{
    (void)state;
    struct sampler *sampler = sampler_create(0, 4, 1, JOB_LAST_WRAP, 1);
    assert_non_null(sampler);
    assert_int_equal(sampler_steps_per_epoch(sampler), 0);
    assert_int_equal(sampler_batch(sampler, 1), 0);
    assert_int_equal(sampler_share(sampler, 1, 0, 1, 0, 1, (int64_t[1]){0}, NULL), 0);
    sampler_destroy(sampler);
    sampler = sampler_create(3, 4, 0, JOB_LAST_DROP, 1);
    assert_int_equal(sampler_steps_per_epoch(sampler), 0);
    sampler_destroy(sampler);
    assert_null(sampler_create(-1, 4, 0, JOB_LAST_SHORT, 1));
    assert_null(sampler_create(3, 0, 0, JOB_LAST_SHORT, 1));
    sampler_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_sample_is_used_once_an_epoch_whatever_the_world),
        cmocka_unit_test(sequential_takes_file_order_and_shuffled_another_each_epoch),
        cmocka_unit_test(wrap_fills_up_with_the_epochs_first_samples),
        cmocka_unit_test(no_rows_give_no_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
