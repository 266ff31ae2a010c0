#include <stdlib.h>
#include <string.h>

#include "server/coordinator/core.h"

static void close_spec(struct coordinator_job *spec)
{
    free((char *)spec->directory);
    free((char *)spec->init_path);
    free((char *)spec->export_path);
    free((char *)spec->metrics_path);
    free((char *)spec->trace_path);
    free((char *)spec->resume_path);
    memset(spec, 0, sizeof *spec);
}

static int copy_text(const char **to, const char *from)
{
    *to = strdup(from == NULL ? "" : from);
    return *to == NULL ? STATUS_NOMEM : 0;
}

int core_job_copy_spec(struct core_job *job, const struct coordinator_job *spec)
{
    int status = copy_text(&job->spec.directory, spec->directory);
    status |= copy_text(&job->spec.init_path, spec->init_path);
    status |= copy_text(&job->spec.export_path, spec->export_path);
    status |= copy_text(&job->spec.metrics_path, spec->metrics_path);
    status |= copy_text(&job->spec.trace_path, spec->trace_path);
    status |= copy_text(&job->spec.resume_path, spec->resume_path);
    job->spec.resume = spec->resume;
    return status == 0 ? 0 : STATUS_NOMEM;
}

static void close_reports(struct core_report *reports, int workers)
{
    for (int rank = 0; reports != NULL && rank < workers; rank++)
        buf_release(reports[rank].statistics);
    free(reports);
}

int core_job_map_servers(const struct core_job *job)
{
    return job->ring ? 1 : job->servers;
}

void *core_copy(const ProtobufCMessage *message)
{
    size_t bytes = protobuf_c_message_get_packed_size(message);
    uint8_t *packed = malloc(bytes + 1);
    if (packed == NULL)
        return NULL;
    protobuf_c_message_pack(message, packed);
    void *result = protobuf_c_message_unpack(message->descriptor, NULL, bytes, packed);
    free(packed);
    return result;
}

/* What belongs to one launch of the job. */
static void close_launch(struct core_job *job)
{
    core_gather_forget(job, UINT64_MAX);
    core_trust_close(job);
    for (int i = 0; i < CORE_SETS; i++)
        core_evaluation_close(&job->evaluations[i]);
    core_snapshots_close(&job->snapshot);
    close_reports(job->reports, job->workers);
    close_reports(job->early, job->workers);
    if (job->stepping)
        step_close(&job->step);
    if (job->keymap_built)
        keymap_close(&job->keymap);
    param_table_close(&job->table);
    if (job->registration != NULL)
        shoal__register__free_unpacked(job->registration, NULL);
    manifest_close(&job->resume);
    free(job->run_owner);
    free(job->features);
    free(job->running);
    free(job->merged);
    free(job->one);
    free(job->resume_folder);
    free(job->snapshot_folder);
}

void core_job_reopen(struct core_job *job)
{
    struct core_job kept = {.spec = job->spec, .owned = job->owned, .job = job->job, .yaml = job->yaml,
                            .snapshot_dir = job->snapshot_dir, .ring = job->ring, .servers = job->servers,
                            .began_ns = job->began_ns, .rollbacks = job->rollbacks, .stuck = job->stuck,
                            .rolled_to = job->rolled_to};
    memcpy(kept.rolled_why, job->rolled_why, sizeof kept.rolled_why);
    close_launch(job);
    *job = kept;
    param_table_init(&job->table);
}

void core_job_close(struct core_job *job)
{
    close_launch(job);
    close_spec(&job->spec);
    job_destroy(job->owned);
    free(job->yaml);
    free(job->snapshot_dir);
    memset(job, 0, sizeof *job);
}
