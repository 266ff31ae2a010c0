#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/core.h"
#include "server/coordinator/metrics_line.h"

enum { ROW = 4 }; /* block, loss, counted, correct */

const char *core_evaluation_watched(const struct job *job)
{
    const struct job_data_files *files = &job->data.validation;
    const char *given[] = {files->file, files->images, files->features};
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        if (given[i] != NULL && *given[i] != '\0')
            return "validation";
    return job->data.validation_fraction > 0 ? "validation" : "test";
}

void core_evaluation_close(struct core_evaluation *evaluation)
{
    free(evaluation->arrived);
    free(evaluation->held);
    free(evaluation->rows);
    memset(evaluation, 0, sizeof *evaluation);
}

/* Improvement by at least min_delta, in the metric's own direction. */
static int improves(double value, double best, int known, int larger, double min_delta)
{
    if (isnan(value))
        return 0;
    return !known || (larger ? value > best + min_delta : value < best - min_delta);
}

/* Early stop and snapshot.best look at the watched set while training. */
static void judge(struct coordinator_core *core, struct core_evaluation *evaluation)
{
    struct core_job *job = &core->job;
    const char *metric = job->job->evaluate.early_stop_metric;
    if (metric != NULL && *metric != '\0') {
        int larger = strcmp(metric, "accuracy") == 0;
        double value = larger ? evaluation->accuracy : evaluation->loss;
        if (improves(value, job->early_best, job->evaluations_seen > job->bad_evaluations, larger,
                     job->job->evaluate.early_stop_min_delta)) {
            job->early_best = value;
            job->bad_evaluations = 0;
        } else {
            job->bad_evaluations++;
        }
        evaluation->stop = !job->last && job->bad_evaluations >= job->job->evaluate.early_stop_patience;
    }
    job->evaluations_seen++;
    const char *best = job->job->snapshot.best_metric;
    if (best == NULL || *best == '\0' || job->snapshot_dir == NULL)
        return;
    double value = strcmp(best, "accuracy") == 0 ? evaluation->accuracy : evaluation->loss;
    if (!improves(value, job->best_value, job->best_known, job->job->snapshot.best_mode == JOB_BEST_MAX, 0))
        return;
    job->best_known = 1;
    job->best_value = value;
    core_snapshots_best(core, evaluation->step);
}

static int by_block(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* In order of block: the same sums for any number of workers. 0, or a block came twice. */
static int sum_blocks(struct core_evaluation *evaluation)
{
    double loss = 0, counted = 0, correct = 0;
    if (evaluation->rows_count > 0)
        qsort(evaluation->rows, (size_t)evaluation->rows_count, ROW * sizeof(double), by_block);
    for (int64_t i = 0; i < evaluation->rows_count; i++) {
        const double *row = evaluation->rows + ROW * i;
        if (i > 0 && row[0] == row[-ROW])
            return STATUS_EXISTS;
        loss += row[1];
        counted += row[2];
        correct += row[3];
    }
    evaluation->counted = (int64_t)counted;
    evaluation->correct = (int64_t)correct;
    evaluation->loss = counted > 0 ? loss / counted : 0;
    evaluation->accuracy = counted > 0 ? correct / counted : 0;
    return 0;
}

static void reply_evaluation(struct coordinator_core *core, const struct core_evaluation *evaluation,
                             const struct net_return *back)
{
    Shoal__Envelope envelope;
    Shoal__Evaluation body = SHOAL__EVALUATION__INIT;
    core_envelope(core, &envelope, SHOAL__TYPE__EVALUATION);
    envelope.clock = evaluation->step;
    envelope.body_case = SHOAL__ENVELOPE__BODY_EVALUATION;
    envelope.evaluation = &body;
    body.loss = evaluation->loss;
    body.accuracy = evaluation->accuracy;
    body.counted = evaluation->counted;
    body.correct = evaluation->correct;
    body.stop = evaluation->stop;
    body.snapshot = evaluation->snapshot;
    core->ops.reply(core->ops.context, back, &envelope, NULL, 0);
}

/* With `update: eager` a push changes the shard at once: workers stand still until a snapshot of this step is whole. */
static int must_wait(const struct core_job *job)
{
    return job->snapshot.active && job->snapshot.savers[CORE_WORKER] == 0 &&
           job->job->parallel.update == JOB_UPDATE_EAGER;
}

void core_evaluation_answer(struct coordinator_core *core)
{
    struct core_job *job = &core->job;
    for (int i = 0; i < CORE_SETS && !must_wait(job); i++) {
        struct core_evaluation *evaluation = &job->evaluations[i];
        for (int rank = 0; evaluation->done && rank < job->workers; rank++)
            if (evaluation->held[rank].held) {
                evaluation->held[rank].held = 0;
                reply_evaluation(core, evaluation, &evaluation->held[rank].back);
            }
    }
}

static void say(struct coordinator_core *core, const struct core_evaluation *evaluation)
{
    char line[METRICS_LINE];
    if (evaluation->correct > 0 || core->job.job->model.loss == JOB_LOSS_SOFTMAX_CROSS_ENTROPY)
        core_say(core, "evaluation at step %llu (%s): loss %.6g, accuracy %.2f%% (%lld of %lld)",
                 (unsigned long long)evaluation->step, evaluation->set, evaluation->loss, 100 * evaluation->accuracy,
                 (long long)evaluation->correct, (long long)evaluation->counted);
    else
        core_say(core, "evaluation at step %llu (%s): loss %.6g over %lld",
                 (unsigned long long)evaluation->step, evaluation->set, evaluation->loss,
                 (long long)evaluation->counted);
    metrics_line_eval(evaluation->set, evaluation->step, evaluation->loss, evaluation->accuracy, line);
    core->ops.metrics(core->ops.context, line);
}

static void finish(struct coordinator_core *core, struct core_evaluation *evaluation)
{
    struct core_job *job = &core->job;
    if (sum_blocks(evaluation) != 0) {
        core_ending_end(core, STATUS_FORMAT, "evaluation at step %llu: a block was evaluated twice",
                        (unsigned long long)evaluation->step);
        return;
    }
    evaluation->done = 1;
    say(core, evaluation);
    int watched = strcmp(evaluation->set, core_evaluation_watched(job->job)) == 0;
    if (watched)
        judge(core, evaluation);
    evaluation->snapshot = core_snapshots_follows(core, evaluation->stop);
    core_evaluation_answer(core);
    if (evaluation->stop && core->phase == CORE_RUNNING) {
        core_say(core, "early stop at step %llu: %d evaluations without improvement",
                 (unsigned long long)evaluation->step, job->bad_evaluations);
        job->last = 1;
        step_abort(&job->step); /* the step that had begun and will not come */
        core_set_phase(core, CORE_FINISHING);
        core_snapshots_final(core);
    }
    if (watched)
        core_snapshots_evaluated(core);
    core_ending_advance(core);
}

/* The slot of (step, set): the kept one, or a finished one of an earlier step begun anew. NULL: does not belong. */
static struct core_evaluation *slot_of(struct coordinator_core *core, uint64_t step, const char *set)
{
    struct core_job *job = &core->job;
    int index = strcmp(set, "test") == 0 ? 0 : strcmp(set, "validation") == 0 ? 1 : -1;
    /* A ring's worker evaluates while reports of others, of this step and of the one before, are on their way. */
    uint64_t now = job->step.step;
    int early = job->ring && core->phase == CORE_RUNNING && (step == now || step == now + 1);
    if (index < 0 || (step != job->last_step && !early))
        return NULL;
    struct core_evaluation *evaluation = &job->evaluations[index];
    if (evaluation->step == step && evaluation->arrived != NULL)
        return evaluation;
    core_evaluation_close(evaluation);
    evaluation->step = step;
    snprintf(evaluation->set, sizeof evaluation->set, "%s", set);
    evaluation->arrived = calloc((size_t)job->workers, 1);
    evaluation->held = calloc((size_t)job->workers, sizeof *evaluation->held);
    if (evaluation->arrived == NULL || evaluation->held == NULL) {
        core_evaluation_close(evaluation);
        return NULL;
    }
    return evaluation;
}

static int add_rows(struct core_evaluation *evaluation, const struct message *message)
{
    size_t bytes = message->frames_count > 0 ? message->frames[0]->bytes : 0;
    uint64_t blocks = message->envelope->evaluated->blocks;
    if (blocks > 1 << 24 || bytes != blocks * ROW * sizeof(double))
        return STATUS_SHAPE;
    int64_t rows = evaluation->rows_count + (int64_t)blocks;
    double *grown = realloc(evaluation->rows, (size_t)(rows + 1) * ROW * sizeof *grown);
    if (grown == NULL)
        return STATUS_NOMEM;
    evaluation->rows = grown;
    if (bytes > 0)
        memcpy(grown + ROW * evaluation->rows_count, message->frames[0]->data, bytes);
    evaluation->rows_count = rows;
    return 0;
}

void core_evaluation_message(struct coordinator_core *core, struct core_member *member, struct message *message,
                             const struct net_return *back)
{
    const Shoal__Envelope *envelope = message->envelope;
    if (envelope->body_case != SHOAL__ENVELOPE__BODY_EVALUATED ||
        (core->phase != CORE_RUNNING && core->phase != CORE_FINISHING)) {
        core_answer(core, back, STATUS_PROTOCOL, "no evaluation now");
        return;
    }
    struct core_evaluation *evaluation = slot_of(core, envelope->clock, envelope->evaluated->set);
    if (evaluation == NULL) {
        core_answer(core, back, STATUS_RANGE, "no evaluation of \"%.20s\" at step %llu", envelope->evaluated->set,
                    (unsigned long long)envelope->clock);
        return;
    }
    evaluation->held[member->rank].held = 1;
    evaluation->held[member->rank].back = *back;
    core_evaluation_answer(core);
    if (evaluation->arrived[member->rank])
        return;
    int status = add_rows(evaluation, message);
    if (status != 0) {
        core_ending_end(core, status, "worker %d's evaluation: %s", member->rank, status_text(status));
        return;
    }
    evaluation->arrived[member->rank] = 1;
    evaluation->in++;
    core_evaluation_advance(core);
}

void core_evaluation_advance(struct coordinator_core *core)
{
    const struct core_job *job = &core->job;
    for (int i = 0; i < CORE_SETS && (core->phase == CORE_RUNNING || core->phase == CORE_FINISHING); i++) {
        struct core_evaluation *evaluation = &core->job.evaluations[i];
        if (evaluation->in == job->workers && !evaluation->done && evaluation->step == job->last_step)
            finish(core, evaluation);
    }
}
