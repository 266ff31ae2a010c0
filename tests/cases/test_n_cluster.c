/* N02, N03, N04, N05, N06, N10 and N14 on whole clusters in every mode, on data small enough to follow by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "files/safetensors.h"
#include "tests/cases/cluster_jobs.h"
#include "tests/lib/embedded.h"

static char folder[EMBEDDED_TEXT], s1[2048];

static int open_folder(void **state)
{
    (void)state;
    embedded_folder_create(folder);
    cluster_jobs_s1(folder, s1, sizeof s1);
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    embedded_folder_remove(folder);
    return 0;
}

/* --- N02 ----------------------------------------------------------------------------------------------------- */

/* Seven rows in batches of four: the second batch has three rows, so a fourth worker has none. */
static void N02_a_worker_without_rows_idles(void **state)
{
    static const char text[] = "epochs: 3\nbatch_size: 4\n"
                               "data: {kind: csv, train: {file: seven.csv}, test: {file: seven.csv}, order: sequential}\n"
                               "model: {kind: linear, init: zeros}\noptimizer: {kind: adam, lr: 0.1}\n";
    double losses[6] = {0};
    (void)state;
    cluster_jobs_write(folder, "seven.csv", "1,2,0\n-1,0.5,1\n2,1,0\n-2,-1,1\n0.5,1,0\n1,-3,1\n3,3,0\n");
    for (int run = 0; run < 4 * CLUSTER_WAYS; run++) {
        struct embedded_order order = {.yaml = text, .workers = 1 + run / CLUSTER_WAYS, .folder = folder};
        struct embedded_result result;
        int64_t samples = 0;
        cluster_jobs_way(&order, &cluster_ways[run % CLUSTER_WAYS]);
        embedded_run_well(&order, &result);
        assert_int_equal(result.steps_count, 6);
        for (int i = 0; i < 6; i++) {
            samples += result.steps[i].samples;
            if (run == 0)
                losses[i] = result.steps[i].loss;
            embedded_near("loss", result.steps[i].loss, losses[i], 1e-6);
        }
        assert_int_equal(samples, 3 * 7);
        embedded_result_close(&result);
    }
}

static void N02_three_samples_for_four_workers(void **state)
{
    (void)state;
    for (int w = 0; w < CLUSTER_WAYS; w++) {
        struct embedded_order order = {.yaml = s1, .workers = 4, .folder = folder};
        struct embedded_result result;
        cluster_jobs_way(&order, &cluster_ways[w]);
        embedded_set(&order, "optimizer.kind=sgd");
        embedded_set(&order, "optimizer.lr=0.1");
        embedded_set(&order, "batch_size=3");
        embedded_run(&order, &result);
        if (!result.refused || strstr(result.why, "batch_size") == NULL || strstr(result.why, "4 workers") == NULL)
            fail_msg("status %d: %s", result.coordinator, result.why);
        embedded_result_close(&result);
    }
}

/* A data set smaller than one batch on more workers than it has rows. */
static void N02_three_rows_for_four_workers(void **state)
{
    static const char text[] = "steps: 2\nbatch_size: 8\n"
                               "data: {kind: csv, train: {file: three.csv}, test: {file: three.csv}}\n"
                               "model: {kind: linear, init: zeros}\noptimizer: {kind: sgd, lr: 0.1}\n";
    double loss = 0;
    (void)state;
    cluster_jobs_write(folder, "three.csv", "1,0\n-1,1\n2,0\n");
    for (int run = 0; run < 2 * CLUSTER_WAYS; run++) {
        struct embedded_order order = {.yaml = text, .workers = run < CLUSTER_WAYS ? 1 : 4, .folder = folder};
        struct embedded_result result;
        cluster_jobs_way(&order, &cluster_ways[run % CLUSTER_WAYS]);
        embedded_run_well(&order, &result);
        assert_int_equal(result.steps[1].samples, 3);
        if (run == 0)
            loss = embedded_last(&result)->loss;
        embedded_near("loss", embedded_last(&result)->loss, loss, 1e-6);
        embedded_result_close(&result);
    }
}

/* --- N03 ----------------------------------------------------------------------------------------------------- */

static void N03_ten_thousand_test_images_are_ten_thousand(void **state)
{
    static const char images[] = "/usr/share/datasets/fashion-mnist/t10k-images-idx3-ubyte.gz";
    char text[2048];
    double right = 0;
    (void)state;
    cluster_jobs_need(images, "dataset-fashion-mnist");
    snprintf(text, sizeof text,
             "steps: 2\nbatch_size: 70\ndata:\n  kind: idx\n"
             "  train: {images: %s, labels: /usr/share/datasets/fashion-mnist/t10k-labels-idx1-ubyte.gz}\n"
             "  test: {images: %s, labels: /usr/share/datasets/fashion-mnist/t10k-labels-idx1-ubyte.gz}\n"
             "model: {kind: linear}\noptimizer: {kind: sgd, lr: 1.0e-12}\n",
             images, images);
    for (int workers = 1; workers <= 7; workers += workers == 1 ? 2 : 4) {
        struct embedded_order order = {.yaml = text, .workers = workers, .servers = 1, .folder = folder,
                                       .seconds = 200};
        struct embedded_result result;
        embedded_run_well(&order, &result);
        if (workers == 1)
            right = embedded_last(&result)->accuracy;
        assert_true(embedded_last(&result)->accuracy == right);
        assert_non_null(strstr(result.output, "of 10000)"));
        embedded_result_close(&result);
    }
}

static void N03_twenty_one_rows_are_twenty_one(void **state)
{
    char rows[2048] = "";
    (void)state;
    for (int i = 0; i < 21; i++)
        snprintf(rows + strlen(rows), sizeof rows - strlen(rows), "%d,%d,%d\n", i, i * i % 7, i % 2);
    cluster_jobs_write(folder, "twenty-one.csv", rows);
    for (int run = 0; run < 4 * CLUSTER_WAYS; run++) {
        struct embedded_order order = {.yaml = s1, .workers = 1 + run / CLUSTER_WAYS, .folder = folder};
        struct embedded_result result;
        cluster_jobs_way(&order, &cluster_ways[run % CLUSTER_WAYS]);
        embedded_set(&order, "data.kind=csv");
        embedded_set(&order, "data.train.file=twenty-one.csv");
        embedded_set(&order, "data.test.file=twenty-one.csv");
        embedded_set(&order, "optimizer.kind=sgd");
        embedded_set(&order, "optimizer.lr=0.001");
        embedded_run_well(&order, &result);
        assert_non_null(strstr(result.output, "of 21)"));
        embedded_result_close(&result);
    }
}

/* --- one output by hand --------------------------------------------------------------------------------------- */

/* Rows "x…,y" of a linear regression from zero: with half the squared error the gradient of a row is -y·x, its bias's
 * -y. Runs one SGD step and gives the weights. */
static void one_step(struct embedded_order *order, const char *rows, float *weight, int features,
                     struct embedded_result *result)
{
    static const char text[] = "steps: 1\nbatch_size: 1\n"
                               "data: {kind: csv, train: {file: hand.csv}, order: sequential}\n"
                               "model: {kind: linear, init: zeros, loss: half_squared_error}\n"
                               "optimizer: {kind: sgd, lr: 0.1}\n";
    int batch = 0;
    for (const char *c = rows; *c != '\0'; c++)
        batch += *c == '\n';
    cluster_jobs_write(folder, "hand.csv", rows);
    order->yaml = text;
    order->folder = folder;
    embedded_set(order, "batch_size=%d", batch);
    embedded_run_well(order, result);
    embedded_tensor(result, "head.weight", weight, features);
}

static void N04_clipping_by_the_one_global_norm(void **state)
{
    (void)state;
    for (int workers = 1; workers <= 3; workers++)
        for (int way = 0; way < CLUSTER_WAYS; way++) {
            struct embedded_order order = {.workers = workers};
            struct embedded_result result;
            float w[3];
            cluster_jobs_way(&order, &cluster_ways[way]);
            embedded_set(&order, "optimizer.lr=1");
            embedded_set(&order, "optimizer.clip_norm=1");
            embedded_set(&order, "optimizer.freeze=[\"head.bias\"]");
            one_step(&order, "3,4,12,-1\n3,4,12,-1\n3,4,12,-1\n", w, 3, &result);
            embedded_near("norm", result.steps[0].grad_norm, 13, 1e-6);
            embedded_near("3", w[0], -0.23076921, 1e-7);
            embedded_near("4", w[1], -0.30769229, 1e-7);
            embedded_near("12", w[2], -0.92307685, 1e-7);
            embedded_result_close(&result);
        }
}

/* A bias of gradient 5 beside (3,4) and (12) counts once, whoever holds it. */
static void N04_a_bias_counts_once(void **state)
{
    (void)state;
    for (int workers = 1; workers <= 3; workers++)
        for (int way = 0; way < CLUSTER_WAYS; way++) {
            struct embedded_order order = {.workers = workers};
            struct embedded_result result;
            float w[3];
            cluster_jobs_way(&order, &cluster_ways[way]);
            embedded_set(&order, "optimizer.lr=1");
            embedded_set(&order, "optimizer.clip_norm=1");
            if (order.servers == 3)
                embedded_set(&order, "parallel.update_at=worker");
            one_step(&order, "0.6,0.8,2.4,-5\n0.6,0.8,2.4,-5\n0.6,0.8,2.4,-5\n", w, 3, &result);
            embedded_near("norm", result.steps[0].grad_norm, 13.92838828, 1e-6);
            embedded_near("12", w[2], -12 / (13.92838828 + 1e-6), 1e-6);
            embedded_result_close(&result);
        }
}

/* Weights (2,-1) from a file, a gradient of (1,-0.5) that does not feel them: x is small and the target huge. */
static void N05_decoupled_weight_decay(void **state)
{
    static const struct {
        const char *kind;
        double wanted[3][2];
    } rows[] = {
        {"adamw", {{1.88, -0.89}, {1.7612, -0.7811}, {1.643588, -0.67328901}}},
        {"adam", {{1.9, -0.9}, {1.80002269, -0.80004734}, {1.70008339, -0.70017457}}},
    };
    char init[EMBEDDED_TEXT + 32];
    float weight[2] = {2, -1}, bias = 0;
    struct errbuf err;
    (void)state;
    errbuf_init(&err);
    const struct safetensors_tensor tensors[] = {
        {.name = "head.weight", .dims = 2, .shape = {1, 2}, .count = 2, .data = weight, .bytes = 8},
        {.name = "head.bias", .dims = 1, .shape = {1}, .count = 1, .data = &bias, .bytes = 4}};
    snprintf(init, sizeof init, "%s/two-one.safetensors", folder);
    assert_int_equal(safetensors_write(init, tensors, 2, NULL, 0, NULL, &err), 0);
    for (int r = 0; r < 2; r++)
        for (int run = 0; run < 3 * CLUSTER_WAYS; run++) {
            int steps = 1 + run / CLUSTER_WAYS;
            struct embedded_order order = {.workers = steps, .init = init};
            struct embedded_result result;
            float w[2];
            cluster_jobs_way(&order, &cluster_ways[run % CLUSTER_WAYS]);
            embedded_set(&order, "optimizer.kind=%s", rows[r].kind);
            embedded_set(&order, "optimizer.weight_decay=0.1");
            embedded_set(&order, "optimizer.freeze=[\"head.bias\"]");
            embedded_set(&order, "steps=%d", steps);
            one_step(&order, "1e-9,-5e-10,-1e9\n1e-9,-5e-10,-1e9\n1e-9,-5e-10,-1e9\n", w, 2, &result);
            embedded_near(rows[r].kind, w[0], rows[r].wanted[steps - 1][0], 1e-6);
            embedded_near(rows[r].kind, w[1], rows[r].wanted[steps - 1][1], 1e-6);
            embedded_result_close(&result);
        }
}

/* --- N06 ----------------------------------------------------------------------------------------------------- */

/* Three steps of S1 with Adam in one mode and world, the rest in another: the losses go on as if nothing had happened. */
struct n06_end {
    int way, workers;
};

static void save_after_three_steps(const struct embedded_order *order, int way, char from[EMBEDDED_TEXT + 64])
{
    struct embedded_order first = *order;
    struct embedded_result result;
    cluster_jobs_way(&first, &cluster_ways[way]);
    embedded_set(&first, "snapshot.dir=n06-%d-%d", way, order->workers);
    embedded_set(&first, "steps=3");
    embedded_run_well(&first, &result);
    embedded_near("after three steps", embedded_last(&result)->loss, 0.24489119, 1e-6);
    embedded_result_close(&result);
    snprintf(from, EMBEDDED_TEXT + 64, "%s/n06-%d-%d/step-00000003", folder, way, order->workers);
}

static void go_on(const struct embedded_order *order, const char *from, const struct n06_end *end)
{
    struct embedded_order after = *order;
    struct embedded_result result;
    char what[64];
    cluster_jobs_way(&after, &cluster_ways[end->way]);
    after.workers = end->workers;
    after.resume = 1;
    after.resume_path = from;
    after.name = "n06-after";
    embedded_set(&after, "snapshot.dir=n06-after-%d-%d", end->way, end->workers);
    embedded_run_well(&after, &result);
    snprintf(what, sizeof what, "%s on %d workers", cluster_ways[end->way].mode, end->workers);
    int shown = result.steps_count; /* the metrics file goes on: the last two are this run's */
    assert_true(shown >= 2);
    embedded_near(what, result.steps[shown - 2].loss, 0.24489119, 1e-6);
    embedded_near(what, result.steps[shown - 1].loss, 0.17865177, 1e-6);
    embedded_near(what, embedded_last(&result)->loss, 0.13341953, 1e-6);
    embedded_result_close(&result);
}

static void N06_resume_on_another_world_and_in_another_mode(void **state)
{
    (void)state;
    for (int way = 1; way < CLUSTER_WAYS; way++) /* from two servers, and from every ring */
        for (int workers = 4; workers >= 1; workers -= 3) {
            struct embedded_order order = {.yaml = s1, .workers = workers, .folder = folder, .name = "n06"};
            char from[EMBEDDED_TEXT + 64];
            if (way == 2)
                continue;
            embedded_set(&order, "optimizer.kind=adam");
            embedded_set(&order, "optimizer.lr=0.1");
            save_after_three_steps(&order, way, from);
            for (int i = 0; i < CLUSTER_WAYS; i++) { /* three servers for two workers, ddp for one, … */
                struct n06_end end = {i, workers == 1 ? 2 + i % 3 : 1 + (i + 1) % 3};
                go_on(&order, from, &end);
            }
        }
}

/* --- N10 ----------------------------------------------------------------------------------------------------- */

/* Two workers whose gradients are 2 and 4. */
static void N10_mean_by_default_and_sum_by_name(void **state)
{
    static const struct {
        const char *set;
        double wanted;
    } rows[] = {{"parallel.aggregate=mean", -0.3}, {"parallel.aggregate=sum", -0.6}, {"name=default", -0.3}};
    (void)state;
    for (int r = 0; r < 3; r++)
        for (int run = 0; run < 2 * CLUSTER_WAYS; run++) {
            struct embedded_order order = {.workers = 1 + run / CLUSTER_WAYS};
            struct embedded_result result;
            float w;
            cluster_jobs_way(&order, &cluster_ways[run % CLUSTER_WAYS]);
            embedded_set(&order, "%s", rows[r].set);
            embedded_set(&order, "optimizer.freeze=[\"head.bias\"]");
            one_step(&order, "1,-2\n1,-4\n", &w, 1, &result);
            embedded_near(rows[r].set, w, rows[r].wanted, 1e-6);
            embedded_near("loss is the mean all the same", result.steps[0].loss, 5, 1e-6);
            embedded_result_close(&result);
        }
}

/* The sum of four rows moves as far at a quarter of the rate. */
static void N10_the_sum_of_four_at_a_quarter_of_the_rate(void **state)
{
    static const double losses[] = {0.69314718, 0.22782775, 0.16158376, 0.12855686, 0.10778109};
    (void)state;
    for (int run = 0; run < 4 * CLUSTER_WAYS; run++) {
        struct embedded_order order = {.yaml = s1, .workers = 1 + run / CLUSTER_WAYS, .folder = folder};
        struct embedded_result result;
        cluster_jobs_way(&order, &cluster_ways[run % CLUSTER_WAYS]);
        embedded_set(&order, "optimizer.kind=sgd");
        embedded_set(&order, "optimizer.lr=0.125");
        embedded_set(&order, "parallel.aggregate=sum");
        embedded_run_well(&order, &result);
        for (int i = 0; i < 5; i++)
            embedded_near("loss", result.steps[i].loss, losses[i], 1e-6);
        embedded_result_close(&result);
    }
}

static void N10_the_batch_is_said_with_its_shares(void **state)
{
    (void)state;
    for (int w = 0; w < CLUSTER_WAYS; w++) {
        struct embedded_order order = {.yaml = s1, .workers = 2, .folder = folder};
        struct embedded_result result;
        cluster_jobs_way(&order, &cluster_ways[w]);
        embedded_set(&order, "optimizer.kind=sgd");
        embedded_set(&order, "optimizer.lr=0.1");
        embedded_run_well(&order, &result);
        assert_non_null(strstr(result.output, "batch 4 = 2 workers x 2"));
        embedded_result_close(&result);
    }
}

/* --- N14 ----------------------------------------------------------------------------------------------------- */

/* "digest of step K HEX, the same on N workers" */
static void digest_of(const struct embedded_result *result, int step, int workers, char hex[129])
{
    char begin[64], end[64];
    snprintf(begin, sizeof begin, "digest of step %d ", step);
    snprintf(end, sizeof end, ", the same on %d workers", workers);
    const char *at = strstr(result->output, begin);
    if (at == NULL || sscanf(at + strlen(begin), "%128[0-9a-f]", hex) != 1 ||
        strncmp(at + strlen(begin) + strlen(hex), end, strlen(end)) != 0)
        fail_msg("no digest of step %d on %d workers:\n%s", step, workers, result->output);
}

static void N14_the_same_digest_at_the_start_and_at_the_end(void **state)
{
    char yaml[2048], start[129], end[129], first[129] = "", last[129] = "";
    (void)state;
    cluster_jobs_mlp(yaml, sizeof yaml);
    for (int run = 0; run < 4 * CLUSTER_WAYS; run++) {
        int workers = 1 + run / CLUSTER_WAYS;
        struct embedded_order order = {.yaml = yaml, .workers = workers, .folder = folder};
        struct embedded_result result;
        cluster_jobs_way(&order, &cluster_ways[run % CLUSTER_WAYS]);
        if (workers == 4)
            embedded_set(&order, "parallel.digest_every=1");
        embedded_run_well(&order, &result);
        digest_of(&result, 0, workers, start);
        digest_of(&result, 8, workers, end);
        assert_string_not_equal(start, end);
        if (run == 0)
            memcpy(first, start, sizeof first);
        assert_string_equal(start, first); /* one source: the seed, not the rank */
        if (run % CLUSTER_WAYS == 0)
            memcpy(last, end, sizeof last);
        assert_string_equal(end, last); /* and whatever the mode */
        embedded_result_close(&result);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(N02_a_worker_without_rows_idles),
        cmocka_unit_test(N02_three_samples_for_four_workers),
        cmocka_unit_test(N02_three_rows_for_four_workers),
        cmocka_unit_test(N03_ten_thousand_test_images_are_ten_thousand),
        cmocka_unit_test(N03_twenty_one_rows_are_twenty_one),
        cmocka_unit_test(N04_clipping_by_the_one_global_norm),
        cmocka_unit_test(N04_a_bias_counts_once),
        cmocka_unit_test(N05_decoupled_weight_decay),
        cmocka_unit_test(N06_resume_on_another_world_and_in_another_mode),
        cmocka_unit_test(N10_mean_by_default_and_sum_by_name),
        cmocka_unit_test(N10_the_sum_of_four_at_a_quarter_of_the_rate),
        cmocka_unit_test(N10_the_batch_is_said_with_its_shares),
        cmocka_unit_test(N14_the_same_digest_at_the_start_and_at_the_end),
    };

    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
