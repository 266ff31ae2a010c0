/* The gradient of whole models against central differences of their loss. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "base/status.h"
#include "tests/unit/model/fixture.h"

/* Loss with the whole tensor moved by h along direction. */
static double moved_loss(struct fixture *fixture, const struct param_tensor *tensor, int64_t at, double h,
                         uint32_t direction)
{
    float saved[64];
    assert_true(tensor->count <= 64);
    memcpy(saved, fixture->w + at, (size_t)tensor->count * sizeof *saved);
    for (int64_t i = 0; i < tensor->count; i++)
        fixture->w[at + i] += (float)(h * rng_normal(11, direction, 0, (uint64_t)i));
    struct model_batch batch = fixture_batch(fixture, 0, FIXTURE_ROWS);
    double loss = fixture_loss(fixture, &batch, NULL);
    memcpy(fixture->w + at, saved, (size_t)tensor->count * sizeof *saved);
    return loss;
}

/* The loss is a sum over 13 rows of float32 logits: noise about 1e-6, over 2h gives 3e-4; curvature adds h². */
static void check_tensor(struct fixture *fixture, const struct param_tensor *tensor, uint32_t direction,
                         const char *what)
{
    const double h = 2e-3;
    int64_t at = model_params(fixture->model)->layers[tensor->layer].offset + tensor->offset;
    double slope = 0, squares = 0;
    for (int64_t i = 0; i < tensor->count; i++) {
        slope += rng_normal(11, direction, 0, (uint64_t)i) * fixture->grad[at + i];
        squares += (double)fixture->grad[at + i] * fixture->grad[at + i];
    }
    double measured =
        (moved_loss(fixture, tensor, at, h, direction) - moved_loss(fixture, tensor, at, -h, direction)) / (2 * h);
    if (!(fabs(measured - slope) <= 3e-3 + 3e-3 * sqrt(squares)))
        fail_msg("%s, %s: slope %.6f, measured %.6f", what, tensor->name, slope, measured);
}

static void check_gradient(struct fixture *fixture, const char *what)
{
    fixture_open(fixture, NULL);
    struct model_batch batch = fixture_batch(fixture, 0, FIXTURE_ROWS);
    fixture_gradient(fixture, &batch, 0, NULL);
    const struct param_table *table = model_params(fixture->model);
    for (int t = 0; t < table->tensor_count; t++)
        for (uint32_t direction = 0; direction < 3; direction++)
            check_tensor(fixture, &table->tensors[t], direction, what);
    fixture_close(fixture);
}

static void every_activation_norm_and_dropout_has_its_gradient(void **state)
{
    (void)state;
    for (int activation = JOB_ACTIVATION_GELU; activation <= JOB_ACTIVATION_NONE; activation++)
        for (int combination = 0; combination < 4; combination++) {
            struct fixture fixture;
            char what[80];
            fixture_job(&fixture);
            fixture.job.model.activation = (enum job_activation)activation;
            fixture.job.model.batch_norm = combination & 1;
            fixture.job.model.dropout = combination & 2 ? 0.3 : 0;
            snprintf(what, sizeof what, "activation %d, norm %d, dropout %g", activation,
                     fixture.job.model.batch_norm, fixture.job.model.dropout);
            check_gradient(&fixture, what);
        }
}

/* A move may cross relu's kink; with first biases at +-6 no unit of the first layer comes near it, and both of its
 * sides are taken. The second layer's biases are +6. */
static void relu_has_its_gradient_on_both_sides(void **state)
{
    (void)state;
    for (int dropout = 0; dropout < 2; dropout++) {
        struct fixture fixture;
        fixture_job(&fixture);
        fixture.job.model.activation = JOB_ACTIVATION_RELU;
        fixture.job.model.dropout = dropout ? 0.3 : 0;
        fixture_open(&fixture, NULL);
        const struct param_table *table = model_params(fixture.model);
        const struct param_tensor *first = &table->tensors[1], *second = &table->tensors[3];
        for (int i = 0; i < 7; i++)
            fixture.w[first->offset + i] = i % 2 ? 6 : -6;
        for (int i = 0; i < 6; i++)
            fixture.w[table->layers[1].offset + second->offset + i] = 12;
        struct model_batch batch = fixture_batch(&fixture, 0, FIXTURE_ROWS);
        fixture_gradient(&fixture, &batch, 0, NULL);
        for (int t = 0; t < table->tensor_count; t++)
            check_tensor(&fixture, &table->tensors[t], 0, dropout ? "relu, dropout" : "relu");
        for (int64_t i = 0; i < FIXTURE_FEATURES; i++)
            assert_true(fixture.grad[i] == 0); /* unit 0 is off for every row */
        assert_true(fixture.grad[FIXTURE_FEATURES] != 0);
        fixture_close(&fixture);
    }
}

static void every_loss_has_its_gradient(void **state)
{
    (void)state;
    for (int kind = JOB_MODEL_LINEAR; kind <= JOB_MODEL_MLP; kind++)
        for (int loss = 0; loss <= JOB_LOSS_HALF_SQUARED_ERROR; loss++) {
            struct fixture fixture;
            char what[80];
            fixture_job(&fixture);
            fixture.job.model.kind = (enum job_model_kind)kind;
            fixture.job.model.loss = (enum job_loss)loss;
            snprintf(what, sizeof what, "kind %d, loss %d", kind, loss);
            check_gradient(&fixture, what);
        }
}

static void gradient_is_written_whole_or_added(void **state)
{
    (void)state;
    struct fixture fixture;
    fixture_job(&fixture);
    fixture.job.model.batch_norm = 1;
    fixture_open(&fixture, NULL);
    const struct param_table *table = model_params(fixture.model);
    struct model_batch batch = fixture_batch(&fixture, 0, FIXTURE_ROWS);
    float once[512];
    assert_true(table->count <= 512);
    for (int64_t i = 0; i < table->count; i++)
        fixture.grad[i] = 1e30f; /* must not be read */
    fixture_gradient(&fixture, &batch, 0, NULL);
    memcpy(once, fixture.grad, (size_t)table->count * sizeof *once);
    fixture_gradient(&fixture, &batch, 1, NULL);
    for (int64_t i = 0; i < table->count; i++)
        assert_true(fabsf(fixture.grad[i] - 2 * once[i]) <= 1e-5f * (1 + fabsf(once[i])));
    fixture_close(&fixture);
}

static void an_empty_share_contributes_zeros(void **state)
{
    (void)state;
    for (int norm = 0; norm < 2; norm++) {
        struct fixture fixture;
        fixture_job(&fixture);
        fixture.job.model.batch_norm = norm;
        fixture.job.model.dropout = 0.5;
        fixture_open(&fixture, NULL);
        const struct param_table *table = model_params(fixture.model);
        struct model_batch batch = fixture_batch(&fixture, 0, 0);
        for (int64_t i = 0; i < table->count; i++)
            fixture.grad[i] = NAN;
        assert_true(fixture_gradient(&fixture, &batch, 0, NULL) == 0);
        for (int64_t i = 0; i < table->count; i++)
            assert_true(fixture.grad[i] == 0);
        double stats[2 + 2 * 7 + 2 * 6];
        assert_int_equal(model_stats_collect(fixture.model, NULL), norm ? 2 + 2 * 7 + 2 * 6 : 0);
        model_stats_collect(fixture.model, stats);
        assert_true(!norm || (stats[0] == 0 && stats[15] == 0));
        fixture_close(&fixture);
    }
}

static void frozen_tensors_get_no_gradient_and_the_others_the_same(void **state)
{
    (void)state;
    char *globs[] = {"layers.0.*", "layers.1.norm.weight", "head.bias"};
    struct fixture fixture, frozen;
    fixture_job(&fixture);
    fixture.job.model.batch_norm = 1;
    fixture_job(&frozen);
    frozen.job.model.batch_norm = 1;
    frozen.job.optimizer.freeze.items = globs;
    frozen.job.optimizer.freeze.count = 3;
    fixture_open(&fixture, NULL);
    fixture_open(&frozen, NULL);
    struct model_batch batch = fixture_batch(&fixture, 0, FIXTURE_ROWS);
    const struct param_table *table = model_params(frozen.model);
    for (int64_t i = 0; i < table->count; i++)
        frozen.grad[i] = 77;
    fixture_gradient(&fixture, &batch, 0, NULL);
    fixture_gradient(&frozen, &batch, 0, NULL);
    int marked = 0;
    for (int t = 0; t < table->tensor_count; t++) {
        const struct param_tensor *tensor = &table->tensors[t];
        marked += tensor->frozen;
        int64_t at = table->layers[tensor->layer].offset + tensor->offset;
        for (int64_t i = at; i < at + tensor->count; i++)
            assert_true(frozen.grad[i] == (tensor->frozen ? 77 : fixture.grad[i]));
    }
    assert_int_equal(marked, 6);
    fixture_close(&fixture);
    fixture_close(&frozen);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_activation_norm_and_dropout_has_its_gradient),
        cmocka_unit_test(relu_has_its_gradient_on_both_sides),
        cmocka_unit_test(every_loss_has_its_gradient),
        cmocka_unit_test(gradient_is_written_whole_or_added),
        cmocka_unit_test(an_empty_share_contributes_zeros),
        cmocka_unit_test(frozen_tensors_get_no_gradient_and_the_others_the_same),
    };
    return cmocka_run_group_tests_name("model_gradients", tests, NULL, NULL);
}
