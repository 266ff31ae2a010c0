/* all_reduce, reduce_scatter and all_gather of worker/collective, each rank a process. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "base/account.h"
#include "base/clock.h"
#include "base/errbuf.h"
#include "base/host.h"
#include "base/role.h"
#include "base/status.h"
#include "deploy/cli/bench.h"
#include "deploy/cli/bench_crew.h"
#include "deploy/cli/bench_report.h"
#include "deploy/cli/bench_vector.h"
#include "worker/collective/collective.h"

enum { TEXT_BYTES = 320, LEAVE = -1, GO = 0, TIMEOUT_S = 60 };

/* What ranks tell the parent and, through it, each other: written before crew_say, read after crew_wait. */
struct seat {
    char address[TEXT_BYTES], public_key[TEXT_BYTES], socket[TEXT_BYTES], host[TEXT_BYTES];
    uint64_t incarnation;
    int transport, iterations;
    int64_t wrong;
};
struct board {
    struct seat seats[BENCH_RANKS_MAX];
    int64_t samples[]; /* ns of iteration i of a rank: [rank * BENCH_ITERATIONS_MAX + i] */
};

struct kind {
    const char *name;
    int (*move)(struct collective_plan *plan, struct errbuf *err);
    int64_t (*wrong)(const float *whole, int rank, int ranks, const struct collective_segment *segment);
    double (*bus_factor)(int ranks);
};

struct task {
    const struct kind *kind;
    const struct bench_options *options;
    struct board *board;
};

/* --- what the three are ------------------------------------------------------------------------------------------
 */

static int reduce_scatter(struct collective_plan *plan, struct errbuf *err)
{
    return collective_reduce_scatter(plan, NULL, NULL, err);
}

static int64_t wrong_everywhere(const float *whole, int rank, int ranks, const struct collective_segment *segment)
{
    (void)rank;
    return bench_wrong_sums(whole + segment->begin, ranks, segment);
}

static int64_t wrong_of_own(const float *whole, int rank, int ranks, const struct collective_segment *segment)
{
    return segment->owner == rank ? bench_wrong_sums(whole + segment->begin, ranks, segment) : 0;
}

static int64_t wrong_copies(const float *whole, int rank, int ranks, const struct collective_segment *segment)
{
    (void)rank;
    (void)ranks;
    return bench_wrong_copies(whole + segment->begin, segment);
}

static double bus_of_one(int ranks)
{
    return (double)(ranks - 1) / ranks;
}

static double bus_of_both(int ranks)
{
    return 2 * bus_of_one(ranks);
}

static const struct kind all_reduce_kind = {"all_reduce", collective_all_reduce, wrong_everywhere, bus_of_both};
static const struct kind reduce_scatter_kind = {"reduce_scatter", reduce_scatter, wrong_of_own, bus_of_one};
static const struct kind all_gather_kind = {"all_gather", collective_all_gather, wrong_copies, bus_of_one};

/* --- a rank ------------------------------------------------------------------------------------------------------
 */

struct rank {
    const struct task *task;
    struct collective *group;
    struct collective_plan *plan;
    struct collective_segment *segments;
    float *whole;
    int rank, line, segments_count;
};

static int measure_once(const struct rank *rank, int64_t *whole_ns, int64_t *move_ns, struct errbuf *err)
{
    int64_t begin_ns = clock_now_ns();
    int status = collective_barrier(rank->group, err);
    int64_t inside_ns = clock_now_ns();
    if (status == 0)
        status = rank->task->kind->move(rank->plan, err);
    int64_t end_ns = clock_now_ns();
    *whole_ns = end_ns - begin_ns;
    *move_ns = end_ns - inside_ns;
    return status;
}

/* The slowest rank's `ns`, the same on every rank. */
static int agree(const struct rank *rank, int64_t *ns, struct errbuf *err)
{
    int ranks = rank->task->options->ranks;
    int64_t all[BENCH_RANKS_MAX];
    size_t offsets[BENCH_RANKS_MAX], sizes[BENCH_RANKS_MAX];
    for (int r = 0; r < ranks; r++) {
        offsets[r] = (size_t)r * sizeof *all;
        sizes[r] = sizeof *all;
    }
    all[rank->rank] = *ns;
    const struct collective_blobs blobs = {(uint8_t *)all, offsets, sizes};
    int status = collective_exchange(rank->group, &blobs, err);
    for (int r = 0; r < ranks && status == 0; r++)
        *ns = all[r] > *ns ? all[r] : *ns;
    return status;
}

static int move_and_check(const struct rank *rank, int64_t bytes, struct errbuf *err)
{
    const struct task *task = rank->task;
    bench_fill(rank->whole, rank->rank, 0, bytes / 4);
    int status = task->kind->move(rank->plan, err);
    for (int i = 0; i < rank->segments_count && status == 0; i++)
        task->board->seats[rank->rank].wrong +=
            task->kind->wrong(rank->whole, rank->rank, task->options->ranks, &rank->segments[i]);
    return status;
}

static int measure_plan(const struct rank *rank, int64_t bytes, struct errbuf *err)
{
    const struct bench_options *options = rank->task->options;
    struct seat *seat = &rank->task->board->seats[rank->rank];
    int64_t *samples = rank->task->board->samples + (int64_t)rank->rank * BENCH_ITERATIONS_MAX;
    int64_t one_ns = 0, move_ns;
    seat->wrong = 0;
    int status = move_and_check(rank, bytes, err);
    for (int i = 0; i < options->warmup && status == 0; i++)
        status = measure_once(rank, &one_ns, &move_ns, err);
    if (status == 0)
        status = agree(rank, &one_ns, err);
    seat->iterations = bench_iterations(options, one_ns);
    for (int i = 0; i < seat->iterations && status == 0; i++)
        status = measure_once(rank, &one_ns, &samples[i], err);
    return status == 0 ? move_and_check(rank, bytes, err) : status;
}

static int measure_size(struct rank *rank, int64_t bytes, struct errbuf *err)
{
    char name[32];
    snprintf(name, sizeof name, "%lld bytes", (long long)bytes);
    rank->segments = bench_segments(bytes / 4, rank->task->options->ranks, &rank->segments_count);
    if (!rank->segments)
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    const struct collective_layout layout = {
        .segments = rank->segments, .segments_count = rank->segments_count, .whole = rank->whole, .name = name};
    int status = collective_plan_create(&rank->plan, rank->group, &layout, err);
    if (status == 0)
        status = measure_plan(rank, bytes, err);
    collective_plan_destroy(rank->plan);
    free(rank->segments);
    rank->plan = NULL;
    rank->segments = NULL;
    return status;
}

/* Size by size, as the parent tells. */
static int measure_all(struct rank *rank, struct errbuf *err)
{
    const struct bench_options *options = rank->task->options;
    int order = GO, status = 0;
    size_t room = (size_t)options->bytes_max;
    rank->whole = collective_alloc(rank->group, ACCOUNT_BUFFERS, room);
    if (!rank->whole)
        return errbuf_set(err, STATUS_NOMEM, "no memory for %zu bytes", room);
    rank->task->board->seats[rank->rank].transport = (int)collective_transport_of(rank->group);
    status = crew_say(rank->line, err);
    for (int64_t bytes = options->bytes_min; status == 0; bytes = bench_size_after(options, bytes)) {
        status = crew_hear(rank->line, &order, err);
        if (status != 0 || order == LEAVE)
            break;
        status = measure_size(rank, bytes, err);
        if (status == 0)
            status = crew_say(rank->line, err);
    }
    collective_free(rank->group, ACCOUNT_BUFFERS, rank->whole, room);
    return status;
}

static void take_seat(struct seat *seat, const struct collective_port *port)
{
    snprintf(seat->address, TEXT_BYTES, "%s", collective_port_address(port));
    snprintf(seat->public_key, TEXT_BYTES, "%s", collective_port_public_key(port));
    snprintf(seat->socket, TEXT_BYTES, "%s", collective_port_socket(port));
    host_id(seat->host, TEXT_BYTES);
    seat->incarnation = host_incarnation();
}

static int join(struct rank *rank, struct collective_port *port, struct account *account, struct errbuf *err)
{
    const struct bench_options *options = rank->task->options;
    const struct seat *seats = rank->task->board->seats;
    struct collective_peer peers[BENCH_RANKS_MAX];
    for (int r = 0; r < options->ranks; r++)
        peers[r] = (struct collective_peer){seats[r].address, seats[r].public_key, seats[r].socket, seats[r].host,
                                            seats[r].incarnation};
    const struct collective_options group = {.port = port,
                                             .peers = peers,
                                             .rank = rank->rank,
                                             .world = options->ranks,
                                             .job = 1,
                                             .cluster_epoch = 1,
                                             .transport = options->transport,
                                             .blob_bytes_max = sizeof(int64_t),
                                             .timeout_s = TIMEOUT_S,
                                             .account = account};
    return collective_open(&rank->group, &group, err);
}

static int run_in_context(struct rank *rank, void *zmq, struct errbuf *err)
{
    struct account account;
    struct role_host host = {.zmq = zmq};
    struct collective_port *port = NULL;
    const struct collective_port_options options = {.host = &host, .cluster = "tcp://127.0.0.1:1"};
    int order;
    account_init(&account);
    log_init(&host.log, "bench");
    host.log.rank = rank->rank;
    if (host.log.level > LOG_WARNING)
        host.log.level = LOG_WARNING;
    int status = collective_port_open(&port, &options, err);
    if (status != 0)
        return status;
    take_seat(&rank->task->board->seats[rank->rank], port);
    status = crew_say(rank->line, err);
    if (status == 0)
        status = crew_hear(rank->line, &order, err);
    if (status == 0)
        status = join(rank, port, &account, err);
    if (status == 0) {
        status = measure_all(rank, err);
        collective_close(rank->group);
    }
    collective_port_close(port);
    return status;
}

static int rank_work(int line, int number, void *context, struct errbuf *err)
{
    struct rank rank = {.task = context, .rank = number, .line = line};
    void *zmq = zmq_ctx_new();
    if (!zmq)
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    int status = run_in_context(&rank, zmq, err);
    if (status == 0)
        zmq_ctx_term(zmq); /* after an error a socket may be open, and the process ends */
    return status;
}

/* --- the parent --------------------------------------------------------------------------------------------------
 */

static int64_t report_size(const struct task *task, int64_t bytes)
{
    struct board *board = task->board;
    int ranks = task->options->ranks;
    struct bench_line line = {.bytes = bytes,
                              .moved = (double)bytes,
                              .bus_factor = task->kind->bus_factor(ranks),
                              .iterations = board->seats[0].iterations};
    for (int r = 0; r < ranks; r++)
        line.wrong += board->seats[r].wrong;
    bench_summarise(board->samples, ranks, line.iterations, &line.time_us, &line.max_us);
    bench_print_line(&line, 0);
    return line.wrong;
}

static int start_ranks(struct crew *crew, struct task *task, struct errbuf *err)
{
    int ranks = task->options->ranks, status = 0;
    for (int r = 0; r < ranks && status == 0; r++)
        status = crew_start(crew, "rank", r, rank_work, task, err);
    if (status == 0)
        status = crew_wait(crew, 0, ranks, err);
    if (status != 0)
        return status;
    crew_tell(crew, 0, ranks, GO);
    return crew_wait(crew, 0, ranks, err);
}

static int conduct(struct crew *crew, struct task *task, int64_t *wrong, struct errbuf *err)
{
    const struct bench_options *options = task->options;
    int status = start_ranks(crew, task, err);
    if (status != 0)
        return status;
    bench_print_head(task->kind->name, options, task->board->seats[0].transport == COLLECTIVE_SHM ? "shm" : "tcp",
                     0);
    for (int64_t bytes = options->bytes_min; bytes > 0; bytes = bench_size_after(options, bytes)) {
        crew_tell(crew, 0, options->ranks, GO);
        status = crew_wait(crew, 0, options->ranks, err);
        if (status != 0)
            return status;
        *wrong += report_size(task, bytes);
    }
    crew_tell(crew, 0, options->ranks, LEAVE);
    status = crew_finish(crew, err);
    if (status == 0)
        bench_print_end(*wrong);
    return status;
}

static int measure(const struct kind *kind, const struct bench_options *options, int64_t *wrong, struct errbuf *err)
{
    struct crew *crew = NULL;
    size_t bytes = sizeof(struct board) + (size_t)options->ranks * BENCH_ITERATIONS_MAX * sizeof(int64_t);
    struct task task = {kind, options, crew_share(bytes)};
    int status =
        task.board ? crew_open(&crew, options->ranks, err) : errbuf_set(err, STATUS_NOMEM, "out of memory");
    if (status == 0)
        status = conduct(crew, &task, wrong, err);
    crew_close(crew);
    crew_unshare(task.board, bytes);
    return status;
}

static int run_all_reduce(const struct bench_options *options, int64_t *wrong, struct errbuf *err)
{
    return measure(&all_reduce_kind, options, wrong, err);
}

static int run_reduce_scatter(const struct bench_options *options, int64_t *wrong, struct errbuf *err)
{
    return measure(&reduce_scatter_kind, options, wrong, err);
}

static int run_all_gather(const struct bench_options *options, int64_t *wrong, struct errbuf *err)
{
    return measure(&all_gather_kind, options, wrong, err);
}

const struct bench_ops bench_all_reduce = {"all_reduce", run_all_reduce};
const struct bench_ops bench_reduce_scatter = {"reduce_scatter", run_reduce_scatter};
const struct bench_ops bench_all_gather = {"all_gather", run_all_gather};
