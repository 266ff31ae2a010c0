#include "step/step.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

enum step_input { INPUT_BEGIN, INPUT_LAST, INPUT_ABORT, INPUTS };

/* -1: an input that must not come in that state. */
static const int transitions[STEP_STATES][INPUTS] = {
    [STEP_IDLE] = {[INPUT_BEGIN] = STEP_COLLECTING, [INPUT_LAST] = -1, [INPUT_ABORT] = -1},
    [STEP_COLLECTING] = {[INPUT_BEGIN] = -1, [INPUT_LAST] = STEP_DECIDED, [INPUT_ABORT] = STEP_ABORTED},
    [STEP_DECIDED] = {[INPUT_BEGIN] = STEP_COLLECTING, [INPUT_LAST] = -1, [INPUT_ABORT] = -1},
    [STEP_ABORTED] = {[INPUT_BEGIN] = STEP_COLLECTING, [INPUT_LAST] = -1, [INPUT_ABORT] = -1},
};

static void move(struct step *step, enum step_input input)
{
    int to = transitions[step->state][input];
    assert(to >= 0);
    step->state = (enum step_state)to;
}

int step_init(struct step *step, const struct step_rules *rules)
{
    memset(step, 0, sizeof *step);
    if (rules->owners < 1 || rules->workers < 1 || rules->runs < 0)
        return STATUS_RANGE;
    step->rules = *rules;
    step->squares = calloc((size_t)rules->runs + 1, sizeof *step->squares);
    step->flags = calloc((size_t)rules->runs + 1, 1);
    step->reported = calloc((size_t)rules->workers, 1);
    if (step->squares == NULL || step->flags == NULL || step->reported == NULL) {
        step_close(step);
        return STATUS_NOMEM;
    }
    return 0;
}

void step_close(struct step *step)
{
    free(step->squares);
    free(step->flags);
    free(step->reported);
    memset(step, 0, sizeof *step);
}

void step_begin(struct step *step, uint64_t cluster_epoch, uint64_t number, int64_t applied)
{
    move(step, INPUT_BEGIN);
    step->cluster_epoch = cluster_epoch;
    step->step = number;
    step->applied = applied;
    memset(step->flags, 0, (size_t)step->rules.runs);
    memset(step->reported, 0, (size_t)step->rules.workers);
    step->runs_missing = step->rules.runs;
    step->workers_missing = step->rules.workers;
    step->weight_run = -1;
    step->weight = 0;
    memset(&step->verdict, 0, sizeof step->verdict);
}

double step_clip_coefficient(double clip_norm, double norm)
{
    if (clip_norm <= 0)
        return 1;
    double coefficient = clip_norm / (norm + 1e-6);
    return coefficient < 1 ? coefficient : 1;
}

/* Runs are added in order of number, in double: the same norm for any number of owners. */
static void decide(struct step *step)
{
    struct step_verdict *verdict = &step->verdict;
    double sum = 0;
    verdict->nonfinite_run = -1;
    verdict->nonfinite_rank = -1;
    for (int64_t run = 0; run < step->rules.runs; run++) {
        sum += step->squares[run];
        if (step->flags[run] != 1 && verdict->nonfinite_run < 0) {
            verdict->nonfinite_run = run;
            verdict->nonfinite_rank = step->flags[run] >= 3 ? step->flags[run] - 3 : -1;
        }
    }
    int nothing = step->rules.runs > 0 && step->weight == 0;
    double mean = step->rules.divide && step->weight > 0 ? 1 / step->weight : 1;
    verdict->weight = step->weight;
    verdict->grad_norm = step->rules.divide && step->weight > 0 ? sqrt(sum) / step->weight : sqrt(sum);
    if (verdict->nonfinite_run >= 0)
        verdict->grad_norm = NAN;
    if (verdict->nonfinite_run >= 0 && step->rules.nonfinite_stop)
        verdict->decision = STEP_STOP;
    else
        verdict->decision = verdict->nonfinite_run >= 0 || nothing ? STEP_SKIP : STEP_APPLY;
    verdict->lr = step->rules.lr_at(step->rules.lr_context, step->applied + 1);
    verdict->t = step->applied;
    verdict->grad_scale = 1;
    if (verdict->decision == STEP_APPLY) {
        verdict->t++;
        verdict->grad_scale = (float)(step_clip_coefficient(step->rules.clip_norm, verdict->grad_norm) * mean);
    }
    verdict->next_lr = step->rules.lr_at(step->rules.lr_context, verdict->t + 1);
}

static void decide_when_complete(struct step *step)
{
    if (step->runs_missing > 0 || step->workers_missing > 0)
        return;
    move(step, INPUT_LAST);
    decide(step);
}

/* 0: belongs to the collecting step; 1: a repeat of a decided one. */
static int check_step(const struct step *step, uint64_t cluster_epoch, uint64_t number)
{
    if (step->state == STEP_IDLE)
        return STATUS_RANGE;
    if (cluster_epoch != step->cluster_epoch)
        return STATUS_ABORTED;
    if (number < step->step)
        return STATUS_EXISTS;
    if (number > step->step)
        return STATUS_RANGE;
    if (step->state == STEP_ABORTED)
        return STATUS_ABORTED;
    return step->state == STEP_DECIDED ? 1 : 0;
}

int step_prepared(struct step *step, const struct step_sums *sums)
{
    int status = check_step(step, sums->cluster_epoch, sums->step);
    if (status != 0)
        return status;
    if (sums->owner < 0 || sums->owner >= step->rules.owners)
        return STATUS_UNKNOWN;
    if (sums->run_first < 0 || sums->runs < 0 || sums->run_first > step->rules.runs ||
        sums->runs > step->rules.runs - sums->run_first)
        return STATUS_RANGE;
    for (int64_t i = 0; i < sums->runs && step->rules.run_owner != NULL; i++)
        if (step->rules.run_owner[sums->run_first + i] != sums->owner)
            return STATUS_DENIED;
    int64_t taken = 0;
    for (int64_t i = 0; i < sums->runs; i++) {
        int64_t run = sums->run_first + i;
        if (step->flags[run] != 0)
            continue;
        step->squares[run] = sums->squares[i];
        step->flags[run] = sums->finite[i] == 1 ? 1 : sums->finite[i] == 0 ? 2 : (uint8_t)(sums->finite[i] + 1);
        taken++;
    }
    if (taken == 0)
        return 1;
    if (step->weight_run < 0 || sums->run_first < step->weight_run) {
        step->weight_run = sums->run_first;
        step->weight = sums->weight;
    }
    step->runs_missing -= taken;
    decide_when_complete(step);
    return 0;
}

int step_report(struct step *step, uint64_t cluster_epoch, uint64_t number, int rank)
{
    int status = check_step(step, cluster_epoch, number);
    if (status != 0)
        return status;
    if (rank < 0 || rank >= step->rules.workers)
        return STATUS_UNKNOWN;
    if (step->reported[rank])
        return 1;
    step->reported[rank] = 1;
    step->workers_missing--;
    decide_when_complete(step);
    return 0;
}

int step_abort(struct step *step)
{
    if (step->state == STEP_IDLE)
        return STATUS_UNKNOWN;
    if (step->state == STEP_DECIDED)
        return STATUS_EXISTS;
    if (step->state == STEP_COLLECTING)
        move(step, INPUT_ABORT);
    return 0;
}

const struct step_verdict *step_verdict_of(const struct step *step)
{
    return step->state == STEP_DECIDED ? &step->verdict : NULL;
}

int step_owner_missing(const struct step *step, int owner)
{
    if (step->state != STEP_COLLECTING || step->rules.run_owner == NULL)
        return 0;
    for (int64_t run = 0; run < step->rules.runs; run++)
        if (step->flags[run] == 0 && step->rules.run_owner[run] == owner)
            return 1;
    return 0;
}

int step_worker_missing(const struct step *step, int rank)
{
    return step->state == STEP_COLLECTING && rank >= 0 && rank < step->rules.workers && !step->reported[rank];
}
