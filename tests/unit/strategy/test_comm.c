/* The thread that runs collectives: in the order given, one at a time, and never waited for in vain, whatever fails. The
 * group and the client are this test's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "base/trace.h"
#include "worker/client/client.h"
#include "worker/collective/collective.h"
#include "worker/strategy/comm.h"

enum { OPS = 8, ROUNDS = 300 };

/* --- what the comm thread talks to ---------------------------------------------------------------------------- */

struct client {
    pthread_mutex_t lock;
    int status;
};

struct collective {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int let_through; /* blocking operations that may end */
    int inside;      /* one waits */
    int cancelled;
    char text[128];
};

int client_status(struct client *client, struct errbuf *err)
{
    pthread_mutex_lock(&client->lock);
    int status = client->status;
    pthread_mutex_unlock(&client->lock);
    return status == 0 ? 0 : errbuf_set(err, status, "worker 2 was killed");
}

void collective_cancel(struct collective *group, int status, const char *text)
{
    pthread_mutex_lock(&group->lock);
    group->cancelled = status;
    snprintf(group->text, sizeof group->text, "%s", text);
    pthread_cond_broadcast(&group->changed);
    pthread_mutex_unlock(&group->lock);
}

/* --- operations ------------------------------------------------------------------------------------------------ */

struct fixture {
    struct client client;
    struct collective group;
    struct comm *comm;
    struct trace *trace;
    struct comm_op ops[OPS];
    struct op_context {
        struct fixture *fixture;
        int number, fails_at_step;
    } contexts[OPS];
    pthread_mutex_t lock;
    int order[OPS * ROUNDS], ran, inside, overlapped; /* what ran, so far */
    pthread_t thread;
};

/* Two operations never run at once, and always on the same thread. */
static void enter(struct fixture *fixture)
{
    pthread_mutex_lock(&fixture->lock);
    fixture->overlapped |= fixture->inside;
    fixture->inside = 1;
    if (fixture->ran > 0 && !pthread_equal(fixture->thread, pthread_self()))
        fixture->overlapped = 1;
    fixture->thread = pthread_self();
    pthread_mutex_unlock(&fixture->lock);
}

static void leave(struct fixture *fixture, int number)
{
    pthread_mutex_lock(&fixture->lock);
    fixture->inside = 0;
    fixture->order[fixture->ran++] = number;
    pthread_mutex_unlock(&fixture->lock);
}

static int run_note(struct comm_op *op, struct errbuf *err)
{
    struct op_context *context = op->context;
    enter(context->fixture);
    leave(context->fixture, context->number);
    if (context->fails_at_step > 0 && op->step == context->fails_at_step)
        return errbuf_set(err, STATUS_TIMEOUT, "rank 1 is late in operation %d", context->number);
    return 0;
}

/* As a collective does: until the others have come, or a cancel. */
static int run_block(struct comm_op *op, struct errbuf *err)
{
    struct op_context *context = op->context;
    struct collective *group = &context->fixture->group;
    enter(context->fixture);
    pthread_mutex_lock(&group->lock);
    group->inside = 1;
    pthread_cond_broadcast(&group->changed);
    while (group->let_through == 0 && group->cancelled == 0)
        pthread_cond_wait(&group->changed, &group->lock);
    group->let_through -= group->cancelled == 0;
    group->inside = 0;
    int status = group->cancelled ? errbuf_set(err, group->cancelled, "%s", group->text) : 0;
    pthread_mutex_unlock(&group->lock);
    leave(context->fixture, context->number);
    return status;
}

static void let_through(struct fixture *fixture)
{
    pthread_mutex_lock(&fixture->group.lock);
    fixture->group.let_through++;
    pthread_cond_broadcast(&fixture->group.changed);
    pthread_mutex_unlock(&fixture->group.lock);
}

static void until_inside(struct fixture *fixture)
{
    pthread_mutex_lock(&fixture->group.lock);
    while (!fixture->group.inside)
        pthread_cond_wait(&fixture->group.changed, &fixture->group.lock);
    pthread_mutex_unlock(&fixture->group.lock);
}

static void end_job(struct fixture *fixture)
{
    pthread_mutex_lock(&fixture->client.lock);
    fixture->client.status = STATUS_ABORTED;
    pthread_mutex_unlock(&fixture->client.lock);
}

static int ran_so_far(struct fixture *fixture)
{
    pthread_mutex_lock(&fixture->lock);
    int ran = fixture->ran;
    pthread_mutex_unlock(&fixture->lock);
    return ran;
}

static int open_comm(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    pthread_mutex_init(&fixture->client.lock, NULL);
    pthread_mutex_init(&fixture->group.lock, NULL);
    pthread_cond_init(&fixture->group.changed, NULL);
    pthread_mutex_init(&fixture->lock, NULL);
    fixture->trace = trace_create(64);
    for (int i = 0; i < OPS; i++) {
        fixture->contexts[i] = (struct op_context){fixture, i, 0};
        fixture->ops[i] = (struct comm_op){.run = run_note, .context = &fixture->contexts[i], .layer = i};
    }
    struct comm_options options = {&fixture->group, &fixture->client, fixture->trace};
    *state = fixture;
    return comm_start(&fixture->comm, &options, NULL);
}

static int close_comm(void **state)
{
    struct fixture *fixture = *state;
    comm_stop(fixture->comm);
    assert_int_equal(fixture->overlapped, 0);
    trace_destroy(fixture->trace);
    pthread_mutex_destroy(&fixture->client.lock);
    pthread_mutex_destroy(&fixture->group.lock);
    pthread_cond_destroy(&fixture->group.changed);
    pthread_mutex_destroy(&fixture->lock);
    free(fixture);
    return 0;
}

/* --- order ------------------------------------------------------------------------------------------------------ */

static void operations_run_in_the_order_given(void **state)
{
    struct fixture *fixture = *state;
    int given = 0, wanted[OPS * ROUNDS];
    for (int round = 1; round <= ROUNDS; round++) {
        for (int i = 0; i < OPS; i++) {
            int number = (i * 3 + round) % OPS; /* another order every round, the same operations */
            assert_int_equal(comm_wait(fixture->comm, &fixture->ops[number], NULL), 0);
            comm_submit(fixture->comm, &fixture->ops[number], round);
            wanted[given++] = number;
        }
    }
    assert_int_equal(comm_drain(fixture->comm, NULL), 0);
    assert_int_equal(fixture->ran, given);
    assert_memory_equal(fixture->order, wanted, sizeof wanted);
    assert_false(pthread_equal(fixture->thread, pthread_self()));
}

/* A wait is for its operation, not for what was given after it. */
static void a_wait_ends_with_its_operation(void **state)
{
    struct fixture *fixture = *state;
    fixture->ops[1].run = run_block;
    comm_submit(fixture->comm, &fixture->ops[0], 1);
    comm_submit(fixture->comm, &fixture->ops[1], 1);
    comm_submit(fixture->comm, &fixture->ops[2], 1);
    assert_int_equal(comm_wait(fixture->comm, &fixture->ops[0], NULL), 0);
    until_inside(fixture);
    assert_int_equal(ran_so_far(fixture), 1);
    assert_int_equal(comm_wait(fixture->comm, &fixture->ops[3], NULL), 0); /* never given: nothing to wait for */
    let_through(fixture);
    assert_int_equal(comm_wait(fixture->comm, &fixture->ops[2], NULL), 0);
    assert_int_equal(ran_so_far(fixture), 3);
    assert_int_equal(comm_run(fixture->comm, &fixture->ops[0], 2, NULL), 0);
    assert_int_equal(ran_so_far(fixture), 4);
}

static void stopping_runs_what_was_given(void **state)
{
    struct fixture *fixture = *state;
    for (int i = 0; i < OPS; i++)
        comm_submit(fixture->comm, &fixture->ops[i], 1);
    comm_stop(fixture->comm);
    fixture->comm = NULL; /* and stopping nothing is allowed: close_comm */
    assert_int_equal(fixture->ran, OPS);
}

/* --- failure ---------------------------------------------------------------------------------------------------- */

static void expect_failure(int status, int wanted, const struct errbuf *err, const char *text)
{
    assert_int_equal(status, wanted);
    assert_non_null(strstr(err->text, text));
}

static void the_first_failure_ends_every_wait_and_runs_nothing_more(void **state)
{
    struct fixture *fixture = *state;
    struct errbuf err;
    fixture->contexts[1].fails_at_step = 2;
    fixture->contexts[2].fails_at_step = 2;
    for (int step = 1; step <= 2; step++)
        for (int i = 0; i < OPS; i++) {
            comm_wait(fixture->comm, &fixture->ops[i], NULL);
            comm_submit(fixture->comm, &fixture->ops[i], step);
        }
    for (int i = 1; i < OPS; i++) { /* 0 was done before it */
        errbuf_init(&err);
        expect_failure(comm_wait(fixture->comm, &fixture->ops[i], &err), STATUS_TIMEOUT, &err, "late in operation 1");
    }
    assert_int_equal(ran_so_far(fixture), OPS + 2);
    expect_failure(comm_run(fixture->comm, &fixture->ops[3], 3, &err), STATUS_TIMEOUT, &err, "late in operation 1");
    expect_failure(comm_drain(fixture->comm, &err), STATUS_TIMEOUT, &err, "late in operation 1");
    assert_int_equal(ran_so_far(fixture), OPS + 2);
}

static void stopping_after_a_failure_leaves_the_rest(void **state)
{
    struct fixture *fixture = *state;
    fixture->ops[0].run = run_block;
    for (int i = 0; i < OPS; i++)
        comm_submit(fixture->comm, &fixture->ops[i], 1);
    collective_cancel(&fixture->group, STATUS_CLOSED, "closed");
    comm_stop(fixture->comm);
    fixture->comm = NULL;
    assert_int_equal(fixture->ran, 1);
}

/* --- the job ends elsewhere --------------------------------------------------------------------------------------- */

static void a_wait_sees_that_the_job_has_ended(void **state)
{
    struct fixture *fixture = *state;
    struct errbuf err;
    errbuf_init(&err);
    fixture->ops[0].run = run_block;
    comm_submit(fixture->comm, &fixture->ops[0], 1);
    comm_submit(fixture->comm, &fixture->ops[1], 1);
    until_inside(fixture);
    end_job(fixture);
    expect_failure(comm_wait(fixture->comm, &fixture->ops[1], &err), STATUS_ABORTED, &err, "worker 2 was killed");
    assert_int_equal(ran_so_far(fixture), 1);
}

static void a_drain_sees_that_the_job_has_ended(void **state)
{
    struct fixture *fixture = *state;
    struct errbuf err;
    errbuf_init(&err);
    fixture->ops[0].run = run_block;
    comm_submit(fixture->comm, &fixture->ops[0], 1);
    end_job(fixture);
    expect_failure(comm_drain(fixture->comm, &err), STATUS_ABORTED, &err, "worker 2 was killed");
}

static void stopping_sees_that_the_job_has_ended(void **state)
{
    struct fixture *fixture = *state;
    fixture->ops[0].run = run_block;
    comm_submit(fixture->comm, &fixture->ops[0], 1);
    comm_submit(fixture->comm, &fixture->ops[1], 1);
    end_job(fixture);
    comm_stop(fixture->comm);
    fixture->comm = NULL;
    assert_int_equal(fixture->ran, 1);
    assert_int_equal(fixture->group.cancelled, STATUS_ABORTED);
}

static void a_job_that_goes_on_is_never_cancelled(void **state)
{
    struct fixture *fixture = *state;
    for (int round = 1; round <= ROUNDS; round++)
        assert_int_equal(comm_run(fixture->comm, &fixture->ops[round % OPS], round, NULL), 0);
    assert_int_equal(fixture->group.cancelled, 0);
}

/* --- the trace ---------------------------------------------------------------------------------------------------- */

static void what_has_a_name_is_in_the_trace(void **state)
{
    struct fixture *fixture = *state;
    size_t count;
    fixture->ops[3].name = "gather";
    comm_submit(fixture->comm, &fixture->ops[2], 7); /* says itself what it does */
    comm_submit(fixture->comm, &fixture->ops[3], 7);
    assert_int_equal(comm_drain(fixture->comm, NULL), 0);
    const struct trace_event *events = trace_events(fixture->trace, &count);
    assert_int_equal(count, 1);
    assert_string_equal(events[0].name, "gather");
    assert_int_equal(events[0].step, 7);
    assert_int_equal(events[0].layer, 3);
    assert_int_equal(events[0].kind, TRACE_COLLECTIVE);
    assert_int_not_equal(events[0].lane, 0); /* beside compute */
    assert_true(events[0].begin_ns <= events[0].end_ns);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, open_comm, close_comm)
    const struct CMUnitTest tests[] = {
        CASE(operations_run_in_the_order_given),
        CASE(a_wait_ends_with_its_operation),
        CASE(stopping_runs_what_was_given),
        CASE(the_first_failure_ends_every_wait_and_runs_nothing_more),
        CASE(stopping_after_a_failure_leaves_the_rest),
        CASE(a_wait_sees_that_the_job_has_ended),
        CASE(a_drain_sees_that_the_job_has_ended),
        CASE(stopping_sees_that_the_job_has_ended),
        CASE(a_job_that_goes_on_is_never_cancelled),
        CASE(what_has_a_name_is_in_the_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
