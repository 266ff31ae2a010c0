/* How a job ends, and what it does with bad numbers: early stop, best, a second job, skipped steps, nonfinite: stop; and
 * whole jobs with every aggregator and with plug-ins. */
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

#include "base/status.h"
#include "files/fs.h"
#include "tests/cases/cluster_jobs.h"
#include "tests/lib/embedded.h"

static char folder[EMBEDDED_TEXT], s1[2048], mlp[2048];

static int open_folder(void **state)
{
    (void)state;
    embedded_folder_create(folder);
    cluster_jobs_s1(folder, s1, sizeof s1);
    cluster_jobs_mlp(mlp, sizeof mlp);
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    embedded_folder_remove(folder);
    return 0;
}

static int count_of(const char *text, const char *what)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, what)) != NULL; at += strlen(what))
        count++;
    return count;
}

/* Two servers that update, two beside workers that do, and the rings. */
enum { WAYS = 2 + CLUSTER_WAYS - CLUSTER_RINGS };

static void set_way(struct embedded_order *order, int way)
{
    cluster_jobs_way(order, &cluster_ways[way < 2 ? 1 : CLUSTER_RINGS + way - 2]);
    if (way == 1)
        embedded_set(order, "parallel.update_at=worker");
}

/* --- early stop, best, a second job -------------------------------------------------------------------------- */

/* Nothing improves by a whole unit of loss: the first evaluation counts, the three after it do not. */
static void early_stop_ends_every_role_in_order(void **state)
{
    (void)state;
    for (int workers = 1; workers <= 4; workers++)
        for (int way = 0; way < WAYS; way++) {
            struct embedded_order order = {.yaml = s1, .workers = workers, .folder = folder};
            struct embedded_result result;
            char name[64];
            set_way(&order, way);
            embedded_set(&order, "steps=50");
            embedded_set(&order, "optimizer.kind=adam");
            embedded_set(&order, "evaluate.every=2");
            embedded_set(&order, "evaluate.early_stop.metric=loss");
            embedded_set(&order, "evaluate.early_stop.patience=3");
            embedded_set(&order, "evaluate.early_stop.min_delta=1");
            embedded_set(&order, "snapshot.dir=early-%d-%d", workers, way);
            embedded_run_well(&order, &result);
            assert_int_equal(result.steps_count, 8);
            assert_int_equal(embedded_last(&result)->step, 8);
            assert_non_null(strstr(result.output, "early stop at step 8"));
            snprintf(name, sizeof name, "/early-%d-%d/step-00000008/manifest.json", workers, way);
            char path[EMBEDDED_TEXT + 64];
            snprintf(path, sizeof path, "%s%s", folder, name);
            if (access(path, R_OK) != 0)
                fail_msg("no %s:\n%s", path, result.log);
            embedded_result_close(&result);
        }
}

/* A rate that is far too large lets the loss rise after some steps; the best step's snapshot outlives `keep`. */
static void best_is_kept(int way)
{
    struct embedded_order order = {.yaml = s1, .workers = 2 + way % 2, .folder = folder};
    struct embedded_result result;
    char path[EMBEDDED_TEXT + 64], *text = NULL;
    size_t bytes;
    set_way(&order, way);
    embedded_set(&order, "optimizer.kind=sgd");
    embedded_set(&order, "optimizer.lr=0.4");
    embedded_set(&order, "optimizer.momentum=0.99");
    embedded_set(&order, "optimizer.weight_decay=0.3");
    embedded_set(&order, "steps=30");
    embedded_set(&order, "evaluate.every=1");
    embedded_set(&order, "snapshot.dir=best-%d", way);
    embedded_set(&order, "snapshot.every=1");
    embedded_set(&order, "snapshot.keep=1");
    embedded_set(&order, "snapshot.best.metric=loss");
    embedded_run_well(&order, &result);
    int best = 0;
    for (int i = 1; i < result.evaluations_count; i++)
        if (result.evaluations[i].loss < result.evaluations[best].loss)
            best = i;
    long long step = result.evaluations[best].step;
    assert_true(step > 1 && step < 29); /* else this job shows nothing */
    snprintf(path, sizeof path, "%s/best-%d/best.json", folder, way);
    assert_int_equal(fs_read_file(path, 4096, &text, &bytes, NULL), 0);
    json_t *root = json_loads(text, 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(root, "step")), step);
    embedded_near("value", json_real_value(json_object_get(root, "value")), result.evaluations[best].loss, 1e-8);
    for (long long i = 1; i <= 30; i++) {
        snprintf(path, sizeof path, "%s/best-%d/step-%08lld/manifest.json", folder, way, i);
        if ((access(path, R_OK) == 0) != (i == step || i == 30))
            fail_msg("step %lld: best is %lld of 30, one is kept", i, step);
    }
    json_decref(root);
    free(text);
    embedded_result_close(&result);
}

static void the_best_snapshot_is_kept(void **state)
{
    (void)state;
    for (int way = 0; way < WAYS; way++)
        best_is_kept(way);
}

/* Submitted to the same cluster, which stays: the same end, and books that begin anew. */
static void a_second_job_after_the_first(void **state)
{
    (void)state;
    for (int run = 0; run < 2 * WAYS; run++) {
        struct embedded_order order = {.yaml = mlp, .workers = run < WAYS ? 1 : 3, .folder = folder};
        struct embedded_result alone, result;
        set_way(&order, run % WAYS);
        embedded_set(&order, "log_every=1000");
        embedded_run_well(&order, &alone);
        order.jobs = 3;
        embedded_run(&order, &result);
        /* The signal that ends the cluster meets each role before or after it has left by itself. */
        assert_true(result.coordinator == 0 || result.coordinator == STATUS_STOPPED);
        for (int rank = 0; rank < order.workers; rank++)
            assert_true(result.worker[rank] == 0 || result.worker[rank] == STATUS_STOPPED);
        for (int rank = 0; rank < result.servers; rank++)
            assert_true(result.server[rank] == 0 || result.server[rank] == STATUS_STOPPED);
        assert_int_equal(count_of(result.output, "report card"), 3);
        assert_int_equal(count_of(result.output, alone.sha256), 3);
        assert_int_equal(result.steps_count, 8); /* of the last job; each opens its own file */
        embedded_result_close(&result);
        embedded_result_close(&alone);
    }
}

/* Rank 0 cannot read what it should begin with; the others wait for it, and hear so long before it would be late. */
static void a_rank_that_cannot_begin_ends_the_ring_at_once(void **state)
{
    (void)state;
    for (int zero = 0; zero < 2; zero++) {
        struct embedded_order order = {.yaml = mlp, .workers = 3, .folder = folder, .init = "no-such-file.safetensors",
                                       .seconds = 60};
        struct embedded_result result;
        embedded_set(&order, "parallel.data=%s", zero ? "zero3" : "ddp");
        embedded_set(&order, "parallel.transport=tcp");
        embedded_set(&order, "cluster.timeouts.worker_dead=300");
        embedded_run(&order, &result);
        assert_int_equal(result.coordinator, STATUS_ABORTED);
        assert_non_null(strstr(result.why, "no-such-file.safetensors"));
        embedded_result_close(&result);
    }
}

/* --- numbers that are not finite ------------------------------------------------------------------------------ */

/* Batches of two in file order; the fourth row, worker 1's of the second batch, makes an infinite gradient. */
static void write_broken(void)
{
    cluster_jobs_write(folder, "broken.csv", "1,2,0\n-1,0.5,1\n2,1,0\n3e38,3e38,1\n1,1,0\n-2,1,1\n");
}
static const char broken[] = "steps: 6\nbatch_size: 2\nlog_every: 1\n"
                             "data: {kind: csv, train: {file: broken.csv}, order: sequential}\n"
                             "model: {kind: mlp, hidden: [4], activation: none, batch_norm: true, loss: mse}\n"
                             "optimizer: {kind: adam, lr: 0.1}\n"
                             "lr_schedule: {warmup_steps: 100}\n";

static void check_skips(const struct embedded_result *result)
{
    /* t stands still in a skipped step, and with it the warm-up */
    static const double t[] = {1, 2, 2, 3, 4, 4};
    float weight[8], bias[4];
    assert_int_equal(result->steps_count, 6);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(result->steps[i].skipped, i == 1 || i == 4);
        embedded_near("lr", result->steps[i].lr, 0.1 * t[i] / 100, 1e-9);
    }
    char text[2][80];
    for (int i = 0; i < 2; i++)
        snprintf(text[i], sizeof text[i], "step %d: the gradient is not finite: rank 1, key ", i == 0 ? 2 : 5);
    if (count_of(result->log, "gradient is not finite") != 2 || count_of(result->log, text[0]) != 1 ||
        count_of(result->log, text[1]) != 1)
        fail_msg("%s", result->log);
    embedded_tensor(result, "layers.0.linear.weight", weight, 8);
    embedded_tensor(result, "layers.0.linear.bias", bias, 4);
    for (int i = 0; i < 8; i++)
        assert_true(isfinite(weight[i]) && isfinite(bias[i / 2]));
}

static void nonfinite_skips_the_step_on_all_ranks(void **state)
{
    char first[EMBEDDED_SHA] = "";
    (void)state;
    write_broken();
    for (int run = 0; run < WAYS + CLUSTER_RINGS; run++) {
        struct embedded_order order = {.yaml = broken, .workers = 2, .folder = folder};
        struct embedded_result result;
        if (run < WAYS)
            set_way(&order, run);
        else
            cluster_jobs_way(&order, &cluster_ways[run - WAYS]);
        embedded_set(&order, "model.batch_norm=false");
        embedded_run_well(&order, &result);
        check_skips(&result);
        if (run == 0)
            memcpy(first, result.sha256, sizeof first);
        assert_string_equal(result.sha256, first);
        embedded_result_close(&result);
    }
}

/* Running statistics of a skipped step are not committed: with frozen layers they are those of the other batches alone.
 * The targets 3e38 make the gradient infinite, not the rows. */
static void a_skipped_step_leaves_the_running_statistics(void **state)
{
    static const char *const rows[] = {"1,2,0\n-1,0.5,1\n2,1,-3e38\n5,7,-3e38\n1,1,0\n-2,1,1\n",
                                       "1,2,0\n-1,0.5,1\n1,1,0\n-2,1,1\n"};
    float values[2][8];
    (void)state;
    for (int run = 0; run < 2 * WAYS; run++) {
        int i = run % 2;
        struct embedded_order order = {.yaml = broken, .workers = 1 + i, .folder = folder};
        struct embedded_result result;
        set_way(&order, run / 2);
        cluster_jobs_write(folder, "broken.csv", rows[i]);
        embedded_set(&order, "steps=%d", i == 0 ? 6 : 4);
        embedded_set(&order, "optimizer.freeze=[\"layers.*\"]");
        embedded_run_well(&order, &result);
        assert_int_equal(result.steps[1].skipped, i == 0);
        embedded_tensor(&result, "layers.0.norm.running_mean", values[i], 4);
        embedded_tensor(&result, "layers.0.norm.running_var", values[i] + 4, 4);
        embedded_result_close(&result);
        for (int k = 0; k < 8 && i == 1; k++)
            embedded_near("running statistics", values[0][k], values[1][k], 1e-6);
    }
}

static void nonfinite_stop_ends_the_job_with_the_reason(void **state)
{
    (void)state;
    write_broken();
    for (int run = 0; run < 2 * CLUSTER_WAYS; run++) {
        int eager = run % 2;
        struct embedded_order order = {.yaml = broken, .workers = 2, .folder = folder};
        struct embedded_result result;
        cluster_jobs_way(&order, &cluster_ways[run / 2]);
        embedded_set(&order, "model.batch_norm=false");
        embedded_set(&order, "optimizer.nonfinite=stop");
        embedded_set(&order, "parallel.update=%s", eager ? "eager" : "step");
        embedded_run(&order, &result);
        assert_int_equal(result.coordinator, STATUS_ABORTED);
        if (strstr(result.why, "step 2: the gradient is not finite: rank 1, key ") == NULL)
            fail_msg("%s", result.why);
        for (int rank = 0; rank < 2; rank++) {
            assert_int_not_equal(result.worker[rank], 0);
            assert_true(result.server[rank] != 0 || rank >= result.servers);
            if (strstr(result.worker_why[rank], "not finite") == NULL)
                fail_msg("worker %d: %s", rank, result.worker_why[rank]);
        }
        assert_int_equal(result.sha256[0], '\0');
        embedded_result_close(&result);
    }
}

/* --- aggregators and plug-ins --------------------------------------------------------------------------------- */

/* Five rows of x = 1 from weight zero, one a worker: gradients 1, 2, 30, 4, 5; SGD 0.1. */
static void one_step(struct embedded_order *order, float *w, struct embedded_result *result)
{
    static const char text[] = "steps: 1\nbatch_size: 5\n"
                               "data: {kind: csv, train: {file: five.csv}, order: sequential}\n"
                               "model: {kind: linear, init: zeros, loss: half_squared_error}\n"
                               "optimizer: {kind: sgd, lr: 0.1, freeze: [\"head.bias\"]}\n";
    cluster_jobs_write(folder, "five.csv", "1,-1\n1,-2\n1,-30\n1,-4\n1,-5\n");
    order->yaml = text;
    order->folder = folder;
    embedded_run_well(order, result);
    embedded_tensor(result, "head.weight", w, 1);
}

static void every_aggregator_in_a_whole_job(void **state)
{
    static const struct {
        const char *sets[2];
        int workers;
        double wanted;
    } rows[] = {
        {{"parallel.aggregate=median"}, 5, -0.4},
        {{"parallel.aggregate=median"}, 2, -0.1 * (11 + 4.5) / 2}, /* shares of 3 and 2: means 11 and 4.5 */
        {{"parallel.aggregate=trimmed_mean", "parallel.trim_fraction=0.2"}, 5, -0.1 * 11 / 3},
        {{"parallel.aggregate=trimmed_mean", "parallel.trim_fraction=0.1"}, 5, -0.1 * 42 / 5}, /* 0.5 rounds to none */
        {{"parallel.aggregate=plugin",
          "parallel.aggregate_plugin=" SHOAL_BINARY_DIR "/deploy/examples/plugin_clipped_mean.so"}, 5, -0.1},
    };
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (int at_worker = 0; at_worker < 2; at_worker++) {
            struct embedded_order order = {.workers = rows[r].workers, .servers = 2};
            struct embedded_result result;
            float w;
            for (int i = 0; i < 2 && rows[r].sets[i] != NULL; i++)
                embedded_set(&order, "%s", rows[r].sets[i]);
            embedded_set(&order, "parallel.update_at=%s", at_worker ? "worker" : "server");
            one_step(&order, &w, &result);
            embedded_near(rows[r].sets[0], w, rows[r].wanted, 1e-6);
            embedded_result_close(&result);
        }
}

/* An empty share has no say: rows 1, 2, 30 on five workers have the median 2. */
static void an_empty_share_is_left_out_of_the_median(void **state)
{
    struct embedded_order order = {.workers = 5, .servers = 1};
    struct embedded_result result;
    float w, before;
    (void)state;
    /* Seven rows in batches of five: the second batch has two rows, 1 and 3, for five workers. */
    static const char text[] = "steps: 2\nbatch_size: 5\n"
                               "data: {kind: csv, train: {file: seven.csv}, order: sequential}\n"
                               "model: {kind: linear, init: zeros, loss: half_squared_error}\n"
                               "optimizer: {kind: sgd, lr: 0.1, freeze: [\"head.bias\"]}\n"
                               "parallel: {aggregate: median}\n";
    cluster_jobs_write(folder, "seven.csv", "1,0\n1,0\n1,0\n1,0\n1,0\n1,-1\n1,-3\n");
    order.yaml = text;
    order.folder = folder;
    embedded_run_well(&order, &result);
    embedded_tensor(&result, "head.weight", &w, 1);
    before = 0; /* the first batch's gradients are all 0 */
    embedded_near("median of two", w, before - 0.1 * 2, 1e-6);
    embedded_result_close(&result);
}

static void aggregators_end_with_the_same_bits(void **state)
{
    static const char *const sets[] = {
        "parallel.aggregate=median", "parallel.aggregate=trimmed_mean",
        "parallel.aggregate_plugin=" SHOAL_BINARY_DIR "/deploy/examples/plugin_clipped_mean.so"};
    (void)state;
    for (int s = 0; s < 3; s++) {
        char first[EMBEDDED_SHA] = "";
        for (int servers = 1; servers <= 3; servers++) {
            struct embedded_order order = {.yaml = mlp, .workers = 3, .servers = servers, .threads = 1 + servers % 2,
                                           .folder = folder};
            struct embedded_result result;
            if (s == 2)
                embedded_set(&order, "parallel.aggregate=plugin");
            embedded_set(&order, "%s", sets[s]);
            if (servers == 3)
                embedded_set(&order, "parallel.bucket_bytes=65536");
            embedded_run_well(&order, &result);
            if (servers == 1)
                memcpy(first, result.sha256, sizeof first);
            assert_string_equal(result.sha256, first);
            embedded_result_close(&result);
        }
    }
}

/* signSGD moves each weight by the rate, whoever updates. */
static void an_optimizer_plug_in_in_a_whole_job(void **state)
{
    (void)state;
    for (int at_worker = 0; at_worker < 2; at_worker++)
        for (int servers = 1; servers <= 2; servers++) {
            struct embedded_order order = {.workers = 2, .servers = servers};
            struct embedded_result result;
            float w;
            embedded_set(&order, "optimizer.kind=plugin");
            embedded_set(&order, "optimizer.plugin=" SHOAL_BINARY_DIR "/deploy/examples/plugin_signsgd.so");
            embedded_set(&order, "parallel.update_at=%s", at_worker ? "worker" : "server");
            one_step(&order, &w, &result);
            embedded_near("signSGD", w, -0.1, 1e-7);
            embedded_result_close(&result);
        }
}

static void a_plug_in_that_is_not_there_is_named(void **state)
{
    struct embedded_order order = {.yaml = s1, .workers = 2, .servers = 2, .folder = folder};
    struct embedded_result result;
    (void)state;
    embedded_set(&order, "optimizer.kind=plugin");
    embedded_set(&order, "optimizer.lr=0.1");
    embedded_set(&order, "optimizer.plugin=./no-such-plugin.so");
    embedded_run(&order, &result);
    if (result.coordinator == 0 || strstr(result.why, "no-such-plugin.so") == NULL)
        fail_msg("status %d %s", result.coordinator, result.why);
    embedded_result_close(&result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(early_stop_ends_every_role_in_order),
        cmocka_unit_test(the_best_snapshot_is_kept),
        cmocka_unit_test(a_second_job_after_the_first),
        cmocka_unit_test(a_rank_that_cannot_begin_ends_the_ring_at_once),
        cmocka_unit_test(nonfinite_skips_the_step_on_all_ranks),
        cmocka_unit_test(a_skipped_step_leaves_the_running_statistics),
        cmocka_unit_test(nonfinite_stop_ends_the_job_with_the_reason),
        cmocka_unit_test(every_aggregator_in_a_whole_job),
        cmocka_unit_test(an_empty_share_is_left_out_of_the_median),
        cmocka_unit_test(aggregators_end_with_the_same_bits),
        cmocka_unit_test(an_optimizer_plug_in_in_a_whole_job),
        cmocka_unit_test(a_plug_in_that_is_not_there_is_named),
    };

    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
