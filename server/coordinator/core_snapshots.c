#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/core.h"
#include "step/schedule.h"

void core_snapshots_close(struct core_snapshot *snapshot)
{
    free(snapshot->folder);
    for (int kind = 0; kind < CORE_KINDS; kind++)
        free(snapshot->done[kind]);
    manifest_close(&snapshot->manifest);
    memset(snapshot, 0, sizeof *snapshot);
}

static void push_snapshot(struct coordinator_core *core, int audience, int rank)
{
    Shoal__Envelope envelope;
    Shoal__Snapshot body = SHOAL__SNAPSHOT__INIT;
    core_envelope(core, &envelope, SHOAL__TYPE__SNAPSHOT);
    envelope.clock = core->job.snapshot.step;
    envelope.body_case = SHOAL__ENVELOPE__BODY_SNAPSHOT;
    envelope.snapshot = &body;
    body.step = core->job.snapshot.step;
    body.folder = core->job.snapshot.folder;
    uint64_t kept[] = {core->job.snapshot_step, core->job.best_step, core->job.resumed ? core->job.resume.step : 0};
    body.kept_steps = kept;
    body.n_kept_steps = sizeof kept / sizeof *kept;
    core_events_push(core, audience, rank, &envelope, NULL);
}

/* Who has state to save: servers, and rank 0 where workers update; in a ring everyone, or rank 0 where all hold all. */
static int count_savers(const struct core_job *job, enum core_kind kind)
{
    if (kind == CORE_SERVER)
        return job->servers;
    if (job->ring)
        return schedule_writes(job->job, job->workers - 1) ? job->workers : 1;
    return job->job->parallel.update_at == JOB_UPDATE_AT_WORKER;
}

static int expect_files(struct core_job *job)
{
    struct core_snapshot *snapshot = &job->snapshot;
    for (int kind = 0; kind < CORE_KINDS; kind++) {
        snapshot->savers[kind] = count_savers(job, (enum core_kind)kind);
        snapshot->waiting += snapshot->savers[kind];
        snapshot->done[kind] = calloc((size_t)snapshot->savers[kind] + 1, 1);
        if (snapshot->done[kind] == NULL)
            return STATUS_NOMEM;
    }
    return 0;
}

static void no_memory(struct coordinator_core *core)
{
    struct core_job *job = &core->job;
    core_snapshots_close(&job->snapshot);
    core_log(core, LOG_WARNING, "no snapshot of step %llu: out of memory", (unsigned long long)job->last_step);
    if (job->ring) /* its workers know that one is due and wait for it */
        core_ending_end(core, STATUS_NOMEM, "out of memory for the snapshot of step %llu",
                        (unsigned long long)job->last_step);
}

/* Of the verdict just announced. evaluating: its evaluation is still to come and belongs into the manifest. */
static void begin(struct coordinator_core *core, int best, int evaluating)
{
    struct core_job *job = &core->job;
    struct core_snapshot *snapshot = &job->snapshot;
    core_snapshots_close(snapshot);
    manifest_init(&snapshot->manifest);
    int status = expect_files(job);
    if (asprintf(&snapshot->folder, "%s/step-%08llu", job->snapshot_dir, (unsigned long long)job->last_step) < 0)
        snapshot->folder = NULL;
    if (status != 0 || snapshot->folder == NULL) {
        no_memory(core);
        return;
    }
    snapshot->active = 1;
    snapshot->best = best;
    snapshot->step = job->last_step;
    snapshot->applied = (uint64_t)job->applied;
    snapshot->evaluating = evaluating;
    snapshot->manifest.running = calloc((size_t)job->running_count + 1, sizeof(float));
    if (snapshot->manifest.running != NULL) {
        snapshot->manifest.running_count = job->running_count;
        memcpy(snapshot->manifest.running, job->running, (size_t)job->running_count * sizeof(float));
    }
    int workers = snapshot->savers[CORE_WORKER];
    if (!job->ring)
        push_snapshot(core, AUDIENCE_SERVERS, -1);
    if (workers > 0)
        push_snapshot(core, AUDIENCE_WORKERS, workers == job->workers ? -1 : 0);
}

int core_snapshots_due(const struct core_job *job)
{
    return job->snapshot_dir != NULL && schedule_saves(job->job, job->last_step, job->last);
}

int core_snapshots_follows(const struct coordinator_core *core, int stop)
{
    const struct core_job *job = &core->job;
    int under_way = job->snapshot.active && job->snapshot.step == job->last_step;
    return under_way || (stop && job->snapshot_dir != NULL && job->snapshot_step != job->last_step);
}

void core_snapshots_after_verdict(struct coordinator_core *core, int evaluating)
{
    if (core_snapshots_due(&core->job))
        begin(core, 0, evaluating);
}

void core_snapshots_final(struct coordinator_core *core)
{
    struct core_job *job = &core->job;
    if (job->snapshot_dir == NULL || job->snapshot.active || job->snapshot_step == job->last_step)
        return;
    begin(core, 0, 0);
}

static int by_owner(const void *a, const void *b)
{
    const struct manifest_file *x = a, *y = b;
    return x->owner != y->owner ? (x->owner > y->owner) - (x->owner < y->owner) : strcmp(x->name, y->name);
}

static void fill_manifest(const struct coordinator_core *core, struct manifest *manifest)
{
    const struct core_job *job = &core->job;
    manifest->step = job->snapshot.step;
    manifest->applied = job->snapshot.applied;
    manifest->total_steps = job->total_steps;
    manifest->job_hash = job_hash(job->job);
    manifest->workers = job->workers;
    manifest->servers = job->servers;
    manifest->watched = job->evaluations_seen;
    manifest->bad_evaluations = job->bad_evaluations;
    manifest->early_best = job->early_best;
    manifest->best_known = job->best_known;
    manifest->best_value = job->best_value;
    manifest->best = job->snapshot.best;
    if (manifest->yaml == NULL)
        manifest->yaml = strdup(job->yaml);
    if (manifest->files_count > 0)
        qsort(manifest->files, (size_t)manifest->files_count, sizeof *manifest->files, by_owner);
}

/* Writes or rewrites the manifest. The last whole snapshot and the best one stay whatever happens. */
static int commit(struct coordinator_core *core, struct errbuf *err)
{
    struct core_job *job = &core->job;
    struct core_snapshot *snapshot = &job->snapshot;
    char *folder = strdup(snapshot->folder), *durable = strdup(snapshot->folder);
    uint64_t best_step = snapshot->best ? snapshot->step : job->best_step;
    if (folder == NULL || durable == NULL) {
        free(folder);
        free(durable);
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    }
    fill_manifest(core, &snapshot->manifest);
    snapshot->manifest.best_step = best_step;
    struct snapshot_commit order = {folder, &snapshot->manifest, (int)job->job->snapshot.keep, best_step,
                                    job->snapshot_folder != NULL ? -1 : job->resumed ? (int64_t)job->resume.step : 0};
    int status = snapshot->manifest.yaml == NULL ? errbuf_set(err, STATUS_NOMEM, "out of memory")
                                                 : core->ops.snapshot_commit(core->ops.context, &order, err);
    if (status != 0) {
        free(folder);
        free(durable);
        return status;
    }
    free(job->snapshot_folder);
    free(core->manifest_folder);
    job->snapshot_folder = folder;
    core->manifest_folder = durable;
    job->snapshot_step = snapshot->step;
    job->best_step = best_step;
    return core_start_persist(core, err);
}

static void complete(struct coordinator_core *core)
{
    struct core_job *job = &core->job;
    struct core_snapshot *snapshot = &job->snapshot;
    if (!snapshot->active || snapshot->waiting > 0 || snapshot->evaluating)
        return;
    struct errbuf err;
    errbuf_init(&err);
    snapshot->active = 0;
    if (!snapshot->failed && commit(core, &err) != 0) {
        snapshot->failed = 1;
        core_log(core, LOG_WARNING, "snapshot of step %llu failed: %s", (unsigned long long)snapshot->step, err.text);
        core_say(core, "warning: snapshot of step %llu failed: %s; training goes on",
                 (unsigned long long)snapshot->step, err.text);
    }
    if (snapshot->failed)
        core->ops.snapshot_discard(core->ops.context, snapshot->folder);
    else
        core_log(core, LOG_INFO, "snapshot step=%llu folder=%s best=%d", (unsigned long long)snapshot->step,
                 snapshot->folder, snapshot->best);
    core_evaluation_answer(core);
    core_steps_advance(core);
    core_ending_advance(core);
}

void core_snapshots_evaluated(struct coordinator_core *core)
{
    if (!core->job.snapshot.active || !core->job.snapshot.evaluating)
        return;
    core->job.snapshot.evaluating = 0;
    complete(core);
}

void core_snapshots_best(struct coordinator_core *core, uint64_t step)
{
    struct core_snapshot *snapshot = &core->job.snapshot;
    struct errbuf err;
    errbuf_init(&err);
    if (snapshot->active && snapshot->step == step) {
        snapshot->best = 1;
    } else if (!snapshot->active && !snapshot->failed && snapshot->folder != NULL && snapshot->step == step) {
        snapshot->best = 1;
        if (commit(core, &err) != 0)
            core_log(core, LOG_WARNING, "best snapshot of step %llu: %s", (unsigned long long)step, err.text);
    } else if (!snapshot->active && step == core->job.last_step && core->job.resume.step != step) {
        begin(core, 1, 0);
    }
}

static void failed(struct coordinator_core *core, const struct core_member *member, const Shoal__Envelope *envelope)
{
    struct core_snapshot *snapshot = &core->job.snapshot;
    snapshot->failed = 1;
    core_log(core, LOG_WARNING, "snapshot of step %llu failed at %s %d: %.600s", (unsigned long long)snapshot->step,
             core_kind_name(member->kind), member->rank,
             *envelope->text != '\0' ? envelope->text : status_text(envelope->status));
    core_say(core, "warning: snapshot %s failed at %s %d: %.600s; training goes on, the snapshot before is kept",
             snapshot->folder, core_kind_name(member->kind), member->rank,
             *envelope->text != '\0' ? envelope->text : status_text(envelope->status));
}

static void keep_file(struct coordinator_core *core, const struct core_member *member,
                      const Shoal__SnapshotFile *file)
{
    struct core_snapshot *snapshot = &core->job.snapshot;
    struct manifest_file kept = {.owner = file->owner, .name = file->name, .bytes = file->bytes,
                                 .holder = *file->holder != '\0'         ? file->holder
                                           : member->kind == CORE_WORKER ? member->host
                                                                         : member->address};
    if (strlen(file->sha256) == 64)
        memcpy(kept.sha256, file->sha256, 65);
    if (kept.sha256[0] == '\0' || strchr(file->name, '/') != NULL || *file->name == '\0' ||
        manifest_add_file(&snapshot->manifest, &kept) != 0) {
        snapshot->failed = 1;
        core_log(core, LOG_WARNING, "snapshot of step %llu failed: %s %d gave no usable file",
                 (unsigned long long)snapshot->step, core_kind_name(member->kind), member->rank);
    }
}

void core_snapshots_done(struct coordinator_core *core, struct core_member *member, struct message *message,
                         const struct net_return *back)
{
    const Shoal__Envelope *envelope = message->envelope;
    struct core_snapshot *snapshot = &core->job.snapshot;
    core_answer(core, back, 0, "%s", "");
    const Shoal__Snapshot *body =
        envelope->body_case == SHOAL__ENVELOPE__BODY_SNAPSHOT ? envelope->snapshot : NULL;
    uint64_t step = body != NULL && body->step != 0 ? body->step : envelope->clock;
    if (!snapshot->active || step != snapshot->step)
        return; /* a repeat of a snapshot that is over */
    if (member->rank >= snapshot->savers[member->kind] || snapshot->done[member->kind][member->rank])
        return;
    snapshot->done[member->kind][member->rank] = 1;
    snapshot->waiting--;
    if (core->job.ring)
        snapshot->evaluating = 0; /* a worker saves when it has evaluated */
    if (envelope->status != 0)
        failed(core, member, envelope);
    else if (body != NULL && body->file != NULL)
        keep_file(core, member, body->file);
    complete(core);
}
