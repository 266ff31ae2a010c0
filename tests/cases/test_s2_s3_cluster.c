/* S2 and S3 on whole clusters and real files: the oracle's losses and counts in every mode and for any number of workers. N02's
 * unequal shares are among them: 270 rows on 4 workers, batches of 32 on 3. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/cases/cluster_jobs.h"
#include "tests/lib/embedded.h"

static const char heart[] = "/usr/share/doc/liblinear-tools/examples/heart_scale";
static const char fashion[] = "/usr/share/datasets/fashion-mnist";
static const char sklearn[] = "/usr/lib/python3/dist-packages/sklearn/datasets/data";

static char folder[EMBEDDED_TEXT];

static int open_folder(void **state)
{
    (void)state;
    embedded_folder_create(folder);
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    embedded_folder_remove(folder);
    return 0;
}

struct oracle {
    const char *name;
    int rows, right;
    struct {
        int step; /* updates done */
        double loss;
    } losses[4];
};

/* The last oracle loss is that of the evaluation on the training rows. */
static void full_batch(const struct oracle *oracle, const char *yaml)
{
    char what[128];
    int last = 0;
    while (last < 3 && oracle->losses[last + 1].loss != 0)
        last++;
    for (int run = 0; run < 4 * CLUSTER_WAYS; run++) {
        const struct cluster_way *way = &cluster_ways[run % CLUSTER_WAYS];
        struct embedded_order order = {.yaml = yaml, .workers = 1 + run / CLUSTER_WAYS, .folder = folder};
        struct embedded_result result;
        if (way->servers > 0 && way->servers != 1 + order.workers % 3)
            continue; /* one number of servers for each of workers */
        cluster_jobs_way(&order, way);
        embedded_set(&order, "steps=%d", oracle->losses[last].step);
        embedded_set(&order, "accumulate=%d", 1 + run % 2);
        embedded_run_well(&order, &result);
        for (int i = 0; i <= last; i++) {
            snprintf(what, sizeof what, "%s, %s, %d workers, loss after %d", oracle->name, way->mode, order.workers,
                     oracle->losses[i].step);
            embedded_near(what, i < last ? result.steps[oracle->losses[i].step].loss : embedded_last(&result)->loss,
                          oracle->losses[i].loss, 1e-4);
        }
        embedded_near("right predictions", (double)embedded_right(&result, oracle->rows), oracle->right, 1);
        embedded_result_close(&result);
    }
}

static void S2_heart_scale(void **state)
{
    static const struct oracle oracle = {"heart_scale", 270, 227, {{0, 0.69314718}, {1, 0.45628108}, {50, 0.34170109}}};
    char yaml[2048];
    (void)state;
    cluster_jobs_need(heart, "liblinear-tools");
    snprintf(yaml, sizeof yaml,
             "batch_size: 270\ndata: {kind: libsvm, train: {file: %s}, test: {file: %s}}\n"
             "model: {kind: linear, init: zeros}\noptimizer: {kind: sgd, lr: 1.0}\n",
             heart, heart);
    full_batch(&oracle, yaml);
}

static void csv_job(char *yaml, size_t bytes, const char *file, int batch, const char *more_data, double lr)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", sklearn, file);
    cluster_jobs_need(path, "python3-sklearn");
    snprintf(yaml, bytes,
             "batch_size: %d\ndata: {kind: csv, train: {file: %s}, test: {file: %s}%s}\n"
             "model: {kind: linear, init: zeros}\noptimizer: {kind: sgd, lr: %g}\n",
             batch, path, path, more_data, lr);
}

static void S2_iris(void **state)
{
    static const struct oracle oracle = {
        "iris", 150, 147, {{0, 1.09861229}, {1, 1.03236722}, {10, 0.85650918}, {200, 0.26204785}}};
    char yaml[2048];
    (void)state;
    csv_job(yaml, sizeof yaml, "iris.csv", 150, ", header_lines: 1", 0.1);
    full_batch(&oracle, yaml);
}

static void S2_digits(void **state)
{
    static const struct oracle oracle = {
        "digits", 1797, 1713, {{0, 2.30258509}, {1, 2.11065219}, {10, 1.10524890}, {100, 0.27446484}}};
    char yaml[2048];
    (void)state;
    csv_job(yaml, sizeof yaml, "digits.csv.gz", 1797, ", scale: {divide: 16}", 1.0);
    full_batch(&oracle, yaml);
}

static void S2_breast_cancer(void **state)
{
    static const struct oracle oracle = {
        "breast_cancer", 569, 561, {{0, 0.69314718}, {1, 0.16959117}, {10, 0.09309339}, {100, 0.06027283}}};
    char yaml[2048];
    (void)state;
    csv_job(yaml, sizeof yaml, "breast_cancer.csv", 569, ", header_lines: 1, scale: {standardize: true}", 0.5);
    full_batch(&oracle, yaml);
}

static void fashion_job(char *yaml, size_t bytes, const char *length, int batch)
{
    char path[512];
    snprintf(path, sizeof path, "%s/train-images-idx3-ubyte.gz", fashion);
    cluster_jobs_need(path, "dataset-fashion-mnist");
    snprintf(yaml, bytes,
             "%s\nbatch_size: %d\ndata:\n  kind: idx\n  order: sequential\n"
             "  train: {images: %s/train-images-idx3-ubyte.gz, labels: %s/train-labels-idx1-ubyte.gz}\n"
             "  test: {images: %s/t10k-images-idx3-ubyte.gz, labels: %s/t10k-labels-idx1-ubyte.gz}\n"
             "model: {kind: linear, init: zeros}\noptimizer: {kind: sgd, lr: 0.1}\n"
             "cluster: {timeouts: {start: 280}}\n", /* every role reads 60,000 images, on however busy a machine */
             length, batch, fashion, fashion, fashion, fashion);
}

/* Whole images are a second of work each time: every number of workers once, every mode once. */
static const struct {
    int way, workers;
} fashion_runs[] = {{1, 2}, {3, 1}, {4, 2}, {5, 3}, {6, 4}};
enum { FASHION_RUNS = sizeof fashion_runs / sizeof *fashion_runs };

/* The evaluation is at step 20; the 21st step tells the training loss after 20. */
static void S2_fashion_mnist(void **state)
{
    static const int at[] = {0, 1, 2, 5, 10, 20};
    static const double losses[] = {2.30258509, 2.07707567, 1.91860202, 1.59041025, 1.30283410, 1.05664812};
    char yaml[2048];
    (void)state;
    fashion_job(yaml, sizeof yaml, "steps: 21", 60000);
    for (int run = 0; run < FASHION_RUNS; run++) {
        struct embedded_order order = {.yaml = yaml, .workers = fashion_runs[run].workers, .folder = folder,
                                       .seconds = 300};
        struct embedded_result result;
        cluster_jobs_way(&order, &cluster_ways[fashion_runs[run].way]);
        embedded_set(&order, "evaluate.every=20");
        embedded_run_well(&order, &result);
        for (int i = 0; i < 6; i++)
            embedded_near("Fashion-MNIST, loss", result.steps[at[i]].loss, losses[i], 1e-4);
        assert_int_equal(result.evaluations[0].step, 20);
        embedded_near("right of 10,000", result.evaluations[0].accuracy * 10000, 6739, 3.5);
        assert_non_null(strstr(result.output, "of 10000)"));
        embedded_result_close(&result);
    }
}

static void S3_fashion_mnist(void **state)
{
    char yaml[2048];
    (void)state;
    fashion_job(yaml, sizeof yaml, "epochs: 1", 600);
    for (int run = 0; run < FASHION_RUNS; run++) {
        struct embedded_order order = {.yaml = yaml, .workers = 5 - fashion_runs[run].workers, .folder = folder,
                                       .seconds = 300};
        struct embedded_result result;
        cluster_jobs_way(&order, &cluster_ways[fashion_runs[run].way]);
        embedded_run_well(&order, &result);
        assert_int_equal(result.steps_count, 100);
        embedded_near("test loss", embedded_last(&result)->loss, 0.73434673, 1e-4);
        embedded_near("right of 10,000", embedded_last(&result)->accuracy * 10000, 7540, 3.5);
        embedded_result_close(&result);
    }
}

struct epochs {
    int batch, epochs;
    double loss;
    int right;
};

static void batches(const struct epochs *row, const struct cluster_way *way, int workers)
{
    char yaml[2048], what[128];
    struct embedded_result result;
    int64_t samples = 0;
    cluster_jobs_need(heart, "liblinear-tools");
    snprintf(yaml, sizeof yaml,
             "epochs: %d\nbatch_size: %d\n"
             "data: {kind: libsvm, train: {file: %s}, test: {file: %s}, order: sequential}\n"
             "model: {kind: linear, init: zeros}\noptimizer: {kind: sgd, lr: 0.1}\n",
             row->epochs, row->batch, heart, heart);
    struct embedded_order order = {.yaml = yaml, .workers = workers, .folder = folder};
    cluster_jobs_way(&order, way);
    embedded_set(&order, "accumulate=%d", 1 + workers % 2);
    embedded_run_well(&order, &result);
    snprintf(what, sizeof what, "batch %d, %s, %d workers, %d epochs", row->batch, way->mode, workers, row->epochs);
    embedded_near(what, embedded_last(&result)->loss, row->loss, 1e-5);
    embedded_near(what, (double)embedded_right(&result, 270), row->right, 1);
    for (int i = 0; i < result.steps_count; i++)
        samples += result.steps[i].samples;
    assert_int_equal(samples, 270 * row->epochs); /* each sample once an epoch */
    embedded_result_close(&result);
}

static void batches_everywhere(const struct epochs *row)
{
    for (int run = 0; run < 4 * CLUSTER_WAYS; run++)
        batches(row, &cluster_ways[run % CLUSTER_WAYS], 1 + run / CLUSTER_WAYS);
}

static void S3_batches_of_thirty(void **state)
{
    static const struct epochs one = {30, 1, 0.49196363, 226}, five = {30, 5, 0.38521108, 227};
    (void)state;
    batches_everywhere(&one);
    batches_everywhere(&five);
}

static void S3_N02_batches_of_thirty_two_whose_last_has_fourteen_rows(void **state)
{
    static const struct epochs row = {32, 1, 0.49449328, 226};
    (void)state;
    batches_everywhere(&row);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(S2_heart_scale),
        cmocka_unit_test(S2_iris),
        cmocka_unit_test(S2_digits),
        cmocka_unit_test(S2_breast_cancer),
        cmocka_unit_test(S2_fashion_mnist),
        cmocka_unit_test(S3_fashion_mnist),
        cmocka_unit_test(S3_batches_of_thirty),
        cmocka_unit_test(S3_N02_batches_of_thirty_two_whose_last_has_fourteen_rows),
    };

    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
