#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/norm_stats.h"
#include "net/table_wire.h"
#include "optim/optimizer.h"
#include "server/coordinator/core.h"

_Static_assert((int)JOB_PLACEMENT_PART == (int)CANONICAL_PART && (int)JOB_PLACEMENT_LAYER == (int)CANONICAL_LAYER,
               "a job's placement is the key map's");

static int build_keymap(struct core_job *job, struct errbuf *err)
{
    int status = table_wire_unpack(&job->table, job->registration->table, err);
    if (status != 0)
        return status;
    job->fingerprint = param_table_fingerprint(&job->table);
    struct keymap_layout layout = {.ranks = job->workers, .servers = core_job_map_servers(job),
                                   .message_bytes = job->job->parallel.message_bytes,
                                   .placement = job->job->parallel.placement};
    status = keymap_init(&job->keymap, &job->table, &layout, err);
    if (status != 0)
        return errbuf_prefix(err, status, "key map");
    job->keymap_built = 1;
    job->run_owner = calloc((size_t)job->keymap.runs_count + 1, sizeof *job->run_owner);
    if (job->run_owner == NULL)
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    for (int64_t k = 0; k < job->keymap.keys_count; k++) {
        const struct keymap_key *key = &job->keymap.keys[k];
        for (int run = 0; key->run_first >= 0 && run < key->runs; run++)
            job->run_owner[key->run_first + run] = key->server;
    }
    return 0;
}

/* mean 0 and variance 1, or what the snapshot says. */
static int build_norms(struct core_job *job, struct errbuf *err)
{
    job->norms = (int)job->registration->n_norm_features;
    job->features = calloc((size_t)job->norms + 1, sizeof *job->features);
    if (job->features == NULL)
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    int64_t total = 0;
    for (int i = 0; i < job->norms; i++) {
        int64_t width = job->registration->norm_features[i];
        if (width < 1 || width > INT32_MAX || total > INT32_MAX)
            return errbuf_set(err, STATUS_RANGE, "norm layer %d has %lld features", i, (long long)width);
        job->features[i] = width;
        total += width;
    }
    job->statistics_count = norm_stats_count(job->features, job->norms);
    job->running_count = 2 * total;
    job->running = calloc((size_t)job->running_count + 1, sizeof *job->running);
    job->merged = calloc((size_t)job->statistics_count + 1, sizeof *job->merged);
    job->one = calloc((size_t)job->statistics_count + 1, sizeof *job->one);
    if (job->running == NULL || job->merged == NULL || job->one == NULL)
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    if (job->resumed && job->resume.running_count != job->running_count)
        return errbuf_set(err, STATUS_SHAPE, "the snapshot has %lld running values, the model %lld",
                          (long long)job->resume.running_count, (long long)job->running_count);
    float *at = job->running;
    for (int i = 0; i < job->norms; i++, at += 2 * job->features[i - 1])
        for (int64_t f = 0; f < job->features[i]; f++)
            at[job->features[i] + f] = 1;
    if (job->resumed)
        memcpy(job->running, job->resume.running, (size_t)job->running_count * sizeof *job->running);
    return 0;
}

int core_start_build(struct coordinator_core *core, struct errbuf *err)
{
    struct core_job *job = &core->job;
    job->total_steps = job->registration->total_steps;
    job->first_step = job->resumed ? job->resume.step + 1 : 1;
    job->applied = job->resumed ? (int64_t)job->resume.applied : 0;
    if (job->total_steps > 0 && job->first_step > job->total_steps + 1)
        return errbuf_set(err, STATUS_INVALID, "the snapshot is of step %llu, the job has %llu steps",
                          (unsigned long long)job->resume.step, (unsigned long long)job->total_steps);
    int status = build_keymap(job, err);
    if (status == 0)
        status = build_norms(job, err);
    if (status != 0)
        return status;
    job->reports = calloc((size_t)job->workers, sizeof *job->reports);
    job->early = calloc((size_t)job->workers, sizeof *job->early);
    /* A ring's step has no owners that report: the last worker's report completes it. */
    struct step_rules rules = {
        .owners = core_job_map_servers(job),
        .workers = job->workers,
        .runs = job->ring ? 0 : job->keymap.runs_count,
        .run_owner = job->run_owner,
        .clip_norm = job->job->optimizer.clip_norm,
        .nonfinite_stop = job->job->optimizer.nonfinite == JOB_NONFINITE_STOP,
        .divide = !job->registration->prescaled && job->job->parallel.aggregate == JOB_MEAN,
        .lr_at = core_steps_lr_at,
        .lr_context = job,
    };
    status = job->reports == NULL || job->early == NULL ? STATUS_NOMEM : step_init(&job->step, &rules);
    if (status != 0)
        return errbuf_set(err, status, "the step: %s", status_text(status));
    job->stepping = 1;
    return 0;
}

/* The address of a joined server that stores the file, or NULL. What a server has written since it joined is not in its
 * list: then the address in the manifest tells. */
static const char *holder_of(const struct coordinator_core *core, const struct manifest_file *file)
{
    const char *wrote = NULL;
    for (int rank = 0; rank < core->members_limit[CORE_SERVER]; rank++) {
        const struct core_member *member = core->members[CORE_SERVER][rank];
        for (size_t i = 0; member != NULL && i < member->join->n_stored; i++)
            if (strcmp(member->join->stored[i]->sha256, file->sha256) == 0)
                return member->address;
        if (member != NULL && file->holder != NULL && *file->holder != '\0' && strcmp(member->address, file->holder) == 0)
            wrote = member->address;
    }
    return wrote;
}

static int find_holders(const struct coordinator_core *core, struct core_job *job, struct errbuf *err)
{
    for (int i = 0; i < job->resume.files_count; i++) {
        struct manifest_file *file = &job->resume.files[i];
        /* The workers of a ring read it themselves. */
        const char *holder = job->ring ? NULL : holder_of(core, file);
        if (holder == NULL && file->missing)
            return errbuf_set(err, STATUS_UNKNOWN, "%s: %s is not there, %s (written by %s)", job->resume_folder, file->name,
                              job->ring ? "where the workers of a ring read it" : "and no server that joined has it",
                              *file->holder != '\0' ? file->holder : "a worker");
        free(file->holder);
        file->holder = strdup(holder == NULL ? "" : holder);
        if (file->holder == NULL)
            return errbuf_set(err, STATUS_NOMEM, "out of memory");
    }
    return 0;
}

int core_start_restore(struct coordinator_core *core, struct errbuf *err)
{
    struct core_job *job = &core->job;
    if (!job->spec.resume)
        return 0;
    int status = core->ops.restore(core->ops.context, &job->spec, job->snapshot_dir, &job->resume,
                                   &job->resume_folder, &job->resumed, err);
    if (status != 0)
        return status;
    if (!job->resumed) {
        core_say(core, "resume: no snapshot in %s yet, starting at the beginning",
                 *job->spec.resume_path != '\0' ? job->spec.resume_path : job->snapshot_dir);
        return 0;
    }
    struct job *saved = NULL;
    struct job_source source = {.text = job->resume.yaml, .text_name = job->resume_folder, .need = JOB_NEED_TRAINING};
    status = job_load(&saved, &source, err);
    if (status == 0)
        status = job_check_resume(saved, job->job, err);
    job_destroy(saved);
    if (status != 0)
        return errbuf_prefix(err, status, "resume");
    status = find_holders(core, job, err);
    if (status != 0)
        return status;
    job->evaluations_seen = job->resume.watched;
    job->bad_evaluations = job->resume.bad_evaluations;
    job->early_best = job->resume.early_best;
    job->best_known = job->resume.best_known;
    job->best_value = job->resume.best_value;
    job->best_step = job->resume.best_step;
    job->snapshot_step = job->resume.step;
    core_say(core, "resume: from step %llu in %s", (unsigned long long)job->resume.step, job->resume_folder);
    char line[96];
    snprintf(line, sizeof line, "{\"event\":\"resume\",\"step\":%llu}", (unsigned long long)job->resume.step);
    core->ops.metrics(core->ops.context, line);
    return 0;
}

int core_start_persist(struct coordinator_core *core, struct errbuf *err)
{
    struct core_job *job = &core->job;
    struct durable_state state;
    durable_state_init(&state);
    state.term = core->term;
    state.cluster_epoch = core->cluster_epoch;
    state.job = job->id;
    state.job_hash = job_hash(job->job);
    state.table = job->fingerprint;
    state.workers = job->workers;
    state.servers = job->servers;
    state.manifest = core->manifest_folder;
    state.members = calloc((size_t)(job->workers + job->servers), sizeof *state.members);
    if (state.members == NULL)
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    for (int kind = 0; kind < CORE_KINDS; kind++)
        for (int rank = 0; rank < core_kind_count(core, (enum core_kind)kind); rank++) {
            const struct core_member *member = core->members[kind][rank];
            if (member == NULL)
                continue;
            state.members[state.members_count++] = (struct durable_member){
                kind == CORE_WORKER, rank, member->incarnation, member->host, member->address, member->pid};
        }
    int status = core->ops.persist(core->ops.context, &state, err);
    free(state.members); /* texts are the members' */
    return status == 0 ? 0 : errbuf_prefix(err, status, "the coordinator's state");
}

struct buf *core_start_running(const struct coordinator_core *core)
{
    const struct core_job *job = &core->job;
    if (job->running_count == 0)
        return NULL;
    struct buf *frame = buf_create((size_t)job->running_count * sizeof *job->running);
    if (frame != NULL)
        memcpy(frame->data, job->running, frame->bytes);
    return frame;
}

/* The header a person sees once, when training starts. */
static void say_header(struct coordinator_core *core)
{
    struct core_job *job = &core->job;
    char batch[256];
    job_batch_text(job->job, job->workers, batch, sizeof batch);
    core_say(core, "job %s", job->job->name);
    if (job->job->batch_size > 0) /* a client job has none */
        core_say(core, "batch %s", batch);
    core_say(core, "parameters %lld in %d tensors, %d layers", (long long)job->table.count, job->table.tensor_count,
             job->table.layer_count);
    if (job->ring)
        core_say(core, "ring of %d workers, no servers (%lld keys)", job->workers, (long long)job->keymap.keys_count);
    else
        core_say(core, "servers %d (%lld keys), workers %d", job->servers, (long long)job->keymap.keys_count,
                 job->workers);
    const char *type = core->members[CORE_WORKER][0]->core_type;
    if (*type != '\0')
        core_say(core, "core type %s", type);
    if (job->total_steps > 0)
        core_say(core, "steps %llu", (unsigned long long)job->total_steps);
    if (job->snapshot_dir == NULL)
        core_say(core, "durability none: no snapshot.dir");
}

static void fill_start(struct coordinator_core *core, Shoal__Start *start)
{
    struct core_job *job = &core->job;
    start->table = job->registration->table;
    start->first_step = job->first_step;
    start->applied = (uint64_t)job->applied;
    start->snapshot_step = job->resumed ? job->resume.step : 0;
    start->snapshot_folder = job->resumed ? job->resume_folder : (char *)"";
    start->next_lr = core_steps_lr_at(job, job->applied + 1);
    start->total_steps = job->total_steps;
    start->prescaled = job->registration->prescaled;
}

/* Arrays of a START, freed after it was pushed. */
struct start_arrays {
    char **servers, **keys;
    uint64_t *incarnations;
    Shoal__Peer **peers;
    Shoal__SnapshotFile *files;
    Shoal__SnapshotFile **file_pointers;
};

static int fill_arrays(struct coordinator_core *core, Shoal__Start *start, struct start_arrays *arrays)
{
    struct core_job *job = &core->job;
    size_t files = job->resumed ? (size_t)job->resume.files_count : 0;
    arrays->servers = calloc((size_t)job->servers + 1, sizeof *arrays->servers);
    arrays->keys = calloc((size_t)job->servers + 1, sizeof *arrays->keys);
    arrays->peers = calloc((size_t)job->workers, sizeof *arrays->peers);
    arrays->incarnations = calloc((size_t)job->workers, sizeof *arrays->incarnations);
    arrays->files = calloc(files + 1, sizeof *arrays->files);
    arrays->file_pointers = calloc(files + 1, sizeof *arrays->file_pointers);
    if (arrays->servers == NULL || arrays->keys == NULL || arrays->peers == NULL || arrays->incarnations == NULL ||
        arrays->files == NULL || arrays->file_pointers == NULL)
        return STATUS_NOMEM;
    for (int rank = 0; rank < job->servers; rank++)
        arrays->servers[rank] = core->members[CORE_SERVER][rank]->address;
    for (int rank = 0; rank < job->servers; rank++)
        arrays->keys[rank] = core->members[CORE_SERVER][rank]->join->public_key;
    for (int rank = 0; rank < job->workers; rank++)
        arrays->incarnations[rank] = core->members[CORE_WORKER][rank]->incarnation;
    for (int rank = 0; rank < job->workers; rank++)
        arrays->peers[rank] = core->members[CORE_WORKER][rank]->peer;
    for (size_t i = 0; i < files; i++) {
        const struct manifest_file *file = &job->resume.files[i];
        shoal__snapshot_file__init(&arrays->files[i]);
        arrays->files[i].owner = file->owner;
        arrays->files[i].name = file->name;
        arrays->files[i].sha256 = (char *)file->sha256;
        arrays->files[i].bytes = file->bytes;
        arrays->files[i].holder = file->holder;
        arrays->file_pointers[i] = &arrays->files[i];
    }
    start->servers = arrays->servers;
    start->n_servers = (size_t)job->servers;
    start->server_keys = arrays->keys;
    start->n_server_keys = (size_t)job->servers;
    start->worker_incarnations = arrays->incarnations;
    start->n_worker_incarnations = (size_t)job->workers;
    start->peers = arrays->peers;
    start->n_peers = job->ring ? (size_t)job->workers : 0;
    start->files = arrays->file_pointers;
    start->n_files = files;
    return 0;
}

void core_start_announce(struct coordinator_core *core, int audience)
{
    Shoal__Envelope envelope;
    Shoal__Start start = SHOAL__START__INIT;
    struct start_arrays arrays = {0};
    core_envelope(core, &envelope, SHOAL__TYPE__START);
    envelope.clock = core->job.first_step;
    envelope.body_case = SHOAL__ENVELOPE__BODY_START;
    envelope.start = &start;
    fill_start(core, &start);
    int status = fill_arrays(core, &start, &arrays);
    if (status == 0) {
        struct buf *frame = audience == AUDIENCE_WORKERS ? core_start_running(core) : NULL;
        if (audience == AUDIENCE_WORKERS)
            say_header(core);
        core_events_push(core, audience, -1, &envelope, frame);
        buf_release(frame);
    }
    free(arrays.servers);
    free(arrays.keys);
    free(arrays.incarnations);
    free(arrays.peers);
    free(arrays.files);
    free(arrays.file_pointers);
    if (status != 0)
        core_ending_end(core, status, "out of memory");
}
