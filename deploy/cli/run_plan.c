#include "deploy/cli/run_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/errbuf.h"
#include "base/pool.h"
#include "base/status.h"
#include "config/job.h"

extern char **environ;

/* NULL or "" stay "": owned; NULL when out of memory. */
static char *absolute(const char *path)
{
    char *out = NULL;
    if (!path || path[0] == '\0' || path[0] == '/')
        return strdup(path ? path : "");
    char *here = getcwd(NULL, 0);
    if (here && asprintf(&out, "%s/%s", here, path) < 0)
        out = NULL;
    free(here);
    return out;
}

static char *folder_of(const char *path)
{
    char *full = realpath(path, NULL);
    char *slash = full ? strrchr(full, '/') : NULL;
    if (slash)
        slash[slash == full ? 1 : 0] = '\0';
    return full;
}

/* Without --servers: what it means depends on the job's mode and workers, which the file alone may say. */
static int load_first(struct run_plan *plan, struct job_source *source, struct errbuf *err)
{
    struct job_source first = *source;
    first.overrides_count = source->overrides_count - 1;
    int status = job_load(&plan->job, &first, err);
    plan->servers_unused = status == 0 && job_is_ring(plan->job->parallel.data);
    return status;
}

static int load(struct run_plan *plan, const char *path, const struct run_options *options, struct errbuf *err)
{
    struct job_override overrides[3];
    int count = 0;
    struct job_source source = {.path = path,
                                .environment = environ,
                                .sets = options->sets.items,
                                .sets_count = options->sets.count,
                                .overrides = overrides,
                                .need = JOB_NEED_TRAINING};
    char workers_text[24];
    if (options->transport)
        overrides[count++] = (struct job_override){"parallel.transport", options->transport, "--transport"};
    if (options->workers)
        overrides[count++] = (struct job_override){"cluster.workers", options->workers, "--workers"};
    if (options->servers)
        overrides[count++] = (struct job_override){"cluster.servers", options->servers, "--servers"};
    source.overrides_count = count;
    if (options->servers) {
        int status = load_first(plan, &source, err);
        if (status != 0 || plan->servers_unused)
            return status;
        snprintf(workers_text, sizeof workers_text, "%lld", (long long)plan->job->cluster.workers);
        job_destroy(plan->job);
        plan->job = NULL;
        if (strcmp(options->servers, "same") == 0)
            overrides[count - 1].value = workers_text;
    }
    return job_load(&plan->job, &source, err);
}

static int take_paths(struct run_plan *plan, const char *path, const struct run_options *options,
                      struct errbuf *err)
{
    plan->job_dir = folder_of(path);
    plan->init = absolute(options->init);
    plan->export_path = absolute(options->export_path);
    plan->metrics = absolute(options->metrics);
    plan->trace = absolute(options->trace);
    plan->resume = absolute(options->resume);
    plan->data = absolute(options->data);
    plan->state = absolute(options->state);
    if (!plan->job_dir || !plan->init || !plan->export_path || !plan->metrics || !plan->trace || !plan->resume ||
        !plan->data || !plan->state)
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    return 0;
}

/* What would only be found out after training, or after everything is started. */
static int check_paths(const struct run_plan *plan, struct errbuf *err)
{
    const struct {
        const char *option, *path;
    } written[] = {{"--export", plan->export_path}, {"--metrics", plan->metrics}, {"--trace", plan->trace}};
    for (size_t i = 0; i < sizeof written / sizeof *written; i++) {
        char *folder = strdup(written[i].path);
        char *slash = folder ? strrchr(folder, '/') : NULL;
        int refused = 0;
        if (slash) {
            slash[slash == folder ? 1 : 0] = '\0';
            refused = access(folder, W_OK | X_OK) != 0;
        }
        free(folder);
        if (refused)
            return errbuf_set(err, STATUS_INVALID, "%s %.300s: its folder is not there or cannot be written to",
                              written[i].option, written[i].path);
    }
    if (plan->init[0] && access(plan->init, R_OK) != 0)
        return errbuf_set(err, STATUS_INVALID, "--init %.300s: not there or cannot be read", plan->init);
    if (plan->resume[0] && access(plan->resume, R_OK | X_OK) != 0)
        return errbuf_set(err, STATUS_INVALID, "--resume %.300s: not there or cannot be read", plan->resume);
    if (plan->data[0] && access(plan->data, R_OK | X_OK) != 0)
        return errbuf_set(err, STATUS_INVALID, "--data %.300s: not there or cannot be read", plan->data);
    return 0;
}

int run_plan_make(struct run_plan *plan, const char *path, const struct run_options *options, struct errbuf *err)
{
    *plan = (struct run_plan){0};
    int status = load(plan, path, options, err);
    if (status == 0)
        status = take_paths(plan, path, options, err);
    if (status == 0 && !options->print_config && !options->paths_elsewhere)
        status = check_paths(plan, err);
    if (status != 0)
        return status;
    const struct job *job = plan->job;
    plan->workers = (int)job->cluster.workers;
    plan->servers = job_is_ring(job->parallel.data) ? 0 : (int)job->cluster.servers;
    plan->elastic = job_is_ring(job->parallel.data) && job->cluster.elastic_min > 0;
    int shared = pool_available_cores() / plan->workers;
    plan->worker_threads = options->threads > 0        ? options->threads
                           : job->parallel.threads > 0 ? (int)job->parallel.threads
                           : shared > 1                ? shared
                                                       : 1;
    plan->server_threads = 1;
    plan->stop_ms = (int)(job->cluster.stop_timeout * 1000) + 500;
    return 0;
}

void run_plan_close(struct run_plan *plan)
{
    job_destroy(plan->job);
    free(plan->job_dir);
    free(plan->init);
    free(plan->export_path);
    free(plan->metrics);
    free(plan->trace);
    free(plan->resume);
    free(plan->data);
    free(plan->state);
    *plan = (struct run_plan){0};
}
