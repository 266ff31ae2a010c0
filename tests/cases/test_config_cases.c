/* C01 missing settings, C02 keys that nobody reads, C03 batch arithmetic: each ends in one clear line before
 * anything is opened. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "config/job.h"

#define DATA "data: {kind: idx, train: {images: A, labels: B}}\n"
#define MODEL "model: {kind: mlp, hidden: [8]}\n"
#define OPTIMIZER "optimizer: {kind: sgd, lr: 0.1}\n"
#define REST DATA MODEL OPTIMIZER
#define JOB "epochs: 5\nbatch_size: 128\n" REST

static int load(struct job **job, const struct job_source *source, struct errbuf *err)
{
    errbuf_init(err);
    *job = NULL;
    return job_load(job, source, err);
}

static void assert_refused(const struct job_source *source, const char *message)
{
    struct job *job;
    struct errbuf err;
    assert_int_not_equal(load(&job, source, &err), 0);
    assert_null(job);
    assert_string_equal(err.text, message);
}

static void assert_text_refused(const char *text, const char *message)
{
    const struct job_source source = {.text = text, .text_name = "job.yaml"};
    assert_refused(&source, message);
}

static struct job *load_good(const struct job_source *source)
{
    struct job *job;
    struct errbuf err;
    if (load(&job, source, &err) != 0) {
        fail_msg("%s", err.text);
    }
    return job;
}

/* ---- C01 ---- */

static void c01_each_required_key_removed_in_turn(void **state)
{
    (void)state;
    assert_text_refused("batch_size: 128\n" REST, "job.yaml: missing: epochs (or steps)");
    assert_text_refused("epochs: 5\n" REST, "job.yaml: missing: batch_size");
    assert_text_refused("epochs: 5\nbatch_size: 128\n" MODEL OPTIMIZER, "job.yaml: missing: data.kind");
    assert_text_refused("epochs: 5\nbatch_size: 128\n" DATA OPTIMIZER, "job.yaml: missing: model.kind");
    assert_text_refused("epochs: 5\nbatch_size: 128\n" DATA MODEL, "job.yaml: missing: optimizer.kind");
    assert_text_refused("epochs: 5\nbatch_size: 128\n" DATA MODEL "optimizer: {kind: sgd}\n",
                        "job.yaml: missing: optimizer.lr");
    assert_text_refused("epochs: 5\nbatch_size: 128\ndata: {kind: idx, train: {labels: B}}\n" MODEL OPTIMIZER,
                        "job.yaml: missing: data.train.images");
    assert_text_refused("epochs: 5\nbatch_size: 128\n" DATA "model: {kind: mlp}\n" OPTIMIZER,
                        "job.yaml: missing: model.hidden");
}

static void c01_all_that_is_missing_stands_in_one_line(void **state)
{
    (void)state;
    assert_text_refused("name: x\n",
                        "job.yaml: missing: epochs (or steps), batch_size, data.kind, model.kind, optimizer.kind");
    assert_text_refused("data: {kind: idx}\nmodel: {kind: mlp}\noptimizer: {kind: sgd}\n",
                        "job.yaml: missing: epochs (or steps), batch_size, optimizer.lr, data.train.images, "
                        "data.train.labels, model.hidden");
    const struct job_source nothing = {.path = NULL};
    assert_refused(&nothing, "job: missing: epochs (or steps), batch_size, data.kind, model.kind, optimizer.kind");
}

static void c01_set_but_empty(void **state)
{
    (void)state;
    assert_text_refused("epochs: 5\nbatch_size:\n" REST,
                        "job.yaml:2: batch_size: found nothing, expected an integer from 1 to 1000000000");
    assert_text_refused("epochs: 5\nbatch_size: \"\"\n" REST,
                        "job.yaml:2: batch_size: found nothing, expected an integer from 1 to 1000000000");
    assert_text_refused(
        "snapshot:\n" JOB,
        "job.yaml:1: snapshot: found nothing, expected a mapping: snapshot has dir, every, keep, best");
    assert_text_refused("name: ~\n" JOB, "job.yaml:1: name: found nothing, expected text");
    assert_text_refused(
        "epochs: 5\nbatch_size: 128\ndata: {kind: idx, train: {images: \"\", labels: B}}\n" MODEL OPTIMIZER,
        "job.yaml: missing: data.train.images");
    char *const environment[] = {"SHOAL_BATCH_SIZE=", NULL};
    const struct job_source source = {.text = JOB, .environment = environment};
    assert_refused(
        &source,
        "environment SHOAL_BATCH_SIZE: batch_size: found nothing, expected an integer from 1 to 1000000000");
}

static void assert_path_refused(const char *path, const char *reason)
{
    char message[512];
    const struct job_source source = {.path = path};
    snprintf(message, sizeof message, "%s: %s", path, reason);
    assert_refused(&source, message);
}

static void c01_files_that_are_no_job(void **state)
{
    (void)state;
    char folder[] = "/tmp/shoal-c01-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/job.yaml", folder);
    assert_path_refused(path, "cannot open the job file: No such file or directory");
    assert_path_refused(folder, "is a folder, expected a job file");

    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    assert_path_refused(path, "is empty, expected a job");
    assert_int_equal(ftruncate(fd, 100 * 1000 * 1000), 0);
    assert_path_refused(path, "has 100000000 bytes, a job file at most 1048576");
    assert_int_equal(ftruncate(fd, 1000), 0); /* zeros */
    assert_path_refused(path, "not a text file: control characters are not allowed at byte 0");
    close(fd);
    if (geteuid() != 0) { /* root reads everything */
        chmod(path, 0);
        assert_path_refused(path, "cannot open the job file: Permission denied");
    }
    assert_path_refused("/proc/self/mem", "cannot read the job file: Input/output error");
    unlink(path);
    rmdir(folder);
}

/* ---- C02 ---- */

static void c02_unknown_and_misplaced_keys_are_answered_with_a_name(void **state)
{
    (void)state;
    assert_text_refused("optimizer: {kind: sgd, learning_rat: 0.1}\n",
                        "job.yaml:1: optimizer.learning_rat: unknown key; did you mean optimizer.lr?");
    assert_text_refused("optimizer:\n  kind: sgd\n  batch_size: 3\n",
                        "job.yaml:3: optimizer.batch_size: unknown key; did you mean batch_size?");
    assert_text_refused("lr: 0.1\n", "job.yaml:1: lr: unknown key; did you mean optimizer.lr?");
    assert_text_refused("Seed: 1\n", "job.yaml:1: Seed: unknown key; did you mean seed?");
    assert_text_refused("optimizer: {LR: 1}\n",
                        "job.yaml:1: optimizer.LR: unknown key; did you mean optimizer.lr?");
    assert_text_refused("OPTIMIZER: {lr: 1}\n", "job.yaml:1: OPTIMIZER: unknown key; did you mean optimizer?");
    assert_text_refused(
        "parallel: {pipeline: 2}\n",
        "job.yaml:1: parallel.pipeline: unknown key; parallel has data, consistency, aggregate, "
        "aggregate_plugin, trim_fraction, update_at, update, bucket_bytes, message_bytes, credit_bytes, "
        "batch_norm_stats, threads, digest_every, transport, placement, prefetch_layers, persistence_threshold, keep_last_layer");
    assert_text_refused("parallel: {data: ring}\n",
                        "job.yaml:1: parallel.data: found \"ring\", expected one of ps, ddp, zero1, zero2, zero3");
}

static void c02_a_key_twice_names_both_lines(void **state)
{
    (void)state;
    assert_text_refused("seed: 1\nname: x\nseed: 1\n", "job.yaml:3: seed: given twice, first in line 1");
    assert_text_refused("cluster: {workers: 1}\nseed: 1\ncluster: {servers: 1}\n",
                        "job.yaml:3: cluster: given twice, first in line 1");
    assert_text_refused("optimizer:\n  lr: 1\n  lr: 2\n", "job.yaml:3: optimizer.lr: given twice, first in line 2");
}

static void c02_file_environment_and_command_line_at_once(void **state)
{
    (void)state;
    char *const environment[] = {"SHOAL_SEED=2", "SHOAL_LOG_EVERY=7", NULL};
    const char *sets[] = {"seed=3"};
    const struct job_source source = {.text = "seed: 1\nlog_every: 5\n" JOB,
                                      .text_name = "job.yaml",
                                      .environment = environment,
                                      .sets = sets,
                                      .sets_count = 1};
    struct job *job = load_good(&source);
    assert_true(job->seed == 3 && job->log_every == 7);
    char *config = job_print_config(job);
    assert_non_null(strstr(config, "\nseed: 3  # --set\n"));
    assert_non_null(strstr(config, "\nlog_every: 7  # environment SHOAL_LOG_EVERY\n"));
    assert_non_null(strstr(config, "\nbatch_size: 128  # job.yaml:4\n"));
    assert_non_null(strstr(config, "\naccumulate: 1  # default\n"));
    free(config);
    job_destroy(job);
}

static void c02_a_key_that_is_unused_in_this_mode_is_warned_about(void **state)
{
    (void)state;
    const struct job_source source = {.text = "epochs: 5\nbatch_size: 128\n" DATA MODEL
                                              "optimizer: {kind: adam, momentum: 0.9}\n",
                                      .text_name = "job.yaml"};
    struct job *job = load_good(&source);
    assert_int_equal(job_warnings(job)->count, 1);
    assert_string_equal(job_warnings(job)->items[0],
                        "job.yaml:5: optimizer.momentum: has no effect, it works only with "
                        "optimizer.kind sgd or plugin");
    job_destroy(job);
}

/* ---- C03: batch_size, accumulate and workers give the share ---- */

static void c03_a_key_for_the_share_is_refused_with_the_right_name(void **state)
{
    (void)state;
    static const char *const names[] = {"per_worker_batch", "micro_batch_size", "batch_size_per_worker",
                                        "train_micro_batch_size_per_gpu"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char text[512], message[512];
        snprintf(text, sizeof text, "%s: 32\n" JOB, names[i]);
        snprintf(
            message, sizeof message,
            "job.yaml:1: %s: unknown key; did you mean batch_size? batch_size is global and a worker's share is "
            "batch_size / cluster.workers / accumulate",
            names[i]);
        assert_text_refused(text, message);
    }
}

static void c03_a_batch_below_one_sample_a_share_shows_the_numbers(void **state)
{
    (void)state;
    assert_text_refused("cluster: {workers: 4}\naccumulate: 2\nepochs: 1\nbatch_size: 7\n" REST,
                        "job.yaml:4: batch_size: found 7, expected at least 8 = 4 workers x 2 accumulate");
    const struct job_override workers[] = {{"cluster.workers", "129", "--workers"}};
    const struct job_source source = {
        .text = JOB, .text_name = "job.yaml", .overrides = workers, .overrides_count = 1};
    assert_refused(&source,
                   "job.yaml:2: batch_size: found 128, expected at least 129 = 129 workers x 1 accumulate");
    assert_text_refused("epochs: 1\nbatch_size: 0\n" REST,
                        "job.yaml:2: batch_size: found \"0\", expected an integer from 1 to 1000000000");
    assert_text_refused("epochs: 1\n" REST, "job.yaml: missing: batch_size");
}

static void c03_the_share_is_derived_and_printed(void **state)
{
    (void)state;
    char text[128];
    const struct job_source source = {.text = "cluster: {workers: 4}\naccumulate: 8\n" JOB};
    struct job *job = load_good(&source);
    job_batch_text(job, job->cluster.workers, text, sizeof text);
    assert_string_equal(text, "128 = 4 workers x 8 accumulate x 4");
    job_destroy(job);
    const struct job_source smallest = {.text = "cluster: {workers: 4}\naccumulate: 32\n" JOB};
    job = load_good(&smallest);
    job_batch_text(job, job->cluster.workers, text, sizeof text);
    assert_string_equal(text, "128 = 4 workers x 32 accumulate x 1");
    job_destroy(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(c01_each_required_key_removed_in_turn),
        cmocka_unit_test(c01_all_that_is_missing_stands_in_one_line),
        cmocka_unit_test(c01_set_but_empty),
        cmocka_unit_test(c01_files_that_are_no_job),
        cmocka_unit_test(c02_unknown_and_misplaced_keys_are_answered_with_a_name),
        cmocka_unit_test(c02_a_key_twice_names_both_lines),
        cmocka_unit_test(c02_file_environment_and_command_line_at_once),
        cmocka_unit_test(c02_a_key_that_is_unused_in_this_mode_is_warned_about),
        cmocka_unit_test(c03_a_key_for_the_share_is_refused_with_the_right_name),
        cmocka_unit_test(c03_a_batch_below_one_sample_a_share_shows_the_numbers),
        cmocka_unit_test(c03_the_share_is_derived_and_printed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
