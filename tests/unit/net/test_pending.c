#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "net/pending.h"

enum { COUNT = 3000 };

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525 + 1013904223;
    return *state >> 8;
}

static struct pending *make(struct pending_pool *pool, uint64_t request)
{
    struct pending *pending = pending_take(pool);
    assert_non_null(pending);
    pending->packed = pending->packed_inline;
    pending->request = request;
    return pending;
}

/* Against a plain array, with old numbers that stay while thousands pass. */
static void the_table_finds_what_is_there_and_keeps_the_order(void **state)
{
    (void)state;
    static struct pending *there[COUNT + 1];
    struct pending_pool pool = {0};
    struct pending_table table = {0};
    uint32_t random = 7;
    size_t count = 0;
    memset(there, 0, sizeof there);
    for (uint64_t request = 1; request <= COUNT; request++) {
        there[request] = make(&pool, request);
        assert_int_equal(pending_table_add(&table, there[request]), STATUS_OK);
        count++;
        uint64_t gone = 1 + next_random(&random) % request;
        if (there[gone] && gone % 64 != 0) {
            pending_table_remove(&table, there[gone]);
            pending_give(&pool, there[gone]);
            there[gone] = NULL;
            count--;
        }
        uint64_t looked = 1 + next_random(&random) % request;
        assert_ptr_equal(pending_table_find(&table, looked), there[looked]);
    }
    assert_int_equal(table.count, count);
    uint64_t last = 0;
    for (struct pending *p = table.first; p; p = p->next, count--) {
        assert_true(p->request > last);
        last = p->request;
    }
    assert_int_equal(count, 0);
    assert_null(pending_table_find(&table, COUNT + 1));
    for (uint64_t request = 1; request <= COUNT; request++)
        assert_ptr_equal(pending_table_find(&table, request), there[request]);
    while (table.first) {
        struct pending *pending = table.first;
        pending_table_remove(&table, pending);
        pending_give(&pool, pending);
    }
    pending_table_close(&table);
    pending_pool_close(&pool);
}

/* Nothing fires early, nothing more than a tick late, whatever the gaps between looks. */
static void the_wheel_fires_each_in_its_time(void **state)
{
    (void)state;
    static struct pending *items[COUNT];
    struct pending_pool pool = {0};
    static struct wheel wheel;
    memset(&wheel, 0, sizeof wheel);
    uint32_t random = 11;
    int64_t now = 1000003;
    for (int i = 0; i < COUNT; i++) {
        items[i] = make(&pool, (uint64_t)i + 1);
        items[i]->deadline_at = now + 1 + next_random(&random) % 60000; /* six turns of the wheel */
        items[i]->resend_at = i % 3 ? 0 : now + 1 + next_random(&random) % 60000;
        assert_true(wheel_add(&wheel, items[i], now) > now);
    }
    for (int i = 0; i < COUNT; i += 5) {
        wheel_remove(&wheel, items[i]);
        pending_give(&pool, items[i]);
    }
    int fired = 0;
    while (wheel.count > 0) {
        int64_t next = wheel_next_ms(&wheel), before = now;
        assert_true(next > now);
        now = next + next_random(&random) % 3000;
        wheel_advance(&wheel, now);
        for (struct pending *p; (p = wheel_pop(&wheel)); fired++) {
            int64_t due = p->resend_at && p->resend_at < p->deadline_at ? p->resend_at : p->deadline_at;
            assert_true(due <= now);
            assert_true(due + WHEEL_TICK_MS >= before);
            pending_give(&pool, p);
        }
    }
    assert_int_equal(fired, COUNT - COUNT / 5);
    assert_int_equal(wheel_next_ms(&wheel), 0);
    pending_pool_close(&pool);
}

static void the_wheel_takes_what_is_due_already_and_what_never_is(void **state)
{
    (void)state;
    struct pending_pool pool = {0};
    static struct wheel wheel;
    memset(&wheel, 0, sizeof wheel);
    struct pending *never = make(&pool, 1), *late = make(&pool, 2);
    assert_int_equal(wheel_add(&wheel, never, 5000), 0);
    wheel_remove(&wheel, never);
    late->deadline_at = 10;
    int64_t next = wheel_add(&wheel, late, 5000);
    assert_true(next > 0 && next <= 5000 + WHEEL_TICK_MS);
    wheel_advance(&wheel, next);
    assert_ptr_equal(wheel_pop(&wheel), late);
    assert_null(wheel_pop(&wheel));
    pending_give(&pool, late);
    pending_give(&pool, never);
    pending_pool_close(&pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_finds_what_is_there_and_keeps_the_order),
        cmocka_unit_test(the_wheel_fires_each_in_its_time),
        cmocka_unit_test(the_wheel_takes_what_is_due_already_and_what_never_is),
    };
    return cmocka_run_group_tests_name("pending", tests, NULL, NULL);
}
