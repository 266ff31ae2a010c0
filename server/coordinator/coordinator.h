/* The coordinator: who is in the cluster, what job runs, when a step counts. It owns no shard.
 *
 * coordinator_run is the loop around the pure part (coordinator_core.h): a ROUTER, a timer, the state folder, the metrics
 * file and the terminal. Returns the exit code's status: 0 done, STATUS_STOPPED after an orderly stop,
 * STATUS_ABORTED when the job failed, STATUS_INVALID for configuration. */
#ifndef SHOAL_COORDINATOR_COORDINATOR_H
#define SHOAL_COORDINATOR_COORDINATOR_H

#include "base/role.h"

struct errbuf;
struct job;

struct coordinator_options {
    const char *listen;       /* tcp://127.0.0.1:7070, inproc://… */
    const struct job *job;    /* the first job; NULL: wait for submit */
    const char *job_dir;      /* folder of the job file */
    const char *state_dir;    /* durable state; "": none */
    const char *init_path, *export_path, *metrics_path, *trace_path; /* of the first job; NULL or "" */
    int resume;               /* the first job starts from the newest whole snapshot in snapshot.dir */
    const char *resume_path;  /* with resume: a folder of snapshots or one snapshot's; NULL or "": snapshot.dir */
    int once;                 /* end after the first job */
    int progress;             /* 1: a live line (terminal), 0: plain lines every log_every */
    int out_fd;               /* where progress, evaluation and report card go; -1: nowhere */
};
int coordinator_run(struct role_host *host, const struct coordinator_options *options, struct errbuf *err);

#endif
