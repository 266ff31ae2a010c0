/* shoal-worker: a worker as a process. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "base/account.h"
#include "base/errbuf.h"
#include "base/status.h"
#include "config/env.h"
#include "daemon/args.h"
#include "daemon/daemon.h"
#include "net/net.h"
#include "worker/worker.h"

extern char **environ;

struct options {
    const char *cluster, *data, *advertise, *keys, *key_name;
    int rank, threads, once, insecure, ready_fd;
};

#define AT(field) offsetof(struct options, field)
static const struct arg rows[] = {
    {"cluster", ARG_TEXT, AT(cluster), "tcp://HOST:PORT",
     "where the coordinator is (or SHOAL_CLUSTER, "
     "DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT, MASTER_ADDR and MASTER_PORT)",
     0, 0},
    {"data", ARG_TEXT, AT(data), "DIR", "the data's paths start here; default: at the job file", 0, 0},
    {"advertise", ARG_TEXT, AT(advertise), "ADDR",
     "ring modes: HOST or HOST:PORT by which other workers reach this one; default: the local address that faces the "
     "coordinator",
     0, 0},
    {"rank", ARG_NUMBER, AT(rank), "R", "this worker's rank; default: any that is free", 0, 1000000},
    {"keys", ARG_TEXT, AT(keys), "DIR", "CURVE keys, by shoal keygen", 0, 0},
    {"key-name", ARG_TEXT, AT(key_name), "NAME", "which key pair in --keys; default worker", 0, 0},
    {"insecure", ARG_FLAG, AT(insecure), NULL, "talk beyond loopback without keys, knowingly", 0, 0},
    {"threads", ARG_NUMBER, AT(threads), "N", "threads for arithmetic; default: the processors", 1, 4096},
    {"once", ARG_FLAG, AT(once), NULL, "end after one job", 0, 0},
    {"ready-fd", ARG_NUMBER, AT(ready_fd), "FD", NULL, 0, 1 << 20},
};
static const struct args_table table = {"shoal-worker --cluster tcp://HOST:PORT [--data DIR] [options]",
                                        "A worker computes the gradients of its share of each batch.",
                                        rows,
                                        sizeof rows / sizeof *rows,
                                        0,
                                        0,
                                        "",
                                        NULL};

static int usage_error(const struct errbuf *err)
{
    fprintf(stderr, "shoal-worker: %s\n", err->text);
    return 2;
}

/* Before anything connects: keys that cannot be used are for a person to mend. */
static int check_keys(const struct role_host *host, struct errbuf *err)
{
    struct net_curve curve;
    if (!host->keys_dir || !host->keys_dir[0])
        return 0;
    int status = net_keys_load(&curve, host->keys_dir, host->key_name, "coordinator", err);
    explicit_bzero(&curve, sizeof curve);
    return status;
}

static int work(const struct options *options, struct errbuf *err)
{
    struct role_host host = {.keys_dir = options->keys,
                             .insecure = options->insecure,
                             .key_name = options->key_name ? options->key_name : "worker"};
    struct worker_options worker = {.cluster = options->cluster,
                                    .data_dir = options->data ? options->data : "",
                                    .advertise = options->advertise,
                                    .rank = options->rank,
                                    .threads = options->threads,
                                    .once = options->once};
    struct daemon *daemon = NULL;
    if (check_keys(&host, err) != 0)
        return usage_error(err);
    log_init(&host.log, "worker");
    if (daemon_open(&daemon, &host, options->ready_fd, err) != 0) {
        log_error(&host.log, "%s", err->text);
        return 1;
    }
    host.zmq = zmq_ctx_new();
    int status = host.zmq ? worker_run(&host, &worker, err) : errbuf_set(err, STATUS_NOMEM, "no ZeroMQ context");
    int code = daemon_exit_code(daemon, status);
    if (status != 0 && status != STATUS_STOPPED)
        log_error(&host.log, "%s", err->text[0] ? err->text : status_text(status));
    if (host.zmq)
        zmq_ctx_term(host.zmq);
    daemon_close(daemon);
    return code;
}

static int configure(struct options *options, struct errbuf *err)
{
    struct env_identity identity;
    int status = env_identity_read(&identity, environ, err);
    if (status != 0)
        return usage_error(err);
    if (identity.role[0] && strcmp(identity.role, "worker") != 0) {
        errbuf_set(err, STATUS_INVALID, "environment: DMLC_ROLE is %s, but this is shoal-worker", identity.role);
        return usage_error(err);
    }
    if (!options->cluster && identity.cluster[0])
        options->cluster = identity.cluster;
    if (options->rank < 0)
        options->rank = identity.rank;
    if (!options->cluster) {
        errbuf_set(err, STATUS_INVALID, "missing: --cluster tcp://HOST:PORT (or SHOAL_CLUSTER in the environment)");
        return usage_error(err);
    }
    return work(options, err);
}

int main(int argc, char **argv)
{
    struct options options = {.rank = -1, .ready_fd = -1};
    struct args_list operands;
    struct errbuf err;
    errbuf_init(&err);
    memory_keep_heap();
    int code = args_parse(&table, argc, argv, &options, &operands, &err);
    if (code == ARGS_HELP)
        args_print_help(&table, stdout);
    else if (code == ARGS_VERSION)
        puts("shoal-worker " SHOAL_VERSION);
    code = code < 0 ? usage_error(&err) : code > 0 ? 0 : configure(&options, &err);
    args_close(&table, &options, &operands);
    return code;
}
