/* Case A04 (threads, and two clients in one process), and how a job of client programs ends. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/api_ranks.h"

/* cmocka's asserts belong to the test's own thread. */
#define CHECK(condition) check((condition) != 0, #condition, __LINE__)
static void check(int holds, const char *text, int line)
{
    if (!holds) {
        fprintf(stderr, "line %d: %s\n", line, text);
        abort();
    }
}

enum { THREADS = 4, KEYS_EACH = 5, ELEMENTS = 50, STEPS = 100 };

struct team {
    struct shoal_client *client;
    pthread_barrier_t all;
    int number;
};
struct team_thread {
    struct team *team;
    int first_key;
};

/* 4 threads of one client push and pull keys of their own, and end the step together by whoever comes first. */
static void *team_main(void *argument)
{
    struct team_thread *self = argument;
    struct shoal_client *c = self->team->client;
    float g[ELEMENTS], out[KEYS_EACH][ELEMENTS];
    for (int i = 0; i < ELEMENTS; i++) {
        g[i] = -1;
    }
    for (int step = 1; step <= STEPS; step++) {
        shoal_request requests[2 * KEYS_EACH];
        for (int k = 0; k < KEYS_EACH; k++) {
            CHECK(shoal_push(c, self->first_key + k, g, ELEMENTS, 1, &requests[2 * k]) == 0);
            CHECK(shoal_pull(c, self->first_key + k, out[k], ELEMENTS, &requests[2 * k + 1]) == 0);
        }
        for (int k = 0; k < 2 * KEYS_EACH; k++) {
            CHECK(shoal_wait(c, requests[k]) == 0);
        }
        for (int k = 0; k < KEYS_EACH; k++) {
            CHECK(out[k][0] == (float)(step - 1) && out[k][ELEMENTS - 1] == (float)(step - 1));
        }
        if (pthread_barrier_wait(&self->team->all) == PTHREAD_BARRIER_SERIAL_THREAD) {
            CHECK(shoal_clock(c) == SHOAL_APPLIED);
        }
        pthread_barrier_wait(&self->team->all);
    }
    return NULL;
}

static void four_threads(struct api_rank *rank)
{
    struct team team = {.client = rank->client};
    struct team_thread threads[THREADS];
    pthread_t ids[THREADS];
    int64_t n = ELEMENTS;
    char name[32];
    pthread_barrier_init(&team.all, NULL, THREADS);
    for (int k = 0; k < THREADS * KEYS_EACH; k++) {
        snprintf(name, sizeof(name), "k%d", k);
        CHECK(shoal_register(team.client, name, 1, &n) == k);
    }
    for (int t = 0; t < THREADS; t++) {
        threads[t] = (struct team_thread){&team, t * KEYS_EACH};
        CHECK(pthread_create(&ids[t], NULL, team_main, &threads[t]) == 0);
    }
    for (int t = 0; t < THREADS; t++) {
        pthread_join(ids[t], NULL);
    }
    pthread_barrier_destroy(&team.all);
}

static void A04_one_client_is_used_by_four_threads(void **state)
{
    (void)state;
    /* 2 clients x 4 threads x 100 steps x 20 calls: 16,000 calls. */
    struct api_cluster_options options = {.workers = 2, .servers = 2, .more = "optimizer: {kind: sgd, lr: 1}\n"};
    assert_int_equal(api_ranks_run(&options, four_threads, NULL), 0);
}

static void A04_clients_of_two_clusters_in_one_process_are_independent(void **state)
{
    (void)state;
    struct api_cluster_options options = {.workers = 1, .servers = 1, .more = "optimizer: {kind: sgd, lr: 1}\n"};
    struct api_cluster *clusters[2] = {api_cluster_start(&options), api_cluster_start(&options)};
    struct shoal_client *c[2] = {api_connect(clusters[0], -1, 0), api_connect(clusters[1], 0, 0)};
    float g[2] = {1, 10}, out = 0;
    shoal_request request = 0;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(shoal_register(c[i], "w", 0, NULL), 0);
        assert_int_equal(shoal_push(c[i], 0, &g[i], 1, 1, i == 0 ? &request : NULL), 0);
    }
    assert_int_equal(shoal_clock(c[0]), SHOAL_APPLIED);
    assert_int_equal(shoal_wait(c[1], request), SHOAL_UNKNOWN); /* the other client's */
    assert_int_equal(shoal_wait(c[0], request), 0);
    shoal_close(c[0]);
    assert_int_equal(shoal_clock(c[1]), SHOAL_APPLIED);
    assert_int_equal(shoal_pull(c[1], 0, &out, 1, NULL), 0);
    assert_true(out == -10);
    shoal_close(c[1]);
    for (int i = 0; i < 2; i++) {
        int status = 1, server = 1;
        api_cluster_end(clusters[i], &status, &server);
        assert_int_equal(status, 0);
        assert_int_equal(server, 0);
    }
}

struct waiter {
    struct shoal_client *client;
    int status;
};

static void *wait_in_clock(void *argument)
{
    struct waiter *waiter = argument;
    waiter->status = shoal_clock(waiter->client);
    return NULL;
}

struct closing {
    int status;
    atomic_int done;
};

/* Rank 1 never ends the step and stays until rank 0 is through, so the thread in shoal_clock cannot come out by itself. */
static void close_under_a_waiter(struct api_rank *rank)
{
    struct closing *closing = rank->context;
    CHECK(shoal_register(rank->client, "w", 0, NULL) == 0);
    int started = shoal_start(rank->client);
    CHECK(started == 0 || (rank->rank == 1 && started == SHOAL_ABORTED)); /* rank 0 may have closed already */
    while (rank->rank == 1 && !atomic_load(&closing->done)) {
        usleep(100);
    }
    if (rank->rank == 1) {
        return;
    }
    struct waiter waiter = {rank->client, 1};
    float g = 1;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, wait_in_clock, &waiter) == 0);
    int pushed = 0;
    while (pushed == 0 || pushed == SHOAL_EXISTS) { /* SHOAL_BUSY: the thread is in shoal_clock */
        usleep(100);
        pushed = shoal_push(rank->client, 0, &g, 1, 1, NULL);
    }
    CHECK(pushed == SHOAL_BUSY);
    shoal_close(rank->client);
    rank->client = NULL;
    pthread_join(thread, NULL);
    closing->status = waiter.status;
    atomic_store(&closing->done, 1);
}

static void A04_close_wakes_a_waiter(void **state)
{
    (void)state;
    struct closing closing = {0};
    struct api_cluster_options options = {.workers = 2, .servers = 1};
    api_ranks_run(&options, close_under_a_waiter, &closing);
    assert_int_equal(closing.status, SHOAL_CLOSED);
}

static void *wait_for_start(void *argument)
{
    struct waiter *waiter = argument;
    waiter->status = shoal_world(waiter->client);
    return NULL;
}

static void A04_close_wakes_a_waiter_with_closed_before_the_job_begins(void **state)
{
    (void)state;
    struct api_cluster_options options = {.workers = 2, .servers = 1};
    struct api_cluster *cluster = api_cluster_start(&options);
    struct shoal_client *c = api_connect(cluster, 0, 0);
    struct waiter waiter = {c, 1};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, wait_for_start, &waiter), 0);
    usleep(20000); /* either order of the two calls is right; this makes the waiting one likely */
    shoal_close(c);
    pthread_join(thread, NULL);
    assert_int_equal(waiter.status, SHOAL_CLOSED);
    api_cluster_stop(cluster);
    api_cluster_end(cluster, NULL, NULL);
}

/* --- how a job ends ------------------------------------------------------------------------------------- */

static void leave_early(struct api_rank *rank)
{
    float g = 1;
    CHECK(shoal_register(rank->client, "w", 0, NULL) == 0);
    CHECK(shoal_push(rank->client, 0, &g, 1, 1, NULL) == 0);
    CHECK(shoal_clock(rank->client) == SHOAL_APPLIED);
    if (rank->rank == 0) {
        return;
    }
    CHECK(shoal_clock(rank->client) == SHOAL_ABORTED);
    char text[512];
    CHECK(shoal_error(rank->client, text, sizeof(text)) == SHOAL_ABORTED);
    CHECK(strstr(text, "left after step 1: no step can follow") != NULL);
    CHECK(shoal_clock(rank->client) == SHOAL_ABORTED); /* and so from now on */
}

static void A_rank_that_steps_on_after_another_left_is_told(void **state)
{
    (void)state;
    struct api_cluster_options options = {.workers = 2, .servers = 1};
    assert_int_equal(api_ranks_run(&options, leave_early, NULL), SHOAL_ABORTED);
}

static void register_unlike(struct api_rank *rank)
{
    int64_t n = 3 + rank->rank;
    char text[512];
    CHECK(shoal_register(rank->client, "w", 1, &n) == 0);
    CHECK(shoal_start(rank->client) == SHOAL_ABORTED);
    CHECK(shoal_error(rank->client, text, sizeof(text)) == SHOAL_ABORTED);
    CHECK(strstr(text, "parameter tables differ") != NULL);
}

static void Ranks_with_unlike_keys_are_told(void **state)
{
    (void)state;
    struct api_cluster_options options = {.workers = 2, .servers = 1};
    assert_int_equal(api_ranks_run(&options, register_unlike, NULL), SHOAL_INVALID);
}

static void The_last_rank_ends_the_job_and_its_books_are_written(void **state)
{
    (void)state;
    char path[] = "/tmp/shoal-api-XXXXXX", line[4096] = "";
    int fd = mkstemp(path), steps = 0, summaries = 0;
    assert_true(fd >= 0);
    close(fd);
    struct api_cluster_options options = {.workers = 2, .servers = 2, .more = "optimizer: {kind: adam, lr: 1}\n",
                                          .metrics_path = path};
    assert_int_equal(api_ranks_run(&options, four_threads, NULL), 0);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file)) {
        steps += strstr(line, "\"event\":\"step\"") != NULL;
        summaries += strstr(line, "\"event\":\"summary\"") != NULL;
    }
    fclose(file);
    unlink(path);
    assert_int_equal(steps, STEPS);
    assert_int_equal(summaries, 1);
}

static void stopped(struct api_rank *rank)
{
    struct api_cluster **cluster = rank->context;
    CHECK(shoal_register(rank->client, "w", 0, NULL) == 0);
    CHECK(shoal_clock(rank->client) == SHOAL_SKIPPED);
    api_cluster_stop(*cluster);
    int status = 0;
    while (status >= 0) {
        status = shoal_clock(rank->client);
    }
    CHECK(status == SHOAL_STOPPED || status == SHOAL_ABORTED);
}

static void A_stopped_cluster_tells_its_clients(void **state)
{
    (void)state;
    struct api_cluster_options options = {.workers = 1, .servers = 1};
    struct api_cluster *cluster = api_cluster_start(&options);
    struct api_rank rank = {.client = api_connect(cluster, 0, 0), .context = &cluster};
    stopped(&rank);
    shoal_close(rank.client);
    int status = 0;
    api_cluster_end(cluster, &status, NULL);
    assert_int_equal(status, SHOAL_STOPPED);
}

static void Connecting_says_what_is_wrong(void **state)
{
    (void)state;
    struct api_cluster_options options = {.workers = 1, .servers = 1};
    struct api_cluster *cluster = api_cluster_start(&options);
    struct shoal_client *c = api_connect(cluster, 0, 0), *other = NULL;
    char error[256];
    struct shoal_options wrong = {.cluster = api_cluster_address(cluster), .rank = 0, .timeout_s = 5};
    assert_int_equal(shoal_connect(&other, &wrong, error, sizeof(error)), SHOAL_EXISTS);
    assert_non_null(strstr(error, "rank 0 is taken"));
    wrong.rank = 1;
    assert_int_equal(shoal_connect(&other, &wrong, error, sizeof(error)), SHOAL_RANGE);
    wrong.cluster = NULL;
    assert_int_equal(shoal_connect(&other, &wrong, error, sizeof(error)), SHOAL_INVALID);
    wrong.cluster = "tcp://127.0.0.1:1";
    wrong.timeout_s = 0.2;
    assert_int_equal(shoal_connect(&other, &wrong, error, sizeof(error)), SHOAL_TIMEOUT);
    wrong.cluster = "nonsense";
    assert_true(shoal_connect(&other, &wrong, NULL, 0) < 0);
    assert_null(other);
    assert_int_equal(shoal_start(c), 0); /* a job without keys */
    assert_int_equal(shoal_clock(c), SHOAL_APPLIED);
    shoal_close(c);
    shoal_close(NULL);
    int status = 1;
    api_cluster_end(cluster, &status, NULL);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(A04_one_client_is_used_by_four_threads),
        cmocka_unit_test(A04_clients_of_two_clusters_in_one_process_are_independent),
        cmocka_unit_test(A04_close_wakes_a_waiter),
        cmocka_unit_test(A04_close_wakes_a_waiter_with_closed_before_the_job_begins),
        cmocka_unit_test(A_rank_that_steps_on_after_another_left_is_told),
        cmocka_unit_test(Ranks_with_unlike_keys_are_told),
        cmocka_unit_test(The_last_rank_ends_the_job_and_its_books_are_written),
        cmocka_unit_test(A_stopped_cluster_tells_its_clients),
        cmocka_unit_test(Connecting_says_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
