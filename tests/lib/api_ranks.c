#include "lib/api_ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { RANKS_MAX = 8 };

struct runner {
    struct api_cluster *cluster;
    api_program *program;
    struct api_rank rank;
    pthread_t thread;
};

struct shoal_client *api_connect(const struct api_cluster *cluster, int rank, int copy)
{
    char error[512];
    struct shoal_client *client = NULL;
    struct shoal_options options = {.cluster = api_cluster_address(cluster), .rank = rank, .timeout_s = 60, .copy = copy};
    if (shoal_connect(&client, &options, error, sizeof(error)) != 0) {
        fprintf(stderr, "rank %d: %s\n", rank, error);
        abort();
    }
    return client;
}

static void *run(void *argument)
{
    struct runner *runner = argument;
    runner->rank.client = api_connect(runner->cluster, runner->rank.rank, 0);
    runner->program(&runner->rank);
    shoal_close(runner->rank.client);
    return NULL;
}

int api_ranks_run(const struct api_cluster_options *options, api_program *program, void *context)
{
    struct runner runners[RANKS_MAX];
    struct api_cluster *cluster = api_cluster_start(options);
    for (int r = 0; r < options->workers; r++) {
        runners[r] = (struct runner){.cluster = cluster, .program = program,
                                     .rank = {.context = context, .rank = r}};
        if (pthread_create(&runners[r].thread, NULL, run, &runners[r]) != 0) {
            abort();
        }
    }
    for (int r = 0; r < options->workers; r++) {
        pthread_join(runners[r].thread, NULL);
    }
    int coordinator = 0, server = 0;
    api_cluster_end(cluster, &coordinator, &server);
    return coordinator != 0 ? coordinator : server;
}
