/* A fixed set of threads that run tasks. Every thread has MXCSR set to round-to-nearest with denormals kept.
 * pool_submit may be called from any thread; pool_for from one thread at a time per call (nested calls run
 * inline). Which thread runs a task never changes a result: tasks write disjoint outputs. */
#ifndef SHOAL_BASE_POOL_H
#define SHOAL_BASE_POOL_H

#include <stdint.h>

struct pool;

/* `threads` >= 1 counts the caller of pool_for, so pool_create(1) starts no thread for pool_for's sake;
 * `background` further threads serve pool_submit (0: pool_submit runs on the for-threads, or inline when there
 * are none). Returns owned, NULL when out of memory or threads. */
struct pool *pool_create(int threads, int background);
void pool_destroy(struct pool *pool); /* runs what was submitted first; takes NULL */
int pool_threads(const struct pool *pool);

/* Runs body(context, i) for i in 0..count-1, spread over the threads, and returns when all are done. */
void pool_for(struct pool *pool, int64_t count, void (*body)(void *context, int64_t i), void *context);

/* Runs task(context) some time on a background thread. */
struct pool_task {
    void (*run)(struct pool_task *task);
    struct pool_task *next; /* the pool's while queued */
};
void pool_submit(struct pool *pool, struct pool_task *task); /* task borrowed until run returns */

/* Sets this thread's MXCSR as above; every thread that computes calls it once. */
void pool_thread_numerics(void);

/* Threads this process may use: min(affinity, cgroup v1/v2 quota rounded up), at least 1. */
int pool_available_cores(void);

#endif
