#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/host.h"
#include "base/status.h"
#include "base/trace.h"
#include "net/summary_wire.h"
#include "net/table_wire.h"
#include "owner/aggregator.h"
#include "server/consistency/controller.h"
#include "server/server_internal.h"
#include "server/store/restore.h"
#include "server/store/save.h"

enum { TRACE_EVENTS = 1 << 17 };

void server_fail(struct server *server, int status, const char *text)
{
    log_error(&server->log, "failed status=%d reason=\"%s\"", status, text);
    if (server->status == 0) {
        server->status = status;
        errbuf_set(&server->why, status, "%s", text);
    }
    server->leaving = 1;
}

/* --- a job comes -------------------------------------------------------------------------------------- */

void server_snapshot_path(const struct server *server, const char *folder, const char *name, char *path, size_t bytes)
{
    const char *state = server->options->state_dir;
    if (state && state[0]) {
        const char *base = strrchr(folder, '/');
        snprintf(path, bytes, "%s/%s%s%s", state, base ? base + 1 : folder, name ? "/" : "", name ? name : "");
    } else {
        snprintf(path, bytes, "%s%s%s", folder, name ? "/" : "", name ? name : "");
    }
}

void server_job_begin(struct server *server, const Shoal__JobBegin *begin)
{
    struct server_job *job = calloc(1, sizeof(*job));
    struct errbuf err;
    errbuf_init(&err);
    struct job_source source = {.text = begin->yaml, .text_name = "job"};
    if (!job || job_load(&job->job, &source, &err) != 0) {
        server_fail(server, STATUS_INVALID, err.text);
        free(job);
        return;
    }
    param_table_init(&job->table);
    job->early_tail = &job->early;
    job->trace = begin->trace ? trace_create(TRACE_EVENTS) : NULL;
    member_set_dead_after(server->member, job->job->cluster.timeouts.coordinator_dead);
    atomic_store(&server->host->stop_grace_ms, role_stop_grace_ms(job->job->cluster.stop_timeout));
    server->current = job;
    account_forget_peaks(&server->account);
}

static void on_complete(void *context, uint64_t clock);
static void on_finished(void *context, uint64_t clock);
static void on_trust(void *context, uint64_t clock);

static int make_shard(struct server *server, const Shoal__Start *start, struct errbuf *err)
{
    struct server_job *job = server->current;
    const struct job *j = job->job;
    struct shard_options options = {
        .map = &job->map,
        .server = server->rank,
        .hold_values = j->parallel.update_at == JOB_UPDATE_AT_SERVER,
        .eager = j->parallel.update == JOB_UPDATE_EAGER,
        .prescaled = start->prescaled,
        .mean = j->parallel.aggregate == JOB_MEAN,
        .pool = server->pool,
        .account = &server->account,
        .trace = job->trace,
        .loop = &server->loop,
        .ops = {push_added, on_complete, on_trust, pull_applied, on_finished, server},
    };
    int status = optimizer_of_job(j, &options.optimizer, &options.params, &job->optimizer_handle, err);
    if (status == 0) {
        status = aggregator_of_job(j, &options.aggregator, &options.aggregator_params, &job->aggregator_handle, err);
    }
    if (status == 0 && options.eager && options.optimizer->prepare) {
        status = errbuf_set(err, STATUS_INVALID, "optimizer %s needs norms before its update: no update: eager",
                            options.optimizer->name);
    }
    return status == 0 ? shard_create(&job->shard, &options, err) : status;
}

static int take_start(struct server *server, const Shoal__Start *start, struct errbuf *err)
{
    struct server_job *job = server->current;
    int status = table_wire_unpack(&job->table, start->table, err);
    int workers = (int)start->n_worker_incarnations;
    if (status == 0) {
        struct keymap_layout layout = {.ranks = workers, .servers = (int)start->n_servers,
                                       .message_bytes = job->job->parallel.message_bytes,
                                       .placement = job->job->parallel.placement};
        status = keymap_init(&job->map, &job->table, &layout, err);
    }
    if (status != 0) {
        return status;
    }
    job->controller = controller_at(job->job->parallel.consistency);
    job->incarnations = calloc((size_t)workers + 1, sizeof(uint64_t));
    job->waiting = calloc((size_t)job->map.ranges_count + 1, sizeof(*job->waiting));
    job->pulled = calloc((size_t)workers * (size_t)job->map.ranges_count + 1, sizeof(uint64_t));
    if (!job->incarnations || !job->waiting || !job->pulled) {
        return errbuf_set(err, STATUS_NOMEM, "server: out of memory");
    }
    memcpy(job->incarnations, start->worker_incarnations, (size_t)workers * sizeof(uint64_t));
    job->first_step = start->first_step;
    job->next = (struct optimizer_step){.lr = start->next_lr, .t = (int64_t)start->applied + 1, .grad_scale = 1,
                                        .trust_ratio = 1};
    return make_shard(server, start, err);
}

static void on_ready_acked(void *context, int status, struct message *reply)
{
    (void)context;
    (void)status;
    (void)reply;
}

static void ready(void *context, int status, const char *text)
{
    struct server *server = context;
    if (status != 0) {
        server_fail(server, status, text);
        return;
    }
    shard_next_step(server->current->shard, &server->current->next);
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    envelope.type = SHOAL__TYPE__READY;
    member_request(server->member, &envelope, NULL, 0, on_ready_acked, server);
}

void server_job_start(struct server *server, struct message *event)
{
    struct errbuf err;
    errbuf_init(&err);
    const Shoal__Start *start = event->envelope->start;
    int status = server->current ? take_start(server, start, &err) : errbuf_set(&err, STATUS_PROTOCOL, "START before JOB");
    if (status != 0) {
        server_fail(server, status, err.text);
        return;
    }
    log_info(&server->log, "shard keys=%lld elements=%lld first_step=%llu", (long long)server->current->map.keys_count,
             (long long)keymap_server_elements(&server->current->map, server->rank), (unsigned long long)start->first_step);
    if (start->snapshot_step == 0) {
        ready(server, 0, NULL);
        return;
    }
    restore_start(server, start, ready, server);
}

/* --- steps -------------------------------------------------------------------------------------------- */

/* STATUS_ABORTED, STATUS_STOPPED: the job is over; its END is on the way or was here, and the next one is not harmed. */
static void on_prepared_acked(void *context, int status, struct message *reply)
{
    struct server *server = context;
    if (status != 0 && status != STATUS_CLOSED && status != STATUS_ABORTED && status != STATUS_STOPPED) {
        server_fail(server, status, reply && reply->envelope->text ? reply->envelope->text : status_text(status));
    }
}

/* The runs of this server's ranges, in order, neighbours put together. firsts, counts: room for every range. */
static void fill_spans(const struct server *server, Shoal__Prepared *prepared, uint64_t *firsts, uint64_t *counts)
{
    const struct keymap *map = &server->current->map;
    size_t n = 0;
    for (int r = 0; r < map->ranges_count; r++) {
        const struct keymap_range *range = &map->ranges[r];
        if (range->server != server->rank || range->frozen) {
            continue;
        }
        if (n > 0 && firsts[n - 1] + counts[n - 1] == (uint64_t)range->run_first) {
            counts[n - 1] += (uint64_t)range->runs;
        } else {
            firsts[n] = (uint64_t)range->run_first;
            counts[n++] = (uint64_t)range->runs;
        }
    }
    prepared->n_runs_first = n;
    prepared->runs_first = firsts;
    prepared->n_runs = n;
    prepared->runs = counts;
}

static void on_complete(void *context, uint64_t clock)
{
    struct server *server = context;
    struct server_job *job = server->current;
    uint64_t *firsts = calloc((size_t)job->map.ranges_count + 1, sizeof(*firsts));
    uint64_t *counts = calloc((size_t)job->map.ranges_count + 1, sizeof(*counts));
    const double *squares = NULL;
    const uint8_t *finite = NULL;
    int64_t runs = shard_runs(job->shard);
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    Shoal__Prepared prepared = SHOAL__PREPARED__INIT;
    shard_norms(job->shard, &squares, &finite, &prepared.weight);
    struct buf *frames[2] = {buf_create((size_t)runs * sizeof(double)), buf_create((size_t)runs)};
    if (!frames[0] || !frames[1] || !firsts || !counts) {
        server_fail(server, STATUS_NOMEM, "out of memory for norms");
    } else {
        memcpy(frames[0]->data, squares, (size_t)runs * sizeof(double));
        memcpy(frames[1]->data, finite, (size_t)runs);
        fill_spans(server, &prepared, firsts, counts);
        prepared.applied = job->job->parallel.update == JOB_UPDATE_EAGER;
        envelope.type = SHOAL__TYPE__PREPARED;
        envelope.clock = clock;
        envelope.body_case = SHOAL__ENVELOPE__BODY_PREPARED;
        envelope.prepared = &prepared;
        member_request(server->member, &envelope, frames, 2, on_prepared_acked, server);
    }
    buf_release(frames[0]);
    buf_release(frames[1]);
    free(firsts);
    free(counts);
}

static void on_trust(void *context, uint64_t clock)
{
    struct server *server = context;
    struct server_job *job = server->current;
    uint64_t *firsts = calloc((size_t)job->map.ranges_count + 1, sizeof(*firsts));
    uint64_t *counts = calloc((size_t)job->map.ranges_count + 1, sizeof(*counts));
    struct buf *frame = buf_create(2 * (size_t)shard_runs(job->shard) * sizeof(double));
    if (!firsts || !counts || !frame) {
        server_fail(server, STATUS_NOMEM, "out of memory for norms");
    } else {
        Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
        Shoal__Prepared body = SHOAL__PREPARED__INIT;
        memcpy(frame->data, shard_trust_norms(job->shard), frame->bytes);
        fill_spans(server, &body, firsts, counts);
        envelope.type = SHOAL__TYPE__TRUST;
        envelope.clock = clock;
        envelope.dtype = SHOAL__DTYPE__F64;
        envelope.body_case = SHOAL__ENVELOPE__BODY_PREPARED;
        envelope.prepared = &body;
        member_request(server->member, &envelope, &frame, 1, on_prepared_acked, server);
    }
    buf_release(frame);
    free(firsts);
    free(counts);
}

void server_job_ratios(struct server *server, const struct message *event)
{
    struct server_job *job = server->current;
    size_t bytes = (size_t)job->table.tensor_count * sizeof(double);
    int fits = event->frames_count == 1 && event->frames[0]->bytes == bytes;
    if (!fits || shard_trust_ratios(job->shard, event->envelope->clock, event->frames[0]->data) != 0) {
        server_fail(server, STATUS_SHAPE, "trust ratios that do not fit the model or the step");
    }
}

static void on_finished(void *context, uint64_t clock)
{
    struct server *server = context;
    struct server_job *job = server->current;
    (void)clock;
    job->steps_done++;
    save_if_due(server);
    pushes_resume(server);
}

static void give_verdict(struct server *server, const Shoal__Verdict *verdict, uint64_t clock)
{
    struct server_job *job = server->current;
    struct optimizer_step step = {.lr = verdict->lr, .t = (int64_t)verdict->t, .grad_scale = verdict->grad_scale,
                                  .trust_ratio = 1};
    static const enum shard_decision decisions[] = {SHARD_ABORT, SHARD_APPLY, SHARD_SKIP, SHARD_ABORT};
    unsigned decision = (unsigned)verdict->decision < 4 ? (unsigned)verdict->decision : 3;
    job->next = (struct optimizer_step){.lr = verdict->next_lr,
                                        .t = (int64_t)verdict->t + (verdict->decision == SHOAL__DECISION__APPLY),
                                        .grad_scale = 1, .trust_ratio = 1};
    shard_next_step(job->shard, &job->next);
    int status = shard_verdict(job->shard, clock, decisions[decision], &step);
    if (status != 0) {
        server_fail(server, status, "a verdict that does not fit the shard's clock");
    }
}

void server_job_verdict(struct server *server, const Shoal__Verdict *verdict, uint64_t clock)
{
    struct server_job *job = server->current;
    if (verdict->snapshot && job->job->parallel.update == JOB_UPDATE_EAGER &&
        keymap_server_trainable(&job->map, server->rank) > 0) {
        /* The coming step's updates begin only when the snapshot is written. Without any the step ends by the verdict. */
        job->held_verdict = *verdict;
        job->held_clock = clock;
        job->verdict_waits_for_save = 1;
        return;
    }
    give_verdict(server, verdict, clock);
}

void server_job_release_verdict(struct server *server)
{
    struct server_job *job = server->current;
    if (job->verdict_waits_for_save) {
        job->verdict_waits_for_save = 0;
        give_verdict(server, &job->held_verdict, job->held_clock);
    }
}

/* --- the end ------------------------------------------------------------------------------------------ */

static void on_summary_acked(void *context, int status, struct message *reply)
{
    (void)context;
    (void)status;
    (void)reply;
}

static int64_t held(const struct server *server, enum account_kind kind)
{
    return server->account.bytes[kind];
}

void server_job_summary(struct server *server)
{
    struct server_job *job = server->current;
    int64_t all = keymap_server_elements(&job->map, server->rank) * 4;
    int64_t trained = keymap_server_trainable(&job->map, server->rank) * 4;
    int64_t steps = (int64_t)job->steps_done;
    int values = job->job->parallel.update_at == JOB_UPDATE_AT_SERVER;
    struct optimizer_params params;
    const struct optimizer_ops *ops = NULL;
    void *handle = NULL;
    int slots = 0;
    if (values && optimizer_of_job(job->job, &ops, &params, &handle, NULL) == 0) {
        slots = ops->slots(&params);
        optimizer_unload(handle);
    }
    int64_t ranks = job->map.ranks;
    struct summary_wire summary;
    summary_wire_init(&summary);
    summary_wire_add(&summary, SUMMARY_STATE, "parameters", held(server, ACCOUNT_PARAMETERS), values ? all : all - trained);
    summary_wire_add(&summary, SUMMARY_STATE, "gradients", held(server, ACCOUNT_GRADIENTS), trained);
    summary_wire_add(&summary, SUMMARY_STATE, "optimizer", held(server, ACCOUNT_OPTIMIZER), slots * trained);
    int clients = job->job->data.kind == JOB_DATA_NONE; /* they pull what they like, and may leave before a step */
    int64_t first = job->first_step == 1 ? all : 0;
    summary_wire_add(&summary, SUMMARY_SENT, "pull", job->pulled_bytes,
                     clients ? -1 : ranks * (steps * trained + (values ? all : first)));
    summary_wire_add(&summary, SUMMARY_SENT, "pull again", job->again_bytes, -1);
    summary_wire_add(&summary, SUMMARY_RECEIVED, "push", job->pushed_bytes, ranks * steps * trained);
    summary_wire_add(&summary, SUMMARY_RECEIVED, "init", job->init_bytes, clients && steps == 0 ? -1 : first);
    Shoal__Summary *message = &summary.message;
    message->buffer_bytes = server->account.peak[ACCOUNT_BUFFERS];
    message->peak_rss_bytes = host_peak_rss_bytes();
    message->export_sha256 = (char *)"";
    message->clock_offset_ns = member_clock_offset_ns(server->member);
    struct buf *frame = summary_wire_trace(job->trace);
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    envelope.type = SHOAL__TYPE__SUMMARY;
    envelope.body_case = SHOAL__ENVELOPE__BODY_SUMMARY;
    envelope.summary = message;
    member_request(server->member, &envelope, &frame, frame ? 1 : 0, on_summary_acked, server);
    buf_release(frame);
}

void server_job_end(struct server *server)
{
    struct server_job *job = server->current;
    if (!job) {
        return;
    }
    if (job->shard) {
        save_wait(server);
        restore_cancel(server);
        pulls_drop(server, STATUS_ABORTED);
        shard_destroy(job->shard);
    }
    pushes_drop(job);
    keymap_close(&job->map);
    param_table_close(&job->table);
    optimizer_unload(job->optimizer_handle);
    aggregator_unload(job->aggregator_handle);
    trace_destroy(job->trace);
    job_destroy(job->job);
    free(job->incarnations);
    free(job->pulled);
    free(job->waiting);
    free(job->saved);
    free(job);
    server->current = NULL;
}
