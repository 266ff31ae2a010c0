/* Snapshots: a job that was stopped anywhere and resumed ends with the bits of one that never was; what is damaged is
 * refused in words; best, early stop and a second job on the same cluster. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/rng.h"
#include "base/status.h"
#include "tests/cases/cluster_jobs.h"
#include "tests/lib/embedded.h"

enum { STEPS = 70 };
static char folder[EMBEDDED_TEXT], yaml[2048];

static int open_folder(void **state)
{
    (void)state;
    embedded_folder_create(folder);
    cluster_jobs_mlp(yaml, sizeof yaml);
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    embedded_folder_remove(folder);
    return 0;
}

static struct embedded_order order_of(int workers, int servers)
{
    return (struct embedded_order){.yaml = yaml, .workers = workers, .servers = servers, .folder = folder};
}

static int there(const char *dir, const char *name)
{
    char path[1100];
    snprintf(path, sizeof path, "%s/%s/%s", folder, dir, name);
    return access(path, F_OK) == 0;
}

/* The end of an uninterrupted run. */
static void whole_run(struct embedded_order order, char sha256[EMBEDDED_SHA])
{
    struct embedded_result result;
    embedded_run_well(&order, &result);
    memcpy(sha256, result.sha256, EMBEDDED_SHA);
    embedded_result_close(&result);
}

/* Stops at step `at` or soon after, resumes to the end with what `after` says; the metrics file then has every step
 * once. */
static void stop_and_resume(struct embedded_order before, struct embedded_order after, int at,
                            struct embedded_result *result)
{
    before.stop_at = at;
    embedded_run(&before, result);
    if (result->coordinator == 0) /* it was over before the stop came */
        print_message("not stopped\n");
    else
        embedded_expect(&before, result, STATUS_STOPPED);
    embedded_result_close(result);
    after.resume = 1;
    embedded_run_well(&after, result);
}

/* The same with a first job that is over after `at` steps. */
static void end_and_resume(struct embedded_order before, struct embedded_order after, int at,
                           struct embedded_result *result)
{
    embedded_set(&before, "steps=%d", at);
    embedded_run_well(&before, result);
    embedded_result_close(result);
    after.resume = 1;
    embedded_run_well(&after, result);
}

static void check_steps(const struct embedded_result *result, int steps)
{
    assert_int_equal(result->steps_count, steps);
    for (int i = 0; i < steps; i++)
        assert_int_equal(result->steps[i].step, i + 1);
}

/* Where and on what cluster, from the seed alone. */
static void stopped_at(uint64_t seed, int stop_all, const char *const *extra)
{
    char sha256[EMBEDDED_SHA];
    struct embedded_result result;
    double u[4];
    for (int i = 0; i < 4; i++)
        u[i] = rng_uniform(seed, 1, 0, (uint64_t)i);
    int workers = 1 + (int)(u[0] * 4), servers = 1 + (int)(u[1] * 3), at = 1 + (int)(u[2] * 30);
    struct embedded_order order = order_of(workers, servers);
    print_message("seed %llu: %d workers, %d servers, stop at %d\n", (unsigned long long)seed, workers, servers, at);
    embedded_set(&order, "steps=%d", STEPS);
    for (int i = 0; extra != NULL && extra[i] != NULL; i++)
        embedded_set(&order, "%s", extra[i]);
    struct embedded_order whole = order;
    embedded_set(&order, "snapshot.dir=stop-%llu", (unsigned long long)seed);
    if (u[3] < 0.5)
        embedded_set(&order, "snapshot.every=7");
    order.stop_all = stop_all;
    stop_and_resume(order, order, at, &result);
    check_steps(&result, STEPS);
    whole.name = "whole";
    whole_run(whole, sha256);
    assert_string_equal(result.sha256, sha256);
    embedded_result_close(&result);
}

static void stopped_and_resumed_ends_with_the_same_bits(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++)
        stopped_at(seed, 0, NULL);
}

static void a_signal_to_every_role_is_as_orderly(void **state)
{
    (void)state;
    for (uint64_t seed = 11; seed <= 13; seed++)
        stopped_at(seed, 1, NULL);
}

static void stopped_and_resumed_with_workers_that_update(void **state)
{
    static const char *const extra[] = {"parallel.update_at=worker", NULL};
    (void)state;
    for (uint64_t seed = 21; seed <= 22; seed++)
        stopped_at(seed, 0, extra);
}

/* Statistics of all workers, evaluations and clipped lamb: whatever else passes between two steps. */
static void stopped_and_resumed_among_evaluations(void **state)
{
    static const char *const extra[] = {"evaluate.every=2",         "data.validation.fraction=0.3",
                                        "optimizer.kind=lamb",      "optimizer.clip_norm=0.5",
                                        "parallel.digest_every=1",  "parallel.batch_norm_stats=global",
                                        "lr_schedule.kind=cosine",  "lr_schedule.warmup_steps=5",
                                        "data.last_batch=wrap",     NULL};
    (void)state;
    for (uint64_t seed = 41; seed <= 44; seed++)
        stopped_at(seed, (int)(seed % 2), extra);
}

static void stopped_and_resumed_in_a_ring(void **state)
{
    static const char *const extra[][4] = {{"parallel.data=ddp", NULL},
                                           {"parallel.data=zero1", "optimizer.clip_norm=0.5", NULL},
                                           {"parallel.data=zero2", "evaluate.every=3", "data.validation.fraction=0.3", NULL},
                                           {"parallel.data=zero3", "accumulate=2", "parallel.digest_every=1", NULL}};
    (void)state;
    for (uint64_t seed = 51; seed <= 58; seed++)
        stopped_at(seed, seed > 54, extra[seed % 4]);
}

static void stopped_and_resumed_with_eager_updates(void **state)
{
    (void)state;
    for (uint64_t seed = 31; seed <= 36; seed++) {
        struct embedded_order order = order_of(2, 2);
        struct embedded_result result;
        char sha256[EMBEDDED_SHA];
        if (seed > 32)
            cluster_jobs_way(&order, &cluster_ways[CLUSTER_RINGS + (int)seed - 33]);
        embedded_set(&order, "steps=%d", STEPS);
        embedded_set(&order, "parallel.update=eager");
        embedded_set(&order, "optimizer.nonfinite=stop");
        whole_run(order, sha256);
        embedded_set(&order, "snapshot.dir=eager-%llu", (unsigned long long)seed);
        stop_and_resume(order, order, 3 + (int)(seed % 2) * 8, &result);
        check_steps(&result, STEPS);
        assert_string_equal(result.sha256, sha256);
        embedded_result_close(&result);
    }
}

/* Servers do not matter to the bits, so a resume may change them without a trace. */
static void resumed_on_other_servers_ends_with_the_same_bits(void **state)
{
    static const int servers[][2] = {{1, 3}, {3, 1}, {2, 3}, {3, 2}};
    char sha256[EMBEDDED_SHA];
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        struct embedded_order before = order_of(3, servers[i][0]), after;
        struct embedded_result result;
        embedded_set(&before, "steps=20");
        whole_run(before, sha256);
        embedded_set(&before, "snapshot.dir=servers-%zu", i);
        after = before;
        after.servers = servers[i][1];
        end_and_resume(before, after, 4, &result);
        check_steps(&result, 20);
        assert_string_equal(result.sha256, sha256);
        embedded_result_close(&result);
    }
}

/* From where workers update to where servers do, and back: the state moves. */
static void resumed_with_another_update_at_ends_with_the_same_bits(void **state)
{
    static const char *const at[] = {"server", "worker"};
    char sha256[EMBEDDED_SHA];
    (void)state;
    for (int first = 0; first < 2; first++) {
        struct embedded_order before = order_of(2, 2), after;
        struct embedded_result result;
        embedded_set(&before, "steps=20");
        whole_run(before, sha256);
        embedded_set(&before, "snapshot.dir=at-%d", first);
        after = before;
        embedded_set(&before, "parallel.update_at=%s", at[first]);
        embedded_set(&after, "parallel.update_at=%s", at[1 - first]);
        end_and_resume(before, after, 4, &result);
        check_steps(&result, 20);
        assert_string_equal(result.sha256, sha256);
        embedded_result_close(&result);
    }
}

/* Every mode goes on from a snapshot of every mode: at the same number of workers nothing shows in the bits. */
static void every_mode_resumes_every_other_with_the_same_bits(void **state)
{
    char sha256[EMBEDDED_SHA], from[EMBEDDED_TEXT + 64];
    struct embedded_result result;
    (void)state;
    for (int first = 1; first < CLUSTER_WAYS; first++) {
        struct embedded_order before = order_of(3, 2);
        embedded_set(&before, "optimizer.freeze=[\"layers.1.linear.bias\"]");
        embedded_set(&before, "steps=12");
        whole_run(before, sha256);
        embedded_set(&before, "snapshot.dir=mode-%d", first);
        struct embedded_order after = before;
        cluster_jobs_way(&before, &cluster_ways[first]);
        embedded_set(&before, "steps=5");
        embedded_run_well(&before, &result);
        embedded_result_close(&result);
        snprintf(from, sizeof from, "%s/mode-%d/step-00000005", folder, first);
        after.resume = 1;
        after.resume_path = from;
        after.name = "mode-after";
        for (int way = 0; way < CLUSTER_WAYS; way++) {
            struct embedded_order on = after;
            cluster_jobs_way(&on, &cluster_ways[way]);
            embedded_set(&on, "snapshot.dir=mode-after-%d-%d", first, way);
            embedded_run_well(&on, &result);
            if (strcmp(result.sha256, sha256) != 0)
                fail_msg("%s from %s ends with %s, not %s", cluster_ways[way].mode, cluster_ways[first].mode,
                         result.sha256, sha256);
            embedded_result_close(&result);
        }
    }
}

static void resumed_on_other_workers_goes_on_with_the_losses(void **state)
{
    static const int cluster[][2] = {{1, 1}, {2, 3}, {4, 2}};
    struct embedded_result whole, result;
    (void)state;
    struct embedded_order order = order_of(3, 2);
    embedded_set(&order, "steps=16");
    embedded_set(&order, "parallel.batch_norm_stats=global"); /* one group whoever computes it */
    order.name = "whole";
    embedded_run_well(&order, &whole);
    order.name = NULL;
    for (int i = 0; i < 3; i++) {
        struct embedded_order before = order;
        embedded_set(&before, "snapshot.dir=workers-%d", i);
        struct embedded_order after = before;
        after.workers = cluster[i][0];
        after.servers = cluster[i][1];
        end_and_resume(before, after, 5, &result);
        check_steps(&result, 16);
        for (int s = 0; s < 16; s++)
            embedded_near("loss", result.steps[s].loss, whole.steps[s].loss, 2e-4 * (1 + whole.steps[s].loss));
        embedded_result_close(&result);
    }
    embedded_result_close(&whole);
}

/* --- what is kept -------------------------------------------------------------------------------------------- */

static void last_k_are_kept(int way)
{
    struct embedded_order order = order_of(2, 2);
    struct embedded_result result;
    char dir[32];
    snprintf(dir, sizeof dir, "kept-%d", way);
    cluster_jobs_way(&order, &cluster_ways[way]);
    embedded_set(&order, "steps=10");
    embedded_set(&order, "snapshot.dir=%s", dir);
    embedded_set(&order, "snapshot.every=2");
    embedded_set(&order, "snapshot.keep=3");
    embedded_run_well(&order, &result);
    embedded_result_close(&result);
    for (int step = 2; step <= 10; step += 2) {
        char name[64];
        snprintf(name, sizeof name, "step-%08d/manifest.json", step);
        assert_int_equal(there(dir, name), step >= 6);
    }
}

static void the_last_k_are_kept(void **state)
{
    (void)state;
    for (int way = 0; way < CLUSTER_WAYS; way++)
        last_k_are_kept(way);
}

static void cut_file(const char *path, off_t bytes)
{
    off_t end = 0;
    int fd = open(path, O_RDWR);
    if (fd < 0 || (end = lseek(fd, 0, SEEK_END)) <= bytes || ftruncate(fd, end - bytes) != 0)
        fail_msg("cannot cut %s", path);
    close(fd);
}

static void flip_byte(const char *path)
{
    char byte;
    int fd = open(path, O_RDWR);
    off_t at = lseek(fd, -5, SEEK_END);
    if (fd < 0 || at < 0 || pread(fd, &byte, 1, at) != 1)
        fail_msg("cannot read %s", path);
    byte ^= 1;
    if (pwrite(fd, &byte, 1, at) != 1)
        fail_msg("cannot write %s", path);
    close(fd);
}

/* The newest snapshot of three (steps 4, 8, 12) is damaged: refused, and the one before is taken when it is named. */
static void damaged(const char *dir, const char *file, void (*harm)(const char *path), const char *sha256)
{
    struct embedded_order order = order_of(2, 2);
    struct embedded_result result;
    char path[1200];
    if (strncmp(file, "worker-", 7) == 0)
        embedded_set(&order, "parallel.data=zero3");
    embedded_set(&order, "snapshot.dir=%s", dir);
    embedded_set(&order, "snapshot.every=4");
    embedded_set(&order, "snapshot.keep=5");
    struct embedded_order first = order;
    embedded_set(&first, "steps=12");
    embedded_run_well(&first, &result);
    embedded_result_close(&result);
    snprintf(path, sizeof path, "%s/%s/step-00000012/%s", folder, dir, file);
    harm(path);
    embedded_set(&order, "steps=20");
    order.resume = 1;
    embedded_run(&order, &result);
    if (result.coordinator == 0 || strstr(result.why, "step-00000012 is damaged") == NULL ||
        strstr(result.why, "resume from") == NULL || strstr(result.why, "step-00000008") == NULL)
        fail_msg("%s: status %d %s", file, result.coordinator, result.why);
    for (int rank = 0; rank < 2; rank++)
        if (result.worker[rank] == 0 || (rank < result.servers && result.server[rank] == 0))
            fail_msg("%s: a rank ended well where the job could not begin", file);
    embedded_result_close(&result);
    snprintf(path, sizeof path, "%s/%s/step-00000008", folder, dir);
    order.resume_path = path;
    embedded_run_well(&order, &result);
    assert_string_equal(result.sha256, sha256);
    embedded_result_close(&result);
}

static void cut_by_one(const char *path)
{
    cut_file(path, 1);
}

static void cut_by_ten(const char *path)
{
    cut_file(path, 10);
}

static void a_damaged_newest_snapshot_is_refused_unless_the_one_before_is_named(void **state)
{
    char sha256[EMBEDDED_SHA];
    struct embedded_order order = order_of(2, 2);
    (void)state;
    embedded_set(&order, "steps=20");
    whole_run(order, sha256);
    damaged("torn-manifest", "manifest.json", cut_by_ten, sha256);
    damaged("torn-file", "owner-0.safetensors", cut_by_one, sha256);
    damaged("flipped-file", "owner-1.safetensors", flip_byte, sha256);
    damaged("torn-worker", "worker-0.safetensors", cut_by_one, sha256);
    damaged("flipped-worker", "worker-1.safetensors", flip_byte, sha256);
}

static void resume_without_a_snapshot_begins_at_the_beginning(void **state)
{
    char sha256[EMBEDDED_SHA];
    struct embedded_order order = order_of(2, 1);
    (void)state;
    whole_run(order, sha256);
    embedded_set(&order, "snapshot.dir=nothing-yet");
    order.resume = 1;
    order.name = "fresh";
    struct embedded_result result;
    embedded_run_well(&order, &result);
    check_steps(&result, 8);
    assert_string_equal(result.sha256, sha256);
    embedded_result_close(&result);
}

static void resume_of_a_finished_job_exports_the_same(void **state)
{
    char sha256[EMBEDDED_SHA];
    struct embedded_order order = order_of(2, 2);
    struct embedded_result result;
    (void)state;
    embedded_set(&order, "snapshot.dir=finished");
    whole_run(order, sha256);
    order.resume = 1;
    embedded_run_well(&order, &result);
    assert_string_equal(result.sha256, sha256);
    embedded_result_close(&result);
}

static void resume_refuses_another_model(void **state)
{
    char sha256[EMBEDDED_SHA];
    struct embedded_order order = order_of(2, 2);
    struct embedded_result result;
    (void)state;
    embedded_set(&order, "snapshot.dir=other-model");
    whole_run(order, sha256);
    embedded_set(&order, "model.hidden=[200, 91]");
    order.resume = 1;
    embedded_run(&order, &result);
    if (result.coordinator == 0 || strstr(result.why, "model.hidden") == NULL)
        fail_msg("status %d %s", result.coordinator, result.why);
    embedded_result_close(&result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stopped_and_resumed_ends_with_the_same_bits),
        cmocka_unit_test(a_signal_to_every_role_is_as_orderly),
        cmocka_unit_test(stopped_and_resumed_with_workers_that_update),
        cmocka_unit_test(stopped_and_resumed_in_a_ring),
        cmocka_unit_test(stopped_and_resumed_with_eager_updates),
        cmocka_unit_test(stopped_and_resumed_among_evaluations),
        cmocka_unit_test(resumed_on_other_servers_ends_with_the_same_bits),
        cmocka_unit_test(resumed_with_another_update_at_ends_with_the_same_bits),
        cmocka_unit_test(every_mode_resumes_every_other_with_the_same_bits),
        cmocka_unit_test(resumed_on_other_workers_goes_on_with_the_losses),
        cmocka_unit_test(the_last_k_are_kept),
        cmocka_unit_test(a_damaged_newest_snapshot_is_refused_unless_the_one_before_is_named),
        cmocka_unit_test(resume_without_a_snapshot_begins_at_the_beginning),
        cmocka_unit_test(resume_of_a_finished_job_exports_the_same),
        cmocka_unit_test(resume_refuses_another_model),
    };

    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
