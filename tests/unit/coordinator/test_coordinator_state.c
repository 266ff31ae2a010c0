#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/errbuf.h"
#include "base/sha256.h"
#include "base/status.h"
#include "files/fs.h"
#include "server/coordinator/durable_state.h"
#include "server/coordinator/metrics_line.h"
#include "server/coordinator/output.h"
#include "server/coordinator/snapshot_store.h"

static char folder[] = "/tmp/shoal-coordinator-XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static void path_of(char out[256], const char *format, ...)
{
    char rest[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(rest, sizeof rest, format, arguments);
    va_end(arguments);
    snprintf(out, 256, "%s/%s", folder, rest);
}

static void fill(struct manifest *manifest, uint64_t step, const char *content)
{
    manifest_init(manifest);
    manifest->step = manifest->applied = step;
    manifest->total_steps = 500;
    manifest->job_hash = 0xfedcba9876543210;
    manifest->yaml = strdup("name: x\n");
    manifest->workers = 3;
    manifest->servers = 2;
    manifest->running_count = 2;
    manifest->running = malloc(2 * sizeof(float));
    manifest->running[0] = 0.1f;
    manifest->running[1] = NAN;
    struct manifest_file file = {.owner = 1, .name = "server-1.shard", .bytes = strlen(content), .holder = "tcp://h:1"};
    sha256_of_bytes(content, strlen(content), file.sha256);
    assert_int_equal(manifest_add_file(manifest, &file), 0);
}

static void a_manifest_is_read_back_to_the_bit(void **state)
{
    (void)state;
    struct manifest a, b;
    struct errbuf err;
    fill(&a, 100, "abc");
    a.best = a.best_known = 1;
    a.best_value = 0.1;
    a.best_step = 60;
    a.early_best = -INFINITY;
    a.watched = 3;
    a.bad_evaluations = 2;
    char *text = manifest_to_text(&a);
    assert_int_equal(manifest_parse(text, strlen(text), &b, &err), 0);
    assert_true(b.step == 100 && b.applied == 100 && b.job_hash == a.job_hash && b.workers == 3 && b.servers == 2);
    assert_true(b.best_value == 0.1 && b.early_best == -INFINITY && b.best == 1 && b.best_step == 60 && b.watched == 3);
    assert_true(b.running_count == 2 && b.running[0] == 0.1f && isnan(b.running[1]));
    assert_string_equal(b.files[0].sha256, a.files[0].sha256);
    assert_string_equal(b.files[0].holder, "tcp://h:1");
    manifest_close(&b);
    /* Cut anywhere it is no manifest. */
    for (size_t bytes = 0; bytes < strlen(text); bytes++)
        assert_int_equal(manifest_parse(text, bytes, &b, &err), STATUS_FORMAT);
    manifest_close(&a);
    free(text);
}

static void a_manifest_that_lies_is_refused(void **state)
{
    (void)state;
    static const char *const swaps[][2] = {
        {"\"format\": 1", "\"format\": 2"},
        {"\"step\": 100", "\"step\": -1"},
        {"\"applied\": 100", "\"applied\": 101"},
        {"\"step\": 100", "\"step\": \"100\""},
        {"\"server-1.shard\"", "\"../server-1.shard\""},
        {"\"server-1.shard\"", "\"\""},
        {"\"owner\"", "\"ower\""},
        {"\"0x1.99999ap-4\"", "\"0x1.99999ap-4x\""},
        {"\"0x1.99999ap-4\"", "0.1"},
        {"fedcba9876543210", "fedcba987654321"},
        {"\"best\": false", "\"best\": false, \"other\": 1"},
        {"\"best\": false", "\"best\": 0"},
        {"\"workers\": 3", "\"workers\": 0"},
    };
    struct manifest a, b;
    struct errbuf err;
    fill(&a, 100, "abc");
    char *text = manifest_to_text(&a), changed[4096];
    for (size_t i = 0; i < sizeof swaps / sizeof *swaps; i++) {
        const char *at = strstr(text, swaps[i][0]);
        assert_non_null(at);
        snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, swaps[i][1], at + strlen(swaps[i][0]));
        errbuf_init(&err);
        assert_int_equal(manifest_parse(changed, strlen(changed), &b, &err), STATUS_FORMAT);
        assert_true(err.text[0] != '\0');
    }
    manifest_close(&a);
    free(text);
}

/* A snapshot of one file on disk. */
static void put(const char *dir, uint64_t step, const char *content, int keep, uint64_t best, int64_t aside)
{
    char path[256], file[300];
    struct manifest manifest;
    struct errbuf err;
    errbuf_init(&err);
    path_of(path, "%s/step-%08llu", dir, (unsigned long long)step);
    snprintf(file, sizeof file, "%s/server-1.shard", path);
    assert_int_equal(fs_make_folders(path, &err), 0);
    assert_int_equal(fs_write_file(file, content, strlen(content), &err), 0);
    fill(&manifest, step, content);
    manifest.best = best == step;
    manifest.best_step = best;
    struct snapshot_commit commit = {path, &manifest, keep, best, aside};
    assert_int_equal(snapshot_store_commit(&commit, &err), 0);
    manifest_close(&manifest);
}

static int there(const char *dir, const char *name)
{
    char path[256];
    path_of(path, "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

static void the_last_ones_and_the_best_are_kept(void **state)
{
    (void)state;
    put("keep", 1, "a", 2, 0, 0);
    for (uint64_t step = 2; step <= 5; step++)
        put("keep", step, "b", 2, 2, -1);
    assert_false(there("keep", "step-00000001"));
    assert_true(there("keep", "step-00000002/manifest.json"));
    assert_false(there("keep", "step-00000003"));
    assert_true(there("keep", "step-00000004") && there("keep", "step-00000005") && there("keep", "best.json"));
    /* A new run's first one moves later ones aside; a second run's takes their place. */
    put("keep", 3, "f", 2, 0, 0);
    assert_true(there("keep", "step-00000003") && there("keep", "old-step-00000005"));
    assert_false(there("keep", "step-00000005"));
    put("keep", 2, "g", 2, 0, 0);
    assert_true(there("keep", "step-00000002") && there("keep", "old-step-00000003"));
    assert_false(there("keep", "old-step-00000005"));
}

static void a_damaged_newest_snapshot_is_not_passed_over_in_silence(void **state)
{
    (void)state;
    char dir[256], file[256], *found_folder;
    struct manifest manifest;
    struct errbuf err;
    int found;
    path_of(dir, "damage");
    errbuf_init(&err);
    assert_int_equal(snapshot_store_find(dir, &manifest, &found_folder, &found, &err), STATUS_IO);
    put("damage", 100, "first", 3, 0, -1);
    put("damage", 200, "second", 3, 0, -1);
    path_of(file, "damage/step-00000300"); /* unfinished: no manifest */
    assert_int_equal(fs_make_folders(file, &err), 0);
    assert_int_equal(snapshot_store_find(dir, &manifest, &found_folder, &found, &err), 0);
    assert_true(found && manifest.step == 200 && !manifest.files[0].missing);
    assert_non_null(strstr(found_folder, "step-00000200"));
    free(found_folder);
    manifest_close(&manifest);
    path_of(file, "damage/step-00000200/server-1.shard");
    assert_int_equal(fs_write_file(file, "Second", 6, &err), 0);
    assert_int_equal(snapshot_store_find(dir, &manifest, &found_folder, &found, &err), STATUS_CHECKSUM);
    assert_non_null(strstr(err.text, "step-00000200 is damaged (server-1.shard: checksum differs)"));
    assert_non_null(strstr(err.text, "damage/step-00000100"));
    assert_null(found_folder);
    path_of(file, "damage/step-00000200/manifest.json");
    assert_int_equal(fs_write_file(file, "{", 1, &err), 0);
    assert_int_equal(snapshot_store_find(dir, &manifest, &found_folder, &found, &err), STATUS_CHECKSUM);
    /* Asked for by name. */
    path_of(file, "damage/step-00000100");
    assert_int_equal(snapshot_store_find(file, &manifest, &found_folder, &found, &err), 0);
    assert_true(found && manifest.step == 100);
    free(found_folder);
    manifest_close(&manifest);
}

static void the_state_of_a_life_is_there_in_the_next(void **state)
{
    (void)state;
    char dir[256], file[256];
    struct durable_state a, b;
    struct errbuf err;
    errbuf_init(&err);
    path_of(dir, "state");
    assert_int_equal(fs_make_folders(dir, &err), 0);
    assert_int_equal(durable_state_load(&a, dir, &err), 0);
    assert_int_equal(a.term, 0);
    a.term = 3;
    a.cluster_epoch = 9;
    a.manifest = strdup("/snap/step-00000100");
    assert_int_equal(durable_state_save(&a, dir, &err), 0);
    assert_int_equal(durable_state_load(&b, dir, &err), 0);
    assert_true(b.term == 3 && b.cluster_epoch == 9);
    assert_string_equal(b.manifest, "/snap/step-00000100");
    durable_state_close(&a);
    durable_state_close(&b);
    path_of(file, "state/coordinator.json");
    assert_int_equal(fs_write_file(file, "{\"term\": 4", 10, &err), 0);
    assert_int_equal(durable_state_load(&b, dir, &err), STATUS_FORMAT);
    assert_non_null(strstr(err.text, "state/coordinator.json"));
}

static void numbers_that_are_none_are_named(void **state)
{
    (void)state;
    char line[METRICS_LINE];
    struct metrics_step step = {.step = 7, .loss = NAN, .lr = 0.1, .grad_norm = INFINITY, .samples = 3, .step_s = 1e-3};
    metrics_line_step(&step, line);
    assert_string_equal(line, "{\"event\":\"step\",\"step\":7,\"loss\":\"NaN\",\"lr\":0.1,\"grad_norm\":\"Infinity\","
                              "\"samples\":3,\"step_s\":0.001}");
}

static void a_progress_line_says_where_it_is(void **state)
{
    (void)state;
    char line[OUTPUT_LINE];
    struct coordinator_progress progress = {.step = 120, .total_steps = 2345, .loss = 0.412, .lr = 8.1e-4};
    output_progress_text(&progress, 11200, 100, line);
    assert_string_equal(line, "step 120/2345  loss 0.412  lr 0.00081  11,200 samples/s  eta 0:22");
}

static void a_torn_metrics_line_is_ended(void **state)
{
    (void)state;
    char path[256], *text;
    size_t bytes;
    struct output output;
    struct errbuf err;
    errbuf_init(&err);
    path_of(path, "metrics.jsonl");
    assert_int_equal(fs_write_file(path, "{\"a\":1}\n{\"b\"", 12, &err), 0);
    output_init(&output, -1, 0);
    snprintf(output.last, sizeof output.last, "step 6/6, the job before");
    assert_int_equal(output_job_begins(&output, path, 1, &err), 0);
    assert_string_equal(output.last, "");
    output_metrics(&output, "{\"c\":1}");
    output_close(&output);
    assert_int_equal(fs_read_file(path, 4096, &text, &bytes, &err), 0);
    assert_string_equal(text, "{\"a\":1}\n{\"b\"\n{\"c\":1}\n");
    free(text);
    assert_int_equal(output_job_begins(&output, "/nowhere/m", 0, &err), STATUS_IO);
    assert_non_null(strstr(err.text, "/nowhere/m"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_manifest_is_read_back_to_the_bit),
        cmocka_unit_test(a_manifest_that_lies_is_refused),
        cmocka_unit_test(the_last_ones_and_the_best_are_kept),
        cmocka_unit_test(a_damaged_newest_snapshot_is_not_passed_over_in_silence),
        cmocka_unit_test(the_state_of_a_life_is_there_in_the_next),
        cmocka_unit_test(numbers_that_are_none_are_named),
        cmocka_unit_test(a_progress_line_says_where_it_is),
        cmocka_unit_test(a_torn_metrics_line_is_ended),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
