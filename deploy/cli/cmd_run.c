#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "config/job.h"
#include "config/reference.h"
#include "deploy/cli/command.h"
#include "deploy/cli/embedded.h"
#include "deploy/cli/launcher.h"
#include "deploy/cli/run_plan.h"

#define AT(field) offsetof(struct run_options, field)
static const struct arg rows[] = {
    {"workers", ARG_TEXT, AT(workers), "N", "workers, above cluster.workers", 0, 0},
    {"servers", ARG_TEXT, AT(servers), "M", "servers, above cluster.servers; \"same\": one beside each worker; a ring starts none", 0,
     0},
    {"embedded", ARG_FLAG, AT(embedded), NULL, "every role as a thread of this process", 0, 0},
    {"set", ARG_LIST, AT(sets), "KEY=VALUE",
     "set an option of the job, above file and environment; may be given again", 0, 0},
    {"transport", ARG_TEXT, AT(transport), "NAME",
     "tcp, shm or auto (shared memory where possible): --set parallel.transport=NAME", 0, 0},
    {"data", ARG_TEXT, AT(data), "DIR", "the data's paths start here; default: at the job file", 0, 0},
    {"init", ARG_TEXT, AT(init), "A.safetensors", "start from these weights", 0, 0},
    {"export", ARG_TEXT, AT(export_path), "B.safetensors", "write the trained model", 0, 0},
    {"metrics", ARG_TEXT, AT(metrics), "M.jsonl", "a JSON line every step, evaluation, and at the end", 0, 0},
    {"trace", ARG_TEXT, AT(trace), "T.json", "a Chrome trace of every rank, for Perfetto", 0, 0},
    {"resume", ARG_TEXT, AT(resume), "DIR",
     "go on from the newest whole snapshot in DIR, or from the one that DIR is", 0, 0},
    {"state", ARG_TEXT, AT(state), "DIR",
     "each role's own state goes into a folder here; default: snapshot.dir has it all", 0, 0},
    {"threads", ARG_NUMBER, AT(threads), "T", "threads of each worker, above parallel.threads", 1, 4096},
    {"print-config", ARG_FLAG, AT(print_config), NULL, "print every option with where its value is from, and end",
     0, 0},
};
static const struct args_table table = {
    "shoal run JOB.yaml [--workers N] [--servers M] [options]",
    "Trains the job on a cluster on this machine: a coordinator, servers and workers.\n"
    "What a job file may say, and --set, is listed below.",
    rows,
    sizeof rows / sizeof *rows,
    1,
    1,
    "a job file",
    reference_help};

static int print_config(const struct run_plan *plan)
{
    char *text = job_print_config(plan->job);
    if (!text)
        return command_fail(1, "out of memory");
    fputs(text, stdout);
    free(text);
    return 0;
}

static int start(const char *path, const struct run_options *options)
{
    struct run_plan plan;
    struct errbuf err;
    errbuf_init(&err);
    int code;
    int status = run_plan_make(&plan, path, options, &err);
    for (int i = 0; status == 0 && i < job_warnings(plan.job)->count; i++)
        fprintf(stderr, "shoal: warning: %s\n", job_warnings(plan.job)->items[i]);
    if (status == 0 && plan.servers_unused)
        fprintf(stderr, "shoal: --servers %s is not used: the workers of a ring own everything\n", options->servers);
    if (status != 0)
        code = command_fail(status == STATUS_NOMEM ? 1 : 2, "%s", err.text);
    else if (options->print_config)
        code = print_config(&plan);
    else
        code = options->embedded ? embedded_run(&plan) : launcher_run(&plan);
    run_plan_close(&plan);
    return code;
}

static int run_run(int argc, char **argv)
{
    struct run_options options = {0};
    struct args_list operands;
    int code = 0;
    if (!command_parse(&table, argc, argv, &options, &operands, &code))
        return code;
    code = start(operands.items[0], &options);
    args_close(&table, &options, &operands);
    return code;
}

const struct command command_run = {"run", "train a job on a cluster on this machine", run_run};
