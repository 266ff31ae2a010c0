#include "worker/strategy/comm.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/errbuf.h"
#include "base/pool.h"
#include "base/status.h"
#include "base/trace.h"
#include "worker/client/client.h"
#include "worker/collective/collective.h"

enum { COMM_LANE = 1, LOOK_MS = 100 };

struct comm {
    struct comm_options options;
    pthread_t thread;
    pthread_mutex_t lock; /* everything below */
    pthread_cond_t given, finished;
    struct comm_op *head, **tail;
    int stopping, running, status;
    struct errbuf why;
};

static void run_op(struct comm *comm, struct comm_op *op)
{
    struct errbuf err;
    errbuf_init(&err);
    int64_t begin = clock_now_ns();
    int status = op->run(op, &err);
    if (op->name) {
        trace_add(comm->options.trace, TRACE_COLLECTIVE, COMM_LANE, op->name, op->step, op->layer, begin,
                  clock_now_ns());
    }
    pthread_mutex_lock(&comm->lock);
    if (status != 0 && comm->status == 0) {
        comm->status = status;
        comm->why = err;
    }
}

static void *comm_main(void *argument)
{
    struct comm *comm = argument;
    pool_thread_numerics();
    pthread_mutex_lock(&comm->lock);
    for (;;) {
        while (!comm->head && !comm->stopping) {
            pthread_cond_wait(&comm->given, &comm->lock);
        }
        struct comm_op *op = comm->head;
        if (!op) {
            break;
        }
        comm->head = op->next;
        if (!comm->head) {
            comm->tail = &comm->head;
        }
        if (comm->status == 0) {
            comm->running = 1;
            pthread_mutex_unlock(&comm->lock);
            run_op(comm, op); /* comes back with the lock */
            comm->running = 0;
        }
        op->busy = 0;
        pthread_cond_broadcast(&comm->finished);
    }
    pthread_mutex_unlock(&comm->lock);
    return NULL;
}

int comm_start(struct comm **out, const struct comm_options *options, struct errbuf *err)
{
    struct comm *comm = calloc(1, sizeof(*comm));
    if (!comm) {
        return errbuf_set(err, STATUS_NOMEM, "comm: out of memory");
    }
    comm->options = *options;
    comm->tail = &comm->head;
    errbuf_init(&comm->why);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->given, NULL);
    pthread_cond_init(&comm->finished, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&comm->thread, NULL, comm_main, comm) != 0) {
        pthread_mutex_destroy(&comm->lock);
        pthread_cond_destroy(&comm->given);
        pthread_cond_destroy(&comm->finished);
        free(comm);
        return errbuf_set(err, STATUS_NOMEM, "comm: no thread");
    }
    *out = comm;
    return 0;
}

/* The job may fail for reasons that the ranks of a collective do not see: the coordinator ends it. */
static void look_at_job(struct comm *comm)
{
    struct errbuf why;
    errbuf_init(&why);
    int status = comm->options.client ? client_status(comm->options.client, &why) : 0;
    if (status != 0) {
        collective_cancel(comm->options.group, status, why.text);
    }
}

/* Under the lock, which it gives back while it waits. */
static void wait_a_while(struct comm *comm)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += LOOK_MS * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (pthread_cond_timedwait(&comm->finished, &comm->lock, &until) != 0) {
        pthread_mutex_unlock(&comm->lock);
        look_at_job(comm);
        pthread_mutex_lock(&comm->lock);
    }
}

void comm_stop(struct comm *comm)
{
    if (!comm) {
        return;
    }
    pthread_mutex_lock(&comm->lock);
    while (comm->running || (comm->head && comm->status == 0)) {
        wait_a_while(comm);
    }
    comm->stopping = 1;
    pthread_cond_signal(&comm->given);
    pthread_mutex_unlock(&comm->lock);
    pthread_join(comm->thread, NULL);
    pthread_mutex_destroy(&comm->lock);
    pthread_cond_destroy(&comm->given);
    pthread_cond_destroy(&comm->finished);
    free(comm);
}

void comm_submit(struct comm *comm, struct comm_op *op, int64_t step)
{
    pthread_mutex_lock(&comm->lock);
    op->step = step;
    op->busy = 1;
    op->next = NULL;
    *comm->tail = op;
    comm->tail = &op->next;
    pthread_cond_signal(&comm->given);
    pthread_mutex_unlock(&comm->lock);
}

static int status_locked(const struct comm *comm, struct errbuf *err)
{
    return comm->status == 0 ? 0 : errbuf_set(err, comm->status, "%s", comm->why.text);
}

int comm_wait(struct comm *comm, const struct comm_op *op, struct errbuf *err)
{
    pthread_mutex_lock(&comm->lock);
    while (op->busy) {
        wait_a_while(comm);
    }
    int status = status_locked(comm, err);
    pthread_mutex_unlock(&comm->lock);
    return status;
}

int comm_drain(struct comm *comm, struct errbuf *err)
{
    pthread_mutex_lock(&comm->lock);
    while (comm->running || comm->head) {
        wait_a_while(comm);
    }
    int status = status_locked(comm, err);
    pthread_mutex_unlock(&comm->lock);
    return status;
}

int comm_run(struct comm *comm, struct comm_op *op, int64_t step, struct errbuf *err)
{
    comm_submit(comm, op, step);
    return comm_wait(comm, op, err);
}
