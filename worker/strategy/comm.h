/* A thread that runs a worker's collectives one after the other, in the order they were given, so that they go on under
 * compute. Every rank gives the same operations in the same order. One thread (the trainer's) gives and waits; nothing is
 * allocated after comm_start.
 *
 *   idle --comm_submit--> queued --(thread)--> running --> done --comm_submit--> queued ...
 *
 * The first failure ends everything: what is queued is not run, and every wait returns it. */
#ifndef SHOAL_STRATEGY_COMM_H
#define SHOAL_STRATEGY_COMM_H

#include <stdint.h>

struct client;
struct collective;
struct errbuf;
struct trace;

struct comm_op {
    /* Runs on the comm thread's thread. */
    int (*run)(struct comm_op *op, struct errbuf *err);
    void *context;
    const char *name; /* in the trace; NULL: run says itself what it did */
    int layer;        /* in the trace; -1 none */
    int64_t step;     /* in the trace; set by submit */
    /* the comm thread's */
    int busy;
    struct comm_op *next;
};

struct comm;
/* A failure of the job that `client` learns of (NULL ok) cancels the group. All pointers borrowed. */
struct comm_options {
    struct collective *group;
    struct client *client;
    struct trace *trace;
};
int comm_start(struct comm **comm, const struct comm_options *options, struct errbuf *err);
void comm_stop(struct comm *comm); /* waits for what is under way (cancels when the job failed); takes NULL */
/* op is the comm thread's until it is done, and must not be busy. */
void comm_submit(struct comm *comm, struct comm_op *op, int64_t step);
/* Until op is not busy. */
int comm_wait(struct comm *comm, const struct comm_op *op, struct errbuf *err);
/* Until nothing is queued or running. */
int comm_drain(struct comm *comm, struct errbuf *err);
/* submit, then wait. */
int comm_run(struct comm *comm, struct comm_op *op, int64_t step, struct errbuf *err);

#endif
