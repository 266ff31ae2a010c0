#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/errbuf.h"
#include "base/pool.h"
#include "base/rng.h"
#include "base/status.h"
#include "tests/lib/reference.h"
#include "tests/unit/model/fixture.h"

static void mlp_lists_its_tensors_as_pytorch_names_them(void **state)
{
    (void)state;
    static const char *const names[] = {"layers.0.linear.weight",
                                        "layers.0.linear.bias",
                                        "layers.0.norm.weight",
                                        "layers.0.norm.bias",
                                        "layers.1.linear.weight",
                                        "layers.1.linear.bias",
                                        "layers.1.norm.weight",
                                        "layers.1.norm.bias",
                                        "head.weight",
                                        "head.bias"};
    struct fixture fixture;
    fixture_job(&fixture);
    fixture.job.model.batch_norm = 1;
    fixture_open(&fixture, NULL);
    const struct param_table *table = model_params(fixture.model);
    assert_int_equal(table->tensor_count, 10);
    for (int i = 0; i < 10; i++)
        assert_string_equal(table->tensors[i].name, names[i]);
    assert_int_equal(table->layer_count, 3);
    assert_int_equal(model_layers(fixture.model), 3);
    assert_int_equal(table->layers[1].count, 6 * 7 + 6 + 6 + 6);
    assert_int_equal(table->tensors[4].shape[0], 6); /* (out, in) */
    assert_int_equal(table->tensors[4].shape[1], 7);
    const int64_t *features;
    assert_int_equal(model_norms(fixture.model, &features), 2);
    assert_int_equal(features[0], 7);
    assert_int_equal(features[1], 6);
    assert_int_equal(model_buffers(fixture.model)->count, 26);
    assert_true(model_buffers(fixture.model)->values[0] == 0 && model_buffers(fixture.model)->values[7] == 1);
    fixture_close(&fixture);
}

static void linear_is_a_head(void **state)
{
    (void)state;
    struct fixture fixture;
    fixture_job(&fixture);
    fixture.job.model.kind = JOB_MODEL_LINEAR;
    fixture_open(&fixture, NULL);
    const struct param_table *table = model_params(fixture.model);
    assert_int_equal(table->tensor_count, 2);
    assert_string_equal(table->tensors[0].name, "head.weight");
    assert_string_equal(table->tensors[1].name, "head.bias");
    assert_int_equal(model_outputs(fixture.model), FIXTURE_OUTPUTS);
    assert_int_equal(model_features(fixture.model), FIXTURE_FEATURES);
    fixture_close(&fixture);
}

static void starts_uniform_within_the_root_of_fan_in(void **state)
{
    (void)state;
    struct fixture fixture;
    fixture_job(&fixture);
    fixture.hidden[0] = 4000;
    fixture.job.model.batch_norm = 1;
    fixture_open(&fixture, NULL);
    const double bound = 1 / sqrt(5);
    double sum = 0, largest = 0;
    for (int i = 0; i < 20000; i++) {
        sum += fixture.w[i];
        largest = fmax(largest, fabs(fixture.w[i]));
    }
    assert_true(largest <= bound && largest > 0.999 * bound);
    assert_true(fabs(sum / 20000) < 0.01);
    float first = rng_uniform(1, RNG_SITE_INIT + 1, 0, 3); /* tensor 1, element 3 */
    assert_true(fixture.w[20003] == (float)((2.0 * first - 1) * bound));
    for (int i = 24000; i < 28000; i++)
        assert_true(fixture.w[i] == 1 && fixture.w[i + 4000] == 0);
    fixture_close(&fixture);
}

static void starts_at_zero_when_told_but_norms_at_one(void **state)
{
    (void)state;
    struct fixture fixture;
    fixture_job(&fixture);
    fixture.job.model.init = JOB_INIT_ZEROS;
    fixture.job.model.batch_norm = 1;
    fixture_open(&fixture, NULL);
    const struct param_table *table = model_params(fixture.model);
    for (int t = 0; t < table->tensor_count; t++) {
        const float *w = fixture.w + table->layers[table->tensors[t].layer].offset + table->tensors[t].offset;
        int one = strstr(table->tensors[t].name, "norm.weight") != NULL;
        for (int64_t i = 0; i < table->tensors[t].count; i++)
            assert_true(w[i] == (one ? 1 : 0));
    }
    fixture_close(&fixture);
}

/* Tries model_create and expects `status` and `text` in the error. */
static void refused(const struct job *job, int64_t features, int64_t outputs, int status, const char *text)
{
    struct account account;
    struct errbuf err;
    struct model *model = NULL;
    errbuf_init(&err);
    account_init(&account);
    assert_int_equal(model_create(&model, job, features, outputs, 4, NULL, &account, &err), status);
    assert_null(model);
    if (!strstr(err.text, text))
        fail_msg("\"%s\" does not say %s", err.text, text);
}

static void refuses_what_it_cannot_be(void **state)
{
    (void)state;
    struct fixture fixture;
    fixture_job(&fixture);
    refused(&fixture.job, 0, 3, STATUS_INVALID, "features");
    refused(&fixture.job, 5, 0, STATUS_INVALID, "outputs");
    fixture.hidden[1] = 0;
    refused(&fixture.job, 5, 3, STATUS_INVALID, "model.hidden");
    fixture.hidden[1] = INT64_C(1) << 39;
    refused(&fixture.job, 5, 3, STATUS_RANGE, "layers.1.linear.weight");
    fixture_job(&fixture);
    fixture.job.model.dropout = 1;
    refused(&fixture.job, 5, 3, STATUS_INVALID, "model.dropout");
    fixture_job(&fixture);
    fixture.job.model.outputs = 2;
    refused(&fixture.job, 5, 3, STATUS_INVALID, "model.outputs");
    fixture.job.model.loss = JOB_LOSS_MSE;
    fixture.job.model.outputs = 4;
    refused(&fixture.job, 5, 3, STATUS_INVALID, "model.outputs");
    fixture_job(&fixture);
    char *globs[] = {"layer.*"};
    fixture.job.optimizer.freeze.items = globs;
    fixture.job.optimizer.freeze.count = 1;
    refused(&fixture.job, 5, 3, STATUS_UNKNOWN, "optimizer.freeze: no tensor matches \"layer.*\"");
    fixture.job.optimizer.freeze.count = 0;
    fixture.job.optimizer.no_decay = (struct job_strings){globs, 1};
    refused(&fixture.job, 5, 3, STATUS_UNKNOWN, "optimizer.no_decay");
    fixture.job.model.kind = JOB_MODEL_NONE;
    refused(&fixture.job, 5, 3, STATUS_INVALID, "model.kind");
}

static void a_batch_larger_than_agreed_is_an_error(void **state)
{
    (void)state;
    struct fixture fixture;
    struct errbuf err;
    errbuf_init(&err);
    fixture_job(&fixture);
    fixture_open(&fixture, NULL);
    struct model_batch batch = fixture_batch(&fixture, 0, FIXTURE_ROWS + 1);
    assert_int_equal(model_forward(fixture.model, 0, fixture.w, &batch, NULL, &err), STATUS_RANGE);
    assert_non_null(strstr(err.text, "14 rows"));
    fixture_close(&fixture);
}

static void every_failed_allocation_is_reported_and_nothing_leaks(void **state)
{
    (void)state;
    struct fixture fixture;
    struct account account;
    struct errbuf err;
    fixture_job(&fixture);
    fixture.job.model.batch_norm = 1;
    fixture.job.model.dropout = 0.1;
    int failed = 0, status = STATUS_NOMEM;
    for (int n = 1; status != STATUS_OK; n++) {
        struct model *model = NULL;
        errbuf_init(&err);
        account_init(&account);
        account_fail_after(&account, n);
        status = model_create(&model, &fixture.job, 5, 3, 4, NULL, &account, &err);
        assert_true(status == STATUS_OK || (status == STATUS_NOMEM && strstr(err.text, "out of memory")));
        failed += status != STATUS_OK;
        model_destroy(model);
        for (int kind = 0; kind < ACCOUNT_KINDS; kind++)
            assert_int_equal(account.bytes[kind], 0);
    }
    assert_true(failed > 15);
}

static void steps_take_no_memory_from_the_account(void **state)
{
    (void)state;
    struct fixture fixture;
    fixture_job(&fixture);
    fixture.job.model.batch_norm = 1;
    fixture.job.model.dropout = 0.2;
    fixture_open(&fixture, NULL);
    /* z, xhat, dropped a block, logits, and two gradient buffers as wide as the widest */
    assert_int_equal(fixture.account.bytes[ACCOUNT_ACTIVATIONS], 4 * FIXTURE_ROWS * (3 * (7 + 6) + 3 + 2 * 7));
    account_fail_after(&fixture.account, 1);
    struct model_batch batch = fixture_batch(&fixture, 0, FIXTURE_ROWS);
    fixture_gradient(&fixture, &batch, 0, NULL);
    batch.training = 0;
    fixture_loss(&fixture, &batch, NULL);
    assert_int_equal(fixture.account.fail_after, 1); /* no allocation was asked for */
    fixture_close(&fixture);
}

static void evaluation_uses_running_statistics_and_no_dropout(void **state)
{
    (void)state;
    struct fixture fixture;
    fixture_job(&fixture);
    fixture.job.model.batch_norm = 1;
    fixture.job.model.dropout = 0.5;
    fixture_open(&fixture, NULL);
    struct model_batch all = fixture_batch(&fixture, 0, FIXTURE_ROWS);
    all.training = 0;
    double whole = fixture_loss(&fixture, &all, NULL), parts = 0;
    for (int r = 0; r < FIXTURE_ROWS; r++) { /* row by row is the same: nothing depends on the batch */
        struct model_batch one = fixture_batch(&fixture, r, 1);
        one.training = 0;
        parts += fixture_loss(&fixture, &one, NULL);
    }
    assert_true(fabs(whole - parts) < 1e-5);
    model_buffers(fixture.model)->values[7] = 4; /* variance of unit 0 of the first norm */
    assert_true(fabs(fixture_loss(&fixture, &all, NULL) - whole) > 1e-6);
    fixture_close(&fixture);
}

/* What a rank drops depends on the row's place in the global batch, not on the share. */
static void shares_sum_to_the_whole_with_dropout(void **state)
{
    (void)state;
    struct fixture fixture;
    fixture_job(&fixture);
    fixture.job.model.dropout = 0.4;
    fixture_open(&fixture, NULL);
    const struct param_table *table = model_params(fixture.model);
    float whole[256];
    assert_true(table->count <= 256);
    struct model_batch batch = fixture_batch(&fixture, 0, FIXTURE_ROWS);
    double loss = fixture_gradient(&fixture, &batch, 0, NULL);
    memcpy(whole, fixture.grad, (size_t)table->count * sizeof *whole);
    for (int g = 0; g < 3; g++) {
        int64_t first, rows;
        reference_share(FIXTURE_ROWS, 3, g, &first, &rows);
        batch = fixture_batch(&fixture, first, rows);
        loss -= fixture_gradient(&fixture, &batch, g > 0, NULL);
    }
    assert_true(fabs(loss) < 1e-5);
    for (int64_t i = 0; i < table->count; i++)
        assert_true(fabsf(whole[i] - fixture.grad[i]) < 1e-5f);
    fixture_close(&fixture);
}

static void weights_are_the_same_bits_for_1_2_and_3_threads(void **state)
{
    (void)state;
    enum { ROWS = 200, FEATURES = 70 };
    static float x[ROWS * FEATURES];
    static int32_t labels[ROWS];
    static int64_t hidden[] = {150, 90};
    for (int i = 0; i < ROWS * FEATURES; i++)
        x[i] = rng_uniform(3, RNG_SITE_SAMPLE, 0, (uint64_t)i);
    for (int i = 0; i < ROWS; i++)
        labels[i] = i % 7;
    const struct reference_data data = {.x = x, .labels = labels, .rows = ROWS, .features = FEATURES, .outputs = 7};
    struct job job;
    reference_job(&job);
    job.batch_size = 120;
    job.model.kind = JOB_MODEL_MLP;
    job.model.hidden = hidden;
    job.model.hidden_count = 2;
    job.model.activation = JOB_ACTIVATION_GELU;
    job.model.batch_norm = 1;
    job.model.dropout = 0.1;
    job.optimizer.kind = JOB_ADAM;
    struct reference one;
    assert_int_equal(reference_open(&one, &job, &data, 2, 1, NULL), STATUS_OK);
    for (int step = 0; step < 4; step++)
        assert_int_equal(reference_step(&one, NULL), STATUS_OK);
    for (int threads = 2; threads <= 3; threads++) {
        struct reference more;
        assert_int_equal(reference_open(&more, &job, &data, 2, threads, NULL), STATUS_OK);
        for (int step = 0; step < 4; step++)
            assert_int_equal(reference_step(&more, NULL), STATUS_OK);
        assert_memory_equal(one.w, more.w, (size_t)model_params(one.model)->count * sizeof(float));
        assert_true(one.loss == more.loss);
        reference_close(&more);
    }
    reference_close(&one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mlp_lists_its_tensors_as_pytorch_names_them),
        cmocka_unit_test(linear_is_a_head),
        cmocka_unit_test(starts_uniform_within_the_root_of_fan_in),
        cmocka_unit_test(starts_at_zero_when_told_but_norms_at_one),
        cmocka_unit_test(refuses_what_it_cannot_be),
        cmocka_unit_test(a_batch_larger_than_agreed_is_an_error),
        cmocka_unit_test(every_failed_allocation_is_reported_and_nothing_leaks),
        cmocka_unit_test(steps_take_no_memory_from_the_account),
        cmocka_unit_test(evaluation_uses_running_statistics_and_no_dropout),
        cmocka_unit_test(shares_sum_to_the_whole_with_dropout),
        cmocka_unit_test(weights_are_the_same_bits_for_1_2_and_3_threads),
    };
    return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
