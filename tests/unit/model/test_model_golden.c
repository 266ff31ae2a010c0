/* PyTorch 1.13's answers for a 3-layer MLP, 20 steps of AdamW with clipping (tests/golden/make_mlp.py), from its
 * own initial weights, which are read from a safetensors file as a PyTorch user would write it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "tests/lib/reference.h"

enum { ROWS = 60, FEATURES = 10, CLASSES = 4, STEPS = 20 };

struct variant {
    const char *name;
    enum job_activation activation;
    int norm;
};
static const struct variant variants[] = {
    {"relu", JOB_ACTIVATION_RELU, 0},           {"gelu", JOB_ACTIVATION_GELU, 0},
    {"gelu_tanh", JOB_ACTIVATION_GELU_TANH, 1}, {"tanh", JOB_ACTIVATION_TANH, 0},
    {"relu_norm", JOB_ACTIVATION_RELU, 1},
};

static int64_t hidden[] = {16, 12};
static float x[ROWS * FEATURES];
static int32_t labels[ROWS];
static const struct reference_data data = {
    .x = x, .labels = labels, .rows = ROWS, .features = FEATURES, .outputs = CLASSES};

static void make_data(void)
{
    for (int r = 0; r < ROWS; r++) {
        for (int f = 0; f < FEATURES; f++)
            x[r * FEATURES + f] = (float)sin(0.7 * r + 1.3 * f + 0.05 * r * f);
        labels[r] = (3 * r + r * r / 7) % CLASSES;
    }
}

static void golden_job(struct job *job, const struct variant *variant)
{
    static char *globs[] = {"layers.*.linear.bias"};
    reference_job(job);
    job->batch_size = 16;
    job->epochs = 5;
    job->model.kind = JOB_MODEL_MLP;
    job->model.hidden = hidden;
    job->model.hidden_count = 2;
    job->model.activation = variant->activation;
    job->model.batch_norm = variant->norm;
    job->optimizer.kind = JOB_ADAMW;
    job->optimizer.lr = 0.02;
    job->optimizer.weight_decay = 0.05;
    job->optimizer.clip_norm = 0.5;
    /* before a norm its gradient is 0 but for rounding, which Adam would blow up to whole steps of lr */
    job->optimizer.freeze = (struct job_strings){globs, variant->norm};
}

static void near(const char *name, int step, double found, double wanted)
{
    if (!(fabs(found - wanted) <= 1e-5 * fmax(1, fabs(wanted))))
        fail_msg("%s, step %d: found %.9g, PyTorch %.9g", name, step + 1, found, wanted);
}

static void compare(struct reference *reference, const char *name)
{
    char path[512];
    double loss, norm;
    snprintf(path, sizeof path, "%s/tests/golden/mlp_%s.txt", SHOAL_SOURCE_DIR, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (int step = 0; step < STEPS; step++) {
        assert_int_equal(fscanf(file, "%lf %lf", &loss, &norm), 2);
        assert_int_equal(reference_step(reference, NULL), STATUS_OK);
        near(name, step, reference->loss, loss);
        near(name, step, reference->grad_norm, norm);
    }
    assert_int_equal(fscanf(file, "%lf", &loss), 1);
    near(name, STEPS, reference_evaluate(reference, &data, NULL), loss);
    fclose(file);
}

static void twenty_steps_of_adamw_match_pytorch(void **state)
{
    (void)state;
    make_data();
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
        char path[512];
        struct job job;
        struct reference reference;
        struct errbuf err;
        errbuf_init(&err);
        golden_job(&job, &variants[v]);
        snprintf(path, sizeof path, "%s/tests/golden/mlp_%s.safetensors", SHOAL_SOURCE_DIR, variants[v].name);
        if (reference_open(&reference, &job, &data, 1, 1, &err) != STATUS_OK ||
            model_import(reference.model, path, reference.w, &err) != STATUS_OK)
            fail_msg("%s", err.text);
        compare(&reference, variants[v].name);
        reference_close(&reference);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(twenty_steps_of_adamw_match_pytorch)};
    return cmocka_run_group_tests_name("model_golden", tests, NULL, NULL);
}
