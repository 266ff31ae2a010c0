#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/unit/model/fixture.h"

#include "base/pool.h"
#include "base/rng.h"
#include "base/status.h"
#include "tensor/gemm.h"
#include "tests/lib/reference.h"

void fixture_job(struct fixture *fixture)
{
    reference_job(&fixture->job);
    fixture->hidden[0] = 7;
    fixture->hidden[1] = 6;
    fixture->job.model.kind = JOB_MODEL_MLP;
    fixture->job.model.hidden = fixture->hidden;
    fixture->job.model.hidden_count = 2;
    fixture->job.model.activation = JOB_ACTIVATION_TANH;
}

void fixture_open(struct fixture *fixture, struct pool *pool)
{
    assert_int_equal(gemm_start(NULL), STATUS_OK);
    pool_thread_numerics();
    account_init(&fixture->account);
    assert_int_equal(model_create(&fixture->model, &fixture->job, FIXTURE_FEATURES, FIXTURE_OUTPUTS, FIXTURE_ROWS,
                                  pool, &fixture->account, NULL),
                     STATUS_OK);
    const struct param_table *table = model_params(fixture->model);
    fixture->w = calloc((size_t)table->count, sizeof *fixture->w);
    fixture->grad = calloc((size_t)table->count, sizeof *fixture->grad);
    for (int i = 0; i < table->layer_count; i++)
        model_init_layer(fixture->model, i, fixture->w + table->layers[i].offset);
    int binary = fixture->job.model.loss == JOB_LOSS_BINARY_CROSS_ENTROPY;
    for (int64_t i = 0; i < FIXTURE_ROWS * FIXTURE_FEATURES; i++)
        fixture->x[i] = (float)rng_normal(7, RNG_SITE_SAMPLE, 0, (uint64_t)i);
    for (int64_t i = 0; i < FIXTURE_ROWS * FIXTURE_OUTPUTS; i++) {
        double value = rng_normal(7, RNG_SITE_SAMPLE, 1, (uint64_t)i);
        fixture->targets[i] = binary ? value > 0 : (float)value;
    }
    for (int r = 0; r < FIXTURE_ROWS; r++)
        fixture->labels[r] = (int32_t)(rng_u32(7, RNG_SITE_SAMPLE, 2, (uint64_t)r) % FIXTURE_OUTPUTS);
}

void fixture_close(struct fixture *fixture)
{
    free(fixture->w);
    free(fixture->grad);
    model_destroy(fixture->model);
    for (int kind = 0; kind < ACCOUNT_KINDS; kind++)
        assert_int_equal(fixture->account.bytes[kind], 0);
}

struct model_batch fixture_batch(const struct fixture *fixture, int64_t first, int64_t rows)
{
    return (struct model_batch){.x = fixture->x + first * FIXTURE_FEATURES,
                                .labels = fixture->labels + first,
                                .targets = fixture->targets + first * FIXTURE_OUTPUTS,
                                .rows = rows,
                                .first_row = first,
                                .step = 3,
                                .loss_scale = 1,
                                .training = 1};
}

double fixture_loss(struct fixture *fixture, const struct model_batch *batch, struct model_reducer *reducer)
{
    const struct param_table *table = model_params(fixture->model);
    for (int i = 0; i < table->layer_count; i++)
        assert_int_equal(
            model_forward(fixture->model, i, fixture->w + table->layers[i].offset, batch, reducer, NULL),
            STATUS_OK);
    double loss;
    int64_t counted, correct;
    model_loss(fixture->model, batch, &loss, &counted, &correct);
    assert_int_equal(counted, batch->rows);
    return loss;
}

double fixture_gradient(struct fixture *fixture, const struct model_batch *batch, int accumulate,
                        struct model_reducer *reducer)
{
    const struct param_table *table = model_params(fixture->model);
    double loss = fixture_loss(fixture, batch, reducer);
    for (int i = table->layer_count - 1; i >= 0; i--) {
        int64_t at = table->layers[i].offset;
        assert_int_equal(model_backward(fixture->model, i, fixture->w + at, fixture->grad + at, accumulate, batch,
                                        reducer, NULL),
                         STATUS_OK);
    }
    return loss;
}
