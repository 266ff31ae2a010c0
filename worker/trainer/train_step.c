#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/account.h"
#include "base/clock.h"
#include "base/errbuf.h"
#include "base/role.h"
#include "base/sha256.h"
#include "base/status.h"
#include "base/trace.h"
#include "files/fs.h"
#include "worker/trainer/trainer_internal.h"

static const int64_t WAIT_SHOWN_NS = 20000; /* shorter waits would only fill the trace */

static int acquire(struct trainer *trainer, int layer, enum strategy_pass pass, struct train_sums *sums,
                   struct errbuf *err)
{
    int64_t begin = clock_now_ns();
    int status = trainer->strategy.ops->layer_acquire(&trainer->strategy, layer, pass, err);
    int64_t end = clock_now_ns();
    sums->wait_s += (double)(end - begin) / 1e9;
    if (end - begin > WAIT_SHOWN_NS) {
        trace_add(trainer->trace, TRACE_WAIT, 0, "wait", trainer->step, layer, begin, end);
    }
    return status;
}

static double loss_scale(const struct trainer *trainer, int64_t global, int64_t share)
{
    switch (trainer->job->parallel.aggregate) {
    case JOB_MEAN:
        return global > 0 ? 1.0 / (double)global : 0;
    case JOB_SUM:
        return 1;
    default: /* the robust ones compare the shares' means */
        return share > 0 ? 1.0 / (double)share : 0;
    }
}

static int forward(struct trainer *trainer, const struct model_batch *batch, struct train_sums *sums, struct errbuf *err)
{
    int status = 0;
    for (int layer = 0; layer < model_layers(trainer->model) && status == 0; layer++) {
        status = acquire(trainer, layer, STRATEGY_FORWARD, sums, err);
        if (status != 0) {
            break;
        }
        if (sums->hash) {
            sha256_update(sums->hash, strategy_layer_w(&trainer->strategy, layer),
                          (size_t)trainer->table.layers[layer].count * sizeof(float));
        }
        int64_t begin = clock_now_ns();
        status = model_forward(trainer->model, layer, strategy_layer_w(&trainer->strategy, layer), batch,
                               trainer->job->parallel.batch_norm_stats == JOB_BN_GLOBAL ? &trainer->reducer.reducer : NULL,
                               err);
        trace_add(trainer->trace, TRACE_COMPUTE, 0, "forward", trainer->step, layer, begin, clock_now_ns());
        trainer->strategy.ops->layer_release(&trainer->strategy, layer, STRATEGY_FORWARD);
    }
    return status;
}

static int backward(struct trainer *trainer, const struct model_batch *batch, double weight, struct train_sums *sums,
                    struct errbuf *err)
{
    struct strategy *strategy = &trainer->strategy;
    int last = batch->micro == trainer->job->accumulate - 1;
    int status = 0;
    for (int layer = model_layers(trainer->model) - 1; layer >= 0 && status == 0; layer--) {
        status = acquire(trainer, layer, STRATEGY_BACKWARD, sums, err);
        if (status != 0) {
            break;
        }
        int64_t begin = clock_now_ns();
        status = model_backward(trainer->model, layer, strategy_layer_w(strategy, layer), strategy->g[layer],
                                batch->micro > 0, batch,
                                trainer->job->parallel.batch_norm_stats == JOB_BN_GLOBAL ? &trainer->reducer.reducer
                                                                                         : NULL,
                                err);
        trace_add(trainer->trace, TRACE_COMPUTE, 0, "backward", trainer->step, layer, begin, clock_now_ns());
        if (status == 0 && last) {
            status = strategy->ops->grads_ready(strategy, layer, weight);
        }
        strategy->ops->layer_release(strategy, layer, STRATEGY_BACKWARD);
    }
    return status;
}

/* When a digest is due, the first forward pass of a step takes it: all parameters come by there, a layer at a time. */
static int digest_begin(const struct trainer *trainer, struct train_sums *sums, struct errbuf *err)
{
    int64_t every = trainer->job->parallel.digest_every;
    if (every > 0 && (trainer->step == trainer->first_step || trainer->step % every == 0)) {
        sums->hash = sha256_create();
        return sums->hash ? 0 : errbuf_set(err, STATUS_NOMEM, "digest: out of memory");
    }
    return 0;
}

static void digest_end(struct train_sums *sums)
{
    if (sums->hash) {
        sums->has_digest = sha256_finish_raw(sums->hash, sums->digest) == 0;
        sha256_destroy(sums->hash);
        sums->hash = NULL;
    }
}

static int micro_step(struct trainer *trainer, int micro, double scale, double weight, struct train_sums *sums,
                      struct errbuf *err)
{
    struct model_batch batch = {.x = trainer->x, .labels = trainer->labels, .targets = trainer->targets,
                                .step = trainer->step, .loss_scale = scale, .micro = micro, .training = 1};
    int accumulate = (int)trainer->job->accumulate;
    batch.rows = sampler_share(trainer->sampler, trainer->step, trainer->rank, trainer->world, micro, accumulate,
                               trainer->indices, &batch.first_row);
    dataset_read(trainer->data.train, trainer->indices, batch.rows, trainer->x, trainer->labels, trainer->targets);
    int status = micro == 0 ? digest_begin(trainer, sums, err) : 0;
    if (status == 0) {
        status = forward(trainer, &batch, sums, err);
    }
    digest_end(sums);
    if (status != 0) {
        return status;
    }
    double loss = 0;
    int64_t counted = 0;
    int64_t correct = 0;
    model_loss(trainer->model, &batch, &loss, &counted, &correct);
    sums->loss_sum += loss;
    sums->counted += counted;
    sums->correct += correct;
    sums->samples += batch.rows;
    status = backward(trainer, &batch, weight, sums, err);
    if (trainer->stats_count > 0) {
        model_stats_collect(trainer->model, trainer->stats + micro * trainer->stats_count);
    }
    return status;
}

int train_step_compute(struct trainer *trainer, int64_t step, struct train_sums *sums, struct errbuf *err)
{
    struct strategy *strategy = &trainer->strategy;
    int accumulate = (int)trainer->job->accumulate;
    int64_t first = 0;
    memset(sums, 0, sizeof(*sums));
    trainer->step = step;
    trainer->reducer.step = (uint64_t)step;
    trainer->reducer.sequence = 0;
    int64_t begin = clock_now_ns();
    int64_t share = 0;
    for (int micro = 0; micro < accumulate; micro++) {
        share += sampler_share(trainer->sampler, step, trainer->rank, trainer->world, micro, accumulate, NULL, &first);
    }
    double scale = loss_scale(trainer, sampler_batch(trainer->sampler, step), share);
    int status = strategy->ops->step_begin(strategy, step);
    for (int micro = 0; micro < accumulate && status == 0; micro++) {
        status = micro_step(trainer, micro, scale, (double)share, sums, err);
    }
    if (status == 0) {
        status = strategy->ops->step_sent(strategy, err);
    }
    sums->compute_s = (double)(clock_now_ns() - begin) / 1e9 - sums->wait_s;
    return status;
}

int train_step_decide(struct trainer *trainer, const struct ballot_share *mine, struct train_sums *sums,
                      struct strategy_decision *decision, struct errbuf *err)
{
    int64_t begin = clock_now_ns();
    int status = trainer->strategy.ops->decide(&trainer->strategy, mine, trainer->stats, decision, err);
    sums->wait_s += (double)(clock_now_ns() - begin) / 1e9;
    trace_add(trainer->trace, TRACE_WAIT, 0, "verdict", trainer->step, -1, begin, clock_now_ns());
    return status;
}

static void fill_report(const struct trainer *trainer, const struct train_sums *sums, Shoal__Report *report)
{
    report->loss_sum = sums->loss_sum;
    report->counted = sums->counted;
    report->correct = sums->correct;
    report->samples = sums->samples;
    report->compute_s = sums->compute_s;
    report->wait_s = sums->wait_s;
    report->micro_batches = (uint32_t)trainer->job->accumulate;
    report->digest.data = (uint8_t *)sums->digest;
    report->digest.len = sums->has_digest ? DIGEST_BYTES : 0;
}

int train_step_report(struct trainer *trainer, const struct train_sums *sums, struct strategy_decision *decision,
                      struct errbuf *err)
{
    Shoal__Report report = SHOAL__REPORT__INIT;
    fill_report(trainer, sums, &report);
    if (decision) {
        report.verdict = &decision->verdict;
        report.grad_norm = decision->grad_norm;
        report.nonfinite_run = decision->nonfinite_run;
        report.nonfinite_rank = (uint32_t)(decision->nonfinite_rank + 1);
    }
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    envelope.type = SHOAL__TYPE__REPORT;
    envelope.clock = (uint64_t)trainer->step;
    envelope.dtype = trainer->stats_count ? SHOAL__DTYPE__F64 : SHOAL__DTYPE__DTYPE_NONE;
    envelope.body_case = SHOAL__ENVELOPE__BODY_REPORT;
    envelope.report = &report;
    size_t bytes = (size_t)(trainer->stats_count * trainer->job->accumulate) * sizeof(double);
    struct buf *frame = bytes ? buf_create(bytes) : NULL;
    if (bytes && !frame) {
        return errbuf_set(err, STATUS_NOMEM, "out of memory for a report");
    }
    if (frame) {
        memcpy(frame->data, trainer->stats, bytes);
    }
    int status = decision ? client_post(trainer->client, &envelope, frame, err)
                          : client_call(trainer->client, &envelope, &frame, frame ? 1 : 0, NULL, err);
    buf_release(frame);
    return status;
}

/* SNAPSHOT reaches a worker only where workers own state. */
static int serve_snapshot(struct trainer *trainer, const Shoal__Snapshot *snapshot, struct errbuf *err)
{
    char path[4096];
    char sha256[65] = "";
    struct errbuf why;
    errbuf_init(&why);
    Shoal__SnapshotFile file = SHOAL__SNAPSHOT_FILE__INIT;
    char name[40];
    snprintf(name, sizeof(name), "worker-%d.safetensors", trainer->rank);
    file.name = name;
    file.owner = (uint32_t)trainer->rank;
    file.sha256 = sha256;
    file.holder = (char *)"";
    snprintf(path, sizeof(path), "%s/%s", snapshot->folder, file.name);
    int status = fs_make_folders(snapshot->folder, &why); /* whichever owner comes first */
    if (status == 0) {
        status = trainer->strategy.ops->save(&trainer->strategy, path, sha256, &file.bytes, &why);
    }
    Shoal__Snapshot body = SHOAL__SNAPSHOT__INIT;
    body.step = snapshot->step;
    body.folder = snapshot->folder;
    body.file = &file;
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    envelope.type = SHOAL__TYPE__SNAPSHOT_DONE;
    envelope.clock = snapshot->step;
    envelope.status = status;
    envelope.text = why.text;
    envelope.body_case = SHOAL__ENVELOPE__BODY_SNAPSHOT;
    envelope.snapshot = &body;
    return client_call(trainer->client, &envelope, NULL, 0, NULL, err);
}

void trainer_look_for_stop(struct trainer *trainer)
{
    if (trainer->options->host->stop && !trainer->stop_asked) {
        trainer->stop_asked = 1;
        client_ask_stop(trainer->client);
    }
}

int trainer_wait_event(struct trainer *trainer, Shoal__Type type, struct message *event, struct errbuf *err)
{
    for (;;) {
        trainer_look_for_stop(trainer);
        int status = client_next_event(trainer->client, 0, event, err);
        if (status != 0) {
            return status;
        }
        const Shoal__Envelope *e = event->envelope;
        if (e->type == SHOAL__TYPE__SNAPSHOT) {
            status = serve_snapshot(trainer, e->snapshot, err);
            if (type == SHOAL__TYPE__SNAPSHOT) {
                return status; /* the caller closes it */
            }
        } else if (e->type == SHOAL__TYPE__END && e->status != 0) {
            status = errbuf_set(err, client_end_status(e->status), "%s", e->text);
        } else if (e->type == type) {
            return 0;
        } else if (e->type == SHOAL__TYPE__END) {
            status = errbuf_set(err, STATUS_PROTOCOL, "the job ended before step %lld was through",
                                (long long)trainer->step);
        }
        message_close(event);
        if (status != 0) {
            return status;
        }
    }
}

int trainer_wait_snapshot(struct trainer *trainer, uint64_t step, struct errbuf *err)
{
    int64_t begin = clock_now_ns();
    for (;;) {
        struct message event = {0};
        int status = trainer_wait_event(trainer, SHOAL__TYPE__SNAPSHOT, &event, err);
        int this_one = status == 0 && event.envelope->snapshot->step == step;
        message_close(&event);
        if (status != 0 || this_one) {
            trace_add(trainer->trace, TRACE_WAIT, 0, "snapshot", trainer->step, -1, begin, clock_now_ns());
            return status;
        }
    }
}

int train_step_verdict(struct trainer *trainer, struct message *verdict, struct errbuf *err)
{
    int64_t begin = clock_now_ns();
    for (;;) {
        int status = trainer_wait_event(trainer, SHOAL__TYPE__VERDICT, verdict, err);
        if (status != 0 || verdict->envelope->clock == (uint64_t)trainer->step) {
            trainer->wait_s += (double)(clock_now_ns() - begin) / 1e9;
            trace_add(trainer->trace, TRACE_WAIT, 0, "verdict", trainer->step, -1, begin, clock_now_ns());
            return status;
        }
        message_close(verdict);
    }
}

int train_step_statistics(struct trainer *trainer, const struct message *event, uint64_t applied, struct errbuf *err)
{
    struct model_buffers *buffers = model_buffers(trainer->model);
    if (buffers->count == 0) {
        return 0;
    }
    if (event->frames_count != 1 || event->frames[0]->bytes != (size_t)buffers->count * sizeof(float)) {
        return errbuf_set(err, STATUS_SHAPE, "running statistics: %lld floats expected, %zu bytes came",
                          (long long)buffers->count, event->frames_count ? event->frames[0]->bytes : (size_t)0);
    }
    memcpy(buffers->values, event->frames[0]->data, event->frames[0]->bytes);
    buffers->num_batches_tracked = (int64_t)applied;
    return 0;
}
