/* Case F06 with real processes: a disk that is full, a folder that cannot be written to, and kill -9 in the middle of saves.
 * The last good snapshot always loads. */
#include <dirent.h>
#include <ftw.h>
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
#include <sys/stat.h>

#include "tests/integration/cluster.h"
#include "tests/lib/island.h"

enum { WORD = CLUSTER_PATH + 128, KILLS = 20, STEPS_MAX = 1000000 };

static int alone = 1;

static void need_island(void)
{
    if (!alone)
        skip();
}

/* About 660 KB a snapshot: one fits into a megabyte, a second does not. */
static void write_large_job(struct cluster *cluster)
{
    cluster_write(cluster, "job.yaml",
                  "name: disk\nsteps: 6\nbatch_size: 16\nlog_every: 1\n"
                  "data: {kind: synthetic, samples: 64, features: 200, classes: 4, seed: 3}\n"
                  "model: {kind: mlp, hidden: [256]}\noptimizer: {kind: adam, lr: 0.01}\n");
}

static void make_folder(const struct cluster *cluster, const char *name, char path[WORD])
{
    snprintf(path, WORD, "%s/%s", cluster->folder, name);
    assert_int_equal(mkdir(path, 0755), 0);
}

/* `shoal run` with two servers; its output stays in run. */
static void run_job(struct cluster *cluster, struct process *run, const char *export_name, const char *more)
{
    process_init(run, "shoal");
    process_add(run, "run %s --workers 1 --servers 2 --export %s/%s %s", cluster->job, cluster->folder, export_name, more);
    process_start(run);
    process_expect(run, 0, PROCESS_DEADLINE_S);
}

static void expect_same(struct cluster *cluster, const char *a, const char *b)
{
    char path[WORD], sha256[2][CLUSTER_SHA];
    snprintf(path, sizeof path, "%s/%s", cluster->folder, a);
    cluster_sha256(path, sha256[0]);
    snprintf(path, sizeof path, "%s/%s", cluster->folder, b);
    cluster_sha256(path, sha256[1]);
    assert_string_equal(sha256[0], sha256[1]);
}

static int leftovers;

static int count_leftover(const char *path, const struct stat *info, int type, struct FTW *walk)
{
    (void)info;
    if (type == FTW_F && strstr(path + walk->base, ".tmp."))
        leftovers++;
    return 0;
}

static void expect_no_leftovers(const char *folder)
{
    leftovers = 0;
    nftw(folder, count_leftover, 16, FTW_PHYS);
    assert_int_equal(leftovers, 0);
}

static void F06_a_disk_too_small_for_a_second_snapshot_keeps_the_first(void **state)
{
    (void)state;
    need_island();
    struct cluster cluster;
    struct process run;
    char folder[WORD], more[2 * WORD];
    cluster_open(&cluster, 1, 2, 6, "");
    write_large_job(&cluster);
    make_folder(&cluster, "small", folder);
    island_tmpfs(folder, "1m");
    snprintf(more, sizeof more, "--set snapshot.dir=%s --set snapshot.every=2", folder);
    run_job(&cluster, &run, "full.safetensors", more);
    process_expect_said(&run, "No space left on device");
    process_expect_said(&run, "step-00000004"); /* which one, and where */
    process_expect_said(&run, folder);
    process_expect_said(&run, "training goes on");
    process_forget(&run);
    expect_no_leftovers(folder);
    snprintf(more, sizeof more, "--resume %s", folder);
    run_job(&cluster, &run, "resumed.safetensors", more);
    process_expect_said(&run, "step 3/6");
    assert_null(strstr(run.said, "step 2/6"));
    process_forget(&run);
    expect_same(&cluster, "full.safetensors", "resumed.safetensors");
    island_unmount(folder);
    cluster_close(&cluster);
}

static void F06_a_folder_that_cannot_be_written_to_is_named(void **state)
{
    (void)state;
    need_island();
    struct cluster cluster;
    struct process run;
    char folder[WORD], more[2 * WORD];
    cluster_open(&cluster, 1, 2, 6, "");
    make_folder(&cluster, "fixed", folder);
    island_read_only(folder);
    snprintf(more, sizeof more, "--set snapshot.dir=%s --set snapshot.every=2", folder);
    run_job(&cluster, &run, "whole.safetensors", more);
    process_expect_said(&run, "Read-only file system");
    process_expect_said(&run, folder);
    process_expect_said(&run, "training goes on");
    process_forget(&run);
    island_unmount(folder);
    cluster_close(&cluster);
}

static void F06_a_metrics_file_on_a_full_disk_is_said_and_ends(void **state)
{
    (void)state;
    need_island();
    struct cluster cluster;
    struct process run;
    char folder[WORD], more[2 * WORD];
    cluster_open(&cluster, 1, 2, 400, "");
    make_folder(&cluster, "small", folder);
    island_tmpfs(folder, "16k");
    snprintf(more, sizeof more, "--metrics %s/metrics.jsonl", folder);
    run_job(&cluster, &run, "whole.safetensors", more);
    snprintf(more, sizeof more, "%s/metrics.jsonl: No space left on device; it ends here, training goes on", folder);
    process_expect_said(&run, more);
    process_expect_said(&run, "step 400/400");
    process_forget(&run);
    island_unmount(folder);
    cluster_close(&cluster);
}

/* --- kill -9 ------------------------------------------------------------------------------------------------- */

static uint32_t next_random(uint32_t *seed)
{
    *seed = *seed * 1664525 + 1013904223;
    return *seed >> 8;
}

static void start_life(struct cluster *cluster, int steps, const char *export_name, int resume, const char *const state[2])
{
    char arguments[8 * WORD];
    snprintf(arguments, sizeof arguments,
             "--once --job %s --set steps=%d --set snapshot.dir=%s/snapshots --set snapshot.every=1 --export %s/%s", cluster->job,
             steps, cluster->folder, cluster->folder, export_name);
    if (resume)
        snprintf(arguments + strlen(arguments), sizeof arguments - strlen(arguments), " --resume %s/snapshots", cluster->folder);
    cluster_coordinate(cluster, arguments);
    for (int i = 0; i < 2; i++) {
        snprintf(arguments, sizeof arguments, "--once --rank %d %s", i, state[i]);
        cluster_serve(cluster, i, arguments);
    }
    cluster_work(cluster, 0, "--once");
}

/* Everybody is killed, one of them first, right when the count-th snapshot of this life was committed or before. */
static void kill_all_at(struct cluster *cluster, int count, unsigned first)
{
    struct process *all[] = {&cluster->coordinator, &cluster->server[0], &cluster->server[1], &cluster->worker[0]};
    process_until_times(&cluster->coordinator, " snapshot step=", count);
    for (unsigned i = 0; i < 4; i++) {
        struct process *process = all[(first + i) % 4];
        process_signal(process, SIGKILL);
        if (i == 0)
            process_expect(process, 128 + SIGKILL, 30);
    }
    for (unsigned i = 1; i < 4; i++)
        process_wait(all[(first + i) % 4], 30);
}

static int last_step(const struct cluster *cluster)
{
    const char *last = NULL;
    for (const char *at = cluster->coordinator.said; (at = strstr(at, " snapshot step=")) != NULL; at++)
        last = at;
    assert_non_null(last);
    return atoi(last + 15);
}

static void survive_kills(uint32_t seed, int kills, int apart)
{
    struct cluster cluster;
    char first[WORD] = "", second[WORD] = "";
    const char *const states[2] = {first, second};
    cluster_open(&cluster, 1, 2, 1, "");
    if (apart) {
        snprintf(first, sizeof first, "--state %s/state-0", cluster.folder);
        snprintf(second, sizeof second, "--state %s/state-1", cluster.folder);
    }
    int step = 0;
    for (int k = 0; k < kills; k++) {
        start_life(&cluster, STEPS_MAX, "none.safetensors", k > 0, states);
        kill_all_at(&cluster, 1 + (int)(next_random(&seed) % 12), next_random(&seed));
        assert_true(last_step(&cluster) > step); /* nothing committed was lost */
        step = last_step(&cluster);
    }
    start_life(&cluster, step + 3, "killed.safetensors", 1, states);
    cluster_expect(&cluster, 2, 1, 0);
    expect_no_leftovers(cluster.folder);
    struct process run;
    char more[64];
    snprintf(more, sizeof more, "--set steps=%d", step + 3);
    run_job(&cluster, &run, "whole.safetensors", more);
    process_forget(&run);
    expect_same(&cluster, "killed.safetensors", "whole.safetensors");
    cluster_close(&cluster);
}

static void F06_kill_9_during_saves_loses_no_committed_snapshot(void **state)
{
    (void)state;
    survive_kills(6, KILLS, 0);
}

static void F06_kill_9_during_saves_of_servers_with_folders_of_their_own(void **state)
{
    (void)state;
    survive_kills(66, 8, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_teardown(name, processes_end)
        CASE(F06_a_disk_too_small_for_a_second_snapshot_keeps_the_first),
        CASE(F06_a_folder_that_cannot_be_written_to_is_named),
        CASE(F06_a_metrics_file_on_a_full_disk_is_said_and_ends),
        CASE(F06_kill_9_during_saves_loses_no_committed_snapshot),
        CASE(F06_kill_9_during_saves_of_servers_with_folders_of_their_own),
    };
    alone = island_open() == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
