#include "deploy/cli/cluster_args.h"
#include "deploy/cli/command.h"

struct options {
    struct cluster_args cluster;
};
static const struct arg rows[] = {CLUSTER_ARG_ROWS(options, cluster)};
static const struct args_table table = {
    "shoal stop --cluster tcp://HOST:PORT",
    "Ends the cluster in order, as SIGTERM to its coordinator does: the step is finished, a snapshot written.",
    rows,
    sizeof rows / sizeof *rows,
    0,
    0,
    "",
    NULL};

static int stop_run(int argc, char **argv)
{
    struct options options = {0};
    struct args_list operands;
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    int code = 0;
    if (!command_parse(&table, argc, argv, &options, &operands, &code))
        return code;
    envelope.type = SHOAL__TYPE__STOP;
    code = cluster_ask("stop", &options.cluster, &envelope, NULL);
    args_close(&table, &options, &operands);
    return code;
}

const struct command command_stop = {"stop", "end a cluster in order", stop_run};
