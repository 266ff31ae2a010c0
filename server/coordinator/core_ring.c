#include <math.h>

#include "server/coordinator/core.h"

/* The workers of a ring decide every step among themselves and go on without being told. Each says in its REPORT what was
 * decided: the coordinator sees to it that all say the same, and writes it down. */

int core_ring_take_vote(const struct core_job *job, const Shoal__Report *report, struct core_vote *vote)
{
    const Shoal__Verdict *verdict = report->verdict;
    if (verdict == NULL)
        return STATUS_PROTOCOL;
    *vote = (struct core_vote){.decision = verdict->decision, .grad_scale = verdict->grad_scale, .lr = verdict->lr,
                               .next_lr = verdict->next_lr, .loss = verdict->loss, .grad_norm = report->grad_norm,
                               .t = verdict->t, .nonfinite_run = report->nonfinite_run,
                               .nonfinite_rank = report->nonfinite_rank <= (uint32_t)job->workers
                                                     ? (int)report->nonfinite_rank - 1
                                                     : -1,
                               .evaluate = verdict->evaluate != 0, .last = verdict->last != 0,
                               .stopped = verdict->stopped != 0};
    if (vote->nonfinite_run < -1 || vote->nonfinite_run >= job->keymap.runs_count)
        return STATUS_RANGE;
    int stops = vote->nonfinite_run >= 0 && job->job->optimizer.nonfinite == JOB_NONFINITE_STOP;
    int decided = vote->decision == SHOAL__DECISION__APPLY || vote->decision == SHOAL__DECISION__SKIP;
    return decided || stops ? 0 : STATUS_PROTOCOL;
}

static int same(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

/* NULL, or what two ranks do not agree about. */
static const char *difference(const struct core_vote *a, const struct core_vote *b)
{
    if (a->decision != b->decision || a->nonfinite_run != b->nonfinite_run)
        return "whether the gradient is finite";
    if (!same(a->grad_norm, b->grad_norm) || !same((double)a->grad_scale, (double)b->grad_scale))
        return "the gradient's norm";
    if (a->t != b->t || !same(a->lr, b->lr) || !same(a->next_lr, b->next_lr))
        return "t or lr";
    if (!same(a->loss, b->loss))
        return "the loss";
    return a->evaluate != b->evaluate || a->last != b->last || a->stopped != b->stopped ? "what follows" : NULL;
}

/* 0, or the job has been ended. */
static int check_votes(struct coordinator_core *core)
{
    const struct core_job *job = &core->job;
    const struct core_vote *first = &job->reports[0].vote;
    for (int rank = 1; rank < job->workers; rank++) {
        const char *differs = difference(first, &job->reports[rank].vote);
        if (differs == NULL)
            continue;
        core_ending_end(core, STATUS_CHECKSUM, "rank %d disagrees with rank 0 about step %llu: %s", rank,
                        (unsigned long long)job->step.step, differs);
        return STATUS_CHECKSUM;
    }
    uint64_t t = (uint64_t)job->applied + 1; /* of a skipped step, too */
    if (first->t == t)
        return 0;
    core_ending_end(core, STATUS_CHECKSUM, "step %llu: the workers are at update %llu, the coordinator at %llu",
                    (unsigned long long)job->step.step, (unsigned long long)first->t, (unsigned long long)t);
    return STATUS_CHECKSUM;
}

void core_ring_follow(struct coordinator_core *core)
{
    struct core_job *job = &core->job;
    if (check_votes(core) != 0)
        return;
    const struct core_vote vote = job->reports[0].vote;
    int stops = vote.nonfinite_run >= 0 && job->job->optimizer.nonfinite == JOB_NONFINITE_STOP;
    int applied = vote.decision == SHOAL__DECISION__APPLY;
    struct step_verdict verdict = {.decision = stops ? STEP_STOP : applied ? STEP_APPLY : STEP_SKIP,
                                   .grad_scale = vote.grad_scale, .lr = vote.lr, .t = job->applied + applied,
                                   .next_lr = vote.next_lr, .grad_norm = vote.grad_norm,
                                   .nonfinite_run = vote.nonfinite_run,
                                   .nonfinite_rank = vote.nonfinite_rank};
    job->stopped = vote.stopped;
    if (vote.stopped && !core_ending_wanted(core) && !job->regroup) {
        job->last_asked = 1; /* the ring stands already */
        core_ending_ask(core, "a worker");
    }
    core_verdict_follow(core, &verdict, &vote);
}

void core_ring_ask_last(struct coordinator_core *core)
{
    struct core_job *job = &core->job;
    if (!job->ring || core->phase != CORE_RUNNING || job->last_asked)
        return;
    job->last_asked = 1;
    Shoal__Envelope envelope;
    core_envelope(core, &envelope, SHOAL__TYPE__LAST);
    envelope.clock = job->step.step;
    core_events_push(core, AUDIENCE_WORKERS, -1, &envelope, NULL);
}

int core_ring_is_through(const struct core_job *job, int rank)
{
    const struct core_report *now = &job->reports[rank], *next = &job->early[rank];
    return (now->in && now->vote.last) || (next->in && next->vote.last);
}
