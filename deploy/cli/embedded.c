#include "deploy/cli/embedded.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/errbuf.h"
#include "base/status.h"
#include "daemon/daemon.h"
#include "deploy/cli/run_plan.h"
#include "server/coordinator/coordinator.h"
#include "server/server.h"
#include "tensor/gemm.h"
#include "worker/worker.h"

enum { LOOK_MS = 50, LEAVE_MS = 3000, NAME_BYTES = 64 };
static const char coordinator_endpoint[] = "inproc://shoal-coordinator";

enum kind { COORDINATOR, SERVER, WORKER };

struct role {
    struct embedded *all;
    struct role_host host;
    enum kind kind;
    int rank;
    pthread_t thread;
    int started;
    int ready, done, status; /* under all->lock */
    struct errbuf err;
};

struct embedded {
    const struct run_plan *plan;
    struct role_host process; /* the daemon's: a signal stops it, and we the coordinator */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct role *roles; /* coordinator, servers, workers */
    int count;
    int left; /* roles that have not ended, under lock */
};

/* --- a role's thread ---------------------------------------------------------------------------------------- */

static void on_ready(void *context, const char *address)
{
    struct role *role = context;
    (void)address;
    pthread_mutex_lock(&role->all->lock);
    role->ready = 1;
    pthread_cond_broadcast(&role->all->changed);
    pthread_mutex_unlock(&role->all->lock);
}

static int run_coordinator(struct role *role)
{
    const struct run_plan *plan = role->all->plan;
    char state[4096] = "";
    if (plan->state[0])
        snprintf(state, sizeof state, "%s/coordinator", plan->state);
    struct coordinator_options options = {.listen = coordinator_endpoint,
                                          .job = plan->job,
                                          .job_dir = plan->job_dir,
                                          .state_dir = state,
                                          .init_path = plan->init,
                                          .export_path = plan->export_path,
                                          .metrics_path = plan->metrics,
                                          .trace_path = plan->trace,
                                          .resume = plan->resume[0] != '\0',
                                          .resume_path = plan->resume,
                                          .once = 1,
                                          .progress = isatty(STDOUT_FILENO),
                                          .out_fd = STDOUT_FILENO};
    return coordinator_run(&role->host, &options, &role->err);
}

static int run_server(struct role *role)
{
    const struct run_plan *plan = role->all->plan;
    char listen[NAME_BYTES], state[4096] = "";
    snprintf(listen, sizeof listen, "inproc://shoal-server-%d", role->rank);
    if (plan->state[0])
        snprintf(state, sizeof state, "%s/server-%d", plan->state, role->rank);
    struct server_options options = {.listen = listen,
                                     .cluster = coordinator_endpoint,
                                     .rank = role->rank,
                                     .threads = plan->server_threads,
                                     .once = 1,
                                     .state_dir = state};
    return server_run(&role->host, &options, &role->err);
}

static int run_worker(struct role *role)
{
    const struct run_plan *plan = role->all->plan;
    struct worker_options options = {.cluster = coordinator_endpoint,
                                     .data_dir = plan->data,
                                     .rank = role->rank,
                                     .threads = plan->worker_threads,
                                     .once = 1};
    return worker_run(&role->host, &options, &role->err);
}

static void *role_main(void *argument)
{
    struct role *role = argument;
    int status = role->kind == COORDINATOR ? run_coordinator(role)
                 : role->kind == SERVER    ? run_server(role)
                                           : run_worker(role);
    if (status != 0 && status != STATUS_STOPPED)
        log_error(&role->host.log, "%s", role->err.text[0] ? role->err.text : status_text(status));
    pthread_mutex_lock(&role->all->lock);
    role->done = 1;
    role->status = status;
    role->all->left--;
    pthread_cond_broadcast(&role->all->changed);
    pthread_mutex_unlock(&role->all->lock);
    return NULL;
}

/* --- the process' first thread ---------------------------------------------------------------------------------
 */

static void init_role(struct embedded *all, struct role *role, enum kind kind, int rank)
{
    static const char *const names[] = {"coordinator", "server", "worker"};
    role->all = all;
    role->kind = kind;
    role->rank = rank;
    errbuf_init(&role->err);
    role->host.zmq = all->process.zmq;
    role->host.embedded = 1;
    role->host.key_name = names[kind];
    role->host.ready = on_ready;
    role->host.context = role;
    log_init(&role->host.log, names[kind]);
}

static int start_role(struct embedded *all, struct role *role, struct errbuf *err)
{
    pthread_mutex_lock(&all->lock);
    all->left++;
    pthread_mutex_unlock(&all->lock);
    if (pthread_create(&role->thread, NULL, role_main, role) == 0) {
        role->started = 1;
        return 0;
    }
    pthread_mutex_lock(&all->lock);
    all->left--;
    pthread_mutex_unlock(&all->lock);
    return errbuf_set(err, STATUS_NOMEM, "no thread for %s %d", role->host.log.role, role->rank);
}

/* Under the lock; until something changed or LOOK_MS went by, so that signals are seen. */
static void wait_a_little(struct embedded *all)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += LOOK_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_cond_timedwait(&all->changed, &all->lock, &until);
}

static void pass_signal_on(struct embedded *all)
{
    int number = atomic_load(&all->process.stop);
    if (number && !atomic_load(&all->roles[0].host.stop))
        atomic_store(&all->roles[0].host.stop, number); /* it ends the job in order, and with it the rest */
}

static void stop_all(struct embedded *all)
{
    for (int i = 0; i < all->count; i++) {
        if (!atomic_load(&all->roles[i].host.stop))
            atomic_store(&all->roles[i].host.stop, SIGTERM);
    }
}

static int start_all(struct embedded *all, struct errbuf *err)
{
    struct role *coordinator = &all->roles[0];
    int status = start_role(all, coordinator, err);
    pthread_mutex_lock(&all->lock);
    while (status == 0 && !coordinator->ready && !coordinator->done) {
        wait_a_little(all);
        pass_signal_on(all);
    }
    int is_there = coordinator->ready && !coordinator->done;
    pthread_mutex_unlock(&all->lock);
    for (int i = 1; i < all->count && status == 0 && is_there; i++)
        status = start_role(all, &all->roles[i], err);
    return status;
}

/* What comes of an elastic job when a worker has failed is the coordinator's answer. */
static int may_fail(const struct embedded *all, const struct role *role)
{
    return all->plan->elastic && role->kind == WORKER && role->ready;
}

/* Under the lock: a server or worker that ended with an error of its own. */
static struct role *first_failed(struct embedded *all)
{
    for (int i = 1; i < all->count; i++) {
        struct role *role = &all->roles[i];
        if (!may_fail(all, role) && role->done && role->status != 0 && role->status != STATUS_STOPPED && role->status != STATUS_ABORTED)
            return role;
    }
    return NULL;
}

/* Until every role that was started has ended. */
static void watch(struct embedded *all)
{
    int64_t ended_ns = 0;
    pthread_mutex_lock(&all->lock);
    while (all->left > 0) {
        wait_a_little(all);
        pass_signal_on(all);
        if (first_failed(all))
            atomic_store(&all->roles[0].host.stop, SIGTERM); /* one that never joined is missed by nobody else */
        if (all->roles[0].done && ended_ns == 0)
            ended_ns = clock_now_ns();
        if (ended_ns != 0 && clock_now_ns() - ended_ns > (int64_t)LEAVE_MS * 1000000)
            stop_all(all);
    }
    pthread_mutex_unlock(&all->lock);
}

static int exit_code(struct embedded *all)
{
    int status = all->roles[0].status, number = atomic_load(&all->process.stop);
    if (first_failed(all) && !(number && status == STATUS_STOPPED))
        return 1;
    if (status == STATUS_STOPPED)
        return 128 + (number ? number : SIGTERM);
    for (int i = 1; i < all->count && status == 0; i++)
        status = may_fail(all, &all->roles[i]) ? 0 : all->roles[i].status;
    return status == 0 ? 0 : status == STATUS_INVALID ? 2 : 1;
}

static int run_roles(struct embedded *all, struct errbuf *err)
{
    all->process.zmq = zmq_ctx_new();
    all->roles = calloc((size_t)all->count, sizeof *all->roles);
    if (!all->roles || !all->process.zmq) {
        log_error(&all->process.log, "out of memory");
        free(all->roles);
        return 1;
    }
    init_role(all, &all->roles[0], COORDINATOR, -1);
    for (int i = 1; i < all->count; i++) {
        int is_server = i <= all->plan->servers;
        init_role(all, &all->roles[i], is_server ? SERVER : WORKER, is_server ? i - 1 : i - 1 - all->plan->servers);
    }
    int status = start_all(all, err);
    if (status != 0) {
        log_error(&all->process.log, "%s", err->text);
        stop_all(all);
    }
    watch(all);
    for (int i = 0; i < all->count; i++) {
        if (all->roles[i].started)
            pthread_join(all->roles[i].thread, NULL);
    }
    int code = status != 0 ? 1 : exit_code(all);
    zmq_ctx_term(all->process.zmq);
    free(all->roles);
    return code;
}

int embedded_run(const struct run_plan *plan)
{
    struct embedded all = {.plan = plan, .count = 1 + plan->servers + plan->workers};
    struct daemon *daemon = NULL;
    struct errbuf err;
    pthread_condattr_t monotonic;
    errbuf_init(&err);
    log_init(&all.process.log, "shoal");
    atomic_store(&all.process.stop_grace_ms, plan->stop_ms + 300);
    /* BLAS first: it reads the environment, which must not be written while threads run. */
    if (gemm_start(&err) != 0 || daemon_open(&daemon, &all.process, -1, &err) != 0) {
        log_error(&all.process.log, "%s", err.text);
        return 1;
    }
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&all.lock, NULL);
    pthread_cond_init(&all.changed, &monotonic);
    int code = run_roles(&all, &err);
    pthread_cond_destroy(&all.changed);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_destroy(&all.lock);
    daemon_close(daemon);
    return code;
}
