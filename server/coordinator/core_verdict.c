#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/norm_stats.h"
#include "server/coordinator/core.h"
#include "server/coordinator/metrics_line.h"
#include "step/schedule.h"

/* Statistics of the whole global mini-batch: rank by rank, micro-batch by micro-batch, one commit a step. */
static void commit_statistics(struct core_job *job)
{
    if (job->norms == 0)
        return;
    memset(job->merged, 0, (size_t)job->statistics_count * sizeof *job->merged);
    for (int rank = 0; rank < job->workers; rank++) {
        const struct core_report *report = &job->reports[rank];
        for (uint32_t micro = 0; report->statistics != NULL && micro < report->micro_batches; micro++) {
            const char *from = report->statistics->data;
            size_t bytes = (size_t)job->statistics_count * sizeof *job->one;
            memcpy(job->one, from + micro * bytes, bytes); /* frames may be unaligned */
            norm_stats_merge(job->features, job->norms, job->merged, job->one);
        }
    }
    norm_stats_commit(job->features, job->norms, job->merged, job->running);
}

static void digest_text(const uint8_t *digest, size_t bytes, char out[2 * 64 + 1])
{
    for (size_t i = 0; i < bytes; i++)
        snprintf(out + 2 * i, 3, "%02x", digest[i]);
    out[2 * bytes] = '\0';
}

int core_verdict_digests(struct coordinator_core *core)
{
    struct core_job *job = &core->job;
    const struct core_report *first = &job->reports[0];
    for (int rank = 1; rank < job->workers; rank++) {
        const struct core_report *other = &job->reports[rank];
        if (other->digest_bytes == first->digest_bytes &&
            memcmp(other->digest, first->digest, first->digest_bytes) == 0)
            continue;
        core_ending_end(core, STATUS_CHECKSUM,
                        "the parameters of worker %d and worker 0 differ before step %llu (digest)", rank,
                        (unsigned long long)job->step.step);
        return STATUS_CHECKSUM;
    }
    if (first->digest_bytes == 0)
        return 0;
    char text[2 * 64 + 1];
    digest_text(first->digest, first->digest_bytes, text);
    int begins = job->step.step == job->first_step;
    if (begins)
        core_say(core, "digest of step %llu %s, the same on %d workers", (unsigned long long)job->step.step - 1,
                 text, job->workers);
    else
        core_log(core, LOG_DEBUG, "digest step=%llu %s", (unsigned long long)job->step.step - 1, text);
    return 0;
}

/* "layers.0.linear.weight key 3 (step 12), by rank 1" */
static void nonfinite_text(const struct core_job *job, const struct step_verdict *verdict, char out[CORE_LINE])
{
    int64_t k = 0;
    while (k + 1 < job->keymap.keys_count &&
           !(job->keymap.keys[k].run_first >= 0 && verdict->nonfinite_run >= job->keymap.keys[k].run_first &&
             verdict->nonfinite_run < job->keymap.keys[k].run_first + job->keymap.keys[k].runs))
        k++;
    const struct keymap_key *key = &job->keymap.keys[k];
    char rank[64] = "";
    int loud = verdict->nonfinite_rank;
    for (int r = 0; loud < 0 && r < job->workers; r++)
        if (!isfinite(job->reports[r].loss_sum))
            loud = r;
    if (loud >= 0)
        snprintf(rank, sizeof rank, "rank %d, ", loud);
    char server[32] = "";
    if (!job->ring)
        snprintf(server, sizeof server, " at server %d", key->server);
    snprintf(out, CORE_LINE, "step %llu: the gradient is not finite: %skey %lld of %.200s%s",
             (unsigned long long)job->step.step, rank, (long long)k, job->table.tensors[key->tensor].name, server);
}

static void push_verdict(struct coordinator_core *core, const struct step_verdict *verdict,
                         const struct metrics_step *step, int evaluate)
{
    Shoal__Envelope envelope;
    Shoal__Verdict body = SHOAL__VERDICT__INIT;
    core_envelope(core, &envelope, SHOAL__TYPE__VERDICT);
    envelope.clock = core->job.step.step;
    envelope.body_case = SHOAL__ENVELOPE__BODY_VERDICT;
    envelope.verdict = &body;
    body.decision = verdict->decision == STEP_APPLY ? SHOAL__DECISION__APPLY : SHOAL__DECISION__SKIP;
    body.grad_scale = verdict->grad_scale;
    body.lr = verdict->lr;
    body.t = (uint64_t)verdict->t + (verdict->decision != STEP_APPLY);
    body.next_lr = verdict->next_lr;
    body.evaluate = evaluate;
    body.last = core->job.last;
    body.loss = step->loss;
    body.snapshot = core_snapshots_due(&core->job);
    struct buf *frame = core_start_running(core);
    core_events_push(core, AUDIENCE_ALL, -1, &envelope, frame);
    buf_release(frame);
}

static void write_books(struct coordinator_core *core, const struct step_verdict *verdict,
                        struct metrics_step *step)
{
    struct core_job *job = &core->job;
    double loss = 0;
    int64_t counted = 0;
    for (int rank = 0; rank < job->workers; rank++) {
        loss += job->reports[rank].loss_sum;
        counted += job->reports[rank].counted;
        step->samples += job->reports[rank].samples;
    }
    step->step = job->step.step;
    step->loss = counted > 0 ? loss / (double)counted : 0;
    step->lr = verdict->lr;
    /* One pass over sum and update leaves no whole norm behind. */
    step->grad_norm = job->job->parallel.update == JOB_UPDATE_EAGER ? NAN : verdict->grad_norm;
    step->step_s = (double)(core->now_ns - job->step_ns) / 1e9;
    step->skipped = verdict->decision == STEP_SKIP;
    job->samples_seen += step->samples;
    job->last_loss = step->loss;
    job->last_lr = step->lr;
    job->step_ns = core->now_ns;
    char line[METRICS_LINE];
    metrics_line_step(step, line);
    core->ops.metrics(core->ops.context, line);
}

/* What a decided step changes in the books. 0, or the job has been ended. */
static int settle(struct coordinator_core *core, const struct step_verdict *verdict, struct metrics_step *step)
{
    struct core_job *job = &core->job;
    char text[CORE_LINE];
    if (core_verdict_digests(core) != 0)
        return STATUS_CHECKSUM;
    if (verdict->nonfinite_run >= 0)
        nonfinite_text(job, verdict, text);
    if (verdict->decision == STEP_STOP) {
        core_ending_end(core, STATUS_NUMERIC, "%s (optimizer.nonfinite: stop)", text);
        return STATUS_NUMERIC;
    }
    if (verdict->decision == STEP_SKIP)
        core_log(core, LOG_WARNING, "%s; skipped", verdict->nonfinite_run >= 0 ? text : "nothing was counted");
    else
        commit_statistics(job);
    job->applied = verdict->t;
    write_books(core, verdict, step);
    job->last_step = job->step.step;
    return 0;
}

/* After the verdict: the next step, or the end, and the snapshot of this one. */
static void go_on(struct coordinator_core *core, const struct metrics_step *step, int evaluate)
{
    struct core_job *job = &core->job;
    struct coordinator_progress progress = {job->job, job->last_step, job->total_steps, step->loss, step->lr,
                                            step->grad_norm, step->samples, core->now_ns, job->last};
    core->ops.progress(core->ops.context, &progress);
    if (job->last)
        core_set_phase(core, CORE_FINISHING);
    else
        core_steps_begin(core, job->last_step + 1);
    core_snapshots_after_verdict(core, evaluate);
    core_evaluation_advance(core);
    core_ending_advance(core);
}

void core_verdict_announce(struct coordinator_core *core, const struct step_verdict *decided)
{
    struct core_job *job = &core->job;
    struct step_verdict verdict = *decided;
    struct metrics_step step = {0};
    if (settle(core, &verdict, &step) != 0)
        return;
    job->last = core_ending_wanted(core) || (job->total_steps > 0 && job->last_step >= job->total_steps);
    int evaluate = !core_ending_wanted(core) && schedule_evaluates(job->job, job->last_step, job->last, 0);
    push_verdict(core, &verdict, &step, evaluate);
    go_on(core, &step, evaluate);
}

void core_verdict_follow(struct coordinator_core *core, const struct step_verdict *verdict, const struct core_vote *vote)
{
    struct core_job *job = &core->job;
    struct metrics_step step = {0};
    if (settle(core, verdict, &step) != 0)
        return;
    job->last = vote->last || job->last_step >= job->total_steps;
    go_on(core, &step, vote->evaluate);
}

void core_verdict_closing(struct coordinator_core *core)
{
    struct core_job *job = &core->job;
    if (job->asked_summaries)
        return;
    job->asked_summaries = 1;
    Shoal__Envelope envelope;
    Shoal__Verdict body = SHOAL__VERDICT__INIT;
    core_envelope(core, &envelope, SHOAL__TYPE__VERDICT);
    envelope.clock = job->last_step;
    envelope.body_case = SHOAL__ENVELOPE__BODY_VERDICT;
    envelope.verdict = &body;
    body.last = 1;
    body.t = (uint64_t)job->applied;
    core_events_push(core, AUDIENCE_SERVERS, -1, &envelope, NULL);
}
