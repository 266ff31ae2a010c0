/* PyTorch 1.13's answers for a 3-layer MLP, 20 steps of AdamW with clipping (tests/golden/make_mlp.py), from PyTorch's own
 * initial weights, on whole clusters of every size and mode. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/cases/cluster_jobs.h"
#include "tests/lib/embedded.h"

enum { ROWS = 60, FEATURES = 10, CLASSES = 4, STEPS = 20 };

struct variant {
    const char *name, *activation;
    int norm;
};
static const struct variant variants[] = {
    {"relu", "relu", 0}, {"gelu", "gelu", 0}, {"gelu_tanh", "gelu_tanh", 1}, {"tanh", "tanh", 0}, {"relu_norm", "relu", 1},
};
static const char *const modes[] = {"ps"};

static char folder[EMBEDDED_TEXT];

/* make_mlp.py's rows; nine digits give back the same float. */
static int open_folder(void **state)
{
    static char text[ROWS * (FEATURES + 1) * 16];
    size_t at = 0;
    (void)state;
    embedded_folder_create(folder);
    for (int r = 0; r < ROWS; r++) {
        for (int f = 0; f < FEATURES; f++)
            at += (size_t)snprintf(text + at, sizeof text - at, "%.9g,", (double)(float)sin(0.7 * r + 1.3 * f + 0.05 * r * f));
        at += (size_t)snprintf(text + at, sizeof text - at, "%d\n", (3 * r + r * r / 7) % CLASSES);
    }
    cluster_jobs_write(folder, "golden.csv", text);
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    embedded_folder_remove(folder);
    return 0;
}

static void golden_job(const struct variant *variant, char *yaml, size_t bytes)
{
    /* Before a norm a bias's gradient is 0 but for rounding, which Adam would blow up to whole steps of lr. */
    snprintf(yaml, bytes,
             "epochs: 5\nbatch_size: 16\n"
             "data: {kind: csv, train: {file: golden.csv}, test: {file: golden.csv}, order: sequential}\n"
             "model: {kind: mlp, hidden: [16, 12], activation: %s, batch_norm: %s}\n"
             "optimizer: {kind: adamw, lr: 0.02, weight_decay: 0.05, clip_norm: 0.5%s}\n"
             "%s",
             variant->activation, variant->norm ? "true" : "false",
             variant->norm ? ", freeze: [\"layers.*.linear.bias\"]" : "",
             variant->norm ? "parallel: {batch_norm_stats: global}\n" : "");
}

static void near(const char *what, int step, double found, double wanted)
{
    char text[EMBEDDED_TEXT + 32];
    snprintf(text, sizeof text, "%s, step %d", what, step + 1);
    embedded_near(text, found, wanted, 1e-5 * fmax(1, fabs(wanted)));
}

static void compare(const struct embedded_result *result, const char *name, const char *what)
{
    char path[EMBEDDED_TEXT];
    double loss, norm;
    snprintf(path, sizeof path, "%s/tests/golden/mlp_%s.txt", SHOAL_SOURCE_DIR, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(result->steps_count, STEPS);
    for (int step = 0; step < STEPS; step++) {
        assert_int_equal(fscanf(file, "%lf %lf", &loss, &norm), 2);
        near(what, step, result->steps[step].loss, loss);
        near(what, step, result->steps[step].grad_norm, norm);
    }
    assert_int_equal(fscanf(file, "%lf", &loss), 1);
    near(what, STEPS, embedded_last(result)->loss, loss);
    fclose(file);
}

static void twenty_steps_of_adamw_match_pytorch(void **state)
{
    char yaml[1024], init[EMBEDDED_TEXT], what[EMBEDDED_TEXT];
    (void)state;
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++)
        for (size_t m = 0; m < sizeof modes / sizeof *modes; m++)
            for (int workers = 1; workers <= 4; workers++) {
                struct embedded_order order = {.yaml = yaml, .workers = workers, .servers = 1 + workers % 3,
                                               .folder = folder, .init = init};
                struct embedded_result result;
                golden_job(&variants[v], yaml, sizeof yaml);
                snprintf(init, sizeof init, "%s/tests/golden/mlp_%s.safetensors", SHOAL_SOURCE_DIR, variants[v].name);
                snprintf(what, sizeof what, "%s, %s, %d workers", variants[v].name, modes[m], workers);
                embedded_set(&order, "parallel.data=%s", modes[m]);
                embedded_run_well(&order, &result);
                compare(&result, variants[v].name, what);
                embedded_result_close(&result);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(twenty_steps_of_adamw_match_pytorch)};
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
