/* A cluster that lives longer than a job: submit, status and stop; and servers with folders of their own, whose snapshots
 * another number of servers goes on from. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/integration/cluster.h"

enum { WORD = CLUSTER_PATH + 128 };

/* `shoal COMMAND --cluster …`: must end with this code, and have said text ("" for anything). */
static void operate(struct cluster *cluster, const char *command, int code, const char *text)
{
    struct process process;
    process_init(&process, "shoal");
    process_add(&process, "%s --timeout 30 --cluster %s", command, cluster->address);
    process_start(&process);
    process_expect(&process, code, PROCESS_DEADLINE_S);
    process_expect_said(&process, text);
    process_forget(&process);
}

static void until_idle(struct cluster *cluster)
{
    int idle = 0;
    while (!idle) {
        struct process process;
        process_init(&process, "shoal");
        process_add(&process, "status --timeout 30 --cluster %s", cluster->address);
        assert_int_equal(process_run(&process), 0);
        idle = strstr(process.said, "phase idle\n") != NULL;
        process_forget(&process);
    }
}

static void submit(struct cluster *cluster, const char *more, int code, const char *text)
{
    char command[4 * WORD];
    snprintf(command, sizeof command, "submit %s %s", cluster->job, more);
    operate(cluster, command, code, text);
}

/* Everybody leaves, not only the coordinator. */
static void stop(struct cluster *cluster, int servers, int workers)
{
    operate(cluster, "stop", 0, "");
    process_expect(&cluster->coordinator, 128 + SIGTERM, 30);
    for (int i = 0; i < servers; i++)
        process_expect(&cluster->server[i], 128 + SIGTERM, 30);
    for (int i = 0; i < workers; i++)
        process_expect(&cluster->worker[i], 128 + SIGTERM, 30);
}

static void a_waiting_cluster_takes_two_jobs_one_after_another_and_stops_in_order(void **state)
{
    (void)state;
    struct cluster cluster;
    char more[2 * WORD];
    cluster_open(&cluster, 2, 2, 5, "");
    cluster_coordinate(&cluster, "");
    operate(&cluster, "status", 0, "phase idle");
    cluster_members(&cluster, 2, 2, "");
    process_until(&cluster.coordinator, "joined worker=1");
    process_until(&cluster.coordinator, "joined server=1");
    operate(&cluster, "status", 0, "worker 1 joined pid=");
    for (int job = 0; job < 2; job++) {
        snprintf(more, sizeof more, "--metrics %s --export %s/export-%d.safetensors", cluster.metrics, cluster.folder, job);
        submit(&cluster, more, 0, "job s1 submitted");
        process_until_times(&cluster.coordinator, "export ", job + 1);
        until_idle(&cluster);
        cluster_expect_s1(&cluster, 1);
    }
    char path[2][WORD], sha256[2][CLUSTER_SHA];
    for (int job = 0; job < 2; job++) {
        snprintf(path[job], WORD, "%s/export-%d.safetensors", cluster.folder, job);
        cluster_sha256(path[job], sha256[job]);
    }
    assert_string_equal(sha256[0], sha256[1]);
    stop(&cluster, 2, 2);
    cluster_close(&cluster);
}

static void a_busy_cluster_refuses_a_second_job_and_stop_ends_the_first_with_a_snapshot(void **state)
{
    (void)state;
    struct cluster cluster;
    char more[2 * WORD], path[WORD];
    cluster_open(&cluster, 2, 1, 1000000, "");
    cluster_coordinate(&cluster, "");
    cluster_members(&cluster, 1, 2, "");
    snprintf(more, sizeof more, "--set snapshot.dir=%s/snapshots", cluster.folder);
    submit(&cluster, more, 0, "job s1 submitted");
    cluster_until_step(&cluster, 3);
    submit(&cluster, more, 1, "s1"); /* which job it is busy with */
    operate(&cluster, "status", 0, "phase running");
    stop(&cluster, 1, 2);
    const char *said = strstr(cluster.coordinator.said, " snapshot step=");
    assert_non_null(said);
    snprintf(path, sizeof path, "%s/snapshots/step-%08d/manifest.json", cluster.folder, atoi(said + 15));
    assert_int_equal(access(path, R_OK), 0);
    cluster_close(&cluster);
}

/* A member that was killed is missed by the next job only until another one has come. */
static void a_cluster_goes_on_after_a_job_that_failed(void **state)
{
    (void)state;
    struct cluster cluster;
    char more[2 * WORD];
    cluster_open(&cluster, 2, 1, 5, "");
    cluster_coordinate(&cluster, "");
    cluster_members(&cluster, 1, 2, "");
    submit(&cluster, "--set steps=1000000 --set cluster.timeouts.worker_dead=2", 0, "submitted");
    cluster_until_step(&cluster, 3);
    process_signal(&cluster.worker[1], SIGKILL);
    process_until(&cluster.coordinator, "silent for");
    until_idle(&cluster);
    process_wait(&cluster.worker[1], 30);
    cluster_work(&cluster, 1, "");
    snprintf(more, sizeof more, "--metrics %s", cluster.metrics);
    submit(&cluster, more, 0, "submitted");
    process_until(&cluster.coordinator, "step 5/5");
    until_idle(&cluster);
    cluster_expect_s1(&cluster, 1);
    stop(&cluster, 1, 2);
    cluster_close(&cluster);
}

static void nobody_there_and_nobody_s_cluster(void **state)
{
    (void)state;
    struct process process;
    process_init(&process, "shoal");
    process_add(&process, "status --timeout 1 --cluster tcp://127.0.0.1:9");
    assert_int_equal(process_run(&process), 1);
    process_expect_said(&process, "tcp://127.0.0.1:9 does not answer");
    process_forget(&process);
    process_init(&process, "shoal");
    process_add(&process, "status --cluster tcp://no-such-host.invalid:7070");
    assert_int_equal(process_run(&process), 2);
    process_expect_said(&process, "no-such-host.invalid");
    process_forget(&process);
}

/* --- own folders ---------------------------------------------------------------------------------------------- */

static void train(struct cluster *cluster, int servers, const char *arguments)
{
    char of_server[2 * WORD];
    cluster_coordinate(cluster, arguments);
    for (int i = 0; i < servers; i++) {
        snprintf(of_server, sizeof of_server, "--once --rank %d --state %s/state-%d", i, cluster->folder, i);
        cluster_serve(cluster, i, of_server);
    }
    cluster_work(cluster, 0, "--once");
    cluster_work(cluster, 1, "--once");
    cluster_expect(cluster, servers, 2, 0);
}

static void go_on_with(int before, int after)
{
    struct cluster cluster;
    char arguments[6 * WORD], path[2][WORD], sha256[2][CLUSTER_SHA];
    cluster_open(&cluster, 2, before, 8, "");
    cluster_write(&cluster, "job.yaml",
                  "name: own\nsteps: 8\nbatch_size: 24\nlog_every: 1\n"
                  "data: {kind: synthetic, samples: 100, features: 150, classes: 5, seed: 3}\n"
                  "model: {kind: mlp, hidden: [200, 90], batch_norm: true}\noptimizer: {kind: adam, lr: 0.01}\n"
                  "cluster: {workers: 2}\n");
    for (int i = 0; i < 2; i++)
        snprintf(path[i], WORD, "%s/export-%d.safetensors", cluster.folder, i);
    snprintf(arguments, sizeof arguments,
             "--once --job %s --set cluster.servers=%d --set steps=4 --set snapshot.dir=%s/snapshots", cluster.job, before,
             cluster.folder);
    train(&cluster, before, arguments);
    snprintf(arguments, sizeof arguments, "--once --job %s --set cluster.servers=%d --resume %s/snapshots --export %s",
             cluster.job, after, cluster.folder, path[0]);
    train(&cluster, after, arguments);
    struct process run;
    process_init(&run, "shoal");
    process_add(&run, "run %s --servers %d --export %s", cluster.job, after, path[1]);
    assert_int_equal(process_run(&run), 0);
    process_forget(&run);
    cluster_sha256(path[0], sha256[0]);
    cluster_sha256(path[1], sha256[1]);
    assert_string_equal(sha256[0], sha256[1]);
    cluster_close(&cluster);
}

static void one_server_s_own_snapshot_goes_on_with_three(void **state)
{
    (void)state;
    go_on_with(1, 3);
}

static void two_servers_own_snapshots_go_on_with_three(void **state)
{
    (void)state;
    go_on_with(2, 3);
}

/* With snapshot.keep 2, as in the shared folder: what a server wrote before goes, too. */
static void own_folders_keep_no_more_snapshots_than_asked_for(void **state)
{
    (void)state;
    struct cluster cluster;
    char arguments[6 * WORD], path[WORD];
    cluster_open(&cluster, 2, 2, 20, "");
    snprintf(arguments, sizeof arguments,
             "--once --job %s --set snapshot.dir=%s/snapshots --set snapshot.every=1 --set snapshot.best.metric=loss "
             "--set evaluate.every=7",
             cluster.job, cluster.folder);
    train(&cluster, 2, arguments);
    static const char *const folders[] = {"state-0", "state-1", "snapshots"};
    for (int folder = 0; folder < 3; folder++) {
        int count = 0;
        for (int step = 1; step <= 20; step++) {
            snprintf(path, sizeof path, "%s/%s/step-%08d", cluster.folder, folders[folder], step);
            count += access(path, F_OK) == 0;
        }
        if (count < 2 || count > 5)
            fail_msg("%d snapshots in %s", count, folders[folder]);
    }
    cluster_close(&cluster);
}

/* A part that nobody has any more is named. */
static void a_part_that_no_server_holds_is_named(void **state)
{
    (void)state;
    struct cluster cluster;
    char arguments[6 * WORD];
    cluster_open(&cluster, 1, 2, 5, "");
    snprintf(arguments, sizeof arguments, "--once --job %s --set snapshot.dir=%s/snapshots", cluster.job, cluster.folder);
    cluster_coordinate(&cluster, arguments);
    for (int i = 0; i < 2; i++) {
        char of_server[2 * WORD];
        snprintf(of_server, sizeof of_server, "--once --rank %d --state %s/state-%d", i, cluster.folder, i);
        cluster_serve(&cluster, i, of_server);
    }
    cluster_work(&cluster, 0, "--once");
    cluster_expect(&cluster, 2, 1, 0);
    snprintf(arguments, sizeof arguments,
             "--once --job %s --set steps=9 --set cluster.servers=1 --set cluster.timeouts.start=5 --resume %s/snapshots",
             cluster.job, cluster.folder);
    cluster_coordinate(&cluster, arguments);
    snprintf(arguments, sizeof arguments, "--once --state %s/state-0", cluster.folder);
    cluster_serve(&cluster, 0, arguments);
    cluster_work(&cluster, 0, "--once");
    process_wait(&cluster.coordinator, PROCESS_DEADLINE_S);
    assert_int_equal(cluster.coordinator.code, 1);
    process_expect_said(&cluster.coordinator, "owner-1.safetensors");
    process_wait(&cluster.server[0], 30);
    process_wait(&cluster.worker[0], 30);
    cluster_close(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_teardown(name, processes_end)
        CASE(a_waiting_cluster_takes_two_jobs_one_after_another_and_stops_in_order),
        CASE(a_busy_cluster_refuses_a_second_job_and_stop_ends_the_first_with_a_snapshot),
        CASE(a_cluster_goes_on_after_a_job_that_failed),
        CASE(nobody_there_and_nobody_s_cluster),
        CASE(one_server_s_own_snapshot_goes_on_with_three),
        CASE(two_servers_own_snapshots_go_on_with_three),
        CASE(own_folders_keep_no_more_snapshots_than_asked_for),
        CASE(a_part_that_no_server_holds_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
