/* A worker: computes gradients of its share and exchanges them by the job's strategy. worker_run joins, trains one job
 * after another and returns like server_run. */
#ifndef SHOAL_WORKER_WORKER_H
#define SHOAL_WORKER_WORKER_H

#include "base/role.h"

struct errbuf;

struct worker_options {
    const char *cluster;  /* the coordinator's endpoint */
    const char *data_dir; /* "": the job file's folder */
    const char *advertise; /* where ring peers reach this worker; NULL: found out */
    int rank;             /* -1: any */
    int threads;          /* 0: job, or from the cores and the workers on this host */
    int once;
};
int worker_run(struct role_host *host, const struct worker_options *options, struct errbuf *err);

#endif
