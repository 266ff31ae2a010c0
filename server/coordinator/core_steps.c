#include <stdlib.h>
#include <string.h>

#include "optim/optimizer.h"
#include "server/coordinator/core.h"

double core_steps_lr_at(const void *context, int64_t t)
{
    const struct core_job *job = context;
    int64_t total = job->total_steps > 0 ? (int64_t)job->total_steps : INT64_MAX;
    return lr_schedule_at(job->job, t, total);
}

void core_steps_begin(struct coordinator_core *core, uint64_t number)
{
    struct core_job *job = &core->job;
    for (int rank = 0; rank < job->workers; rank++) {
        buf_release(job->reports[rank].statistics);
        job->reports[rank] = job->early[rank];
        memset(&job->early[rank], 0, sizeof job->early[rank]);
    }
    core_gather_forget(job, number > 1 ? number - 1 : 0);
    core->stall[0] = '\0';
    step_begin(&job->step, core->cluster_epoch, number, job->applied);
    for (int rank = 0; rank < job->workers; rank++)
        if (job->reports[rank].in)
            step_report(&job->step, core->cluster_epoch, number, rank);
    job->said_ns = core->now_ns;
}

/* ACK for what is in, now or before; the refusals of step.h else. */
static void answer_step(struct coordinator_core *core, int status, const Shoal__Envelope *envelope,
                        const struct net_return *back)
{
    if (status >= 0 || status == STATUS_EXISTS)
        core_answer(core, back, 0, "%s", "");
    else if (status == STATUS_ABORTED)
        core_answer(core, back, status, "cluster epoch %llu is over, now %llu",
                    (unsigned long long)envelope->cluster_epoch, (unsigned long long)core->cluster_epoch);
    else
        core_answer(core, back, status, "step %llu: %s", (unsigned long long)envelope->clock, status_text(status));
}

/* 1: steps are running; else answered. The sums of a step that clients began and left open are forgotten. */
static int check_running(struct coordinator_core *core, const Shoal__Envelope *envelope,
                         const struct net_return *back)
{
    if (core->phase == CORE_RUNNING)
        return 1;
    if (core->phase == CORE_FINISHING &&
        (envelope->clock <= core->job.last_step || envelope->type == SHOAL__TYPE__PREPARED))
        core_answer(core, back, 0, "%s", "");
    else
        core_answer(core, back, STATUS_PROTOCOL, "no step is running");
    return 0;
}

/* Runs that a PREPARED speaks of, or -1 when its spans do not fit the model. */
int64_t core_steps_spans(const Shoal__Prepared *prepared, int64_t limit)
{
    int64_t total = 0;
    if (prepared->n_runs != prepared->n_runs_first)
        return -1;
    for (size_t i = 0; i < prepared->n_runs; i++) {
        if (prepared->runs_first[i] > (uint64_t)limit || prepared->runs[i] > (uint64_t)(limit - total))
            return -1;
        total += (int64_t)prepared->runs[i];
    }
    return total;
}

void core_steps_prepared(struct coordinator_core *core, struct core_member *member, struct message *message,
                         const struct net_return *back)
{
    const Shoal__Envelope *envelope = message->envelope;
    struct core_job *job = &core->job;
    if (!check_running(core, envelope, back))
        return;
    const Shoal__Prepared *prepared = envelope->body_case == SHOAL__ENVELOPE__BODY_PREPARED ? envelope->prepared : NULL;
    int64_t runs = prepared != NULL ? core_steps_spans(prepared, job->step.rules.runs) : -1;
    if (runs < 0) {
        core_answer(core, back, STATUS_RANGE, "runs out of range");
        return;
    }
    if (message->frames_count < 2 || message->frames[0]->bytes != (size_t)runs * sizeof(double) ||
        message->frames[1]->bytes != (size_t)runs) {
        core_answer(core, back, STATUS_SHAPE, "frames do not fit %lld runs", (long long)runs);
        return;
    }
    struct step_sums sums = {.owner = member->rank, .cluster_epoch = envelope->cluster_epoch, .step = envelope->clock,
                             .weight = prepared->weight, .squares = message->frames[0]->data,
                             .finite = message->frames[1]->data};
    int status = 0;
    for (size_t i = 0; i < prepared->n_runs && status >= 0; i++) {
        sums.run_first = (int64_t)prepared->runs_first[i];
        sums.runs = (int64_t)prepared->runs[i];
        int taken = step_prepared(&job->step, &sums);
        status = taken < 0 ? taken : 0;
        sums.squares += sums.runs;
        sums.finite += sums.runs;
    }
    answer_step(core, status, envelope, back);
    core_steps_advance(core);
}

static int report_fits(const struct core_job *job, const struct message *message)
{
    const Shoal__Report *report = message->envelope->report;
    size_t bytes = (size_t)report->micro_batches * (size_t)job->statistics_count * sizeof(double);
    size_t have = message->frames_count > 0 ? message->frames[0]->bytes : 0;
    if (report->micro_batches > 1 << 20 || report->digest.len > sizeof job->reports[0].digest)
        return 0;
    return job->statistics_count == 0 ? have == 0 : have == bytes;
}

static void keep_report(struct core_report *kept, struct message *message, const struct core_vote *vote)
{
    const Shoal__Report *report = message->envelope->report;
    kept->in = 1;
    kept->vote = *vote;
    kept->loss_sum = report->loss_sum;
    kept->counted = report->counted;
    kept->correct = report->correct;
    kept->samples = report->samples;
    kept->micro_batches = report->micro_batches;
    kept->digest_bytes = report->digest.len;
    if (report->digest.len > 0)
        memcpy(kept->digest, report->digest.data, report->digest.len);
    if (message->frames_count > 0 && message->frames[0]->bytes > 0) {
        kept->statistics = message->frames[0];
        message->frames[0] = NULL;
    }
}

void core_steps_report(struct coordinator_core *core, struct core_member *member, struct message *message,
                       const struct net_return *back)
{
    const Shoal__Envelope *envelope = message->envelope;
    struct core_job *job = &core->job;
    if (!check_running(core, envelope, back))
        return;
    if (envelope->body_case != SHOAL__ENVELOPE__BODY_REPORT) {
        core_answer(core, back, STATUS_PROTOCOL, "no body");
        return;
    }
    struct core_vote vote = {0};
    int status = job->ring ? core_ring_take_vote(job, envelope->report, &vote) : 0;
    if (status != 0) {
        core_answer(core, back, status, "no verdict of this job");
        core_ending_end(core, status, "worker %d: the verdict of step %llu is none of this job", member->rank,
                        (unsigned long long)envelope->clock);
        return;
    }
    if (!report_fits(job, message)) {
        core_answer(core, back, STATUS_SHAPE, "statistics or digest do not fit the model");
        core_ending_end(core, STATUS_SHAPE, "worker %d: statistics of step %llu do not fit the model", member->rank,
                        (unsigned long long)envelope->clock);
        return;
    }
    if (core_members_left(core) > 0 && envelope->clock > job->last_step) {
        static const char text[] = "a worker left after step %llu: no step can follow";
        core_answer(core, back, STATUS_ABORTED, text, (unsigned long long)job->last_step);
        core_ending_end(core, STATUS_ABORTED, text, (unsigned long long)job->last_step);
        return;
    }
    /* Kept before the step takes it, as the last report decides at once. */
    int now = envelope->cluster_epoch == job->step.cluster_epoch;
    int early = now && job->ring && envelope->clock == job->step.step + 1;
    if (early && !job->early[member->rank].in)
        keep_report(&job->early[member->rank], message, &vote);
    if (early) {
        core_answer(core, back, 0, "%s", "");
        return;
    }
    if (now && envelope->clock == job->step.step && step_worker_missing(&job->step, member->rank)) {
        keep_report(&job->reports[member->rank], message, &vote);
        core_snapshots_evaluated(core); /* who is a step further has nothing to evaluate any more */
    }
    answer_step(core, step_report(&job->step, envelope->cluster_epoch, envelope->clock, member->rank), envelope,
                back);
    core_steps_advance(core);
}

void core_steps_advance(struct coordinator_core *core)
{
    const struct step_verdict *verdict;
    /* A snapshot's owners must stand still at their step. The next step of a ring may be complete by then. */
    while (core->phase == CORE_RUNNING && !core->job.snapshot.active &&
           (verdict = step_verdict_of(&core->job.step)) != NULL) {
        if (core->job.ring)
            core_ring_follow(core);
        else
            core_verdict_announce(core, verdict);
    }
}

static int report_missing(const struct coordinator_core *core, enum core_kind kind, int rank)
{
    return kind == CORE_WORKER ? step_worker_missing(&core->job.step, rank) : 0;
}

static int sums_missing(const struct coordinator_core *core, enum core_kind kind, int rank)
{
    return kind == CORE_SERVER ? step_owner_missing(&core->job.step, rank) : 0;
}

static int files_missing(const struct coordinator_core *core, enum core_kind kind, int rank)
{
    const struct core_snapshot *snapshot = &core->job.snapshot;
    return rank < snapshot->savers[kind] && !snapshot->done[kind][rank];
}

static int summary_missing(const struct coordinator_core *core, enum core_kind kind, int rank)
{
    const struct core_member *member = core->members[kind][rank];
    return member == NULL || member->summary == NULL;
}

/* One that is late only because another one is silent must not stand for it. */
static int is_silent(const struct coordinator_core *core, enum core_kind kind, int rank)
{
    const struct core_member *member = core->members[kind][rank];
    return member != NULL && core->now_ns - member->heard_ns > (int64_t)2 * CORE_HEARTBEAT_MS * 1000000;
}

/* While a client program decides when to push, nothing is overdue; a job with a length must move. */
static void say_stalled(struct coordinator_core *core, double waited)
{
    char reports[CORE_LINE], sums[CORE_LINE], silent[CORE_LINE];
    core_members_list(core, report_missing, "the reports of ", reports);
    core_members_list(core, sums_missing, "the sums of ", sums);
    core_members_list(core, is_silent, ", nothing heard from ", silent);
    core_stall(core, "step %llu: waiting for %s%s%s for %.0f s%s", (unsigned long long)core->job.step.step,
             reports, *reports != '\0' && *sums != '\0' ? "; " : "", sums, waited, silent);
}

void core_steps_tick(struct coordinator_core *core)
{
    struct core_job *job = &core->job;
    if (core->phase != CORE_RUNNING && core->phase != CORE_FINISHING)
        return;
    double waited = (double)(core->now_ns - job->step_ns) / 1e9;
    if ((double)(core->now_ns - job->said_ns) / 1e9 < job->job->cluster.timeouts.stall_report)
        return;
    job->said_ns = core->now_ns;
    char text[CORE_LINE];
    if (job->snapshot.active) {
        core_members_list(core, files_missing, "", text);
        core_stall(core, "snapshot of step %llu: waiting for the files of %s for %.0f s", (unsigned long long)job->snapshot.step, text, waited);
    } else if (core->phase == CORE_FINISHING) {
        core_members_list(core, summary_missing, "", text);
        core_stall(core, "end: waiting for the summaries of %s for %.0f s", text, waited);
    } else if (job->total_steps > 0 || job->step.workers_missing < job->workers) {
        say_stalled(core, waited);
    }
}
