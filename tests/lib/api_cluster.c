#include "lib/api_cluster.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "base/errbuf.h"
#include "base/role.h"
#include "config/job.h"
#include "server/coordinator/coordinator.h"
#include "server/server.h"

enum { SERVERS_MAX = 4 };

struct api_role {
    struct api_cluster *cluster;
    struct role_host host;
    pthread_t thread;
    int rank, status;
};

struct api_cluster {
    struct api_cluster_options options;
    struct job *job;
    void *zmq;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    char address[128];
    struct api_role coordinator, servers[SERVERS_MAX];
};

static void on_ready(void *context, const char *address)
{
    struct api_cluster *cluster = context;
    pthread_mutex_lock(&cluster->lock);
    snprintf(cluster->address, sizeof(cluster->address), "%s", address);
    pthread_cond_signal(&cluster->changed);
    pthread_mutex_unlock(&cluster->lock);
}

static void *run_coordinator(void *argument)
{
    struct api_role *role = argument;
    struct errbuf err;
    errbuf_init(&err);
    struct coordinator_options options = {.listen = "tcp://127.0.0.1:0", .job = role->cluster->job, .job_dir = "",
                                          .metrics_path = role->cluster->options.metrics_path, .once = 1, .out_fd = -1};
    role->status = coordinator_run(&role->host, &options, &err);
    return NULL;
}

static void *run_server(void *argument)
{
    struct api_role *role = argument;
    struct errbuf err;
    errbuf_init(&err);
    struct server_options options = {.listen = "tcp://127.0.0.1:0", .cluster = role->cluster->address,
                                     .rank = role->rank, .once = 1,
                                     .threads = role->cluster->options.threads ? role->cluster->options.threads : 1};
    role->status = server_run(&role->host, &options, &err);
    return NULL;
}

static void start_role(struct api_cluster *cluster, struct api_role *role, const char *name, void *(*run)(void *))
{
    role->cluster = cluster;
    role->host.zmq = cluster->zmq;
    role->host.embedded = 1;
    role->host.context = cluster;
    log_init(&role->host.log, name);
    if (!getenv("SHOAL_LOG")) {
        role->host.log.level = (enum log_level)0; /* tests end jobs on purpose */
    }
    int failed = pthread_create(&role->thread, NULL, run, role);
    assert(!failed);
    (void)failed;
}

static struct job *load_job(const struct api_cluster_options *options)
{
    char text[2048];
    struct job *job = NULL;
    struct errbuf err;
    errbuf_init(&err);
    snprintf(text, sizeof(text), "name: api\ndata: {kind: none}\nmodel: {kind: none}\n"
             "cluster: {workers: %d, servers: %d}\n%s", options->workers, options->servers,
             options->more ? options->more : "optimizer: {kind: sgd, lr: 0.1}\n");
    struct job_source source = {.text = text, .text_name = "test"};
    if (job_load(&job, &source, &err) != 0) {
        fprintf(stderr, "job: %s\n", err.text);
        abort();
    }
    return job;
}

struct api_cluster *api_cluster_start(const struct api_cluster_options *options)
{
    struct api_cluster *cluster = calloc(1, sizeof(*cluster));
    assert(cluster && options->servers <= SERVERS_MAX);
    cluster->options = *options;
    cluster->job = load_job(options);
    cluster->zmq = zmq_ctx_new();
    pthread_mutex_init(&cluster->lock, NULL);
    pthread_cond_init(&cluster->changed, NULL);
    cluster->coordinator.host.ready = on_ready;
    start_role(cluster, &cluster->coordinator, "coordinator", run_coordinator);
    pthread_mutex_lock(&cluster->lock);
    while (!cluster->address[0]) {
        pthread_cond_wait(&cluster->changed, &cluster->lock);
    }
    pthread_mutex_unlock(&cluster->lock);
    for (int s = 0; s < options->servers; s++) {
        cluster->servers[s].rank = s;
        start_role(cluster, &cluster->servers[s], "server", run_server);
    }
    return cluster;
}

const char *api_cluster_address(const struct api_cluster *cluster)
{
    return cluster->address;
}

void api_cluster_stop(struct api_cluster *cluster)
{
    cluster->coordinator.host.stop = 15;
    for (int s = 0; s < cluster->options.servers; s++) {
        cluster->servers[s].host.stop = 15;
    }
}

void api_cluster_end(struct api_cluster *cluster, int *coordinator_status, int *server_status)
{
    pthread_join(cluster->coordinator.thread, NULL);
    for (int s = 0; s < cluster->options.servers; s++) {
        pthread_join(cluster->servers[s].thread, NULL);
    }
    if (coordinator_status) {
        *coordinator_status = cluster->coordinator.status;
    }
    if (server_status) {
        *server_status = cluster->servers[0].status;
    }
    zmq_ctx_term(cluster->zmq);
    job_destroy(cluster->job);
    pthread_mutex_destroy(&cluster->lock);
    pthread_cond_destroy(&cluster->changed);
    free(cluster);
}
