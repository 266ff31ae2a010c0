/* What a server answers to workers: its dispatch, pushes, pulls and fetches on a router of their own, without the
 * coordinator. Server and worker ends share one loop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <zmq.h>

#include "base/buf.h"
#include "base/errbuf.h"
#include "base/status.h"
#include "server/consistency/controller.h"
#include "server/server_internal.h"

enum { RANKS = 3, INCARNATION = 70, JOB = 5, EPOCH = 9, LIMIT = 16 << 20, PATH = 64 };

static const char yaml[] = "name: t\nseed: 1\nsteps: 3\nbatch_size: 12\n"
                           "data: {kind: synthetic, samples: 32, features: 4, classes: 2, seed: 1}\n"
                           "model: {kind: mlp, hidden: [4]}\noptimizer: {kind: sgd, lr: 1}\n"
                           "cluster: {workers: 3, servers: 2}\n";

struct rig {
    void *zmq;
    struct server server;
    struct server_options options;
    struct role_host host;
    struct net *worker;
    struct net_link *link;
    struct buf *empty;
    uint64_t completed;
    char folder[PATH];
};

/* One request and its answer. */
struct ask {
    int done, status;
    char text[256];
    float values[70000];
    size_t bytes;
};

static void on_complete(void *context, uint64_t clock)
{
    struct server *server = context;
    server->current->steps_done = clock;
}

static void on_finished(void *context, uint64_t clock)
{
    (void)context;
    (void)clock;
}

/* Layer 0: a (40000), frozen b (10); layer 1: c (5), d (7). Server 0 holds the first keys. */
static void make_job(struct rig *rig)
{
    struct server *server = &rig->server;
    struct server_job *job = calloc(1, sizeof *job);
    struct errbuf err;
    struct job_source source = {.text = yaml, .text_name = "job"};
    errbuf_init(&err);
    if (job_load(&job->job, &source, &err) != 0)
        fail_msg("%s", err.text);
    param_table_init(&job->table);
    param_table_add_layer(&job->table);
    param_table_add(&job->table, "a", 1, (int64_t[]){40000}, NULL);
    int frozen = param_table_add(&job->table, "b", 1, (int64_t[]){10}, NULL);
    job->table.tensors[frozen].frozen = 1;
    param_table_add_layer(&job->table);
    param_table_add(&job->table, "c", 1, (int64_t[]){5}, NULL);
    param_table_add_layer(&job->table);
    param_table_add(&job->table, "d", 1, (int64_t[]){7}, NULL);
    assert_int_equal(keymap_init(&job->map, &job->table, &(struct keymap_layout){RANKS, 1, 1 << 16, CANONICAL_PART}, NULL),
                     0);
    job->map.ranges[0].server = 1; /* somebody else's */
    job->controller = controller_at(job->job->parallel.consistency);
    job->incarnations = calloc(RANKS, sizeof(uint64_t));
    for (int rank = 0; rank < RANKS; rank++)
        job->incarnations[rank] = INCARNATION + (uint64_t)rank;
    job->waiting = calloc((size_t)job->map.ranges_count, sizeof(*job->waiting));
    job->pulled = calloc((size_t)RANKS * (size_t)job->map.ranges_count, sizeof(*job->pulled));
    struct shard_options options = {
        .map = &job->map, .server = 0, .hold_values = 1, .prescaled = 1,
        .pool = server->pool, .account = &server->account, .loop = &server->loop,
        .ops = {push_added, on_complete, NULL, pull_applied, on_finished, server}};
    assert_int_equal(optimizer_of_job(job->job, &options.optimizer, &options.params, &job->optimizer_handle, NULL), 0);
    assert_int_equal(shard_create(&job->shard, &options, NULL), 0);
    job->early_tail = &job->early;
    server->current = job;
}

static int open_rig(void **state)
{
    struct rig *rig = calloc(1, sizeof *rig);
    struct net_listen listen = {.endpoint = "inproc://server", .serve = server_dispatch, .context = &rig->server};
    snprintf(rig->folder, sizeof rig->folder, "/tmp/server-XXXXXX");
    assert_non_null(mkdtemp(rig->folder));
    rig->zmq = zmq_ctx_new();
    rig->options.state_dir = rig->folder;
    struct server *server = &rig->server;
    server->options = &rig->options;
    server->host = &rig->host;
    account_init(&server->account);
    uv_loop_init(&server->loop);
    server->pool = pool_create(1, 1);
    server->net = net_create(&server->loop, rig->zmq, &server->log, LIMIT);
    rig->worker = net_create(&server->loop, rig->zmq, &server->log, LIMIT);
    assert_true(server->pool && server->net && rig->worker);
    *net_self(server->net) = (struct net_self){.role = SHOAL__ROLE__SERVER, .job = JOB, .cluster_epoch = EPOCH};
    *net_self(rig->worker) = (struct net_self){.role = SHOAL__ROLE__WORKER, .incarnation = INCARNATION, .job = JOB,
                                               .cluster_epoch = EPOCH};
    assert_int_equal(net_router_open(&server->router, server->net, &listen, NULL), 0);
    assert_int_equal(net_link_open(&rig->link, rig->worker, "inproc://server", NULL, NULL, NULL, NULL), 0);
    make_job(rig);
    *state = rig;
    return 0;
}

static int close_rig(void **state)
{
    struct rig *rig = *state;
    struct server *server = &rig->server;
    server_job_end(server);
    net_link_close(rig->link);
    net_router_close(server->router);
    net_destroy(rig->worker, 0);
    net_destroy(server->net, 0);
    uv_run(&server->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&server->loop), 0);
    pool_destroy(server->pool);
    zmq_ctx_term(rig->zmq);
    rmdir(rig->folder);
    free(rig);
    return 0;
}

static void on_reply(void *context, int status, struct message *reply)
{
    struct ask *ask = context;
    ask->done++;
    ask->status = status;
    if (reply && reply->envelope->text)
        snprintf(ask->text, sizeof ask->text, "%s", reply->envelope->text);
    if (reply && reply->frames_count == 1) {
        ask->bytes = reply->frames[0]->bytes;
        assert_true(ask->bytes <= sizeof ask->values);
        memcpy(ask->values, reply->frames[0]->data, ask->bytes);
    }
}

/* Asks as `rank`; keys: first keys of ranges, or [begin, end) with count 0. */
struct question {
    Shoal__Type type;
    int rank, count;
    uint64_t clock, begin, end, keys[4];
    size_t floats;
    float value;
    Shoal__Dtype dtype;
    Shoal__Fetch *fetch;
};

static void send_question(struct rig *rig, const struct question *q, struct ask *ask)
{
    Shoal__Envelope e = SHOAL__ENVELOPE__INIT;
    Shoal__Selector selector = SHOAL__SELECTOR__INIT;
    struct buf *frame = q->floats > 0 ? buf_create(q->floats * sizeof(float)) : NULL;
    for (size_t i = 0; i < q->floats; i++)
        ((float *)frame->data)[i] = q->value;
    selector.begin = q->begin;
    selector.end = q->end;
    selector.n_ids = (size_t)q->count;
    selector.ids = (uint64_t *)q->keys;
    e.type = q->type;
    e.clock = q->clock;
    e.weight = 1;
    e.dtype = q->dtype ? q->dtype : SHOAL__DTYPE__F32;
    if (q->type != SHOAL__TYPE__FETCH && q->type != SHOAL__TYPE__HELLO)
        e.selector = &selector;
    if (q->fetch) {
        e.body_case = SHOAL__ENVELOPE__BODY_FETCH;
        e.fetch = q->fetch;
    }
    struct net_self *self = net_self(rig->worker);
    self->rank = q->rank;
    self->incarnation = INCARNATION + (uint64_t)q->rank;
    memset(ask, 0, sizeof *ask);
    struct net_call call = {.envelope = &e, .frames = &frame, .frames_count = frame ? 1 : 0, .reply = on_reply,
                            .context = ask};
    assert_true(net_request(rig->link, &call) > 0);
    buf_release(frame);
}

static int answer(struct rig *rig, const struct question *q, struct ask *ask)
{
    send_question(rig, q, ask);
    while (!ask->done)
        uv_run(&rig->server.loop, UV_RUN_ONCE);
    return ask->status;
}

/* What was sent before is with the server when this comes back. */
static void barrier(struct rig *rig)
{
    static struct ask ask;
    assert_int_equal(answer(rig, &(struct question){.type = SHOAL__TYPE__HELLO}, &ask), 0);
}

static const struct question init_all[] = {
    {.type = SHOAL__TYPE__INIT, .begin = 1, .end = 2, .floats = 16384, .value = 10},
    {.type = SHOAL__TYPE__INIT, .count = 4, .keys = {2, 3, 4, 5}, .floats = 40000 - 32768 + 10 + 5 + 7, .value = 10},
};

static void give_values(struct rig *rig)
{
    static struct ask ask;
    for (int i = 0; i < 2; i++) {
        if (answer(rig, &init_all[i], &ask) != 0)
            fail_msg("%s", ask.text);
    }
}

static void a_push_that_names_other_keys_is_refused(void **state)
{
    struct rig *rig = *state;
    static struct ask ask;
    give_values(rig);
    static const struct {
        struct question q;
        int status;
        const char *text;
    } cases[] = {
        {{.type = SHOAL__TYPE__PUSH, .clock = 1, .begin = 1, .end = 2, .floats = 16383}, STATUS_SHAPE, "16384 floats"},
        {{.type = SHOAL__TYPE__PUSH, .clock = 1, .begin = 1, .end = 2, .floats = 16385}, STATUS_SHAPE, "16384 floats"},
        {{.type = SHOAL__TYPE__PUSH, .clock = 1, .floats = 1}, STATUS_INVALID, "empty selector"},
        {{.type = SHOAL__TYPE__PUSH, .clock = 1, .begin = 4, .end = 4, .floats = 1}, STATUS_INVALID, "empty selector"},
        {{.type = SHOAL__TYPE__PUSH, .clock = 1, .begin = 1, .end = 3, .floats = 23616}, STATUS_SHAPE, "no range"},
        {{.type = SHOAL__TYPE__PUSH, .clock = 1, .begin = 6, .end = 7, .floats = 1}, STATUS_UNKNOWN, "begins no range"},
        {{.type = SHOAL__TYPE__PUSH, .clock = 1, .begin = 0, .end = 1, .floats = 16384}, STATUS_UNKNOWN, "held by server 1"},
        {{.type = SHOAL__TYPE__PUSH, .clock = 1, .count = 2, .keys = {5, 4}, .floats = 12}, STATUS_INVALID, "out of order"},
        {{.type = SHOAL__TYPE__PUSH, .clock = 1, .count = 2, .keys = {4, 4}, .floats = 10}, STATUS_INVALID, "out of order"},
        {{.type = SHOAL__TYPE__PUSH, .clock = 1, .begin = 3, .end = 4, .floats = 10}, STATUS_UNKNOWN, "frozen"},
        {{.type = SHOAL__TYPE__PUSH, .clock = 3, .begin = 4, .end = 5, .floats = 5}, STATUS_RANGE, "clock 3 pushed, 1 is next"},
        {{.type = SHOAL__TYPE__PUSH, .clock = 1, .begin = 4, .end = 5, .floats = 5, .dtype = SHOAL__DTYPE__BF16},
         STATUS_INVALID, "dtype"},
        {{.type = SHOAL__TYPE__PULL, .begin = 0, .end = 1}, STATUS_UNKNOWN, "held by server 1"},
        {{.type = SHOAL__TYPE__PULL}, STATUS_INVALID, "empty selector"},
        {{.type = SHOAL__TYPE__PULL, .count = 2, .keys = {5, 4}}, STATUS_INVALID, "out of order"},
        {{.type = SHOAL__TYPE__INIT, .rank = 1, .begin = 4, .end = 5, .floats = 5}, STATUS_DENIED, "rank 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int status = answer(rig, &cases[i].q, &ask);
        if (status != cases[i].status || !strstr(ask.text, cases[i].text))
            fail_msg("case %zu: status %d \"%s\"", i, status, ask.text);
    }
    assert_int_equal(rig->server.current->pushed_bytes, 0);
    assert_int_equal(rig->server.account.bytes[ACCOUNT_BUFFERS], 0);
}

static void a_stranger_is_refused(void **state)
{
    struct rig *rig = *state;
    static struct ask ask;
    struct net_self *self = net_self(rig->worker);
    struct question q = {.type = SHOAL__TYPE__PULL, .begin = 4, .end = 5};
    give_values(rig);
    q.rank = RANKS;
    assert_int_equal(answer(rig, &q, &ask), STATUS_DENIED);
    q.rank = -1;
    assert_int_equal(answer(rig, &q, &ask), STATUS_DENIED);
    q.rank = 1;
    rig->server.current->incarnations[1]++; /* a later life of rank 1 has joined */
    assert_int_equal(answer(rig, &q, &ask), STATUS_DENIED);
    q.rank = 0;
    self->job = JOB + 1;
    assert_int_equal(answer(rig, &q, &ask), STATUS_ABORTED);
    self->job = JOB;
    self->cluster_epoch = EPOCH - 1;
    assert_int_equal(answer(rig, &q, &ask), STATUS_DENIED);
    self->cluster_epoch = EPOCH;
    assert_int_equal(answer(rig, &q, &ask), 0);
    assert_int_equal(ask.bytes, 20);
    assert_true(ask.values[4] == 10);
}

static void a_push_before_the_first_values_waits(void **state)
{
    struct rig *rig = *state;
    static struct ask asks[RANKS];
    for (int rank = 0; rank < RANKS; rank++)
        send_question(rig, &(struct question){.type = SHOAL__TYPE__PUSH, .rank = rank, .clock = 1, .begin = 4, .end = 5,
                                              .floats = 5}, &asks[rank]);
    barrier(rig);
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(asks[rank].done, 0);
    give_values(rig);
    while (!asks[0].done || !asks[1].done || !asks[2].done)
        uv_run(&rig->server.loop, UV_RUN_ONCE);
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(asks[rank].status, 0);
}

static void a_push_is_taken_whole_or_not_at_all(void **state)
{
    struct rig *rig = *state;
    static struct ask ask, held[RANKS];
    give_values(rig);
    struct question bad = {.type = SHOAL__TYPE__PUSH, .rank = 0, .clock = 1, .count = 3, .keys = {3, 4, 5}, .floats = 22};
    assert_int_equal(answer(rig, &bad, &ask), STATUS_UNKNOWN); /* key 3 is frozen, 4 and 5 are not touched */
    bad = (struct question){.type = SHOAL__TYPE__PUSH, .rank = 0, .clock = 1, .count = 3, .keys = {2, 4, 9}, .floats = 9};
    assert_int_equal(answer(rig, &bad, &ask), STATUS_UNKNOWN);
    assert_int_equal(shard_held_bytes(rig->server.current->shard), 0);
    for (int rank = RANKS - 1; rank >= 0; rank--) {
        struct question q = {.type = SHOAL__TYPE__PUSH, .rank = rank, .clock = 1, .count = 3, .keys = {2, 4, 5},
                             .floats = 40000 - 32768 + 12, .value = (float)(1 << rank)};
        send_question(rig, &q, &held[rank]);
        struct question large = {.type = SHOAL__TYPE__PUSH, .rank = rank, .clock = 1, .begin = 1, .end = 2,
                                 .floats = 16384, .value = (float)(1 << rank)};
        static struct ask larges[RANKS];
        send_question(rig, &large, &larges[rank]);
    }
    while (rig->server.current->steps_done < 1)
        uv_run(&rig->server.loop, UV_RUN_ONCE);
    barrier(rig);
    for (int rank = 0; rank < RANKS; rank++) {
        assert_int_equal(held[rank].done, 1);
        assert_int_equal(held[rank].status, 0);
    }
    assert_int_equal(rig->server.current->pushed_bytes, RANKS * (40000 - 16384 + 12) * 4);
    static struct ask pull, again;
    struct question q = {.type = SHOAL__TYPE__PULL, .rank = 1, .clock = 1, .count = 2, .keys = {4, 5}};
    send_question(rig, &q, &pull);
    send_question(rig, &(struct question){.type = SHOAL__TYPE__PULL, .rank = 1, .clock = 1, .begin = 1, .end = 2}, &again);
    barrier(rig);
    assert_int_equal(pull.done + again.done, 0); /* no verdict yet */
    struct optimizer_step step = {.lr = 1, .t = 1, .grad_scale = 1, .trust_ratio = 1};
    assert_int_equal(shard_verdict(rig->server.current->shard, 1, SHARD_APPLY, &step), 0);
    while (!pull.done || !again.done)
        uv_run(&rig->server.loop, UV_RUN_ONCE);
    assert_int_equal(pull.bytes, 48);
    assert_int_equal(again.bytes, 16384 * 4);
    assert_true(pull.values[0] == 3 && pull.values[11] == 3 && again.values[16383] == 3); /* 10 - (1 + 2 + 4) */
    struct question repeat = {.type = SHOAL__TYPE__PUSH, .rank = 0, .clock = 1, .begin = 4, .end = 5, .floats = 5};
    assert_int_equal(answer(rig, &repeat, &ask), 0); /* acknowledged, not added */
    assert_int_equal(shard_clock(rig->server.current->shard, 4), 1);
}

static void first_values_are_booked_once(void **state)
{
    struct rig *rig = *state;
    give_values(rig);
    int64_t booked = rig->server.current->init_bytes;
    assert_int_equal(booked, (40000 - 16384 + 10 + 5 + 7) * 4);
    give_values(rig); /* sent again after a cut connection */
    assert_int_equal(rig->server.current->init_bytes, booked);
}

/* The resent request has the number of the first: only its way back is new, and it is answered once. */
static void a_repeated_pull_waits_once(void **state)
{
    struct rig *rig = *state;
    static struct ask ask;
    give_values(rig);
    send_question(rig, &(struct question){.type = SHOAL__TYPE__PULL, .clock = 1, .count = 2, .keys = {4, 5}}, &ask);
    barrier(rig);
    struct server_job *job = rig->server.current;
    struct pull *pull = job->waiting[4]->pull;
    assert_int_equal(pull->remaining, 2);
    Shoal__Envelope e = SHOAL__ENVELOPE__INIT;
    Shoal__Selector selector = SHOAL__SELECTOR__INIT;
    uint64_t keys[2] = {4, 5};
    selector.n_ids = 2;
    selector.ids = keys;
    e.type = SHOAL__TYPE__PULL;
    e.clock = 1;
    e.selector = &selector;
    struct message request = {.envelope = &e};
    struct net_return back = pull->back;
    handle_pull(&rig->server, &request, &back);
    assert_ptr_equal(job->waiting[4]->pull, pull);
    assert_null(job->waiting[4]->next);
    assert_int_equal(ask.done, 0);
    pulls_drop(&rig->server, STATUS_ABORTED);
    while (!ask.done)
        uv_run(&rig->server.loop, UV_RUN_ONCE);
    assert_int_equal(ask.status, STATUS_ABORTED);
}

/* An answer that was lost on its way is given again, and is no payload of the step. */
static void values_given_again_are_booked_apart(void **state)
{
    struct rig *rig = *state;
    static struct ask ask;
    give_values(rig);
    send_question(rig, &(struct question){.type = SHOAL__TYPE__PULL, .clock = 1, .begin = 4, .end = 5}, &ask);
    barrier(rig);
    struct server_job *job = rig->server.current;
    struct net_return back = job->waiting[4]->pull->back;
    pulls_drop(&rig->server, STATUS_ABORTED);
    Shoal__Envelope e = SHOAL__ENVELOPE__INIT;
    Shoal__Selector selector = SHOAL__SELECTOR__INIT;
    selector.begin = 4;
    selector.end = 5;
    e.type = SHOAL__TYPE__PULL;
    e.selector = &selector;
    struct message request = {.envelope = &e};
    int64_t before = job->pulled_bytes;
    for (int i = 0; i < 3; i++) {
        handle_pull(&rig->server, &request, &back);
    }
    assert_int_equal(job->pulled_bytes - before, 5 * sizeof(float));
    assert_int_equal(job->again_bytes, 2 * 5 * sizeof(float));
    while (!ask.done)
        uv_run(&rig->server.loop, UV_RUN_ONCE);
}

/* A push of the step after next waits; its repeat must not take room twice. */
static void a_repeated_early_push_waits_once(void **state)
{
    struct rig *rig = *state;
    static struct ask ask;
    give_values(rig);
    send_question(rig, &(struct question){.type = SHOAL__TYPE__PUSH, .clock = 2, .begin = 4, .end = 5, .floats = 5}, &ask);
    barrier(rig);
    struct server_job *job = rig->server.current;
    assert_non_null(job->early);
    Shoal__Envelope e = SHOAL__ENVELOPE__INIT;
    Shoal__Selector selector = SHOAL__SELECTOR__INIT;
    selector.begin = 4;
    selector.end = 5;
    e.type = SHOAL__TYPE__PUSH;
    e.clock = 2;
    e.weight = 1;
    e.dtype = SHOAL__DTYPE__F32;
    e.selector = &selector;
    struct buf *frame = buf_create(5 * sizeof(float));
    struct message request = {.envelope = &e, .frames = {frame}, .frames_count = 1};
    struct net_return back = job->early->back;
    back.sent_ns++;
    handle_push(&rig->server, &request, &back);
    assert_null(job->early->next);
    assert_int_equal(job->early_bytes, 5 * sizeof(float));
    assert_int_equal(job->early->back.sent_ns, back.sent_ns);
    assert_ptr_equal(request.frames[0], frame); /* not taken */
    assert_int_equal(ask.done, 0);
    buf_release(frame);
}

static void a_fetch_reads_its_own_snapshots_only(void **state)
{
    struct rig *rig = *state;
    static struct ask ask;
    char folder[PATH + 16], file[PATH + 32];
    snprintf(folder, sizeof folder, "%s/step-1", rig->folder);
    snprintf(file, sizeof file, "%s/owner-0", folder);
    assert_int_equal(mkdir(folder, 0700), 0);
    FILE *out = fopen(file, "w");
    assert_int_equal(fwrite("abcdefgh", 1, 8, out), 8);
    fclose(out);
    static const char *const bad[][2] = {{"", "passwd"},     {"/etc", "../passwd"}, {"x/step-1", "../owner-0"},
                                         {"x/..", "passwd"}, {"x/step-1", ""},      {"x/step-1", ".hidden"},
                                         {"x/step-1/", "owner-0"}, {"x/step-2", "owner-0"}, {"x/step-1", "owner-9"}};
    net_self(rig->worker)->role = SHOAL__ROLE__SERVER;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        Shoal__Fetch fetch = SHOAL__FETCH__INIT;
        fetch.folder = (char *)bad[i][0];
        fetch.name = (char *)bad[i][1];
        fetch.bytes = 100;
        int status = answer(rig, &(struct question){.type = SHOAL__TYPE__FETCH, .fetch = &fetch}, &ask);
        if (status != STATUS_INVALID && status != STATUS_IO)
            fail_msg("%s %s: %d", bad[i][0], bad[i][1], status);
    }
    Shoal__Fetch fetch = SHOAL__FETCH__INIT;
    fetch.folder = (char *)"x/step-1";
    fetch.name = (char *)"owner-0";
    fetch.offset = 4;
    fetch.bytes = 100;
    assert_int_equal(answer(rig, &(struct question){.type = SHOAL__TYPE__FETCH, .fetch = &fetch}, &ask), 0);
    assert_int_equal(ask.bytes, 4);
    assert_memory_equal(ask.values, "efgh", 4);
    fetch.bytes = UINT64_MAX;
    assert_int_equal(answer(rig, &(struct question){.type = SHOAL__TYPE__FETCH, .fetch = &fetch}, &ask), STATUS_INVALID);
    fetch.bytes = 1;
    fetch.offset = UINT64_MAX;
    assert_int_equal(answer(rig, &(struct question){.type = SHOAL__TYPE__FETCH, .fetch = &fetch}, &ask), STATUS_IO);
    unlink(file);
    rmdir(folder);
}

#define RIG_TEST(name) cmocka_unit_test_setup_teardown(name, open_rig, close_rig)

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(a_push_that_names_other_keys_is_refused),
        RIG_TEST(a_stranger_is_refused),
        RIG_TEST(a_push_before_the_first_values_waits),
        RIG_TEST(a_push_is_taken_whole_or_not_at_all),
        RIG_TEST(first_values_are_booked_once),
        RIG_TEST(a_repeated_pull_waits_once),
        RIG_TEST(values_given_again_are_booked_apart),
        RIG_TEST(a_repeated_early_push_waits_once),
        RIG_TEST(a_fetch_reads_its_own_snapshots_only),
    };
    return cmocka_run_group_tests_name("server_requests", tests, NULL, NULL);
}
