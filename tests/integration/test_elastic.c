/* A ring job with cluster.elastic.min, as real processes: a worker is killed, another one comes. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/integration/cluster.h"

static const char ring[] = "parallel: {data: %s}\nsnapshot: {dir: snap, every: 50}\n";

/* `shoal run` of a job that does not end by itself. */
static void start(struct cluster *cluster, const char *mode, int least)
{
    char more[256];
    snprintf(more, sizeof more, ring, mode);
    cluster_open(cluster, 3, 1, 100000000, more);
    struct process *run = &cluster->coordinator;
    process_init(run, "shoal");
    process_add(run, "run %s --set cluster.elastic.min=%d --set log_every=50", cluster->job, least);
    process_start(run);
    const char *said = process_until_line(run, "listening address=") + strlen("listening address=");
    snprintf(cluster->address, sizeof cluster->address, "%.*s", (int)strcspn(said, " \n"), said);
    process_until(run, "step 150/");
}

static void kill_worker(struct cluster *cluster, int rank)
{
    char text[32];
    snprintf(text, sizeof text, "joined worker=%d pid=", rank);
    const char *said = process_until_line(&cluster->coordinator, text) + strlen(text);
    assert_int_equal(kill((pid_t)atol(said), SIGKILL), 0);
}

static void a_ring_goes_on_without_a_killed_worker_and_with_a_new_one(void **state)
{
    (void)state;
    static const char *const modes[] = {"ddp", "zero3"};
    for (int mode = 0; mode < 2; mode++) {
        struct cluster cluster;
        start(&cluster, modes[mode], 2);
        struct process *run = &cluster.coordinator;
        kill_worker(&cluster, 1);
        process_until(run, "was killed by signal 9 (Killed); goes on with 2 workers");
        process_until(run, "ring of 2 workers, no servers");
        process_until(run, "epoch=2 snapshot step=");
        cluster_work(&cluster, 0, "--once --rank 1");
        process_until(run, "3 workers are here, 2 were; goes on with 3 workers");
        process_until(run, "epoch=3 snapshot step=");
        process_signal(run, SIGTERM);
        process_expect(run, 143, PROCESS_DEADLINE_S);
        process_expect(&cluster.worker[0], 143, PROCESS_DEADLINE_S);
        cluster_close(&cluster);
    }
}

static void below_its_minimum_an_elastic_job_ends(void **state)
{
    (void)state;
    struct cluster cluster;
    start(&cluster, "zero1", 3);
    kill_worker(&cluster, 2);
    process_expect(&cluster.coordinator, 1, PROCESS_DEADLINE_S);
    process_expect_said(&cluster.coordinator, "was killed by signal 9");
    cluster_close(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_ring_goes_on_without_a_killed_worker_and_with_a_new_one, processes_end),
        cmocka_unit_test_teardown(below_its_minimum_an_elastic_job_ends, processes_end),
    };
    return cmocka_run_group_tests_name("elastic", tests, NULL, NULL);
}
