/* shoal-server: a server, or with --coordinator the coordinator, as a process. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "base/account.h"
#include "base/errbuf.h"
#include "base/status.h"
#include "config/env.h"
#include "config/job.h"
#include "daemon/args.h"
#include "daemon/daemon.h"
#include "net/net.h"
#include "server/coordinator/coordinator.h"
#include "server/server.h"

extern char **environ;

struct options {
    const char *listen, *job, *cluster, *advertise, *state, *keys, *key_name;
    const char *export_path, *init, *metrics, *trace, *resume, *job_dir;
    int coordinator, once, insecure, rank, threads, ready_fd;
    struct args_list sets;
};

#define AT(field) offsetof(struct options, field)
static const struct arg rows[] = {
    {"cluster", ARG_TEXT, AT(cluster), "tcp://HOST:PORT",
     "where the coordinator is (or SHOAL_CLUSTER, "
     "DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT, MASTER_ADDR and MASTER_PORT)",
     0, 0},
    {"listen", ARG_TEXT, AT(listen), "tcp://ADDR:PORT",
     "where to listen; 0 picks a port. Default tcp://127.0.0.1:0, "
     "of a coordinator tcp://127.0.0.1:7070",
     0, 0},
    {"advertise", ARG_TEXT, AT(advertise), "tcp://HOST:PORT", "where workers reach this server, when not as bound",
     0, 0},
    {"rank", ARG_NUMBER, AT(rank), "R", "this server's rank; default: any that is free", 0, 1000000},
    {"state", ARG_TEXT, AT(state), "DIR", "own state: snapshot files of a server, terms of a coordinator", 0, 0},
    {"keys", ARG_TEXT, AT(keys), "DIR", "CURVE keys and allow-list, by shoal keygen", 0, 0},
    {"key-name", ARG_TEXT, AT(key_name), "NAME", "which key pair in --keys; default server or coordinator", 0, 0},
    {"insecure", ARG_FLAG, AT(insecure), NULL, "listen beyond loopback without keys, knowingly", 0, 0},
    {"threads", ARG_NUMBER, AT(threads), "N", "threads for arithmetic; default: the processors", 1, 4096},
    {"once", ARG_FLAG, AT(once), NULL, "end after one job", 0, 0},
    {"coordinator", ARG_FLAG, AT(coordinator), NULL, "be the coordinator; the options below are its own", 0, 0},
    {"job", ARG_TEXT, AT(job), "JOB.yaml", "the first job; without it, wait for shoal submit", 0, 0},
    {"set", ARG_LIST, AT(sets), "KEY=VALUE", "set an option of the job, above the file", 0, 0},
    {"init", ARG_TEXT, AT(init), "A.safetensors", "start from these weights", 0, 0},
    {"export", ARG_TEXT, AT(export_path), "B.safetensors", "write the trained model", 0, 0},
    {"metrics", ARG_TEXT, AT(metrics), "M.jsonl", "a JSON line every step", 0, 0},
    {"trace", ARG_TEXT, AT(trace), "T.json", "a Chrome trace of every rank", 0, 0},
    {"resume", ARG_TEXT, AT(resume), "DIR",
     "go on from the newest whole snapshot in DIR, or from the one that DIR is", 0, 0},
    {"job-dir", ARG_TEXT, AT(job_dir), "DIR", NULL, 0, 0},
    {"ready-fd", ARG_NUMBER, AT(ready_fd), "FD", NULL, 0, 1 << 20},
};
static const struct args_table table = {
    "shoal-server --cluster tcp://HOST:PORT [options]\n"
    "       shoal-server --coordinator [--listen tcp://ADDR:PORT] [--job JOB.yaml] [options]",
    "A server keeps shards of the parameters; the coordinator gathers the cluster and says when a step counts.",
    rows,
    sizeof rows / sizeof *rows,
    0,
    0,
    "",
    NULL};

static int usage_error(const struct errbuf *err)
{
    fprintf(stderr, "shoal-server: %s\n", err->text);
    return 2;
}

/* --- the coordinator ------------------------------------------------------------------------------------ */

/* Workers and servers that the environment counts stand above the file and below --set. */
static int load_job(struct job **job, const struct options *options, const struct env_identity *identity,
                    struct errbuf *err)
{
    char workers[48], servers[48];
    int count = 0;
    const char **sets = calloc((size_t)options->sets.count + 2, sizeof *sets);
    if (!sets)
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    if (identity->workers > 0 && !options->job_dir) {
        snprintf(workers, sizeof workers, "cluster.workers=%d", identity->workers);
        sets[count++] = workers;
    }
    if (identity->servers > 0 && !options->job_dir) {
        snprintf(servers, sizeof servers, "cluster.servers=%d", identity->servers);
        sets[count++] = servers;
    }
    for (int i = 0; i < options->sets.count; i++)
        sets[count++] = options->sets.items[i];
    /* With --job-dir the job was resolved by the launcher, environment included. */
    struct job_source source = {.path = options->job,
                                .environment = options->job_dir ? NULL : environ,
                                .sets = sets,
                                .sets_count = count,
                                .need = JOB_NEED_TRAINING};
    int status = job_load(job, &source, err);
    free(sets);
    return status;
}

static char *folder_of(const char *path)
{
    char *full = realpath(path, NULL);
    char *slash = full ? strrchr(full, '/') : NULL;
    if (slash)
        slash[slash == full ? 1 : 0] = '\0';
    return full;
}

static int run_coordinator(struct role_host *host, const struct options *options, const struct job *job,
                           struct errbuf *err)
{
    char *folder = options->job_dir ? strdup(options->job_dir)
                   : options->job   ? folder_of(options->job)
                                    : strdup("");
    if (!folder)
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    struct coordinator_options coordinator = {.listen = options->listen ? options->listen : "tcp://127.0.0.1:7070",
                                              .job = job,
                                              .job_dir = folder,
                                              .state_dir = options->state ? options->state : "",
                                              .init_path = options->init,
                                              .export_path = options->export_path,
                                              .metrics_path = options->metrics,
                                              .trace_path = options->trace,
                                              .resume = options->resume != NULL,
                                              .resume_path = options->resume,
                                              .once = options->once,
                                              .progress = isatty(STDOUT_FILENO),
                                              .out_fd = STDOUT_FILENO};
    int status = coordinator_run(host, &coordinator, err);
    free(folder);
    return status;
}

static int run_server(struct role_host *host, const struct options *options, struct errbuf *err)
{
    struct server_options server = {.listen = options->listen ? options->listen : "tcp://127.0.0.1:0",
                                    .advertise = options->advertise,
                                    .cluster = options->cluster,
                                    .rank = options->rank,
                                    .threads = options->threads,
                                    .once = options->once,
                                    .state_dir = options->state ? options->state : ""};
    return server_run(host, &server, err);
}

/* --- settings ----------------------------------------------------------------------------------------------- */

static int merge_environment(struct options *options, const struct env_identity *identity, struct errbuf *err)
{
    const char *role = identity->role;
    if (strcmp(role, "worker") == 0)
        return errbuf_set(err, STATUS_INVALID, "environment: DMLC_ROLE is worker, but this is shoal-server");
    if (strcmp(role, "server") == 0 && options->coordinator)
        return errbuf_set(err, STATUS_INVALID, "--coordinator and DMLC_ROLE=server disagree");
    if (strcmp(role, "coordinator") == 0)
        options->coordinator = 1;
    if (!options->cluster && identity->cluster[0] && !options->coordinator)
        options->cluster = identity->cluster;
    if (options->rank < 0 && !options->coordinator)
        options->rank = identity->rank;
    return 0;
}

static int check(const struct options *options, struct errbuf *err)
{
    if (options->coordinator && options->cluster)
        return errbuf_set(err, STATUS_INVALID, "--coordinator and --cluster exclude each other");
    const char *needs_job = options->export_path  ? "--export"
                            : options->init       ? "--init"
                            : options->metrics    ? "--metrics"
                            : options->trace      ? "--trace"
                            : options->resume     ? "--resume"
                            : options->sets.count ? "--set"
                                                  : NULL;
    if (needs_job && !options->job)
        return errbuf_set(err, STATUS_INVALID, "missing: --coordinator --job JOB.yaml, which %s belongs to",
                          needs_job);
    if (!options->coordinator && !options->cluster)
        return errbuf_set(
            err, STATUS_INVALID,
            "missing: --cluster tcp://HOST:PORT (or SHOAL_CLUSTER in the environment), or --coordinator");
    if (options->job && !options->coordinator)
        return errbuf_set(err, STATUS_INVALID, "--job is the coordinator's: add --coordinator or leave it out");
    return 0;
}

/* Before anything listens: keys that cannot be used are for a person to mend. */
static int check_keys(const struct role_host *host, const char *server_name, struct errbuf *err)
{
    struct net_curve curve;
    if (!host->keys_dir || !host->keys_dir[0])
        return 0;
    int status = net_keys_load(&curve, host->keys_dir, host->key_name, server_name, err);
    explicit_bzero(&curve, sizeof curve);
    return status;
}

static int serve(const struct options *options, const struct job *job, struct errbuf *err)
{
    struct role_host host = {.keys_dir = options->keys, .insecure = options->insecure};
    struct daemon *daemon = NULL;
    const char *role = options->coordinator ? "coordinator" : "server";
    host.key_name = options->key_name ? options->key_name : role;
    if (check_keys(&host, options->coordinator ? NULL : "coordinator", err) != 0)
        return usage_error(err);
    log_init(&host.log, role);
    if (daemon_open(&daemon, &host, options->ready_fd, err) != 0) {
        log_error(&host.log, "%s", err->text);
        return 1;
    }
    host.zmq = zmq_ctx_new();
    int status = !host.zmq              ? errbuf_set(err, STATUS_NOMEM, "no ZeroMQ context")
                 : options->coordinator ? run_coordinator(&host, options, job, err)
                                        : run_server(&host, options, err);
    int code = daemon_exit_code(daemon, status);
    if (status != 0 && status != STATUS_STOPPED)
        log_error(&host.log, "%s", err->text[0] ? err->text : status_text(status));
    if (host.zmq)
        zmq_ctx_term(host.zmq);
    daemon_close(daemon);
    return code;
}

static int configure(struct options *options, struct job **job, struct errbuf *err)
{
    struct env_identity identity;
    int status = env_identity_read(&identity, environ, err);
    if (status == 0)
        status = merge_environment(options, &identity, err);
    if (status == 0)
        status = check(options, err);
    if (status == 0 && options->job)
        status = load_job(job, options, &identity, err);
    if (status != 0)
        return usage_error(err);
    for (int i = 0; *job && !options->job_dir && i < job_warnings(*job)->count; i++)
        fprintf(stderr, "shoal-server: warning: %s\n", job_warnings(*job)->items[i]);
    return serve(options, *job, err);
}

int main(int argc, char **argv)
{
    struct options options = {.rank = -1, .ready_fd = -1};
    struct args_list operands;
    struct errbuf err;
    struct job *job = NULL;
    errbuf_init(&err);
    memory_keep_heap();
    int code = args_parse(&table, argc, argv, &options, &operands, &err);
    if (code == ARGS_HELP)
        args_print_help(&table, stdout);
    else if (code == ARGS_VERSION)
        puts("shoal-server " SHOAL_VERSION);
    code = code < 0 ? usage_error(&err) : code > 0 ? 0 : configure(&options, &job, &err);
    job_destroy(job);
    args_close(&table, &options, &operands);
    return code;
}
