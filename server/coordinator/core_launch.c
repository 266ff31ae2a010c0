#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/table_wire.h"
#include "server/coordinator/core.h"

static double seconds(int64_t ns)
{
    return (double)ns / 1e9;
}

static int resolve_snapshot_dir(struct core_job *job)
{
    const char *dir = job->job->snapshot.dir, *base = job->spec.directory;
    int bytes;
    if (dir == NULL || *dir == '\0')
        return 0;
    if (*dir == '/' || *base == '\0')
        bytes = asprintf(&job->snapshot_dir, "%s", dir);
    else
        bytes = asprintf(&job->snapshot_dir, "%s/%s", base, dir);
    return bytes < 0 ? STATUS_NOMEM : 0;
}

/* Fills core->job from what was submitted; the caller closes it on error. */
static int take_job(struct coordinator_core *core, const struct coordinator_job *spec, struct errbuf *err)
{
    struct core_job *job = &core->job;
    core_job_close(job);
    param_table_init(&job->table);
    if (core_job_copy_spec(job, spec) != 0)
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    job->job = spec->job;
    if (spec->job == NULL) {
        struct job_source source = {.text = spec->yaml == NULL ? "" : spec->yaml, .text_name = "job",
                                    .need = JOB_NEED_TRAINING};
        int status = job_load(&job->owned, &source, err);
        if (status != 0)
            return status;
        job->job = job->owned;
    }
    job->yaml = job_to_yaml(job->job);
    if (job->yaml == NULL || resolve_snapshot_dir(job) != 0)
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    job->workers = (int)job->job->cluster.workers;
    job->ring = job_is_ring(job->job->parallel.data);
    job->servers = job->ring ? 0 : (int)job->job->cluster.servers;
    if (job->workers < 1 || job->workers > CORE_RANKS_MAX || (!job->ring && job->servers < 1) ||
        job->servers > CORE_RANKS_MAX)
        return errbuf_set(err, STATUS_RANGE, "cluster.workers and cluster.servers must be 1 to %d", CORE_RANKS_MAX);
    if (spec->resume && job->snapshot_dir == NULL && *job->spec.resume_path == '\0')
        return errbuf_set(err, STATUS_INVALID, "resume needs snapshot.dir or a snapshot's folder");
    struct coordinator_job resolved = job->spec;
    resolved.job = job->job;
    return core->ops.job_begins(core->ops.context, &resolved, err);
}

int core_launch_submit(struct coordinator_core *core, const struct coordinator_job *spec, struct errbuf *err)
{
    if (core->phase != CORE_IDLE)
        return errbuf_set(err, STATUS_BUSY, "job \"%s\" is running", core->job.job->name);
    if (core->stopping)
        return errbuf_set(err, STATUS_STOPPED, "the coordinator is about to end");
    int status = take_job(core, spec, err);
    if (status != 0) {
        core_job_close(&core->job);
        return status;
    }
    core_events_begin_job(core);
    core_members_clear_job(core);
    core->ended = 0;
    core->end_status = 0;
    core->end_text[0] = '\0';
    core->job.id = core->ops.random(core->ops.context);
    core->job.began_ns = core->now_ns;
    core_set_phase(core, CORE_GATHERING);
    core_log(core, LOG_INFO, "job name=%s id=%016llx workers=%d servers=%d", core->job.job->name,
             (unsigned long long)core->job.id, core->job.workers, core->job.servers);
    if (core_members_all_in(core))
        core_launch_gathered(core);
    return 0;
}

/* Everyone is there: the job is announced. */
void core_launch_gathered(struct coordinator_core *core)
{
    struct core_job *job = &core->job;
    char text[CORE_LINE];
    for (int kind = 0; kind < CORE_KINDS; kind++)
        for (int rank = 0; rank < core_kind_count(core, (enum core_kind)kind); rank++)
            core->members[kind][rank]->counted = 1;
    if (core_members_check_types(core, NULL, text) != 0) {
        core_ending_end(core, STATUS_INVALID, "%s", text);
        return;
    }
    struct errbuf err;
    errbuf_init(&err);
    int status = core_start_restore(core, &err);
    if (status != 0) {
        core_ending_end(core, status, "%s", err.text);
        return;
    }
    core->cluster_epoch++;
    status = core_start_persist(core, &err);
    if (status != 0) {
        core_ending_end(core, status, "%s", err.text);
        return;
    }
    core_set_phase(core, CORE_REGISTERING);
    Shoal__Envelope envelope;
    Shoal__JobBegin begin = SHOAL__JOB_BEGIN__INIT;
    core_envelope(core, &envelope, SHOAL__TYPE__JOB);
    envelope.body_case = SHOAL__ENVELOPE__BODY_JOB_BEGIN;
    envelope.job_begin = &begin;
    begin.yaml = job->yaml;
    begin.directory = (char *)job->spec.directory;
    begin.workers = (uint32_t)job->workers;
    begin.servers = (uint32_t)job->servers;
    begin.init_path = (char *)job->spec.init_path;
    begin.export_path = (char *)job->spec.export_path;
    begin.trace = *job->spec.trace_path != '\0';
    begin.resume = job->resumed;
    char *hosts[CORE_RANKS_MAX];
    for (int rank = 0; rank < job->workers; rank++)
        hosts[rank] = core->members[CORE_WORKER][rank]->host;
    begin.worker_hosts = hosts;
    begin.n_worker_hosts = (size_t)job->workers;
    uint64_t lives[CORE_RANKS_MAX];
    for (int rank = 0; rank < job->workers; rank++)
        lives[rank] = core->members[CORE_WORKER][rank]->incarnation;
    begin.worker_incarnations = lives;
    begin.n_worker_incarnations = (size_t)job->workers;
    core_events_push(core, AUDIENCE_ALL, -1, &envelope, NULL);
}

static uint64_t fingerprint_of(const Shoal__Register *body)
{
    struct param_table table;
    uint64_t result = 0;
    if (table_wire_unpack(&table, body->table, NULL) == 0)
        result = param_table_fingerprint(&table);
    param_table_close(&table);
    return result;
}

/* What differs between a rank's registration and rank 0's; NULL: nothing. */
static const char *difference(const Shoal__Register *a, const Shoal__Register *b)
{
    if (a->total_steps != b->total_steps)
        return "total steps";
    if (a->train_rows != b->train_rows)
        return "training rows";
    if (a->prescaled != b->prescaled)
        return "scaling";
    if (a->n_norm_features != b->n_norm_features ||
        (a->n_norm_features > 0 && memcmp(a->norm_features, b->norm_features,
                                          a->n_norm_features * sizeof *a->norm_features) != 0))
        return "norm layers";
    if (a->evaluation_blocks != b->evaluation_blocks)
        return "evaluation blocks";
    return fingerprint_of(a) != fingerprint_of(b) ? "parameter tables" : NULL;
}

static void answer_registered(struct coordinator_core *core)
{
    for (int rank = 0; rank < core->job.workers; rank++) {
        struct core_member *member = core->members[CORE_WORKER][rank];
        if (member != NULL && member->registering.held)
            core_answer(core, &member->registering.back, 0, "%s", "");
        if (member != NULL)
            member->registering.held = 0;
    }
}

/* Owners are ready, or are the workers themselves: training starts. */
static void all_ready(struct coordinator_core *core)
{
    struct core_job *job = &core->job;
    job->train_ns = job->step_ns = core->now_ns;
    int nothing = job->total_steps > 0 && job->first_step > job->total_steps;
    job->last_step = job->first_step - 1;
    if (nothing) {
        job->last = 1;
        core_set_phase(core, CORE_FINISHING);
        core_log(core, LOG_INFO, "nothing left to train: the snapshot is of the last step %llu",
                 (unsigned long long)job->total_steps);
    } else {
        core_set_phase(core, CORE_RUNNING);
        core_steps_begin(core, job->first_step);
    }
    core_start_announce(core, AUDIENCE_WORKERS);
    core_elastic_look(core);
}

/* All tables agree: key map, state on disk, then the servers' START. */
static void all_registered(struct coordinator_core *core)
{
    struct errbuf err;
    errbuf_init(&err);
    int status = core_start_build(core, &err);
    if (status == 0)
        status = core_start_persist(core, &err);
    if (status != 0) {
        core_ending_end(core, status, "%s", err.text);
        return;
    }
    answer_registered(core);
    core_set_phase(core, CORE_PREPARING);
    if (core->job.ring)
        all_ready(core);
    else
        core_start_announce(core, AUDIENCE_SERVERS);
}

/* 0, or the job has been ended. */
static int take_peer(struct coordinator_core *core, struct core_member *member, const Shoal__Register *body)
{
    if (body->peer == NULL || *body->peer->address == '\0') {
        core_ending_end(core, STATUS_PROTOCOL, "worker %d does not say how the others reach it", member->rank);
        return STATUS_PROTOCOL;
    }
    member->peer = core_copy(&body->peer->base);
    if (member->peer == NULL)
        core_ending_end(core, STATUS_NOMEM, "out of memory");
    return member->peer == NULL ? STATUS_NOMEM : 0;
}

void core_launch_register(struct coordinator_core *core, struct core_member *member, struct message *message,
                          const struct net_return *back)
{
    const Shoal__Envelope *envelope = message->envelope;
    struct core_job *job = &core->job;
    if (envelope->body_case != SHOAL__ENVELOPE__BODY_REGISTER_ || envelope->register_->table == NULL) {
        core_answer(core, back, STATUS_PROTOCOL, "no parameter table");
        return;
    }
    if (core->phase > CORE_REGISTERING) {
        core_answer(core, back, 0, "%s", "");
        return;
    }
    member->registering.held = 1;
    member->registering.back = *back;
    if (member->registered)
        return;
    struct param_table table;
    struct errbuf err;
    errbuf_init(&err);
    int status = table_wire_unpack(&table, envelope->register_->table, &err);
    param_table_close(&table);
    if (status != 0) {
        core_ending_end(core, status, "worker %d's parameter table: %s", member->rank, err.text);
        return;
    }
    /* Rank 0's is the one that counts; the first to come stands in for it, as equal they must be. */
    const char *differs =
        job->registration == NULL ? NULL : difference(job->registration, envelope->register_);
    if (differs != NULL) {
        int other = 0;
        while (other < job->workers && (core->members[CORE_WORKER][other] == NULL ||
                                        !core->members[CORE_WORKER][other]->registered))
            other++;
        core_ending_end(core, STATUS_INVALID, "worker %d's %s differ from worker %d's", member->rank, differs,
                        other);
        return;
    }
    if (job->ring && take_peer(core, member, envelope->register_) != 0)
        return;
    if (job->registration == NULL && (job->registration = core_copy(&envelope->register_->base)) == NULL) {
        core_ending_end(core, STATUS_NOMEM, "out of memory");
        return;
    }
    member->registered = 1;
    for (int rank = 0; rank < job->workers; rank++)
        if (core->members[CORE_WORKER][rank] == NULL || !core->members[CORE_WORKER][rank]->registered)
            return;
    all_registered(core);
}

void core_launch_ready(struct coordinator_core *core, struct core_member *member, struct message *message,
                       const struct net_return *back)
{
    if (core->phase < CORE_PREPARING) {
        core_answer(core, back, STATUS_PROTOCOL, "ready before START");
        return;
    }
    core_answer(core, back, 0, "%s", "");
    if (core->phase > CORE_PREPARING || member->ready)
        return;
    if (message->envelope->status != 0) {
        core_ending_end(core, message->envelope->status, "server %d: %.600s", member->rank,
                        message->envelope->text);
        return;
    }
    member->ready = 1;
    for (int rank = 0; rank < core->job.servers; rank++)
        if (core->members[CORE_SERVER][rank] == NULL || !core->members[CORE_SERVER][rank]->ready)
            return;
    all_ready(core);
}

static int is_missing(const struct coordinator_core *core, enum core_kind kind, int rank)
{
    const struct core_member *member = core->members[kind][rank];
    switch ((int)core->phase) {
    case CORE_GATHERING:
        return member == NULL;
    case CORE_REGISTERING:
        return kind == CORE_WORKER && (member == NULL || !member->registered);
    case CORE_PREPARING:
        return kind == CORE_SERVER && (member == NULL || !member->ready);
    default:
        return 0;
    }
}

static const char *awaited(enum core_phase phase)
{
    return phase == CORE_GATHERING     ? "waiting for "
           : phase == CORE_REGISTERING ? "waiting for the parameter tables of "
                                       : "waiting for the shards of ";
}

void core_launch_tick(struct coordinator_core *core)
{
    struct core_job *job = &core->job;
    if (core->phase != CORE_GATHERING && core->phase != CORE_REGISTERING && core->phase != CORE_PREPARING)
        return;
    char text[CORE_LINE];
    const double start = job->job->cluster.timeouts.start;
    if (seconds(core->now_ns - job->phase_ns) >= start) {
        core_members_list(core, is_missing, awaited(core->phase), text);
        core_ending_end(core, STATUS_TIMEOUT, "%s: not there within %g s (cluster.timeouts.start)", text, start);
        return;
    }
    if (seconds(core->now_ns - job->said_ns) < job->job->cluster.timeouts.stall_report)
        return;
    job->said_ns = core->now_ns;
    core_members_list(core, is_missing, awaited(core->phase), text);
    core_stall(core, "%s for %.0f s", text, seconds(core->now_ns - job->phase_ns));
}
