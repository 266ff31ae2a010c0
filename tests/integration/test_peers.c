/* Rings of real processes: the bits of parameter servers, and who is refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "tests/integration/cluster.h"

/* What a wrong order of sums would show in: BatchNorm, dropout, clipping, three ranks. */
static const char mlp[] = "name: peers\nseed: 5\nsteps: 12\nbatch_size: 48\n"
                          "data: {kind: synthetic, samples: 480, features: 40, classes: 4, seed: 3}\n"
                          "model: {kind: mlp, hidden: [50, 16], batch_norm: true, dropout: 0.2}\n"
                          "optimizer: {kind: adam, lr: 0.01, clip_norm: 0.5}\n";

static void run(const struct cluster *cluster, const char *arguments, struct process *process)
{
    process_init(process, "shoal");
    process_add(process, "run %s/mlp.yaml --workers 3 --threads 1 --export %s/e.safetensors %s", cluster->folder,
                cluster->folder, arguments);
    process_start(process);
    process_expect(process, 0, PROCESS_DEADLINE_S);
}

static void export_sha(const struct cluster *cluster, char sha256[CLUSTER_SHA])
{
    char path[CLUSTER_PATH + 32];
    snprintf(path, sizeof path, "%s/e.safetensors", cluster->folder);
    cluster_sha256(path, sha256);
}

static void processes_of_every_mode_end_with_the_bits_of_servers(void **state)
{
    static const char *const ways[] = {"--set parallel.data=ddp --set parallel.transport=tcp",
                                       "--set parallel.data=ddp",
                                       "--set parallel.data=zero1 --set parallel.transport=shm",
                                       "--set parallel.data=zero2 --set parallel.transport=tcp",
                                       "--set parallel.data=zero2 --set parallel.bucket_bytes=1",
                                       "--set parallel.data=zero3",
                                       "--set parallel.data=zero3 --set parallel.transport=tcp --set accumulate=1",
                                       "--set parallel.data=zero3 --embedded"};
    char wanted[CLUSTER_SHA], found[CLUSTER_SHA];
    struct cluster cluster;
    struct process process;
    (void)state;
    cluster_open(&cluster, 3, 2, 5, "");
    cluster_write(&cluster, "mlp.yaml", mlp);
    run(&cluster, "--servers 2", &process);
    process_forget(&process);
    export_sha(&cluster, wanted);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        run(&cluster, ways[i], &process);
        process_expect_said(&process, "reduce_scatter");
        process_expect_said(&process, wanted);
        process_forget(&process);
        export_sha(&cluster, found);
        if (strcmp(found, wanted) != 0)
            fail_msg("%s: %s, with servers %s", ways[i], found, wanted);
    }
    cluster_close(&cluster);
}

static void servers_that_a_ring_has_no_use_for_are_not_started(void **state)
{
    struct cluster cluster;
    struct process process;
    (void)state;
    cluster_open(&cluster, 3, 1, 5, "");
    cluster_write(&cluster, "mlp.yaml", mlp);
    run(&cluster, "--servers 2 --set parallel.data=zero1", &process);
    process_expect_said(&process, "--servers 2 is not used");
    process_forget(&process);
    cluster_close(&cluster);
}

/* --- who may join ------------------------------------------------------------------------------------------------ */

static void coordinate(struct cluster *cluster, const char *more)
{
    char arguments[2048];
    snprintf(arguments, sizeof arguments, "--once --job %s --metrics %s %s", cluster->job, cluster->metrics, more);
    cluster_coordinate(cluster, arguments);
}

/* A core type that every x86-64 processor has, and that nobody would choose on it. */
static void work_on_another_core(struct cluster *cluster, int i)
{
    struct process *worker = &cluster->worker[i];
    process_init(worker, "shoal-worker");
    process_set(worker, "OPENBLAS_CORETYPE=Prescott");
    process_add(worker, "--once --threads 1 --cluster %s", cluster->address);
    process_start(worker);
}

static void a_peer_of_another_core_type_is_refused_by_name(void **state)
{
    static const char *const modes[] = {"ddp", "zero1", "zero2", "zero3"};
    (void)state;
    for (int m = 0; m < 4; m++) {
        struct cluster cluster;
        char parallel[64];
        snprintf(parallel, sizeof parallel, "parallel: {data: %s}\n", modes[m]);
        cluster_open(&cluster, 2, 1, 5, parallel);
        coordinate(&cluster, "");
        cluster_work(&cluster, 0, "--once");
        process_until(&cluster.coordinator, "joined worker=0");
        work_on_another_core(&cluster, 1);
        process_expect(&cluster.worker[1], 2, PROCESS_DEADLINE_S);
        process_expect_said(&cluster.worker[1], "BLAS core type Prescott, but worker 0 has ");
        process_forget(&cluster.worker[1]);
        cluster_work(&cluster, 1, "--once");
        cluster_expect(&cluster, 0, 2, 0);
        cluster_expect_s1(&cluster, 1);
        cluster_close(&cluster);
    }
}

static void a_peer_of_another_core_type_is_welcome_where_the_job_says_so(void **state)
{
    struct cluster cluster;
    (void)state;
    cluster_open(&cluster, 2, 1, 5, "parallel: {data: zero2}\n");
    coordinate(&cluster, "--set cluster.mixed_processors=true");
    cluster_work(&cluster, 0, "--once");
    process_until(&cluster.coordinator, "joined worker=0");
    work_on_another_core(&cluster, 1);
    cluster_expect(&cluster, 0, 2, 0);
    cluster_expect_s1(&cluster, 1);
    cluster_close(&cluster);
}

/* Its own --data has another number of features: another model, and so none of this job's ranks. */
static void a_peer_with_other_data_is_named(void **state)
{
    struct cluster cluster;
    char other[CLUSTER_PATH + 32], arguments[CLUSTER_PATH + 64];
    (void)state;
    cluster_open(&cluster, 2, 1, 5, "parallel: {data: zero3}\n");
    snprintf(other, sizeof other, "%s/other", cluster.folder);
    assert_int_equal(mkdir(other, 0755), 0);
    cluster_write(&cluster, "other/s1.libsvm", "0 1:1 2:2 3:1\n1 1:-1 2:0.5\n0 1:2 2:1\n1 1:-2 2:-1\n");
    coordinate(&cluster, "");
    snprintf(arguments, sizeof arguments, "--once --rank 0 --data %s", cluster.folder);
    cluster_work(&cluster, 0, arguments);
    snprintf(arguments, sizeof arguments, "--once --rank 1 --data %s", other);
    cluster_work(&cluster, 1, arguments);
    cluster_expect(&cluster, 0, 2, 1);
    process_expect_said(&cluster.coordinator, "worker 1");
    cluster_close(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_teardown(name, processes_end)
        CASE(processes_of_every_mode_end_with_the_bits_of_servers),
        CASE(servers_that_a_ring_has_no_use_for_are_not_started),
        CASE(a_peer_of_another_core_type_is_refused_by_name),
        CASE(a_peer_of_another_core_type_is_welcome_where_the_job_says_so),
        CASE(a_peer_with_other_data_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
