#include "deploy/cli/cluster_args.h"
#include "deploy/cli/command.h"

struct options {
    struct cluster_args cluster;
};
static const struct arg rows[] = {CLUSTER_ARG_ROWS(options, cluster)};
static const struct args_table table = {"shoal status --cluster tcp://HOST:PORT",
                                        "Says what the cluster is doing and who is in it.",
                                        rows,
                                        sizeof rows / sizeof *rows,
                                        0,
                                        0,
                                        "",
                                        NULL};

static const char *role_text(Shoal__Role role)
{
    return role == SHOAL__ROLE__SERVER ? "server" : role == SHOAL__ROLE__WORKER ? "worker" : "other";
}

static void print_report(const Shoal__Status *report)
{
    printf("phase %s\n", report->phase);
    if (report->job_name[0])
        printf("job %s: step %llu of %llu, loss %.6g\n", report->job_name, (unsigned long long)report->step,
               (unsigned long long)report->total_steps, report->loss);
    for (size_t i = 0; i < report->n_members; i++) {
        const Shoal__Member *member = report->members[i];
        printf("%s %d %s pid=%lld host=%s%s%s\n", role_text(member->role), member->rank, member->state,
               (long long)member->pid, member->host, member->address[0] ? " address=" : "", member->address);
    }
    if (report->refused_peers)
        printf("refused messages %llu\n", (unsigned long long)report->refused_peers);
}

static int status_run(int argc, char **argv)
{
    struct options options = {0};
    struct args_list operands;
    struct message reply = {0};
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    int code = 0;
    if (!command_parse(&table, argc, argv, &options, &operands, &code))
        return code;
    envelope.type = SHOAL__TYPE__STATUS;
    code = cluster_ask("status", &options.cluster, &envelope, &reply);
    if (code == 0 && reply.envelope->body_case == SHOAL__ENVELOPE__BODY_STATUS_REPORT)
        print_report(reply.envelope->status_report);
    else if (code == 0)
        code = command_fail(1, "status: the answer says nothing");
    message_close(&reply);
    args_close(&table, &options, &operands);
    return code;
}

const struct command command_status = {"status", "what a cluster is doing and who is in it", status_run};
