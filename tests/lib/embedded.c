#include "tests/lib/embedded.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <zmq.h>

#include "base/account.h"
#include "base/clock.h"
#include "base/errbuf.h"
#include "base/sha256.h"
#include "base/status.h"
#include "config/job.h"
#include "files/fs.h"
#include "files/safetensors.h"
#include "server/coordinator/coordinator.h"
#include "server/server.h"
#include "tests/lib/embedded_submit.h"
#include "worker/worker.h"

static const char address[] = "inproc://coordinator";
static const double deadline_s = 60, grace_s = 15;
enum { FILE_MAX = 64 << 20 };

enum role_kind { COORDINATOR, SERVER, WORKER };

struct cluster;
struct role {
    struct cluster *cluster;
    enum role_kind kind;
    int rank;
    struct role_host host;
    pthread_t thread;
    int started, status;
    struct errbuf err;
};

struct cluster {
    const struct embedded_order *order;
    void *zmq;
    struct job *job;
    char metrics[EMBEDDED_TEXT], export_path[EMBEDDED_TEXT], log_path[EMBEDDED_TEXT], trace_path[EMBEDDED_TEXT];
    struct role roles[1 + 2 * EMBEDDED_RANKS];
    int roles_count, running;
    int output[2], news[2]; /* what the coordinator prints; 'r' ready, 'e' a role has ended */
    int log_fd;
    char *said;
    size_t said_bytes, looked;
    int stopped;
    struct embedded_submit submit;
};

/* --- folders ------------------------------------------------------------------------------------------------- */

void embedded_folder_create(char folder[EMBEDDED_TEXT])
{
    snprintf(folder, EMBEDDED_TEXT, "%s/embedded-XXXXXX", SHOAL_BINARY_DIR);
    if (mkdtemp(folder) == NULL)
        fail_msg("%s: %s", folder, strerror(errno));
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *walk)
{
    (void)info;
    (void)type;
    (void)walk;
    return remove(path);
}

void embedded_folder_remove(const char *folder)
{
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

void embedded_set(struct embedded_order *order, const char *format, ...)
{
    va_list arguments;
    assert_true(order->sets_count < EMBEDDED_SETS);
    va_start(arguments, format);
    int bytes = vsnprintf(order->sets[order->sets_count++], EMBEDDED_TEXT, format, arguments);
    va_end(arguments);
    assert_true(bytes >= 0 && bytes < EMBEDDED_TEXT);
}

/* --- roles --------------------------------------------------------------------------------------------------- */

static void tell(const struct cluster *cluster, char what)
{
    while (write(cluster->news[1], &what, 1) < 0 && errno == EINTR)
        continue;
}

static void on_ready(void *context, const char *bound)
{
    (void)bound;
    tell(context, 'r');
}

static void run_coordinator(struct role *role)
{
    const struct cluster *cluster = role->cluster;
    const struct embedded_order *order = cluster->order;
    role->host.ready = on_ready;
    role->host.context = role->cluster;
    struct coordinator_options options = {.listen = address,
                                          .job = cluster->job,
                                          .job_dir = order->folder,
                                          .state_dir = "",
                                          .init_path = order->init,
                                          .export_path = cluster->export_path,
                                          .metrics_path = cluster->metrics,
                                          .trace_path = order->trace ? cluster->trace_path : "",
                                          .resume = order->resume,
                                          .resume_path = order->resume_path,
                                          .once = order->jobs < 2,
                                          .out_fd = cluster->output[1]};
    role->status = coordinator_run(&role->host, &options, &role->err);
}

static void run_server(struct role *role)
{
    char listen[64];
    if (role->cluster->order->sockets)
        snprintf(listen, sizeof listen, "tcp://127.0.0.1:0");
    else
        snprintf(listen, sizeof listen, "inproc://server-%d", role->rank);
    struct server_options options = {.listen = listen, .cluster = address, .rank = role->rank,
                                     .threads = role->cluster->order->threads > 0 ? role->cluster->order->threads : 1,
                                     .once = role->cluster->order->jobs < 2, .state_dir = ""};
    role->status = server_run(&role->host, &options, &role->err);
}

static void run_worker(struct role *role)
{
    struct worker_options options = {.cluster = address, .data_dir = "", .rank = role->rank,
                                     .threads = role->cluster->order->threads > 0 ? role->cluster->order->threads : 1,
                                     .once = role->cluster->order->jobs < 2};
    role->status = worker_run(&role->host, &options, &role->err);
}

static void *role_main(void *argument)
{
    struct role *role = argument;
    if (role->kind == COORDINATOR)
        run_coordinator(role);
    else if (role->kind == SERVER)
        run_server(role);
    else
        run_worker(role);
    tell(role->cluster, 'e');
    return NULL;
}

static void start_role(struct cluster *cluster, enum role_kind kind, int rank)
{
    static const char *const names[] = {"coordinator", "server", "worker"};
    struct role *role = &cluster->roles[cluster->roles_count++];
    role->cluster = cluster;
    role->kind = kind;
    role->rank = rank;
    role->host.zmq = cluster->zmq;
    role->host.embedded = 1;
    log_init(&role->host.log, names[kind]);
    role->host.log.level = LOG_INFO;
    role->host.log.fd = cluster->log_fd;
    errbuf_init(&role->err);
    assert_int_equal(pthread_create(&role->thread, NULL, role_main, role), 0);
    cluster->running++;
}

static void stop_roles(struct cluster *cluster, int all)
{
    for (int i = 0; i < (all ? cluster->roles_count : 1); i++)
        cluster->roles[i].host.stop = 15;
    cluster->stopped = 1;
}

/* --- watching ------------------------------------------------------------------------------------------------- */

/* "step K/…" with K at least what the order waits for. */
static void look_for_step(struct cluster *cluster)
{
    while (!cluster->stopped && cluster->order->stop_at > 0) {
        char *line = cluster->said + cluster->looked, *end = strchr(line, '\n');
        if (end == NULL)
            return;
        cluster->looked += (size_t)(end + 1 - line);
        if (strncmp(line, "step ", 5) == 0 && atoi(line + 5) >= cluster->order->stop_at)
            stop_roles(cluster, cluster->order->stop_all);
    }
}

static void take_output(struct cluster *cluster)
{
    char piece[4096];
    ssize_t got = read(cluster->output[0], piece, sizeof piece);
    if (got <= 0)
        return;
    char *grown = realloc(cluster->said, cluster->said_bytes + (size_t)got + 1);
    assert_non_null(grown);
    memcpy(grown + cluster->said_bytes, piece, (size_t)got);
    cluster->said = grown;
    cluster->said_bytes += (size_t)got;
    grown[cluster->said_bytes] = '\0';
    look_for_step(cluster);
}

static void hung(const struct cluster *cluster)
{
    fprintf(stderr, "a role does not end; output:\n%s\nlog: %s\n", cluster->said, cluster->log_path);
    for (int i = 0; i < cluster->roles_count; i++)
        fprintf(stderr, "role %d rank %d status %d %s\n", (int)cluster->roles[i].kind, cluster->roles[i].rank,
                cluster->roles[i].status, cluster->roles[i].err.text);
    fflush(stderr);
    _exit(1); /* threads that hold the test's memory still run */
}

/* Returns the next piece of news, or 0 when the deadline (or the grace after it) has passed. */
static char watch(struct cluster *cluster, int64_t until_ns)
{
    for (;;) {
        int64_t left = until_ns - clock_now_ns();
        struct pollfd fds[2] = {{cluster->output[0], POLLIN, 0}, {cluster->news[0], POLLIN, 0}};
        if (left <= 0)
            return 0;
        if (poll(fds, 2, (int)(left / 1000000) + 1) < 0 && errno != EINTR)
            fail_msg("poll: %s", strerror(errno));
        if (fds[0].revents & POLLIN)
            take_output(cluster);
        char news;
        if ((fds[1].revents & POLLIN) && read(cluster->news[0], &news, 1) == 1)
            return news;
    }
}

/* The first job of a cluster that stays is over when its summary was said and it is idle again: submitting asks. */
static void more_jobs(struct cluster *cluster, int64_t until_ns)
{
    struct embedded_submit *submit = &cluster->submit;
    *submit = (struct embedded_submit){.zmq = cluster->zmq, .cluster = address, .job = cluster->job,
                                       .directory = cluster->order->folder, .export_path = cluster->export_path,
                                       .metrics_path = cluster->metrics, .until_ns = until_ns};
    int status = embedded_submit_open(submit);
    for (int job = 1; status == 0 && job < cluster->order->jobs; job++)
        status = embedded_submit_job(submit);
    if (status == 0)
        status = embedded_submit_wait(submit);
    if (status != 0)
        fprintf(stderr, "submit: status %d %s\n", status, submit->text);
    stop_roles(cluster, 1);
}

static int servers_of(const struct job *job)
{
    return job_is_ring(job->parallel.data) ? 0 : (int)job->cluster.servers;
}

static void run_roles(struct cluster *cluster)
{
    const struct embedded_order *order = cluster->order;
    double limit = order->seconds > 0 ? order->seconds : deadline_s;
    int64_t until_ns = clock_now_ns() + (int64_t)(limit * 1e9);
    int late = 0;
    start_role(cluster, COORDINATOR, 0);
    if (watch(cluster, until_ns) == 'r') {
        for (int rank = 0; rank < servers_of(cluster->job); rank++)
            start_role(cluster, SERVER, rank);
        for (int rank = 0; rank < (int)cluster->job->cluster.workers; rank++)
            start_role(cluster, WORKER, rank);
        if (order->jobs > 1)
            more_jobs(cluster, until_ns);
    } else {
        cluster->running--; /* it ended at once */
    }
    while (cluster->running > 0) {
        char news = watch(cluster, until_ns);
        cluster->running -= news == 'e';
        if (news == 0 && late)
            hung(cluster);
        if (news == 0) {
            late = 1;
            stop_roles(cluster, 1);
            until_ns = clock_now_ns() + (int64_t)(grace_s * 1e9);
        }
    }
    for (int i = 0; i < cluster->roles_count; i++)
        pthread_join(cluster->roles[i].thread, NULL);
    embedded_submit_close(&cluster->submit);
    if (late) {
        fprintf(stderr, "not over within %g s; output:\n%s\n", limit, cluster->said);
        cluster->roles[0].status = STATUS_TIMEOUT;
    }
}

/* --- what came of it ------------------------------------------------------------------------------------------ */

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (json_is_string(value)) /* "NaN", "Infinity", "-Infinity" */
        return strtod(json_string_value(value), NULL);
    if (!json_is_number(value))
        fail_msg("metrics: no number \"%s\"", key);
    return json_number_value(value);
}

static void take_line(struct embedded_result *result, json_t *line)
{
    const char *event = json_string_value(json_object_get(line, "event"));
    assert_non_null(event);
    if (strcmp(event, "step") == 0) {
        result->steps = realloc(result->steps, (size_t)(result->steps_count + 1) * sizeof *result->steps);
        assert_non_null(result->steps);
        result->steps[result->steps_count++] = (struct embedded_step){
            .step = (int64_t)number(line, "step"), .samples = (int64_t)number(line, "samples"),
            .loss = number(line, "loss"), .lr = number(line, "lr"), .grad_norm = number(line, "grad_norm"),
            .skipped = json_is_true(json_object_get(line, "skipped"))};
    } else if (strcmp(event, "eval") == 0) {
        result->evaluations =
            realloc(result->evaluations, (size_t)(result->evaluations_count + 1) * sizeof *result->evaluations);
        assert_non_null(result->evaluations);
        struct embedded_evaluation *evaluation = &result->evaluations[result->evaluations_count++];
        evaluation->step = (int64_t)number(line, "step");
        evaluation->loss = number(line, "loss");
        evaluation->accuracy = number(line, "accuracy");
        snprintf(evaluation->set, sizeof evaluation->set, "%s", json_string_value(json_object_get(line, "set")));
    } else if (strcmp(event, "summary") == 0) {
        json_decref(result->summary);
        result->summary = json_incref(line);
    }
}

static void read_metrics(struct embedded_result *result, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    if (fs_read_file(path, FILE_MAX, &text, &bytes, NULL) != 0)
        return; /* refused before it was opened */
    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        *end = '\0';
        json_error_t error;
        json_t *object = json_loads(line, 0, &error);
        if (object == NULL)
            fail_msg("metrics: %s in %s", error.text, line);
        take_line(result, object);
        json_decref(object);
    }
    free(text);
}

static void collect(const struct cluster *cluster, struct embedded_result *result)
{
    for (int i = 0; i < cluster->roles_count; i++) {
        const struct role *role = &cluster->roles[i];
        if (role->kind == COORDINATOR) {
            result->coordinator = role->status;
            snprintf(result->why, sizeof result->why, "%s", role->err.text);
        } else if (role->kind == SERVER) {
            result->server[role->rank] = role->status;
        } else {
            result->worker[role->rank] = role->status;
            snprintf(result->worker_why[role->rank], EMBEDDED_TEXT, "%s", role->err.text);
        }
    }
    result->servers = servers_of(cluster->job);
    read_metrics(result, cluster->metrics);
    snprintf(result->trace_path, sizeof result->trace_path, "%s", cluster->trace_path);
    snprintf(result->export_path, sizeof result->export_path, "%s", cluster->export_path);
    if (sha256_of_file(cluster->export_path, result->sha256) != 0)
        result->sha256[0] = '\0';
    size_t bytes;
    if (fs_read_file(cluster->log_path, FILE_MAX, &result->log, &bytes, NULL) != 0)
        result->log = strdup("");
}

static int load_job(struct cluster *cluster, struct embedded_result *result)
{
    const struct embedded_order *order = cluster->order;
    char workers[16], servers[16];
    const char *sets[EMBEDDED_SETS];
    struct errbuf err;
    errbuf_init(&err);
    for (int i = 0; i < order->sets_count; i++)
        sets[i] = order->sets[i];
    snprintf(workers, sizeof workers, "%d", order->workers > 0 ? order->workers : 1);
    snprintf(servers, sizeof servers, "%d", order->servers > 0 ? order->servers : 1);
    struct job_override overrides[] = {{"cluster.workers", workers, "--workers"},
                                       {"cluster.servers", servers, "--servers"}};
    struct job_source source = {.text = order->yaml, .sets = sets, .sets_count = order->sets_count,
                                .overrides = overrides, .overrides_count = 2};
    int status = job_load(&cluster->job, &source, &err);
    if (status != 0) {
        result->refused = 1;
        result->coordinator = status;
        snprintf(result->why, sizeof result->why, "%s", err.text);
    }
    return status;
}

void embedded_run(const struct embedded_order *order, struct embedded_result *result)
{
    struct cluster *cluster = calloc(1, sizeof *cluster);
    const char *name = order->name == NULL ? "run" : order->name;
    memset(result, 0, sizeof *result);
    assert_non_null(cluster);
    cluster->order = order;
    cluster->said = strdup("");
    assert_true(order->workers <= EMBEDDED_RANKS && order->servers <= EMBEDDED_RANKS);
    if (load_job(cluster, result) == 0) {
        memory_keep_heap();
        snprintf(cluster->metrics, EMBEDDED_TEXT, "%s/%s.jsonl", order->folder, name);
        snprintf(cluster->export_path, EMBEDDED_TEXT, "%s/%s.safetensors", order->folder, name);
        snprintf(cluster->log_path, EMBEDDED_TEXT, "%s/%s.log", order->folder, name);
        snprintf(cluster->trace_path, EMBEDDED_TEXT, "%s/%s.trace.json", order->folder, name);
        unlink(cluster->export_path);
        if (!order->resume)
            unlink(cluster->metrics);
        cluster->log_fd = open(cluster->log_path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
        assert_true(cluster->log_fd >= 0 && pipe2(cluster->output, O_CLOEXEC) == 0 &&
                    pipe2(cluster->news, O_CLOEXEC) == 0);
        cluster->zmq = zmq_ctx_new();
        run_roles(cluster);
        zmq_ctx_term(cluster->zmq);
        close(cluster->output[1]);
        while (poll(&(struct pollfd){cluster->output[0], POLLIN, 0}, 1, 0) > 0) {
            size_t before = cluster->said_bytes;
            take_output(cluster);
            if (cluster->said_bytes == before)
                break;
        }
        collect(cluster, result);
        close(cluster->output[0]);
        close(cluster->news[0]);
        close(cluster->news[1]);
        close(cluster->log_fd);
        job_destroy(cluster->job);
    }
    result->output = cluster->said;
    free(cluster);
    if (strstr(result->output, "report card") != NULL) /* a resumed job's metrics hold the summaries of earlier ones */
        embedded_check_books(result);
}

void embedded_result_close(struct embedded_result *result)
{
    free(result->steps);
    free(result->evaluations);
    json_decref(result->summary);
    free(result->output);
    free(result->log);
    memset(result, 0, sizeof *result);
}

void embedded_expect(const struct embedded_order *order, const struct embedded_result *result, int status)
{
    int workers = order->workers > 0 ? order->workers : 1, servers = result->servers;
    int good = !result->refused && result->coordinator == status;
    for (int i = 0; i < workers; i++)
        good = good && result->worker[i] == status;
    for (int i = 0; i < servers; i++)
        good = good && result->server[i] == status;
    if (good)
        return;
    for (int i = 0; i < order->sets_count; i++)
        print_error("  --set %s\n", order->sets[i]);
    for (int i = 0; i < workers; i++)
        print_error("  worker %d: %d %s\n", i, result->worker[i], result->worker_why[i]);
    for (int i = 0; i < servers; i++)
        print_error("  server %d: %d\n", i, result->server[i]);
    fprintf(stderr, "%s\n%s\n", result->output, result->log == NULL ? "" : result->log); /* cmocka cuts */
    fail_msg("%d workers, %d servers: coordinator %d (%s), wanted %d everywhere", workers, servers, result->coordinator,
             result->why, status);
}

void embedded_run_well(const struct embedded_order *order, struct embedded_result *result)
{
    embedded_run(order, result);
    embedded_expect(order, result, 0);
    if (strstr(result->output, "report card") == NULL)
        fail_msg("no report card:\n%s", result->output);
    const char *said = json_string_value(json_object_get(result->summary, "export_sha256"));
    if (said == NULL || strcmp(said, result->sha256) != 0)
        fail_msg("the summary says sha256 %s, the export has %s", said == NULL ? "nothing" : said, result->sha256);
}

const struct embedded_evaluation *embedded_last(const struct embedded_result *result)
{
    if (result->evaluations_count == 0)
        fail_msg("no evaluation:\n%s", result->output);
    return &result->evaluations[result->evaluations_count - 1];
}

int64_t embedded_right(const struct embedded_result *result, int64_t rows)
{
    return (int64_t)llround(embedded_last(result)->accuracy * (double)rows);
}

void embedded_tensor(const struct embedded_result *result, const char *name, float *out, int64_t count)
{
    struct safetensors *file = NULL;
    struct errbuf err;
    errbuf_init(&err);
    if (safetensors_open(&file, result->export_path, &err) != 0)
        fail_msg("%s", err.text);
    const struct safetensors_tensor *tensor = safetensors_find(file, name);
    if (tensor == NULL || tensor->count != count || safetensors_to_f32(tensor, out) != 0)
        fail_msg("%s: no tensor %s of %lld floats", result->export_path, name, (long long)count);
    safetensors_close(file);
}

void embedded_near(const char *what, double found, double wanted, double tolerance)
{
    if (!(fabs(found - wanted) <= tolerance))
        fail_msg("%s: found %.9g, wanted %.9g, off by %.3g", what, found, wanted, found - wanted);
}
