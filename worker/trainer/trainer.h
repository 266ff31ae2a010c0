/* One job on one worker: load the data, build the model, register, train step by step, evaluate, export, sum up. Runs on
 * the caller's thread; blocks until the job's END. */
#ifndef SHOAL_TRAINER_TRAINER_H
#define SHOAL_TRAINER_TRAINER_H

#include "base/log.h"
#include "wire/message.h"

struct account;
struct client;
struct errbuf;
struct role_host;

struct trainer_options {
    struct role_host *host;
    struct client *client;
    struct account *account;
    const struct log *log;
    const char *data_dir;
    const char *cluster;   /* the coordinator's endpoint */
    const char *advertise; /* where ring peers reach this worker; NULL: found out */
    int threads; /* 0: parallel.threads, or this host's cores shared by its workers */
};
/* job: the JOB event. 0 after an END without error; the END's status, or why this rank failed (the caller leaves with
 * it). */
int trainer_run(const struct trainer_options *options, const struct message *job, struct errbuf *err);

#endif
