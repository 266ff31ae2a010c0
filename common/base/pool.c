#include "base/pool.h"

#include "base/cores.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* About 10 microseconds: layers follow each other faster than a thread can be woken, but a process with more
 * threads than processors must give its time away soon. */
enum { POOL_SPINS = 400, POOL_CHUNKS_A_THREAD = 16 };

/* A pool_for is a "job". Its life:
 *   closed --(owner sets fields, then job = generation)--> open --(owner: job = 0)--> closing
 *   closing --(no helper is inside)--> closed
 * A helper enters by counting itself in `inside` and only then reads `job`; it finds 0 or an open job whose
 * fields cannot change before it has left. So fields need no lock, and when the owner has closed the job and
 * sees inside == 0, every claimed index is finished. */
struct pool {
    pthread_mutex_t lock;
    pthread_cond_t wake_helpers, wake_background, left;
    int threads, background;
    int helpers_asleep;             /* under lock */
    int stopping;                   /* under lock */
    struct pool_task *head, **tail; /* under lock */

    atomic_int busy; /* a pool_for owns the job fields */
    _Atomic uint64_t job;
    atomic_int inside;
    atomic_int owner_waits;
    uint64_t generation; /* the owner's */
    _Atomic int64_t next;
    int64_t count, chunk;
    void (*body)(void *, int64_t);
    void *context;

    int started;
    pthread_t ids[];
};

static inline void pool_relax(void)
{
#if defined(__x86_64__)
    _mm_pause();
#else
    sched_yield();
#endif
}

void pool_thread_numerics(void)
{
#if defined(__x86_64__)
    _mm_setcsr(0x1F80); /* all exceptions masked, round to nearest, neither FTZ nor DAZ */
#endif
}

static void pool_claim(struct pool *pool)
{
    int64_t count = pool->count, chunk = pool->chunk;
    for (;;) {
        int64_t begin = atomic_fetch_add_explicit(&pool->next, chunk, memory_order_relaxed);
        if (begin >= count)
            return;
        int64_t end = count - begin < chunk ? count : begin + chunk;
        for (int64_t i = begin; i < end; i++)
            pool->body(pool->context, i);
    }
}

/* Takes part in the open job unless `seen` was it; returns the job that was found. */
static uint64_t pool_join(struct pool *pool, uint64_t seen)
{
    atomic_fetch_add(&pool->inside, 1);
    uint64_t job = atomic_load(&pool->job);
    if (job && job != seen)
        pool_claim(pool);
    if (atomic_fetch_sub(&pool->inside, 1) == 1 && atomic_load(&pool->owner_waits)) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_signal(&pool->left);
        pthread_mutex_unlock(&pool->lock);
    }
    return job ? job : seen;
}

static struct pool_task *pool_pop(struct pool *pool)
{
    struct pool_task *task = pool->head;
    if (task) {
        pool->head = task->next;
        if (!pool->head)
            pool->tail = &pool->head;
    }
    return task;
}

static int pool_spin(struct pool *pool, uint64_t seen)
{
    for (int i = 0; i < POOL_SPINS; i++) {
        uint64_t job = atomic_load_explicit(&pool->job, memory_order_relaxed);
        if (job && job != seen)
            return 1;
        pool_relax();
    }
    return 0;
}

static void *pool_helper(void *argument)
{
    struct pool *pool = argument;
    uint64_t seen = 0;
    pool_thread_numerics();
    for (;;) {
        if (pool_spin(pool, seen)) {
            seen = pool_join(pool, seen);
            continue;
        }
        pthread_mutex_lock(&pool->lock);
        struct pool_task *task = pool->background ? NULL : pool_pop(pool);
        uint64_t job = atomic_load(&pool->job);
        int idle = !task && (!job || job == seen);
        if (idle && pool->stopping) {
            pthread_mutex_unlock(&pool->lock);
            return NULL;
        }
        if (idle) {
            pool->helpers_asleep++;
            pthread_cond_wait(&pool->wake_helpers, &pool->lock);
            pool->helpers_asleep--;
        }
        pthread_mutex_unlock(&pool->lock);
        if (task)
            task->run(task);
        else if (!idle)
            seen = pool_join(pool, seen);
    }
}

static void *pool_background(void *argument)
{
    struct pool *pool = argument;
    pool_thread_numerics();
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        struct pool_task *task = pool_pop(pool);
        if (!task && pool->stopping)
            break;
        if (!task) {
            pthread_cond_wait(&pool->wake_background, &pool->lock);
            continue;
        }
        pthread_mutex_unlock(&pool->lock);
        task->run(task);
        pthread_mutex_lock(&pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static int pool_start(struct pool *pool)
{
    /* Signals belong to the threads that handle them, never to a pool thread. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int helpers = pool->threads - 1, wanted = helpers + pool->background, failed = 0;
    while (!failed && pool->started < wanted) {
        void *(*body)(void *) = pool->started < helpers ? pool_helper : pool_background;
        failed = pthread_create(&pool->ids[pool->started], NULL, body, pool);
        if (!failed)
            pool->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

struct pool *pool_create(int threads, int background)
{
    assert(threads >= 1 && background >= 0);
    size_t ids = (size_t)threads - 1 + (size_t)background;
    struct pool *pool = calloc(1, sizeof *pool + ids * sizeof(pthread_t));
    if (!pool)
        return NULL;
    pool->threads = threads;
    pool->background = background;
    pool->tail = &pool->head;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake_helpers, NULL);
    pthread_cond_init(&pool->wake_background, NULL);
    pthread_cond_init(&pool->left, NULL);
    if (pool_start(pool)) {
        pool_destroy(pool);
        return NULL;
    }
    return pool;
}

void pool_destroy(struct pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stopping = 1;
    pthread_cond_broadcast(&pool->wake_helpers);
    pthread_cond_broadcast(&pool->wake_background);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->started; i++)
        pthread_join(pool->ids[i], NULL);
    pthread_cond_destroy(&pool->left);
    pthread_cond_destroy(&pool->wake_background);
    pthread_cond_destroy(&pool->wake_helpers);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

int pool_threads(const struct pool *pool)
{
    return pool->threads;
}

static void pool_open(struct pool *pool, int64_t count, void (*body)(void *, int64_t), void *context)
{
    pool->count = count;
    pool->body = body;
    pool->context = context;
    pool->chunk = count / ((int64_t)pool->threads * POOL_CHUNKS_A_THREAD);
    if (pool->chunk < 1)
        pool->chunk = 1;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->job, ++pool->generation);
    int64_t wake = pool->helpers_asleep < count - 1 ? pool->helpers_asleep : count - 1;
    for (int64_t i = 0; i < wake; i++)
        pthread_cond_signal(&pool->wake_helpers);
    pthread_mutex_unlock(&pool->lock);
}

static void pool_close(struct pool *pool)
{
    atomic_store(&pool->job, 0);
    for (int i = 0; i < POOL_SPINS && atomic_load(&pool->inside); i++)
        pool_relax();
    if (!atomic_load(&pool->inside))
        return;
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->owner_waits, 1);
    while (atomic_load(&pool->inside))
        pthread_cond_wait(&pool->left, &pool->lock);
    atomic_store(&pool->owner_waits, 0);
    pthread_mutex_unlock(&pool->lock);
}

void pool_for(struct pool *pool, int64_t count, void (*body)(void *context, int64_t i), void *context)
{
    /* Busy: a nested call, or another thread's job is under way; both go on alone. */
    if (!pool || pool->threads == 1 || count <= 1 || atomic_exchange(&pool->busy, 1)) {
        for (int64_t i = 0; i < count; i++)
            body(context, i);
        return;
    }
    pool_open(pool, count, body, context);
    pool_claim(pool);
    pool_close(pool);
    atomic_store(&pool->busy, 0);
}

void pool_submit(struct pool *pool, struct pool_task *task)
{
    if (pool->started == 0) {
        task->run(task);
        return;
    }
    task->next = NULL;
    pthread_mutex_lock(&pool->lock);
    *pool->tail = task;
    pool->tail = &task->next;
    pthread_cond_signal(pool->background ? &pool->wake_background : &pool->wake_helpers);
    pthread_mutex_unlock(&pool->lock);
}

int pool_available_cores(void)
{
    int cores = cores_by_affinity();
    int quota = cores_by_cgroup("/proc/self/cgroup", "/proc/self/mountinfo");
    return quota > 0 && quota < cores ? quota : cores;
}
