/* A cluster of real processes under a test, in a folder of its own: coordinator, servers, workers, and their keys. The job
 * is S1 of the cases: four rows, full batch, losses known. One test thread. */
#ifndef SHOAL_TESTS_INTEGRATION_CLUSTER_H
#define SHOAL_TESTS_INTEGRATION_CLUSTER_H

#include "tests/lib/process.h"

enum { CLUSTER_RANKS = 4, CLUSTER_PATH = 512, CLUSTER_LOSSES = 1 << 20, CLUSTER_SHA = 65 };

struct cluster {
    char folder[CLUSTER_PATH], job[CLUSTER_PATH + 32], metrics[CLUSTER_PATH + 32], address[128];
    struct process coordinator, server[CLUSTER_RANKS], worker[CLUSTER_RANKS];
};

/* Makes the folder and writes job.yaml: S1 with SGD 0.5, and lines the caller adds ("" or whole lines). */
void cluster_open(struct cluster *cluster, int workers, int servers, int steps, const char *more);
void cluster_close(struct cluster *cluster);

/* Starts a coordinator and waits until it listens; the address it said is kept. arguments: like process_add's text. */
void cluster_coordinate(struct cluster *cluster, const char *arguments);
void cluster_serve(struct cluster *cluster, int i, const char *arguments);
void cluster_work(struct cluster *cluster, int i, const char *arguments);
/* Starts all with the same arguments. */
void cluster_members(struct cluster *cluster, int servers, int workers, const char *arguments);
/* All must end with this code. */
void cluster_expect(struct cluster *cluster, int servers, int workers, int code);
void cluster_until_step(struct cluster *cluster, int step); /* the coordinator's plain progress lines */

/* S1's rows: the losses of steps 1 to 5 in the metrics file, and of the evaluation when the job ends with step 5. */
void cluster_expect_s1(const struct cluster *cluster, int evaluated);
/* Losses of the steps in the metrics file, in order; returns their number. */
int cluster_losses(const struct cluster *cluster, double *losses, int room);
void cluster_sha256(const char *path, char sha256[CLUSTER_SHA]);
void cluster_write(const struct cluster *cluster, const char *name, const char *text);
void cluster_remove_tree(const char *folder);

/* The address of server i, by `shoal status`. */
void cluster_server_address(struct cluster *cluster, int i, const char *more, char address[128]);

#endif
