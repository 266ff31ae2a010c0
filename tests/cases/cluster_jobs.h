/* Job files of the cases that run on whole clusters, as YAML text; files they need are written into folder. */
#ifndef SHOAL_TESTS_CLUSTER_JOBS_H
#define SHOAL_TESTS_CLUSTER_JOBS_H

#include <stddef.h>

struct embedded_order;

/* Ways to run a job that give the same numbers: parameter servers, and the rings. Anywhere a case says "in every mode". */
struct cluster_way {
    const char *mode; /* parallel.data */
    int servers;      /* 0: a ring */
};
enum { CLUSTER_RINGS = 3, CLUSTER_WAYS = 7 }; /* ps with 1, 2, 3 servers; from CLUSTER_RINGS on ddp, zero1, zero2, zero3 */
extern const struct cluster_way cluster_ways[CLUSTER_WAYS];
void cluster_jobs_way(struct embedded_order *order, const struct cluster_way *way);

/* S1: four rows, full batch, five steps, evaluated on the training rows; without an optimizer. */
void cluster_jobs_s1(const char *folder, char *yaml, size_t bytes);
/* A file of real data that must be there; fails the test with the Debian package's name else. */
void cluster_jobs_need(const char *path, const char *package);
/* S4's MLP on iris, SGD 0.1, full batch, 5 steps; init: a file with the formula weights, written here. */
void cluster_jobs_s4(const char *folder, char *yaml, size_t bytes, char *init, size_t init_bytes);
/* An MLP with BatchNorm and dropout over synthetic rows, batches of 24, 8 steps, several keys: what the tests of bits
 * run. Nothing is evaluated. */
void cluster_jobs_mlp(char *yaml, size_t bytes);
void cluster_jobs_write(const char *folder, const char *name, const char *text);

#endif
