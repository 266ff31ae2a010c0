#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <zmq.h>

#include "base/status.h"
#include "rig.h"

struct both {
    struct rig server, worker;
    struct echo echo;
    struct net_link *link;
    int connected, changes;
};

static void on_state(void *context, int connected)
{
    struct both *both = context;
    both->connected = connected;
    both->changes++;
}

static void both_open(struct both *both, const char *endpoint)
{
    memset(both, 0, sizeof *both);
    rig_open(&both->server, NULL, SHOAL__ROLE__SERVER);
    both->server.reopening = 1;
    rig_open(&both->worker, both->server.zmq, SHOAL__ROLE__WORKER);
    echo_open(&both->echo, &both->server, &(struct net_listen){.endpoint = endpoint});
    assert_int_equal(net_link_open(&both->link, both->worker.net, net_router_endpoint(both->echo.router), NULL,
                                   on_state, both, &both->worker.err),
                     STATUS_OK);
}

static void both_close(struct both *both)
{
    rig_close(&both->worker);
    rig_close(&both->server);
}

/* Both loops turn by turn, without ever sleeping in one while the other has work. */
static void both_until(struct both *both, const int *value, int wanted)
{
    while (*value < wanted) {
        uv_run(&both->server.loop, UV_RUN_NOWAIT);
        uv_run(&both->worker.loop, UV_RUN_NOWAIT);
    }
}

static void answers_a_request_over(const char *endpoint)
{
    struct both both;
    both_open(&both, endpoint);
    struct answer beat = {0}, push = {0};
    struct buf *values = buf_create(100000);
    memset(values->data, 3, values->bytes);
    assert_int_equal(ask(both.link, SHOAL__TYPE__HEARTBEAT, &beat, 0), 1);
    assert_int_equal(ask_push(both.link, values, 1, &push), 2);
    both_until(&both, &push.done, 1);
    assert_int_equal(beat.status, STATUS_OK);
    assert_int_equal(beat.type, SHOAL__TYPE__HEARTBEAT);
    assert_int_equal(push.type, SHOAL__TYPE__ACK);
    assert_int_equal(both.echo.bytes, 100000);
    uint64_t sent, received;
    net_link_bytes(both.link, &sent, &received);
    assert_int_equal(sent, 100000);
    assert_int_equal(received, 0);
    both_close(&both);
    assert_true(buf_is_sole(values));
    buf_release(values);
}

static void answers_a_request_over_tcp(void **state)
{
    (void)state;
    answers_a_request_over("tcp://127.0.0.1:0");
}

static void answers_a_request_over_inproc(void **state)
{
    (void)state;
    answers_a_request_over("inproc://shard");
}

static void requests_wait_for_a_server_that_comes_later(void **state)
{
    (void)state;
    struct both both;
    both_open(&both, "tcp://127.0.0.1:0");
    char endpoint[64];
    net_router_close(both.echo.router);
    net_link_close(both.link);
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%d", rig_free_port());
    assert_int_equal(net_link_open(&both.link, both.worker.net, endpoint, NULL, on_state, &both, &both.worker.err),
                     STATUS_OK);
    struct answer answers[3] = {{0}};
    for (int i = 0; i < 3; i++)
        ask(both.link, SHOAL__TYPE__HEARTBEAT, &answers[i], 0);
    for (int i = 0; i < 20; i++)
        uv_run(&both.worker.loop, UV_RUN_NOWAIT);
    assert_int_equal(answers[0].done, 0);
    echo_open(&both.echo, &both.server, &(struct net_listen){.endpoint = endpoint});
    both_until(&both, &answers[2].done, 1);
    assert_int_equal(both.echo.served, 3);
    assert_int_equal(net_counters(both.worker.net)->resent, 0);
    both_close(&both);
}

/* The server goes and comes back on its port: unanswered requests arrive again, in their order. */
static void resends_in_order_when_the_connection_is_back(void **state)
{
    (void)state;
    struct both both;
    both_open(&both, "tcp://127.0.0.1:0");
    char endpoint[64];
    snprintf(endpoint, sizeof endpoint, "%s", net_router_endpoint(both.echo.router));
    struct answer kept = {0}, first = {0}, pushes[5] = {{0}};
    struct buf *values = buf_create(16);
    memset(values->data, 0, 16);
    ask(both.link, SHOAL__TYPE__HEARTBEAT, &first, 0);
    both_until(&both, &first.done, 1);
    ask(both.link, SHOAL__TYPE__HELLO, &kept, 0);
    both_until(&both, &both.echo.kept, 1);
    net_router_close(both.echo.router);
    for (int i = 0; i < 5; i++)
        ask_push(both.link, values, (uint64_t)i + 1, &pushes[i]);
    both_until(&both, &both.changes, 2);
    assert_int_equal(both.connected, 0);
    echo_open(&both.echo, &both.server, &(struct net_listen){.endpoint = endpoint});
    both_until(&both, &pushes[4].done, 1);
    assert_int_equal(both.connected, 1);
    assert_int_equal(both.echo.kept, 1);
    uint64_t seen = 0;
    for (int i = 0; i < both.echo.served; i++) {
        if (both.echo.clocks[i] == seen + 1)
            seen++;
    }
    assert_int_equal(seen, 5);
    for (int i = 0; i < 5; i++)
        assert_int_equal(pushes[i].done, 1);
    Shoal__Envelope welcome;
    shoal__envelope__init(&welcome);
    welcome.type = SHOAL__TYPE__WELCOME;
    net_reply(both.echo.router, &both.echo.back, &welcome, NULL, 0);
    both_until(&both, &kept.done, 1);
    assert_int_equal(kept.status, STATUS_OK);
    assert_int_equal(kept.type, SHOAL__TYPE__WELCOME);
    both_close(&both);
    buf_release(values);
}

/* An embedded server that starts again: inproc tells nobody, so the link finds out by itself. */
static void finds_a_restarted_server_over_inproc(void **state)
{
    (void)state;
    struct both both;
    both_open(&both, "inproc://shard");
    struct answer kept = {0};
    ask(both.link, SHOAL__TYPE__HELLO, &kept, 0);
    both_until(&both, &both.echo.kept, 1);
    net_router_close(both.echo.router);
    uv_run(&both.server.loop, UV_RUN_NOWAIT);
    echo_open(&both.echo, &both.server, &(struct net_listen){.endpoint = "inproc://shard"});
    both_until(&both, &both.echo.kept, 1);
    net_reply_status(both.echo.router, &both.echo.back, STATUS_RANGE, "no such key");
    both_until(&both, &kept.done, 1);
    assert_int_equal(kept.status, STATUS_RANGE);
    assert_string_equal(kept.text, "no such key");
    both_close(&both);
}

static void a_call_ends_once_by_deadline_cancel_or_close(void **state)
{
    (void)state;
    struct both both;
    both_open(&both, "tcp://127.0.0.1:0");
    struct answer late = {0}, cancelled = {0}, closed = {0};
    ask(both.link, SHOAL__TYPE__HELLO, &late, 30);
    uint64_t request = ask(both.link, SHOAL__TYPE__HELLO, &cancelled, 0);
    ask(both.link, SHOAL__TYPE__HELLO, &closed, 60000);
    net_cancel(both.link, request);
    assert_int_equal(cancelled.status, STATUS_CLOSED);
    both_until(&both, &late.done, 1);
    assert_int_equal(late.status, STATUS_TIMEOUT);
    assert_int_equal(closed.done, 0);
    net_link_close(both.link);
    assert_int_equal(closed.status, STATUS_CLOSED);
    both_close(&both);
    assert_int_equal(late.done, 1);
    assert_int_equal(cancelled.done, 1);
    assert_int_equal(closed.done, 1);
}

static void resends_when_no_answer_comes_and_takes_one_reply(void **state)
{
    (void)state;
    struct both both;
    both_open(&both, "tcp://127.0.0.1:0");
    struct answer answer = {0};
    Shoal__Envelope envelope;
    shoal__envelope__init(&envelope);
    envelope.type = SHOAL__TYPE__HELLO;
    net_request(both.link, &(struct net_call){.envelope = &envelope, .resend_ms = 20, .reply = answer_take,
                                              .context = &answer});
    both_until(&both, &both.echo.kept, 3);
    for (int i = 0; i < 3; i++)
        net_reply_status(both.echo.router, &both.echo.back, STATUS_OK, NULL);
    struct answer beat = {0};
    ask(both.link, SHOAL__TYPE__HEARTBEAT, &beat, 0);
    both_until(&both, &beat.done, 1);
    assert_int_equal(answer.done, 1);
    assert_true(net_counters(both.worker.net)->resent >= 2);
    both_close(&both);
}

static void an_answer_sent_right_before_a_cut_arrives(void **state)
{
    (void)state;
    for (int i = 0; i < 40; i++) {
        struct both both;
        both_open(&both, "tcp://127.0.0.1:0");
        struct answer kept = {0};
        ask(both.link, SHOAL__TYPE__HELLO, &kept, 0);
        both_until(&both, &both.echo.kept, 1);
        net_reply_status(both.echo.router, &both.echo.back, STATUS_OK, NULL);
        net_router_close(both.echo.router);
        both_until(&both, &kept.done, 1);
        assert_int_equal(kept.status, STATUS_OK);
        both_close(&both);
    }
}

static void a_join_tells_where_it_came_from(void **state)
{
    (void)state;
    struct both both;
    both_open(&both, "tcp://127.0.0.1:0");
    struct answer answer = {0};
    Shoal__Join join = SHOAL__JOIN__INIT;
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    envelope.type = SHOAL__TYPE__JOIN;
    envelope.body_case = SHOAL__ENVELOPE__BODY_JOIN;
    envelope.join = &join;
    net_request(both.link, &(struct net_call){.envelope = &envelope, .reply = answer_take, .context = &answer});
    both_until(&both, &answer.done, 1);
    assert_string_equal(both.echo.address, "127.0.0.1");
    assert_int_equal(answer.status, STATUS_EXISTS);
    assert_string_equal(answer.text, "rank 1 is taken");
    both_close(&both);
}

static void large_frames_arrive_without_a_copy_over_inproc(void **state)
{
    (void)state;
    struct both both;
    both_open(&both, "inproc://shard");
    both.echo.values = buf_create(1 << 20);
    memset(both.echo.values->data, 5, both.echo.values->bytes);
    struct answer answer = {.keep = 1};
    Shoal__Envelope envelope;
    Shoal__Selector selector;
    shoal__envelope__init(&envelope);
    shoal__selector__init(&selector);
    envelope.type = SHOAL__TYPE__PULL;
    envelope.dtype = SHOAL__DTYPE__F32;
    envelope.selector = &selector;
    net_request(both.link, &(struct net_call){.envelope = &envelope, .reply = answer_take, .context = &answer});
    both_until(&both, &answer.done, 1);
    assert_int_equal(answer.bytes, 1 << 20);
    assert_ptr_equal(answer.frame->data, both.echo.values->data);
    assert_false(buf_is_sole(both.echo.values));
    buf_release(answer.frame);
    assert_true(buf_is_sole(both.echo.values));
    struct buf *values = both.echo.values;
    both_close(&both);
    buf_release(values);
}

static void close_inside(void *context, int status, struct message *reply)
{
    (void)reply;
    struct both *both = context;
    both->changes += 100;
    if (status == STATUS_OK && both->link) {
        struct net_link *link = both->link;
        both->link = NULL;
        net_link_close(link);
    }
}

static void a_callback_may_close_its_link(void **state)
{
    (void)state;
    struct both both;
    both_open(&both, "tcp://127.0.0.1:0");
    Shoal__Envelope envelope;
    for (int i = 0; i < 3; i++) {
        shoal__envelope__init(&envelope);
        envelope.type = SHOAL__TYPE__HEARTBEAT;
        net_request(both.link, &(struct net_call){.envelope = &envelope, .reply = close_inside, .context = &both});
    }
    both_until(&both, &both.changes, 300);
    both_close(&both);
}

static void many_requests_in_flight_keep_their_numbers(void **state)
{
    (void)state;
    enum { COUNT = 5000 };
    static struct answer answers[COUNT];
    memset(answers, 0, sizeof answers);
    struct both both;
    both_open(&both, "tcp://127.0.0.1:0");
    struct answer kept = {0};
    ask(both.link, SHOAL__TYPE__HELLO, &kept, 0); /* stays in the table */
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(ask(both.link, SHOAL__TYPE__HEARTBEAT, &answers[i], 30000), i + 2);
    for (int i = 0; i < COUNT; i++)
        both_until(&both, &answers[i].done, 1);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(answers[i].done, 1);
        assert_int_equal(answers[i].request, i + 2);
    }
    both_close(&both);
    assert_int_equal(kept.status, STATUS_CLOSED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_a_request_over_tcp),
        cmocka_unit_test(answers_a_request_over_inproc),
        cmocka_unit_test(requests_wait_for_a_server_that_comes_later),
        cmocka_unit_test(resends_in_order_when_the_connection_is_back),
        cmocka_unit_test(finds_a_restarted_server_over_inproc),
        cmocka_unit_test(a_call_ends_once_by_deadline_cancel_or_close),
        cmocka_unit_test(resends_when_no_answer_comes_and_takes_one_reply),
        cmocka_unit_test(an_answer_sent_right_before_a_cut_arrives),
        cmocka_unit_test(a_join_tells_where_it_came_from),
        cmocka_unit_test(large_frames_arrive_without_a_copy_over_inproc),
        cmocka_unit_test(a_callback_may_close_its_link),
        cmocka_unit_test(many_requests_in_flight_keep_their_numbers),
    };
    return cmocka_run_group_tests_name("net", tests, NULL, NULL);
}
