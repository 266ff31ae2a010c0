/* Runs a client program as P ranks, each on a thread of its own, against a cluster of threads. */
#ifndef SHOAL_TESTS_API_RANKS_H
#define SHOAL_TESTS_API_RANKS_H

#include "lib/api_cluster.h"
#include "shoal.h"

struct api_rank {
    struct shoal_client *client; /* connected; closed after the program */
    void *context;
    int rank;
};
typedef void api_program(struct api_rank *rank);
/* Aborts when a rank cannot connect; 0 when coordinator and servers ended the job in order. */
int api_ranks_run(const struct api_cluster_options *options, api_program *program, void *context);
/* A connected client. Aborts the test when it cannot. */
struct shoal_client *api_connect(const struct api_cluster *cluster, int rank, int copy);

#endif
