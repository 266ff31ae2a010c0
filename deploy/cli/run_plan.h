/* What `shoal run` is about to start, however it starts it (processes or threads): the job, checked, and paths made
 * absolute. Constant once made; owned by cmd_run. */
#ifndef SHOAL_CLI_RUN_PLAN_H
#define SHOAL_CLI_RUN_PLAN_H

#include "daemon/args.h"

struct errbuf;
struct job;

struct run_options {
    const char *workers, *servers; /* counts as typed; servers may be "same" */
    const char *transport;         /* NULL: as the job says */
    const char *init, *export_path, *metrics, *trace, *resume, *data, *state;
    int embedded, print_config, threads;
    int paths_elsewhere; /* paths are other machines': not looked at */
    struct args_list sets;
};

struct run_plan {
    struct job *job;
    char *job_dir;                                                      /* of the job file */
    char *init, *export_path, *metrics, *trace, *resume, *data, *state; /* absolute, or "" */
    int workers, servers; /* 0 servers: a ring */
    int elastic;          /* the coordinator decides whether a lost worker ends the job */
    int servers_unused;   /* --servers was given to a ring */
    int worker_threads, server_threads;
    int stop_ms; /* a stop takes at most this long */
};

/* STATUS_* of job_load; STATUS_INVALID. `path` is the job file. */
int run_plan_make(struct run_plan *plan, const char *path, const struct run_options *options, struct errbuf *err);
void run_plan_close(struct run_plan *plan);

#endif
