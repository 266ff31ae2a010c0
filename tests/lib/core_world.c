#include "lib/core_world.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"

static void append(char *to, const char *text, const char *end)
{
    size_t used = strlen(to);
    snprintf(to + used, WORLD_TEXT - used, "%s%s", text, end);
}

/* --- ops -------------------------------------------------------------------------------------------------- */

static void op_reply(void *context, const struct net_return *back, Shoal__Envelope *envelope,
                     struct buf *const *frames, int frames_count)
{
    struct world *world = context;
    if (world->replies_count == world->replies_room) {
        world->replies_room = world->replies_room == 0 ? 64 : 2 * world->replies_room;
        world->replies = realloc(world->replies, (size_t)world->replies_room * sizeof *world->replies);
        assert(world->replies != NULL);
    }
    size_t bytes = shoal__envelope__get_packed_size(envelope);
    uint8_t *packed = malloc(bytes + 1);
    assert(packed != NULL);
    shoal__envelope__pack(envelope, packed);
    struct world_reply *reply = &world->replies[world->replies_count++];
    reply->request = back->request;
    reply->envelope = shoal__envelope__unpack(NULL, bytes, packed);
    reply->frame = frames_count > 0 ? buf_share(frames[0]) : NULL;
    free(packed);
}

static void op_say(void *context, const char *line)
{
    append(((struct world *)context)->said, line, "\n");
}

static void op_log(void *context, enum log_level level, const char *line)
{
    (void)level;
    append(((struct world *)context)->logged, line, "\n");
}

static void op_metrics(void *context, const char *line)
{
    append(((struct world *)context)->metrics, line, "\n");
}

static void op_progress(void *context, const struct coordinator_progress *progress)
{
    (void)context;
    (void)progress;
}

static int op_persist(void *context, const struct durable_state *state, struct errbuf *err)
{
    struct world *world = context;
    (void)state;
    world->persisted++;
    return world->persist_fails ? errbuf_set(err, STATUS_IO, "state: No space left on device") : 0;
}

static int op_job_begins(void *context, const struct coordinator_job *job, struct errbuf *err)
{
    (void)context;
    (void)job;
    (void)err;
    return 0;
}

static int op_restore(void *context, const struct coordinator_job *job, const char *dir, struct manifest *manifest,
                      char **folder, int *found, struct errbuf *err)
{
    struct world *world = context;
    (void)dir;
    snprintf(world->restored, sizeof world->restored, "%s", job->resume_path);
    *found = world->restore != NULL;
    if (world->restore_status != 0)
        return errbuf_set(err, world->restore_status, "snapshot is damaged");
    if (world->restore == NULL)
        return 0;
    char *text = manifest_to_text(world->restore);
    int status = manifest_parse(text, strlen(text), manifest, err);
    for (int i = 0; i < manifest->files_count; i++)
        manifest->files[i].missing = world->restore->files[i].missing;
    free(text);
    *folder = strdup("/snap/step-00000004");
    return status;
}

static int op_commit(void *context, const struct snapshot_commit *commit, struct errbuf *err)
{
    struct world *world = context;
    if (world->commit_fails)
        return errbuf_set(err, STATUS_IO, "%s/manifest.json: No space left on device", commit->folder);
    world->commits++;
    append(world->committed, commit->folder, commit->manifest->best ? " best " : " ");
    manifest_close(&world->manifest);
    char *text = manifest_to_text(commit->manifest);
    int status = manifest_parse(text, strlen(text), &world->manifest, err);
    free(text);
    return status;
}

static void op_discard(void *context, const char *folder)
{
    struct world *world = context;
    snprintf(world->discarded, sizeof world->discarded, "%s", folder);
}

static int op_trace(void *context, const char *path, const struct trace_track *tracks, size_t count,
                    struct errbuf *err)
{
    (void)context;
    (void)path;
    (void)tracks;
    (void)count;
    (void)err;
    return 0;
}

static void op_ended(void *context, int status, const char *text)
{
    struct world *world = context;
    world->ended++;
    world->end_status = status;
    snprintf(world->end_text, sizeof world->end_text, "%s", text);
}

static uint64_t op_random(void *context)
{
    return 0x1234567800000000 + ++((struct world *)context)->randoms;
}

void world_open(struct world *world, const char *yaml, int once)
{
    static const char base[] = "name: small\nseed: 1\nsteps: 6\nbatch_size: 12\n"
                               "data: {kind: synthetic, samples: 60, features: 20, classes: 3}\n"
                               "model: {kind: linear}\noptimizer: {kind: sgd, lr: 0.1, clip_norm: 4}\n";
    char text[4096];
    struct errbuf err;
    errbuf_init(&err);
    memset(world, 0, sizeof *world);
    world->now_ns = 1000000000;
    snprintf(text, sizeof text, "%s%s", base, yaml);
    struct job_source source = {.text = text, .need = JOB_NEED_TRAINING};
    if (job_load(&world->job, &source, &err) != 0) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    world->ops = (struct coordinator_ops){op_reply,    op_say,      op_log,     op_metrics, op_progress,
                                          op_persist,  op_job_begins, op_restore, op_commit,  op_discard,
                                          op_trace,    op_ended,    op_random,  world};
    struct coordinator_core_options options = {&world->ops, NULL, once, world->now_ns};
    world->core = coordinator_core_create(&options, &err);
    assert(world->core != NULL);
}

void world_close(struct world *world)
{
    coordinator_core_destroy(world->core);
    for (int i = 0; i < world->replies_count; i++) {
        shoal__envelope__free_unpacked(world->replies[i].envelope, NULL);
        buf_release(world->replies[i].frame);
    }
    free(world->replies);
    manifest_close(&world->manifest);
    job_destroy(world->job);
}

int world_submit(struct world *world, const char *directory, int resume)
{
    struct errbuf err;
    errbuf_init(&err);
    struct coordinator_job job = {.job = world->job, .directory = directory, .resume = resume};
    int status = coordinator_core_submit(world->core, world->now_ns, &job, &err);
    if (status != 0)
        snprintf(world->end_text, sizeof world->end_text, "%s", err.text);
    return status;
}

/* --- actors ------------------------------------------------------------------------------------------------ */

void actor_init(struct actor *actor, struct world *world, Shoal__Role role, int wanted)
{
    static const uint64_t lives = 0x9e3779b97f4a7c15;
    memset(actor, 0, sizeof *actor);
    actor->world = world;
    actor->role = role;
    actor->rank = -1;
    actor->wanted = wanted;
    world->requests++;
    actor->incarnation = lives * world->requests;
    actor->pid = 100 + (int64_t)world->requests;
    actor->core_type = role == SHOAL__ROLE__WORKER ? "SkylakeX" : "";
}

void actor_envelope(const struct actor *actor, Shoal__Envelope *envelope, Shoal__Type type)
{
    shoal__envelope__init(envelope);
    envelope->protocol_low = PROTOCOL_LOW;
    envelope->protocol_high = PROTOCOL_HIGH;
    envelope->type = type;
    envelope->role = actor->role;
    envelope->rank = actor->rank;
    envelope->incarnation = actor->incarnation;
    envelope->job = actor->job;
    envelope->cluster_epoch = actor->cluster_epoch;
    envelope->term = actor->term;
}

static struct buf *buf_of(const void *data, size_t bytes)
{
    struct buf *buf = buf_create(bytes);
    assert(buf != NULL);
    if (bytes > 0)
        memcpy(buf->data, data, bytes);
    return buf;
}

uint64_t actor_resend(struct actor *actor, Shoal__Envelope *envelope, uint64_t request, const void *frame,
                      size_t bytes, const void *second, size_t second_bytes)
{
    struct world *world = actor->world;
    struct message message = {.envelope = envelope, .received_ns = world->now_ns};
    struct net_return back = {.request = request};
    envelope->request = request;
    if (frame != NULL)
        message.frames[message.frames_count++] = buf_of(frame, bytes);
    if (second != NULL)
        message.frames[message.frames_count++] = buf_of(second, second_bytes);
    coordinator_core_message(world->core, world->now_ns, &message, &back);
    for (int i = 0; i < message.frames_count; i++)
        buf_release(message.frames[i]);
    return request;
}

uint64_t actor_send(struct actor *actor, Shoal__Envelope *envelope, const void *frame, size_t bytes,
                    const void *second, size_t second_bytes)
{
    struct world *world = actor->world;
    struct world_frames frames = {frame, second, bytes, second_bytes};
    if (world->send != NULL)
        return world->send(world, actor, envelope, &frames);
    return actor_resend(actor, envelope, ++world->requests, frame, bytes, second, second_bytes);
}

const struct world_reply *world_answer(const struct world *world, uint64_t request)
{
    for (int i = world->replies_count - 1; i >= 0; i--)
        if (world->replies[i].request == request)
            return &world->replies[i];
    return NULL;
}

int world_answers(const struct world *world, uint64_t request)
{
    int count = 0;
    for (int i = 0; i < world->replies_count; i++)
        count += world->replies[i].request == request;
    return count;
}

int world_status(const struct world *world, uint64_t request)
{
    const struct world_reply *reply = world_answer(world, request);
    return reply == NULL ? 1 : reply->envelope->status;
}

const char *world_text(const struct world *world, uint64_t request)
{
    const struct world_reply *reply = world_answer(world, request);
    return reply == NULL ? "" : reply->envelope->text;
}

uint64_t actor_join(struct actor *actor)
{
    Shoal__Envelope envelope;
    Shoal__Join join = SHOAL__JOIN__INIT;
    char address[32];
    actor_envelope(actor, &envelope, SHOAL__TYPE__JOIN);
    envelope.body_case = SHOAL__ENVELOPE__BODY_JOIN;
    envelope.join = &join;
    snprintf(address, sizeof address, "tcp://h:%lld", (long long)actor->pid);
    join.address = address;
    join.core_type = (char *)actor->core_type;
    join.host = "h";
    join.pid = actor->pid;
    join.wanted_rank = actor->wanted;
    uint64_t request = actor_send(actor, &envelope, NULL, 0, NULL, 0);
    const struct world_reply *reply = world_answer(actor->world, request);
    if (reply != NULL && reply->envelope->type == SHOAL__TYPE__JOINED) {
        actor->rank = reply->envelope->joined->rank;
        actor->term = reply->envelope->term;
    }
    return request;
}

uint64_t actor_await(struct actor *actor)
{
    Shoal__Envelope envelope;
    actor_envelope(actor, &envelope, SHOAL__TYPE__AWAIT);
    envelope.sequence = actor->sequence;
    return actor_send(actor, &envelope, NULL, 0, NULL, 0);
}

const struct world_reply *actor_event(struct actor *actor)
{
    const struct world_reply *reply = world_answer(actor->world, actor_await(actor));
    if (reply == NULL || reply->envelope->type == SHOAL__TYPE__ACK)
        return NULL;
    actor->sequence = reply->envelope->sequence;
    actor->job = reply->envelope->job;
    actor->cluster_epoch = reply->envelope->cluster_epoch;
    return reply;
}

void world_table(struct param_table *table, int64_t width)
{
    param_table_init(table);
    param_table_add_layer(table);
    param_table_add(table, "head.weight", 2, (int64_t[]){width, 200}, NULL);
}

uint64_t actor_register(struct actor *actor, uint64_t total_steps, int64_t width, int64_t features)
{
    Shoal__Envelope envelope;
    Shoal__Register body = SHOAL__REGISTER__INIT;
    Shoal__ParamTable table = SHOAL__PARAM_TABLE__INIT;
    Shoal__Tensor tensor = SHOAL__TENSOR__INIT;
    Shoal__Tensor *tensors[] = {&tensor};
    Shoal__Peer peer = SHOAL__PEER__INIT;
    char address[32];
    snprintf(address, sizeof address, "tcp://h:%lld", (long long)actor->pid);
    peer.address = address;
    actor_envelope(actor, &envelope, SHOAL__TYPE__REGISTER);
    envelope.body_case = SHOAL__ENVELOPE__BODY_REGISTER_;
    envelope.register_ = &body;
    tensor.name = "head.weight";
    tensor.shape = (int64_t[]){width, 200};
    tensor.n_shape = 2;
    table.tensors = tensors;
    table.n_tensors = 1;
    table.layers = 1;
    body.table = &table;
    body.peer = &peer;
    body.total_steps = total_steps;
    body.train_rows = 60;
    body.prescaled = 1;
    body.n_norm_features = features > 0;
    body.norm_features = &features;
    return actor_send(actor, &envelope, NULL, 0, NULL, 0);
}

uint64_t actor_simple(struct actor *actor, Shoal__Type type, uint64_t clock, int status, const char *text)
{
    Shoal__Envelope envelope;
    actor_envelope(actor, &envelope, type);
    envelope.clock = clock;
    envelope.status = status;
    envelope.text = (char *)text;
    return actor_send(actor, &envelope, NULL, 0, NULL, 0);
}

uint64_t actor_report_digest(struct actor *actor, uint64_t step, double loss_sum, const char *digest)
{
    Shoal__Envelope envelope;
    Shoal__Report body = SHOAL__REPORT__INIT;
    actor_envelope(actor, &envelope, SHOAL__TYPE__REPORT);
    envelope.clock = step;
    envelope.body_case = SHOAL__ENVELOPE__BODY_REPORT;
    envelope.report = &body;
    body.loss_sum = loss_sum;
    body.counted = body.samples = 4;
    body.micro_batches = 1;
    body.digest.data = (uint8_t *)digest;
    body.digest.len = strlen(digest);
    return actor_send(actor, &envelope, NULL, 0, NULL, 0);
}

uint64_t actor_report(struct actor *actor, uint64_t step, double loss_sum, int64_t counted)
{
    Shoal__Envelope envelope;
    Shoal__Report body = SHOAL__REPORT__INIT;
    actor_envelope(actor, &envelope, SHOAL__TYPE__REPORT);
    envelope.clock = step;
    envelope.body_case = SHOAL__ENVELOPE__BODY_REPORT;
    envelope.report = &body;
    body.loss_sum = loss_sum;
    body.counted = body.samples = counted;
    body.micro_batches = 1;
    return actor_send(actor, &envelope, NULL, 0, NULL, 0);
}

void actor_fill_vote(Shoal__Report *report, Shoal__Verdict *verdict, const struct actor_vote *vote)
{
    shoal__verdict__init(verdict);
    verdict->decision = vote->decision;
    verdict->grad_scale = vote->grad_scale;
    verdict->lr = vote->lr;
    verdict->next_lr = vote->next_lr;
    verdict->loss = vote->loss;
    verdict->t = vote->t;
    verdict->evaluate = vote->evaluate;
    verdict->last = vote->last;
    verdict->stopped = vote->stopped;
    report->verdict = verdict;
    report->grad_norm = vote->grad_norm;
    report->nonfinite_run = vote->nonfinite_run;
}

uint64_t actor_ring_report(struct actor *actor, uint64_t step, const struct actor_vote *vote)
{
    Shoal__Envelope envelope;
    Shoal__Report body = SHOAL__REPORT__INIT;
    Shoal__Verdict verdict;
    actor_envelope(actor, &envelope, SHOAL__TYPE__REPORT);
    envelope.clock = step;
    envelope.body_case = SHOAL__ENVELOPE__BODY_REPORT;
    envelope.report = &body;
    body.loss_sum = 4 * vote->loss;
    body.counted = body.samples = 4;
    actor_fill_vote(&body, &verdict, vote);
    return actor_send(actor, &envelope, NULL, 0, NULL, 0);
}

uint64_t actor_evaluated(struct actor *actor, uint64_t step, const char *set, const double *rows, int blocks)
{
    Shoal__Envelope envelope;
    Shoal__Evaluated body = SHOAL__EVALUATED__INIT;
    actor_envelope(actor, &envelope, SHOAL__TYPE__EVALUATED);
    envelope.clock = step;
    envelope.body_case = SHOAL__ENVELOPE__BODY_EVALUATED;
    envelope.evaluated = &body;
    body.set = (char *)set;
    body.blocks = (uint64_t)blocks;
    return actor_send(actor, &envelope, rows, (size_t)blocks * 4 * sizeof *rows, NULL, 0);
}

uint64_t actor_snapshot_done(struct actor *actor, uint64_t step, int status, const char *text)
{
    Shoal__Envelope envelope;
    Shoal__Snapshot body = SHOAL__SNAPSHOT__INIT;
    Shoal__SnapshotFile file = SHOAL__SNAPSHOT_FILE__INIT;
    char name[32];
    actor_envelope(actor, &envelope, SHOAL__TYPE__SNAPSHOT_DONE);
    envelope.clock = step;
    envelope.status = status;
    envelope.text = (char *)text;
    envelope.body_case = SHOAL__ENVELOPE__BODY_SNAPSHOT;
    envelope.snapshot = &body;
    body.step = step;
    int serves = actor->role == SHOAL__ROLE__SERVER;
    snprintf(name, sizeof name, serves ? "server-%d.shard" : "worker-%d.shard", actor->rank);
    file.owner = (uint32_t)actor->rank;
    file.name = name;
    file.sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    file.bytes = 10;
    body.file = status == 0 ? &file : NULL;
    return actor_send(actor, &envelope, NULL, 0, NULL, 0);
}

uint64_t actor_summary(struct actor *actor, const char *export_sha256)
{
    Shoal__Envelope envelope;
    Shoal__Summary body = SHOAL__SUMMARY__INIT;
    Shoal__Bytes parameters = SHOAL__BYTES__INIT, push = SHOAL__BYTES__INIT;
    Shoal__Bytes *state[] = {&parameters}, *sent[] = {&push};
    actor_envelope(actor, &envelope, SHOAL__TYPE__SUMMARY);
    envelope.body_case = SHOAL__ENVELOPE__BODY_SUMMARY;
    envelope.summary = &body;
    parameters.name = "parameters";
    parameters.bytes = parameters.formula = 1234567;
    push.name = "push";
    push.bytes = 4000;
    push.formula = 4000 - actor->unbooked;
    body.state = state;
    body.n_state = 1;
    body.sent = sent;
    body.n_sent = 1;
    body.export_sha256 = (char *)export_sha256;
    body.compute_s = 3;
    body.wait_s = 1;
    return actor_send(actor, &envelope, NULL, 0, NULL, 0);
}

uint64_t actor_gather(struct actor *actor, uint64_t step, uint32_t sequence, int merge, const double *values,
                      int count)
{
    Shoal__Envelope envelope;
    Shoal__Gather body = SHOAL__GATHER__INIT;
    actor_envelope(actor, &envelope, SHOAL__TYPE__GATHER);
    envelope.clock = step;
    envelope.body_case = SHOAL__ENVELOPE__BODY_GATHER;
    envelope.gather = &body;
    body.sequence = sequence;
    body.merge = merge;
    return actor_send(actor, &envelope, values, (size_t)count * sizeof *values, NULL, 0);
}

uint64_t actor_prepared(struct actor *actor, uint64_t step, const struct keymap_range *range, double squares,
                        int finite)
{
    Shoal__Envelope envelope;
    Shoal__Prepared body = SHOAL__PREPARED__INIT;
    double all[1024];
    uint8_t flags[1024];
    assert(range->runs <= 1024);
    for (int i = 0; i < range->runs; i++) {
        all[i] = squares;
        flags[i] = (uint8_t)finite;
    }
    actor_envelope(actor, &envelope, SHOAL__TYPE__PREPARED);
    envelope.clock = step;
    envelope.body_case = SHOAL__ENVELOPE__BODY_PREPARED;
    envelope.prepared = &body;
    uint64_t run_first = (uint64_t)range->run_first, runs = (uint64_t)range->runs;
    body.n_runs_first = body.n_runs = 1;
    body.runs_first = &run_first;
    body.runs = &runs;
    body.weight = 12;
    return actor_send(actor, &envelope, all, (size_t)range->runs * sizeof *all, flags, (size_t)range->runs);
}
