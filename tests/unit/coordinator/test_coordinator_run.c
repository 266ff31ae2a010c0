/* The coordinator's own loop, reached over real sockets. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <uv.h>
#include <zmq.h>

#include <cmocka.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "config/job.h"
#include "net/net.h"
#include "server/coordinator/coordinator.h"

struct place { /* a coordinator in a thread of its own */
    struct role_host host;
    struct coordinator_options options;
    struct errbuf err;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    char address[128];
    int ended, status;
};

static void on_ready(void *context, const char *address)
{
    struct place *place = context;
    pthread_mutex_lock(&place->lock);
    snprintf(place->address, sizeof place->address, "%s", address);
    pthread_cond_signal(&place->changed);
    pthread_mutex_unlock(&place->lock);
}

static void *run(void *context)
{
    struct place *place = context;
    int status = coordinator_run(&place->host, &place->options, &place->err);
    pthread_mutex_lock(&place->lock);
    place->status = status;
    place->ended = 1;
    pthread_cond_signal(&place->changed);
    pthread_mutex_unlock(&place->lock);
    return NULL;
}

static void place_start_as(struct place *place, const char *listen, const struct job *job, int once)
{
    memset(place, 0, sizeof *place);
    place->host.zmq = zmq_ctx_new();
    log_init(&place->host.log, "coordinator");
    place->host.log.level = LOG_ERROR;
    place->host.ready = on_ready;
    place->host.context = place;
    place->options = (struct coordinator_options){.listen = listen, .job = job, .job_dir = "", .state_dir = "",
                                                  .once = once, .out_fd = -1};
    errbuf_init(&place->err);
    pthread_mutex_init(&place->lock, NULL);
    pthread_cond_init(&place->changed, NULL);
    assert_int_equal(pthread_create(&place->thread, NULL, run, place), 0);
    pthread_mutex_lock(&place->lock);
    while (place->address[0] == '\0' && !place->ended)
        pthread_cond_wait(&place->changed, &place->lock);
    pthread_mutex_unlock(&place->lock);
}

static void place_start(struct place *place, const char *listen, const struct job *job)
{
    place_start_as(place, listen, job, 1);
}

static void place_join(struct place *place)
{
    pthread_join(place->thread, NULL);
    pthread_mutex_destroy(&place->lock);
    pthread_cond_destroy(&place->changed);
    zmq_ctx_term(place->host.zmq);
}

struct caller {
    void *zmq;
    uv_loop_t loop;
    struct log log;
    struct net *net;
    struct net_link *link;
    int done, status, rank;
    Shoal__Type type;
    char text[256];
};

static void on_reply(void *context, int status, struct message *reply)
{
    struct caller *caller = context;
    caller->done = 1;
    caller->status = status;
    if (reply != NULL) {
        caller->type = reply->envelope->type;
        snprintf(caller->text, sizeof caller->text, "%s",
                 reply->envelope->type == SHOAL__TYPE__STATUS ? reply->envelope->status_report->phase
                                                               : reply->envelope->text);
        if (reply->envelope->type == SHOAL__TYPE__JOINED)
            caller->rank = reply->envelope->joined->rank;
    }
    uv_stop(&caller->loop);
}

static void caller_open(struct caller *caller, const char *address, Shoal__Role role)
{
    struct errbuf err;
    memset(caller, 0, sizeof *caller);
    caller->rank = -1;
    caller->zmq = zmq_ctx_new();
    log_init(&caller->log, "test");
    uv_loop_init(&caller->loop);
    caller->net = net_create(&caller->loop, caller->zmq, &caller->log, 1 << 20);
    assert_non_null(caller->net);
    net_self(caller->net)->role = role;
    net_self(caller->net)->rank = -1;
    net_self(caller->net)->incarnation = 42;
    assert_int_equal(net_link_open(&caller->link, caller->net, address, NULL, NULL, NULL, &err), 0);
}

static int ask(struct caller *caller, Shoal__Envelope *envelope)
{
    struct net_call call = {.envelope = envelope, .deadline_ms = 30000, .resend_ms = 500, .reply = on_reply,
                            .context = caller};
    caller->done = 0;
    assert_true(net_request(caller->link, &call) > 0);
    while (!caller->done)
        uv_run(&caller->loop, UV_RUN_DEFAULT);
    return caller->status;
}

static void caller_close(struct caller *caller)
{
    net_link_close(caller->link);
    net_destroy(caller->net, 0);
    uv_run(&caller->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&caller->loop), 0);
    zmq_ctx_term(caller->zmq);
}

static void caller_join(struct caller *caller)
{
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    Shoal__Join join = SHOAL__JOIN__INIT;
    envelope.type = SHOAL__TYPE__JOIN;
    envelope.body_case = SHOAL__ENVELOPE__BODY_JOIN;
    envelope.join = &join;
    join.host = "h";
    join.pid = 1;
    join.wanted_rank = -1;
    assert_int_equal(ask(caller, &envelope), 0);
    assert_int_equal(caller->rank, 0);
    net_self(caller->net)->rank = caller->rank;
}

static void join_and_stop(void **state)
{
    (void)state;
    struct place place;
    struct caller worker;
    place_start(&place, "tcp://127.0.0.1:0", NULL);
    caller_open(&worker, place.address, SHOAL__ROLE__WORKER);
    caller_join(&worker);
    place.host.stop = SIGTERM;
    Shoal__Envelope await = SHOAL__ENVELOPE__INIT;
    await.type = SHOAL__TYPE__AWAIT;
    assert_int_equal(ask(&worker, &await), STATUS_STOPPED);
    assert_int_equal(worker.type, SHOAL__TYPE__END);
    assert_string_equal(worker.text, "stopped by signal");
    Shoal__Envelope leave = SHOAL__ENVELOPE__INIT;
    leave.type = SHOAL__TYPE__LEAVE;
    assert_int_equal(ask(&worker, &leave), 0);
    place_join(&place);
    assert_int_equal(place.status, STATUS_STOPPED);
    caller_close(&worker);
}

static void an_operator_asks_and_stops(void **state)
{
    (void)state;
    struct place place;
    struct caller operator;
    place_start(&place, "tcp://127.0.0.1:0", NULL);
    caller_open(&operator, place.address, SHOAL__ROLE__OPERATOR);
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    envelope.type = SHOAL__TYPE__STATUS;
    assert_int_equal(ask(&operator, &envelope), 0);
    assert_string_equal(operator.text, "idle");
    envelope.type = SHOAL__TYPE__STOP;
    assert_int_equal(ask(&operator, &envelope), 0);
    place_join(&place);
    assert_int_equal(place.status, STATUS_STOPPED);
    caller_close(&operator);
}

static void F04_a_taken_port_is_named(void **state)
{
    (void)state;
    struct place first, second;
    place_start(&first, "tcp://127.0.0.1:0", NULL);
    place_start(&second, first.address, NULL);
    place_join(&second);
    assert_int_not_equal(second.status, 0);
    assert_non_null(strstr(second.err.text, strrchr(first.address, ':') + 1));
    assert_non_null(strstr(second.err.text, "Address already in use"));
    first.host.stop = SIGINT;
    place_join(&first);
    assert_int_equal(first.status, STATUS_STOPPED);
}

/* Without --once the cluster waits for the next job. */
static void a_signal_to_a_worker_ends_the_job_and_not_the_coordinator(void **state)
{
    (void)state;
    struct place place;
    struct caller worker, server, operator;
    struct job *job;
    struct errbuf err;
    struct job_source source = {
        .text = "name: x\nseed: 1\nsteps: 1\nbatch_size: 2\nmodel: {kind: linear}\noptimizer: {kind: sgd, lr: 0.1}\n"
                "data: {kind: synthetic, samples: 4, features: 2, classes: 2}\n",
        .need = JOB_NEED_TRAINING};
    assert_int_equal(job_load(&job, &source, &err), 0);
    place_start_as(&place, "tcp://127.0.0.1:0", job, 0);
    caller_open(&server, place.address, SHOAL__ROLE__SERVER);
    caller_open(&worker, place.address, SHOAL__ROLE__WORKER);
    caller_open(&operator, place.address, SHOAL__ROLE__OPERATOR);
    caller_join(&server);
    caller_join(&worker);
    Shoal__Envelope leave = SHOAL__ENVELOPE__INIT;
    leave.type = SHOAL__TYPE__LEAVE;
    leave.status = STATUS_STOPPED;
    assert_int_equal(ask(&worker, &leave), 0);
    Shoal__Envelope await = SHOAL__ENVELOPE__INIT;
    await.type = SHOAL__TYPE__AWAIT;
    assert_int_equal(ask(&worker, &await), STATUS_STOPPED);
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    envelope.type = SHOAL__TYPE__STATUS;
    assert_int_equal(ask(&operator, &envelope), 0);
    assert_string_equal(operator.text, "idle");
    envelope.type = SHOAL__TYPE__STOP;
    assert_int_equal(ask(&operator, &envelope), 0);
    place_join(&place);
    assert_int_equal(place.status, STATUS_STOPPED);
    caller_close(&worker);
    caller_close(&server);
    caller_close(&operator);
    job_destroy(job);
}

static void a_job_that_nobody_joins_fails_in_time(void **state)
{
    (void)state;
    struct place place;
    struct job *job;
    struct errbuf err;
    struct job_source source = {
        .text = "name: x\nseed: 1\nsteps: 1\nbatch_size: 2\nmodel: {kind: linear}\noptimizer: {kind: sgd, lr: 0.1}\n"
                "data: {kind: synthetic, samples: 4, features: 2, classes: 2}\n"
                "cluster: {timeouts: {start: 0.2}}\n",
        .need = JOB_NEED_TRAINING};
    assert_int_equal(job_load(&job, &source, &err), 0);
    place_start(&place, "inproc://coordinator", job);
    place_join(&place);
    assert_int_equal(place.status, STATUS_ABORTED);
    assert_non_null(strstr(place.err.text, "waiting for servers 0; workers 0"));
    job_destroy(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(join_and_stop),
        cmocka_unit_test(an_operator_asks_and_stops),
        cmocka_unit_test(a_signal_to_a_worker_ends_the_job_and_not_the_coordinator),
        cmocka_unit_test(F04_a_taken_port_is_named),
        cmocka_unit_test(a_job_that_nobody_joins_fails_in_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
