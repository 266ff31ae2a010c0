/* F09: eight workers push small messages in bursts of 1, 2 and 100, with idle gaps between them, to a server that also
 * sends on its own. No deadline and no resend is set, so a wake-up that is lost hangs the test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "base/status.h"
#include "rig.h"

enum { WORKERS = 8, PUSHES = 2000, GAP_EVERY = 60, GAP_MS = 30, OWN_MS = 2, IDLE_MS = 300 };

struct worker {
    pthread_t thread;
    const char *endpoint;
    struct rig rig;
    struct net_link *link;
    struct buf *values;
    uv_timer_t gap;
    int rounds, burst_kind, bursts;
    int outstanding, left, done;
    int acknowledged, failed;
};

static void next_burst(struct worker *worker);

static void after_gap(uv_timer_t *timer)
{
    next_burst(timer->data);
}

static void on_reply(void *context, int status, struct message *reply)
{
    struct worker *worker = context;
    (void)reply;
    worker->failed += status != STATUS_OK;
    worker->acknowledged++;
    if (--worker->outstanding > 0)
        return;
    if (++worker->bursts % GAP_EVERY == 0)
        uv_timer_start(&worker->gap, after_gap, GAP_MS, 0);
    else
        next_burst(worker);
}

static void send_one(struct worker *worker, Shoal__Type type)
{
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    Shoal__Selector selector = SHOAL__SELECTOR__INIT;
    selector.end = 4;
    envelope.type = type;
    envelope.dtype = SHOAL__DTYPE__F32;
    envelope.selector = &selector;
    int frames = type == SHOAL__TYPE__PUSH;
    struct net_call call = {.envelope = &envelope, .frames = &worker->values, .frames_count = frames,
                            .reply = on_reply, .context = worker};
    worker->outstanding++;
    if (net_request(worker->link, &call) == 0)
        worker->failed++;
}

static void next_burst(struct worker *worker)
{
    static const int sizes[] = {1, 2, 100};
    if (worker->left == 0) {
        if (--worker->rounds == 0) {
            worker->done = 1;
            return;
        }
        worker->left = PUSHES;
    }
    int size = sizes[worker->burst_kind++ % 3];
    if (size > worker->left)
        size = worker->left;
    worker->left -= size;
    send_one(worker, SHOAL__TYPE__HELLO); /* answered from the server's own timer */
    for (int i = 0; i < size; i++)
        send_one(worker, SHOAL__TYPE__PUSH);
}

static void *work(void *context)
{
    struct worker *worker = context;
    rig_open(&worker->rig, NULL, SHOAL__ROLE__WORKER);
    uv_timer_init(&worker->rig.loop, &worker->gap);
    worker->gap.data = worker;
    worker->values = buf_create(16);
    memset(worker->values->data, 0, 16);
    worker->left = PUSHES;
    if (net_link_open(&worker->link, worker->rig.net, worker->endpoint, NULL, NULL, NULL, &worker->rig.err)) {
        worker->failed++;
    } else {
        next_burst(worker);
        rig_until(&worker->rig, &worker->done, 1);
    }
    uv_close((uv_handle_t *)&worker->gap, NULL);
    rig_close(&worker->rig);
    buf_release(worker->values);
    return NULL;
}

/* The serving end: pushes are acknowledged at once, HELLOs from a timer. */
struct server {
    struct rig rig;
    struct net_router *router;
    uv_timer_t timer;
    struct net_return kept[WORKERS * 2];
    int kept_count, pushes, hellos;
    int wanted_pushes, done;
};

static void serve(void *context, struct net_router *router, struct message *request, const struct net_return *back)
{
    struct server *server = context;
    if (request->envelope->type == SHOAL__TYPE__PUSH) {
        net_reply_status(router, back, STATUS_OK, NULL);
        server->pushes++;
    } else if (server->kept_count < WORKERS * 2) {
        server->kept[server->kept_count++] = *back;
    }
}

static void on_own(uv_timer_t *timer)
{
    struct server *server = timer->data;
    for (int i = 0; i < server->kept_count; i++)
        net_reply_status(server->router, &server->kept[i], STATUS_OK, NULL);
    server->hellos += server->kept_count;
    server->done = server->pushes >= server->wanted_pushes && server->kept_count == 0;
    server->kept_count = 0;
}

static void F09_every_push_is_acknowledged_without_a_lost_wake_up(void **state)
{
    (void)state;
    static struct worker workers[WORKERS];
    static struct server server;
    const char *wanted = getenv("SHOAL_F09_ROUNDS");
    int rounds = wanted ? atoi(wanted) : 2;
    memset(workers, 0, sizeof workers);
    memset(&server, 0, sizeof server);
    rig_open(&server.rig, NULL, SHOAL__ROLE__SERVER);
    server.wanted_pushes = WORKERS * PUSHES * rounds;
    struct net_listen listen = {.endpoint = "tcp://127.0.0.1:0", .serve = serve, .context = &server};
    assert_int_equal(net_router_open(&server.router, server.rig.net, &listen, &server.rig.err), STATUS_OK);
    uv_timer_init(&server.rig.loop, &server.timer);
    server.timer.data = &server;
    uv_timer_start(&server.timer, on_own, OWN_MS, OWN_MS);
    for (int i = 0; i < WORKERS; i++) {
        workers[i].endpoint = net_router_endpoint(server.router);
        workers[i].rounds = rounds;
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    rig_until(&server.rig, &server.done, 1);
    int acknowledged = 0;
    for (int i = 0; i < WORKERS; i++) {
        pthread_join(workers[i].thread, NULL);
        acknowledged += workers[i].acknowledged;
        assert_int_equal(workers[i].failed, 0);
    }
    assert_int_equal(server.pushes, server.wanted_pushes);
    assert_int_equal(acknowledged, server.pushes + server.hellos);
    uv_close((uv_handle_t *)&server.timer, NULL);
    rig_close(&server.rig);
}

static void count_turn(uv_check_t *check)
{
    ++*(int *)check->data;
}

static void set_flag(uv_timer_t *timer)
{
    *(int *)timer->data = 1;
}

/* No busy loop: counted in turns, not in time, since other processes may take the processor. */
static void F09_an_idle_loop_sleeps(void **state)
{
    (void)state;
    struct rig server, worker;
    struct echo echo;
    struct net_link *link;
    struct answer kept = {0}, beat = {0};
    int turns = 0, over = 0;
    rig_open(&server, NULL, SHOAL__ROLE__SERVER);
    echo_open(&echo, &server, &(struct net_listen){.endpoint = "tcp://127.0.0.1:0"});
    rig_open(&worker, NULL, SHOAL__ROLE__WORKER);
    assert_int_equal(net_link_open(&link, worker.net, net_router_endpoint(echo.router), NULL, NULL, NULL, &worker.err),
                     STATUS_OK);
    ask(link, SHOAL__TYPE__HELLO, &kept, 60000); /* stays unanswered */
    ask(link, SHOAL__TYPE__HEARTBEAT, &beat, 60000);
    while (!beat.done) {
        uv_run(&server.loop, UV_RUN_NOWAIT);
        uv_run(&worker.loop, UV_RUN_NOWAIT);
    }
    uv_check_t check;
    uv_timer_t timer;
    uv_check_init(&worker.loop, &check);
    uv_timer_init(&worker.loop, &timer);
    check.data = &turns;
    timer.data = &over;
    uv_check_start(&check, count_turn);
    uv_timer_start(&timer, set_flag, IDLE_MS, 0);
    rig_until(&worker, &over, 1);
    assert_true(turns < 20);
    uv_close((uv_handle_t *)&check, NULL);
    uv_close((uv_handle_t *)&timer, NULL);
    rig_close(&worker);
    rig_close(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(F09_every_push_is_acknowledged_without_a_lost_wake_up),
        cmocka_unit_test(F09_an_idle_loop_sleeps),
    };
    return cmocka_run_group_tests_name("F09", tests, NULL, NULL);
}
