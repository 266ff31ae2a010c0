/* Push, step and pull of a client program: a coordinator, a server and the ranks are processes of their own, for
 * each size anew, since a key that is not pushed takes part in a step all the same. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/errbuf.h"
#include "base/role.h"
#include "base/status.h"
#include "config/job.h"
#include "deploy/cli/bench.h"
#include "deploy/cli/bench_crew.h"
#include "deploy/cli/bench_report.h"
#include "server/coordinator/coordinator.h"
#include "server/server.h"
#include "worker/client/shoal.h"

enum { COORDINATOR, SERVER, FIRST_RANK, ADDRESS_BYTES = 256, JOIN_S = 60 };

struct seat {
    int64_t one_ns, wrong;
};
struct board {
    char address[ADDRESS_BYTES]; /* the coordinator's */
    struct seat seats[BENCH_RANKS_MAX];
    int64_t samples[]; /* ns: [rank * BENCH_ITERATIONS_MAX + i] */
};

struct task {
    const struct bench_options *options;
    struct board *board;
    int64_t bytes; /* of this size */
};

/* --- coordinator and server --------------------------------------------------------------------------------------
 */

struct greeting {
    struct board *board;
    int line;
};

static void on_ready(void *context, const char *address)
{
    struct greeting *greeting = context;
    snprintf(greeting->board->address, ADDRESS_BYTES, "%s", address);
    crew_say(greeting->line, NULL); /* fails when the parent has gone, and then we go too */
}

static void host_init(struct role_host *host, const char *role)
{
    log_init(&host->log, role);
    if (host->log.level > LOG_WARNING)
        host->log.level = LOG_WARNING;
    host->zmq = zmq_ctx_new();
}

static int load_job(const struct bench_options *options, struct job **job, struct errbuf *err)
{
    char text[512];
    snprintf(text, sizeof text,
             "name: bench\ndata: {kind: none}\nmodel: {kind: none}\noptimizer: {kind: sgd, lr: 1}\n"
             "parallel: {aggregate: sum, transport: %s}\ncluster: {workers: %d, servers: 1}\n",
             options->transport_name, options->ranks);
    struct job_source source = {.text = text, .text_name = "bench"};
    return job_load(job, &source, err);
}

static int coordinator_work(int line, int rank, void *context, struct errbuf *err)
{
    const struct task *task = context;
    struct greeting greeting = {task->board, line};
    struct role_host host = {.ready = on_ready, .context = &greeting};
    struct job *job = NULL;
    (void)rank;
    host_init(&host, "coordinator");
    int status = load_job(task->options, &job, err);
    struct coordinator_options options = {
        .listen = "tcp://127.0.0.1:0", .job = job, .job_dir = "", .once = 1, .out_fd = -1};
    if (status == 0)
        status = coordinator_run(&host, &options, err);
    job_destroy(job);
    zmq_ctx_term(host.zmq);
    return status;
}

static int server_work(int line, int rank, void *context, struct errbuf *err)
{
    const struct task *task = context;
    struct role_host host = {0};
    struct server_options options = {.listen = "tcp://127.0.0.1:0", .cluster = task->board->address, .once = 1};
    (void)line;
    (void)rank;
    host_init(&host, "server");
    int status = server_run(&host, &options, err);
    zmq_ctx_term(host.zmq);
    return status;
}

/* --- a rank ------------------------------------------------------------------------------------------------------
 */

struct rank {
    const struct task *task;
    struct shoal_client *client;
    float *pushed, *pulled;
    size_t count;
    int key, rank, line, steps;
};

/* Whole numbers: every sum of them over ranks and steps is exact below 2^24. */
static float pushed_at(int rank, size_t i)
{
    return (float)((i + 3 * (size_t)rank) % 7) - 3;
}

static int client_failed(const struct rank *rank, const char *what, struct errbuf *err)
{
    char text[256];
    int status = shoal_error(rank->client, text, sizeof text);
    return errbuf_set(err, status, "%s: %s", what, text);
}

static int end_step(struct rank *rank, struct errbuf *err)
{
    int outcome = shoal_clock(rank->client);
    if (outcome < 0)
        return client_failed(rank, "step", err);
    if (outcome != SHOAL_APPLIED)
        return errbuf_set(err, STATUS_NUMERIC, "a step was skipped");
    rank->steps++;
    if (shoal_pull(rank->client, rank->key, rank->pulled, rank->count, NULL) < 0)
        return client_failed(rank, "pull", err);
    return 0;
}

/* Push, end of the step, pull. */
static int step_whole(struct rank *rank, int64_t *ns, struct errbuf *err)
{
    int64_t begin_ns = clock_now_ns();
    if (shoal_push(rank->client, rank->key, rank->pushed, rank->count, 1, NULL) < 0)
        return client_failed(rank, "push", err);
    int status = end_step(rank, err);
    *ns = clock_now_ns() - begin_ns;
    return status;
}

/* The same step, waiting for the push: its time alone. */
static int step_push(struct rank *rank, int64_t *ns, struct errbuf *err)
{
    shoal_request request;
    int64_t begin_ns = clock_now_ns();
    if (shoal_push(rank->client, rank->key, rank->pushed, rank->count, 1, &request) < 0 ||
        shoal_wait(rank->client, request) < 0)
        return client_failed(rank, "push", err);
    *ns = clock_now_ns() - begin_ns;
    return end_step(rank, err);
}

static int64_t wrong_values(const struct rank *rank)
{
    int64_t wrong = 0;
    for (size_t i = 0; i < rank->count; i++) {
        float sum = 0;
        for (int r = 0; r < rank->task->options->ranks; r++)
            sum += pushed_at(r, i);
        wrong += rank->pulled[i] != -sum * (float)rank->steps;
    }
    return wrong;
}

/* As many steps as the parent says, measured by `step`. */
static int series(struct rank *rank, int (*step)(struct rank *, int64_t *, struct errbuf *), struct errbuf *err)
{
    struct board *board = rank->task->board;
    int64_t *samples = board->samples + (int64_t)rank->rank * BENCH_ITERATIONS_MAX;
    int iterations = 0;
    int status = crew_hear(rank->line, &iterations, err);
    for (int i = 0; i < iterations && status == 0; i++)
        status = step(rank, &samples[i], err);
    return status == 0 ? crew_say(rank->line, err) : status;
}

static int measure_rank(struct rank *rank, struct errbuf *err)
{
    const struct task *task = rank->task;
    struct seat *seat = &task->board->seats[rank->rank];
    int64_t shape = (int64_t)rank->count;
    int order, status = 0;
    for (size_t i = 0; i < rank->count; i++)
        rank->pushed[i] = pushed_at(rank->rank, i);
    rank->key = shoal_register(rank->client, "bench", 1, &shape);
    if (rank->key < 0)
        return client_failed(rank, "register", err);
    if (shoal_init(rank->client, rank->key, rank->pulled, rank->count) < 0 || shoal_start(rank->client) < 0)
        return client_failed(rank, "start", err);
    for (int i = 0; i < task->options->warmup && status == 0; i++)
        status = step_whole(rank, &seat->one_ns, err);
    seat->wrong = status == 0 ? wrong_values(rank) : 0;
    if (status == 0)
        status = crew_say(rank->line, err);
    if (status == 0)
        status = series(rank, step_whole, err);
    if (status == 0)
        status = series(rank, step_push, err);
    seat->wrong += status == 0 ? wrong_values(rank) : 0;
    if (status == 0)
        status = crew_say(rank->line, err);
    return status == 0 ? crew_hear(rank->line, &order, err) : status;
}

static int rank_work(int line, int number, void *context, struct errbuf *err)
{
    const struct task *task = context;
    struct rank rank = {.task = task, .rank = number, .line = line, .count = (size_t)task->bytes / 4};
    const struct shoal_options options = {.cluster = task->board->address, .rank = number, .timeout_s = JOIN_S};
    char text[256] = "";
    rank.pushed = calloc(rank.count, sizeof *rank.pushed);
    rank.pulled = calloc(rank.count, sizeof *rank.pulled);
    int status = rank.pushed && rank.pulled ? 0 : errbuf_set(err, STATUS_NOMEM, "out of memory");
    if (status == 0) {
        status = shoal_connect(&rank.client, &options, text, sizeof text);
        status = status == 0 ? measure_rank(&rank, err) : errbuf_set(err, status, "connect: %s", text);
        shoal_close(rank.client);
    }
    free(rank.pushed);
    free(rank.pulled);
    return status;
}

/* --- the parent --------------------------------------------------------------------------------------------------
 */

static int start_cluster(struct crew *crew, struct task *task, struct errbuf *err)
{
    int status = crew_start(crew, "coordinator", -1, coordinator_work, task, err);
    if (status == 0)
        status = crew_wait(crew, COORDINATOR, 1, err);
    if (status == 0)
        status = crew_start(crew, "server", -1, server_work, task, err);
    for (int r = 0; r < task->options->ranks && status == 0; r++)
        status = crew_start(crew, "rank", r, rank_work, task, err);
    return status == 0 ? crew_wait(crew, FIRST_RANK, task->options->ranks, err) : status;
}

static int measure_series(struct crew *crew, const struct task *task, int iterations, double *median_us,
                          double *max_us, struct errbuf *err)
{
    int ranks = task->options->ranks;
    crew_tell(crew, FIRST_RANK, ranks, iterations);
    int status = crew_wait(crew, FIRST_RANK, ranks, err);
    if (status == 0)
        bench_summarise(task->board->samples, ranks, iterations, median_us, max_us);
    return status;
}

static int measure_size(struct crew *crew, struct task *task, int64_t *wrong, struct errbuf *err)
{
    int ranks = task->options->ranks;
    struct bench_line line = {.bytes = task->bytes, .moved = 2.0 * (double)task->bytes, .bus_factor = ranks};
    int64_t one_ns = 0;
    double unused;
    int status = start_cluster(crew, task, err);
    for (int r = 0; r < ranks; r++)
        one_ns = task->board->seats[r].one_ns > one_ns ? task->board->seats[r].one_ns : one_ns;
    line.iterations = bench_iterations(task->options, one_ns);
    if (status == 0)
        status = measure_series(crew, task, line.iterations, &line.time_us, &line.max_us, err);
    if (status == 0)
        status = measure_series(crew, task, line.iterations, &line.push_us, &unused, err);
    if (status == 0)
        status = crew_wait(crew, FIRST_RANK, ranks, err);
    if (status != 0)
        return status;
    for (int r = 0; r < ranks; r++)
        line.wrong += task->board->seats[r].wrong;
    *wrong += line.wrong;
    bench_print_line(&line, 1);
    crew_tell(crew, FIRST_RANK, ranks, 0);
    return crew_finish(crew, err);
}

static int measure_all(struct task *task, int64_t *wrong, struct errbuf *err)
{
    const struct bench_options *options = task->options;
    int status = 0;
    bench_print_head("push_pull", options, options->transport_name, 1);
    for (task->bytes = options->bytes_min; task->bytes > 0 && status == 0;
         task->bytes = bench_size_after(options, task->bytes)) {
        struct crew *crew = NULL;
        status = crew_open(&crew, FIRST_RANK + options->ranks, err);
        if (status == 0)
            status = measure_size(crew, task, wrong, err);
        crew_close(crew);
    }
    if (status == 0)
        bench_print_end(*wrong);
    return status;
}

static int run(const struct bench_options *options, int64_t *wrong, struct errbuf *err)
{
    size_t bytes = sizeof(struct board) + (size_t)options->ranks * BENCH_ITERATIONS_MAX * sizeof(int64_t);
    struct task task = {options, crew_share(bytes), 0};
    int status = task.board ? measure_all(&task, wrong, err) : errbuf_set(err, STATUS_NOMEM, "out of memory");
    crew_unshare(task.board, bytes);
    return status;
}

const struct bench_ops bench_push_pull = {"push_pull", run};
