/* A server: owns the keys that the keymap gives its rank, adds what workers push in canonical order, updates after the
 * verdict, answers pulls. server_run joins, serves one job after another and returns 0 (the coordinator said that all is
 * done), STATUS_STOPPED, STATUS_ABORTED, or why it could not start. */
#ifndef SHOAL_SERVER_SERVER_H
#define SHOAL_SERVER_SERVER_H

#include <stdint.h>

#include "base/role.h"

struct errbuf;

struct server_options {
    const char *listen;    /* where workers come; tcp://127.0.0.1:0 */
    const char *advertise; /* NULL or "": what was bound */
    const char *cluster;   /* the coordinator's endpoint */
    int rank;              /* -1: any */
    int threads;           /* 0: from the cores */
    int once;              /* end after one job */
    const char *state_dir; /* own snapshot files; "": the job's snapshot.dir */
};
int server_run(struct role_host *host, const struct server_options *options, struct errbuf *err);

#endif
