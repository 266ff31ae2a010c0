/* What goes wrong in a ring: found at once or at the time-out, named, and the same on every rank. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <zmq.h>

#include "base/status.h"
#include "ranks.h"
#include "worker/collective/collective_internal.h"
#include "worker/collective/port.h"
#include "worker/collective/ring_wire.h"

enum { N = 100000 };

static struct collective_plan *plan_of(struct rank *rank, float *whole, const char *name)
{
    struct collective_segment *segments;
    struct collective_plan *plan = NULL;
    int count = segments_make(&segments, N, rank->world, 5000);
    const struct collective_layout layout = {
        .segments = segments, .segments_count = count, .whole = whole, .name = name};
    rank_check(rank, collective_plan_create(&plan, rank->group, &layout, &rank->err) == 0);
    free(segments);
    return plan;
}

static void same_text(const struct ranks *ranks)
{
    for (int i = 1; i < ranks->world; i++)
        assert_string_equal(ranks->rank[i].err.text, ranks->rank[0].err.text);
}

static void run(struct ranks *ranks, int world, double timeout_s, rank_fn *fn)
{
    ranks_init(ranks, world);
    ranks->timeout_s = timeout_s;
    ranks_ports(ranks);
    ranks_run(ranks, fn, NULL);
    ranks_close(ranks);
}

/* --- ranks that call different things ------------------------------------------------------------- */

static void call_another(struct rank *rank)
{
    float *whole = calloc(N, sizeof *whole);
    struct collective_plan *a = plan_of(rank, whole, "layers 0-1"), *b = plan_of(rank, whole, "layers 2-3");
    int status = rank->rank == 1 ? collective_all_gather(a, &rank->err)
                                 : collective_reduce_scatter(a, NULL, NULL, &rank->err);
    rank_check(rank, status == STATUS_SHAPE);
    rank_check(rank, collective_barrier(rank->group, NULL) == STATUS_SHAPE); /* and so for good */
    collective_plan_destroy(a);
    collective_plan_destroy(b);
    free(whole);
}

static void ranks_that_call_different_operations_are_named_on_every_rank(void **state)
{
    (void)state;
    for (int world = 2; world <= 5; world++) {
        struct ranks ranks;
        run(&ranks, world, 20, call_another);
        same_text(&ranks);
        const char *text = ranks.rank[0].err.text;
        assert_non_null(strstr(text, "rank 1 calls all_gather \"layers 0-1\" of "));
        assert_non_null(strstr(text, " calls reduce_scatter \"layers 0-1\" of "));
    }
}

static void exchange_another_size(struct rank *rank)
{
    size_t offsets[4] = {0, 10, 20, 30}, sizes[4] = {4, 4, rank->rank == 3 ? 5 : 4, 4};
    uint8_t all[40] = {0};
    const struct collective_blobs blobs = {all, offsets, sizes};
    rank_check(rank, collective_exchange(rank->group, &blobs, &rank->err) == STATUS_SHAPE);
}

static void blobs_of_different_sizes_are_named_on_every_rank(void **state)
{
    struct ranks ranks;
    (void)state;
    run(&ranks, 4, 20, exchange_another_size);
    same_text(&ranks);
    assert_non_null(strstr(ranks.rank[0].err.text, "exchange of 17 bytes"));
    assert_non_null(strstr(ranks.rank[0].err.text, "exchange of 16 bytes"));
}

static void want_another_transport(struct rank *rank)
{
    rank_check(rank, rank->open_status == STATUS_INVALID && rank->group == NULL);
}

static void ranks_that_want_different_transports_are_named(void **state)
{
    struct ranks ranks;
    (void)state;
    ranks_init(&ranks, 3);
    ranks.transport[2] = COLLECTIVE_AUTO;
    ranks_ports(&ranks);
    ranks_run(&ranks, want_another_transport, NULL);
    ranks_close(&ranks);
    same_text(&ranks);
    assert_string_equal(ranks.rank[0].err.text, "rank 0 wants transport tcp, rank 2 auto");
}

/* --- late, dead, cancelled ------------------------------------------------------------------------ */

static void stay_away(struct rank *rank)
{
    float *whole = calloc(N, sizeof *whole);
    struct collective_plan *plan = plan_of(rank, whole, "layers 0-1");
    if (rank->rank != 1)
        rank_check(rank, collective_all_reduce(plan, &rank->err) == STATUS_TIMEOUT);
    pthread_barrier_wait(&rank->ranks->barrier);
    collective_plan_destroy(plan);
    free(whole);
}

static void a_rank_that_is_late_is_named_by_all_others(void **state)
{
    (void)state;
    for (int world = 2; world <= 5; world++) {
        struct ranks ranks;
        run(&ranks, world, 0.5, stay_away);
        for (int i = 0; i < world; i++) {
            if (i != 1)
                assert_non_null(strstr(ranks.rank[i].err.text, "rank 1 is late: "));
        }
        assert_non_null(strstr(ranks.rank[0].err.text, "all_reduce \"layers 0-1\""));
    }
}

static void miss(struct rank *rank)
{
    rank_check(rank, rank->open_status == STATUS_TIMEOUT);
    rank_check(rank, strstr(rank->err.text, "rank 2 at tcp://127.0.0.1:") != NULL);
    rank_check(rank, strstr(rank->err.text, "has not joined the ring") != NULL);
}

static void a_rank_that_never_joins_is_named_by_all_others(void **state)
{
    struct ranks ranks;
    (void)state;
    ranks_init(&ranks, 3);
    ranks.timeout_s = 0.5;
    ranks_ports(&ranks);
    ranks.world = 2; /* the third one's thread is not started */
    ranks_run(&ranks, miss, NULL);
    ranks.world = 3;
    ranks_close(&ranks);
}

static void *cancel(void *context)
{
    struct rank *rank = context;
    pthread_barrier_wait(&rank->ranks->barrier);
    collective_cancel(rank->group, STATUS_STOPPED, "signal 15");
    collective_cancel(rank->group, STATUS_IO, "too late");
    return NULL;
}

static void wait_for_nobody(struct rank *rank)
{
    if (rank->rank == 0) {
        pthread_t thread;
        pthread_create(&thread, NULL, cancel, rank);
        rank_check(rank, collective_barrier(rank->group, &rank->err) == STATUS_STOPPED);
        rank_check(rank, strcmp(rank->err.text, "signal 15") == 0);
        rank_check(rank, collective_barrier(rank->group, NULL) == STATUS_STOPPED);
        pthread_join(thread, NULL);
    } else if (rank->rank == 1) {
        rank_check(rank, collective_barrier(rank->group, &rank->err) == STATUS_ABORTED);
        rank_check(rank, strcmp(rank->err.text, "rank 0 left: signal 15") == 0);
    } else {
        pthread_barrier_wait(
            &rank->ranks->barrier); /* stays out of it; rank 0 may be in its wait by now, or not yet */
    }
}

static void a_cancel_wakes_the_wait_and_tells_the_others(void **state)
{
    struct ranks ranks;
    (void)state;
    ranks_init(&ranks, 3);
    ranks_ports(&ranks);
    /* rank_main makes the barrier for all three; two threads meet there: the canceller and rank 2 */
    ranks.meet = 2;
    ranks_run(&ranks, wait_for_nobody, NULL);
    ranks_close(&ranks);
}

/* --- messages ------------------------------------------------------------------------------------- */

static void push(struct rank *to, const struct ring_header *header, const void *frame, size_t bytes)
{
    uint8_t packed[RING_ENVELOPE_MAX];
    int linger = 5000;
    void *zmq = zmq_ctx_new(), *socket = zmq_socket(zmq, ZMQ_PUSH);
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    zmq_connect(socket, collective_port_address(to->port));
    if (header)
        zmq_send(socket, packed, ring_wire_pack(header, packed), ZMQ_SNDMORE);
    zmq_send(socket, frame, bytes, 0);
    zmq_close(socket);
    zmq_ctx_term(zmq); /* it is on the wire */
}

/* As rank 1 of two would send it to rank 0. */
static const struct ring_header genuine = {.job = 7,
                                           .cluster_epoch = 1,
                                           .incarnation = 101,
                                           .rank = 1,
                                           .sequence = 2,
                                           .form = COLLECTIVE_FORM_BARRIER,
                                           .text = "barrier"};

static void hear_strangers(struct rank *rank)
{
    if (rank->rank == 0) {
        struct ring_header of[5] = {genuine, genuine, genuine, genuine, genuine};
        of[0].job = 8;
        of[1].cluster_epoch = 0;
        of[2].incarnation = 99;
        of[3].rank = 5;
        of[4].form = COLLECTIVE_FORM_POISON; /* of another life, too */
        of[4].incarnation = 99;
        of[4].status = STATUS_IO;
        for (int i = 0; i < 5; i++)
            push(rank, &of[i], "1234", 4);
        push(rank, NULL, "rubbish", 7);
        push(rank, NULL, "", 0);
    }
    pthread_barrier_wait(&rank->ranks->barrier);
    for (int i = 0; i < 20; i++)
        rank_check(rank, collective_barrier(rank->group, &rank->err) == 0);
}

static void messages_of_strangers_are_dropped(void **state)
{
    struct ranks ranks;
    (void)state;
    run(&ranks, 2, 20, hear_strangers);
}

static void hear_a_gap(struct rank *rank)
{
    if (rank->rank == 0) {
        struct ring_header later = genuine;
        later.sequence = 9;
        push(rank, &later, "", 0);
        rank_check(rank, collective_barrier(rank->group, &rank->err) == STATUS_IO);
        rank_check(rank, strcmp(rank->err.text, "messages from rank 1 to rank 0 were lost in barrier: the "
                                                "connection was cut") == 0);
    } else {
        int status = 0;
        pthread_barrier_wait(&rank->ranks->barrier);
        while (!status) /* the first goes through when rank 0's own message was faster than its poison */
            status = collective_barrier(rank->group, &rank->err);
        rank_check(rank, status == STATUS_IO);
    }
    if (rank->rank == 0)
        pthread_barrier_wait(&rank->ranks->barrier);
}

static void a_gap_in_the_messages_is_found_at_once(void **state)
{
    struct ranks ranks;
    (void)state;
    run(&ranks, 2, 20, hear_a_gap);
}

/* Rank 0 is in the next group already while rank 1 still waits in this one: what it says to the next is kept. */
static void go_ahead(struct rank *rank)
{
    struct collective *next = NULL;
    const struct collective_options options = {.port = rank->port,
                                               .peers = rank->ranks->peers,
                                               .rank = rank->rank,
                                               .world = rank->world,
                                               .job = 8,
                                               .cluster_epoch = 2,
                                               .transport = COLLECTIVE_TCP,
                                               .timeout_s = 20,
                                               .account = &rank->account};
    if (rank->rank == 1)
        rank_check(rank, collective_barrier(rank->group, &rank->err) == STATUS_TIMEOUT);
    collective_close(rank->group);
    rank->group = NULL;
    rank_check(rank, collective_open(&next, &options, &rank->err) == 0);
    if (next)
        rank_check(rank, collective_barrier(next, &rank->err) == 0);
    collective_close(next);
}

static void what_comes_for_the_next_epoch_is_kept_for_it(void **state)
{
    struct ranks ranks;
    (void)state;
    run(&ranks, 2, 0.3, go_ahead);
}

/* --- memory --------------------------------------------------------------------------------------- */

static void run_out_of_memory(struct rank *rank)
{
    account_fail_after(&rank->account, 1);
    rank_check(rank, collective_alloc(rank->group, ACCOUNT_GRADIENTS, 100) == NULL);
    void *memory = collective_alloc(rank->group, ACCOUNT_GRADIENTS, 100);
    rank_check(rank, memory != NULL);
    collective_free(rank->group, ACCOUNT_GRADIENTS, memory, 100);
    collective_free(rank->group, ACCOUNT_GRADIENTS, NULL, 100);
    rank_check(rank, atomic_load(&rank->account.bytes[ACCOUNT_GRADIENTS]) == 0);
}

static void memory_is_booked_and_may_run_out(void **state)
{
    (void)state;
    ranks_do(1, run_out_of_memory, NULL);
    ranks_do(2, run_out_of_memory, NULL);
}

static void layouts_that_make_no_sense(struct rank *rank)
{
    static const struct collective_segment bad[][2] = {
        {{0, 10, 0}, {9, 10, 0}},                          /* overlap */
        {{10, 10, 0}, {0, 10, 0}},                         /* descend */
        {{0, 10, 0}, {10, 0, 0}},                          /* empty */
        {{0, 10, 0}, {10, COLLECTIVE_SEGMENT_MAX + 1, 0}}, /* large */
        {{0, 10, 0}, {10, 10, 1}},                         /* nobody's */
        {{-5, 10, 0}, {10, 10, 0}},
    };
    float whole[32];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct collective_plan *plan = NULL;
        const struct collective_layout layout = {
            .segments = bad[i], .segments_count = 2, .whole = whole, .name = "x"};
        rank_check(rank,
                   collective_plan_create(&plan, rank->group, &layout, &rank->err) == STATUS_INVALID && !plan);
    }
}

static void layouts_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    ranks_do(1, layouts_that_make_no_sense, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_call_different_operations_are_named_on_every_rank),
        cmocka_unit_test(blobs_of_different_sizes_are_named_on_every_rank),
        cmocka_unit_test(ranks_that_want_different_transports_are_named),
        cmocka_unit_test(a_rank_that_is_late_is_named_by_all_others),
        cmocka_unit_test(a_rank_that_never_joins_is_named_by_all_others),
        cmocka_unit_test(a_cancel_wakes_the_wait_and_tells_the_others),
        cmocka_unit_test(messages_of_strangers_are_dropped),
        cmocka_unit_test(a_gap_in_the_messages_is_found_at_once),
        cmocka_unit_test(what_comes_for_the_next_epoch_is_kept_for_it),
        cmocka_unit_test(memory_is_booked_and_may_run_out),
        cmocka_unit_test(layouts_that_make_no_sense_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
