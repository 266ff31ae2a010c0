#include <stdlib.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "config/job.h"
#include "deploy/cli/cluster_args.h"
#include "deploy/cli/command.h"
#include "deploy/cli/run_plan.h"

struct options {
    struct cluster_args cluster;
    struct run_options run;
    int resume;
};
#define AT(field) offsetof(struct options, run.field)
static const struct arg rows[] = {
    CLUSTER_ARG_ROWS(options, cluster),
    {"set", ARG_LIST, AT(sets), "KEY=VALUE",
     "set an option of the job, above file and environment; may be given again", 0, 0},
    {"init", ARG_TEXT, AT(init), "A.safetensors", "start from these weights, on worker 0's machine", 0, 0},
    {"export", ARG_TEXT, AT(export_path), "B.safetensors", "write the trained model, on worker 0's machine", 0, 0},
    {"metrics", ARG_TEXT, AT(metrics), "M.jsonl", "a JSON line every step, on the coordinator's machine", 0, 0},
    {"trace", ARG_TEXT, AT(trace), "T.json", "a Chrome trace of every rank, on the coordinator's machine", 0, 0},
    {"resume", ARG_FLAG, offsetof(struct options, resume), NULL,
     "go on from the newest whole snapshot in snapshot.dir", 0, 0},
};
static const struct args_table table = {
    "shoal submit JOB.yaml --cluster tcp://HOST:PORT [options]",
    "Gives a waiting cluster a job. The job is resolved here; its paths are looked up on the cluster's machines,\n"
    "relative ones from this job file's folder.",
    rows,
    sizeof rows / sizeof *rows,
    1,
    1,
    "a job file",
    NULL};

static int send_job(const struct run_plan *plan, const struct options *options)
{
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    Shoal__Submit submit = SHOAL__SUBMIT__INIT;
    submit.yaml = job_to_yaml(plan->job);
    if (!submit.yaml)
        return command_fail(1, "out of memory");
    submit.directory = plan->job_dir;
    submit.init_path = plan->init;
    submit.export_path = plan->export_path;
    submit.metrics_path = plan->metrics;
    submit.trace_path = plan->trace;
    submit.resume = options->resume;
    envelope.type = SHOAL__TYPE__SUBMIT;
    envelope.body_case = SHOAL__ENVELOPE__BODY_SUBMIT;
    envelope.submit = &submit;
    int code = cluster_ask("submit", &options->cluster, &envelope, NULL);
    free(submit.yaml);
    return code;
}

static int submit_job(const char *path, struct options *options)
{
    struct run_plan plan;
    struct errbuf err;
    errbuf_init(&err);
    options->run.paths_elsewhere = 1;
    int code;
    int status = run_plan_make(&plan, path, &options->run, &err);
    for (int i = 0; status == 0 && i < job_warnings(plan.job)->count; i++)
        fprintf(stderr, "shoal: warning: %s\n", job_warnings(plan.job)->items[i]);
    code = status != 0 ? command_fail(2, "%s", err.text) : send_job(&plan, options);
    if (code == 0)
        printf("job %s submitted\n", plan.job->name);
    run_plan_close(&plan);
    return code;
}

static int submit_run(int argc, char **argv)
{
    struct options options = {0};
    struct args_list operands;
    int code = 0;
    if (!command_parse(&table, argc, argv, &options, &operands, &code))
        return code;
    code = submit_job(operands.items[0], &options);
    args_close(&table, &options, &operands);
    return code;
}

const struct command command_submit = {"submit", "give a waiting cluster a job", submit_run};
