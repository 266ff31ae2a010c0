#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/core.h"

/* A ring job with cluster.elastic.min goes on without a worker it lost, and with one that has come: everyone hears
 * END{STATUS_ROLLED_BACK}, the ranks are counted anew, and the same job begins again, under a new id and cluster epoch, from
 * its last whole snapshot. Who loses a worker gives up what came after that snapshot; for a newcomer the ring stops after the
 * step at hand and saves it first, so that nothing is lost. */

enum { STUCK_MAX = 8 }; /* rollbacks to one and the same step: what kills the workers is in the job */

static int is_elastic(const struct coordinator_core *core)
{
    const struct core_job *job = &core->job;
    return core->phase > CORE_GATHERING && core->phase < CORE_ENDING && job->ring && job->job->cluster.elastic_min > 0 &&
           !core_ending_wanted(core);
}

static int workers_here(const struct coordinator_core *core)
{
    int here = 0;
    for (int rank = 0; rank < core->members_limit[CORE_WORKER]; rank++)
        here += core->members[CORE_WORKER][rank] != NULL;
    return here;
}

static void say_end(struct coordinator_core *core, const char *text)
{
    /* Newcomers and servers have no part in what ends. */
    for (int kind = 0; kind < CORE_KINDS; kind++)
        for (int rank = 0; rank < core->members_limit[kind]; rank++)
            if (core->members[kind][rank] != NULL && !core->members[kind][rank]->counted)
                core->members[kind][rank]->since = core->sequence + 1;
    Shoal__Envelope envelope;
    core_envelope(core, &envelope, SHOAL__TYPE__END);
    envelope.clock = core->job.last_step;
    envelope.status = STATUS_ROLLED_BACK;
    envelope.text = (char *)text;
    core_events_push(core, AUDIENCE_ALL, -1, &envelope, NULL);
    core_events_begin_job(core);
}

/* What is said and kept for the card, and that it does not go on for ever. */
static int count_rollback(struct core_job *job, uint64_t step, const char *why)
{
    job->stuck = step == job->rolled_to ? job->stuck + 1 : 0;
    job->rolled_to = step;
    job->rollbacks++;
    snprintf(job->rolled_why, sizeof job->rolled_why, "%.600s", why);
    return job->stuck < STUCK_MAX;
}

/* The job as it was submitted, to go on from `folder` (owned; NULL: from the beginning). */
static int begin_anew(struct coordinator_core *core, char *folder)
{
    struct core_job *job = &core->job;
    core_job_reopen(job);
    free((char *)job->spec.resume_path);
    job->spec.resume = folder != NULL;
    job->spec.resume_path = folder != NULL ? folder : strdup("");
    core_members_clear_job(core);
    core_members_close_ranks(core);
    job->workers = workers_here(core);
    job->id = core->ops.random(core->ops.context);
    return job->spec.resume_path == NULL ? STATUS_NOMEM : 0;
}

static void say_epoch(struct coordinator_core *core, uint64_t step)
{
    char line[160];
    snprintf(line, sizeof line, "{\"event\":\"epoch\",\"cluster_epoch\":%llu,\"step\":%llu,\"workers\":%d}",
             (unsigned long long)core->cluster_epoch + 1, (unsigned long long)step, core->job.workers);
    core->ops.metrics(core->ops.context, line);
}

static void go_on(struct coordinator_core *core, const char *why)
{
    struct core_job *job = &core->job;
    char text[CORE_LINE];
    const char *from = job->snapshot_folder != NULL ? job->snapshot_folder : job->resumed ? job->resume_folder : NULL;
    uint64_t step = from != NULL ? job->snapshot_step : 0;
    char *folder = from != NULL ? strdup(from) : NULL;
    if (from != NULL && folder == NULL) {
        core_ending_end(core, STATUS_NOMEM, "out of memory");
        return;
    }
    if (!count_rollback(job, step, why)) {
        free(folder);
        core_ending_end(core, STATUS_ABORTED, "%.600s; rolled back to step %llu %d times in a row", why,
                        (unsigned long long)step, STUCK_MAX);
        return;
    }
    if (job->snapshot.active)
        core->ops.snapshot_discard(core->ops.context, job->snapshot.folder);
    snprintf(text, sizeof text, "rolled back to step %llu: %.600s", (unsigned long long)step, why);
    say_end(core, text);
    if (begin_anew(core, folder) != 0) {
        core_ending_end(core, STATUS_NOMEM, "out of memory");
        return;
    }
    core_log(core, LOG_WARNING, "%s; goes on with %d workers%s", text, job->workers,
             folder == NULL ? ", there is no snapshot yet: from the beginning" : "");
    core_say(core, "%s; goes on with %d workers%s", text, job->workers,
             folder == NULL ? ", there is no snapshot yet: from the beginning" : "");
    say_epoch(core, step);
    core_set_phase(core, CORE_GATHERING);
    core_launch_gathered(core);
}

int core_elastic_lost(struct coordinator_core *core, const char *why)
{
    if (!is_elastic(core) || workers_here(core) < core->job.job->cluster.elastic_min)
        return 0;
    go_on(core, why);
    return 1;
}

void core_elastic_look(struct coordinator_core *core)
{
    struct core_job *job = &core->job;
    if (!is_elastic(core) || core->phase != CORE_RUNNING || job->regroup || workers_here(core) <= job->workers)
        return;
    job->regroup = 1;
    core_log(core, LOG_INFO, "workers %d, one more is here: the ring stops after the step at hand", job->workers);
    core_ring_ask_last(core);
}

int core_elastic_regroup(struct coordinator_core *core)
{
    const struct core_job *job = &core->job;
    if (!is_elastic(core) || !job->regroup || !job->stopped)
        return 0;
    char why[128];
    snprintf(why, sizeof why, "%d workers are here, %d were", workers_here(core), job->workers);
    go_on(core, why);
    return 1;
}
