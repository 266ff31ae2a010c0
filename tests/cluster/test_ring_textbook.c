/* The textbook's example of zero3: four layers of one weight and one bias on a scalar, ReLU, loss ½(y-ŷ)², four ranks with one
 * sample each, every rank the owner of one layer. All numbers are written out; they are binary fractions, so that float32 and
 * double agree to the last bit.
 *
 *   z1 = w1·x + b1, a1 = max(z1, 0); z2 = w2·a1 + b2, a2 = max(z2, 0); z3 = w3·a2 + b3, a3 = max(z3, 0); ŷ = w4·a3 + b4
 *   w1 = 1, b1 = 0.5; w2 = 2, b2 = -1; w3 = 0.5, b3 = 0.25; w4 = 2, b4 = -0.25
 *
 * ŷ is positive for every sample: a ReLU on it would change no number. The third sample's z2 is negative: nothing flows back
 * through it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/account.h"
#include "base/errbuf.h"
#include "config/job.h"
#include "files/safetensors.h"
#include "tensor/gemm.h"
#include "tests/cases/cluster_jobs.h"
#include "tests/lib/embedded.h"
#include "tests/lib/reference.h"
#include "tests/lib/timeline.h"
#include "worker/model/model.h"

enum { RANKS = 4, LAYERS = 4, SAMPLES = 4, TRACED_STEPS = 40 };

static const char *const weight_names[LAYERS] = {"layers.0.linear.weight", "layers.1.linear.weight",
                                                 "layers.2.linear.weight", "head.weight"};
static const char *const bias_names[LAYERS] = {"layers.0.linear.bias", "layers.1.linear.bias", "layers.2.linear.bias",
                                               "head.bias"};
static const double weights[LAYERS] = {1, 2, 0.5, 2}, biases[LAYERS] = {0.5, -1, 0.25, -0.25};

/* One row a sample, which is one row a rank. d: the loss's derivative at z1 … z3 and ŷ; of the sample alone. */
static const struct sample {
    double x, y;
    double a1, a2, a3, guess, loss;
    double d[LAYERS];        /* = gradients of b1 … b4 */
    double weight_d[LAYERS]; /* gradients of w1 … w4: d1·x, d2·a1, d3·a2, d4·a3 */
} samples[SAMPLES] = {
    {1, 1.25, 1.5, 2, 1.25, 2.25, 0.5, {2, 1, 2, 1}, {2, 1.5, 4, 1.25}},
    {2, 3.75, 2.5, 4, 2.25, 4.25, 0.125, {1, 0.5, 1, 0.5}, {2, 1.25, 4, 1.125}},
    {-1, 1.25, 0, 0, 0.25, 0.25, 0.5, {0, 0, -2, -1}, {0, 0, 0, -0.25}},
    {0.5, -0.75, 1, 1, 0.75, 1.25, 2, {4, 2, 4, 2}, {2, 2, 4, 1.5}},
};
/* Of the mean over the four samples: a quarter of the columns' sums. */
static const double mean_loss = 0.78125;
static const double mean_weight_d[LAYERS] = {1.5, 1.1875, 3, 0.90625}, mean_bias_d[LAYERS] = {1.75, 0.875, 1.25, 0.625};
/* After one step of SGD with lr 0.5. */
static const double weights_after[LAYERS] = {0.25, 1.40625, -1, 1.546875};
static const double biases_after[LAYERS] = {-0.375, -1.4375, -0.375, -0.5625};

static char folder[EMBEDDED_TEXT], init[EMBEDDED_TEXT + 32];

static const char yaml[] = "name: textbook\nsteps: 1\nbatch_size: 4\nlog_every: 1\n"
                           "data: {kind: csv, train: {file: four.csv}, order: sequential}\n"
                           "model: {kind: mlp, hidden: [1, 1, 1], activation: relu, loss: half_squared_error}\n"
                           "optimizer: {kind: sgd, lr: 0.5, nonfinite: stop}\n"
                           "parallel: {data: zero3, placement: layer, bucket_bytes: 1, update: eager}\n";

static int open_folder(void **state)
{
    struct safetensors_tensor tensors[2 * LAYERS];
    float values[2 * LAYERS];
    char rows[256] = "";
    struct errbuf err;
    (void)state;
    embedded_folder_create(folder);
    for (int i = 0; i < SAMPLES; i++)
        snprintf(rows + strlen(rows), sizeof rows - strlen(rows), "%g,%g\n", samples[i].x, samples[i].y);
    cluster_jobs_write(folder, "four.csv", rows);
    for (int l = 0; l < LAYERS; l++) {
        values[2 * l] = (float)weights[l];
        values[2 * l + 1] = (float)biases[l];
        tensors[2 * l] = (struct safetensors_tensor){.name = weight_names[l], .dims = 2, .shape = {1, 1}, .count = 1,
                                                     .data = &values[2 * l], .bytes = sizeof(float)};
        tensors[2 * l + 1] = (struct safetensors_tensor){.name = bias_names[l], .dims = 1, .shape = {1}, .count = 1,
                                                         .data = &values[2 * l + 1], .bytes = sizeof(float)};
    }
    errbuf_init(&err);
    if (gemm_start(&err) != 0)
        fail_msg("%s", err.text);
    snprintf(init, sizeof init, "%s/textbook.safetensors", folder);
    return safetensors_write(init, tensors, 2 * LAYERS, NULL, 0, NULL, &err);
}

static int close_folder(void **state)
{
    (void)state;
    embedded_folder_remove(folder);
    return 0;
}

static void expect_exactly(const char *what, double found, double wanted)
{
    if (found != wanted)
        fail_msg("%s: found %.17g, wanted %.17g", what, found, wanted);
}

/* --- the numbers ------------------------------------------------------------------------------------------------ */

/* The table above follows from the formulas: no number of it is the product's own. */
static void the_table_follows_from_the_formulas(void **state)
{
    double loss = 0, weight_d[LAYERS] = {0}, bias_d[LAYERS] = {0};
    (void)state;
    for (int i = 0; i < SAMPLES; i++) {
        const struct sample *s = &samples[i];
        double a[LAYERS] = {s->x}, z[LAYERS], d[LAYERS];
        for (int l = 0; l < LAYERS; l++) {
            z[l] = weights[l] * a[l] + biases[l];
            if (l + 1 < LAYERS)
                a[l + 1] = z[l] > 0 ? z[l] : 0;
        }
        d[3] = z[3] - s->y;
        for (int l = LAYERS - 2; l >= 0; l--)
            d[l] = z[l] > 0 ? d[l + 1] * weights[l + 1] : 0;
        expect_exactly("a1", s->a1, a[1]);
        expect_exactly("a2", s->a2, a[2]);
        expect_exactly("a3", s->a3, a[3]);
        expect_exactly("guess", s->guess, z[3]);
        expect_exactly("loss", s->loss, d[3] * d[3] / 2);
        loss += s->loss;
        for (int l = 0; l < LAYERS; l++) {
            expect_exactly("d", s->d[l], d[l]);
            expect_exactly("d weight", s->weight_d[l], d[l] * a[l]);
            weight_d[l] += s->weight_d[l];
            bias_d[l] += s->d[l];
        }
    }
    expect_exactly("mean loss", mean_loss, loss / SAMPLES);
    for (int l = 0; l < LAYERS; l++) {
        expect_exactly("mean d weight", mean_weight_d[l], weight_d[l] / SAMPLES);
        expect_exactly("mean d bias", mean_bias_d[l], bias_d[l] / SAMPLES);
        expect_exactly("weight after", weights_after[l], weights[l] - 0.5 * mean_weight_d[l]);
        expect_exactly("bias after", biases_after[l], biases[l] - 0.5 * mean_bias_d[l]);
    }
}

/* What one rank computes of its sample: the model's layers forward and backward. Activations show in the weights'
 * gradients, d times what came in. */
static void one_rank(const struct sample *sample)
{
    struct job job;
    struct model *model = NULL;
    struct account account = {0};
    struct errbuf err;
    float x = (float)sample->x, y = (float)sample->y, w[LAYERS][2], grad[LAYERS][2];
    double loss = 0;
    int64_t counted = 0, correct = 0, hidden[] = {1, 1, 1};
    errbuf_init(&err);
    reference_job(&job);
    job.model.kind = JOB_MODEL_MLP;
    job.model.hidden = hidden;
    job.model.hidden_count = 3;
    job.model.activation = JOB_ACTIVATION_RELU;
    job.model.loss = JOB_LOSS_HALF_SQUARED_ERROR;
    if (model_create(&model, &job, 1, 1, 1, NULL, &account, &err) != 0)
        fail_msg("%s", err.text);
    struct model_batch batch = {.x = &x, .targets = &y, .rows = 1, .step = 1, .loss_scale = 1, .training = 1};
    assert_int_equal(model_layers(model), LAYERS);
    for (int l = 0; l < LAYERS; l++) {
        w[l][0] = (float)weights[l];
        w[l][1] = (float)biases[l];
        assert_int_equal(model_forward(model, l, w[l], &batch, NULL, &err), 0);
    }
    expect_exactly("guess", model_logits(model)[0], sample->guess);
    model_loss(model, &batch, &loss, &counted, &correct);
    expect_exactly("loss", loss, sample->loss);
    for (int l = LAYERS - 1; l >= 0; l--) {
        assert_int_equal(model_backward(model, l, w[l], grad[l], 0, &batch, NULL, &err), 0);
        expect_exactly("d weight", grad[l][0], sample->weight_d[l]);
        expect_exactly("d bias", grad[l][1], sample->d[l]);
    }
    model_destroy(model);
}

static void every_rank_computes_its_sample(void **state)
{
    (void)state;
    for (int i = 0; i < SAMPLES; i++)
        one_rank(&samples[i]);
}

/* The whole cluster: the mean's loss before the step, every layer's parameters after it, at the rank that owns it. */
static void the_step_updates_every_layer_at_its_owner(void **state)
{
    static const char *const modes[] = {"parallel.transport=auto", "parallel.transport=tcp", "parallel.update=step"};
    (void)state;
    for (int m = 0; m < 3; m++) {
        struct embedded_order order = {.yaml = yaml, .workers = RANKS, .folder = folder, .init = init};
        struct embedded_result result;
        embedded_set(&order, "%s", modes[m]);
        embedded_run_well(&order, &result);
        assert_int_equal(result.steps_count, 1);
        expect_exactly("loss", result.steps[0].loss, mean_loss);
        for (int l = 0; l < LAYERS; l++) {
            float weight, bias;
            embedded_tensor(&result, weight_names[l], &weight, 1);
            embedded_tensor(&result, bias_names[l], &bias, 1);
            expect_exactly(weight_names[l], weight, weights_after[l]);
            expect_exactly(bias_names[l], bias, biases_after[l]);
        }
        for (int rank = 0; rank < RANKS; rank++) { /* of 8 floats each holds one layer's 2, parameters and sums */
            assert_int_equal(embedded_bytes(&result, rank, "model_state_bytes", "parameters"), 8);
            assert_int_equal(embedded_bytes(&result, rank, "model_state_bytes", "gradients"), 8);
            assert_int_equal(embedded_bytes(&result, rank, "model_state_bytes", "optimizer"), 0);
            assert_int_equal(embedded_bytes(&result, rank, "sent_bytes", "reduce_scatter"), 24);
            assert_int_equal(embedded_bytes(&result, rank, "sent_bytes", "all_gather"), 2 * 24);
        }
        embedded_result_close(&result);
    }
}

/* --- the order --------------------------------------------------------------------------------------------------- */

static const struct timeline_event *find(const struct timeline *timeline, int rank, int step, int layer,
                                         const char *name, int nth)
{
    struct timeline_event like = {.rank = rank, .step = step, .layer = layer};
    snprintf(like.name, sizeof like.name, "%s", name);
    const struct timeline_event *event = timeline_find(timeline, &like, nth);
    if (event == NULL)
        fail_msg("rank %d, step %d, layer %d: no \"%s\" number %d", rank, step, layer, name, nth);
    return event;
}

static void expect_order(const struct timeline_event *first, const struct timeline_event *second)
{
    if (first->end_us > second->begin_us)
        fail_msg("rank %d, step %d: %s of layer %d ends at %.3f, %s of layer %d begins at %.3f", first->rank,
                 first->step, first->name, first->layer, first->end_us, second->name, second->layer, second->begin_us);
}

/* gather, compute, release (the room serves layer l+2), forward and backward; then the sum and, at the owner, the update. */
static void check_layer(const struct timeline *timeline, int rank, int step, int l)
{
    const struct timeline_event *forward = find(timeline, rank, step, l, "forward", 0);
    const struct timeline_event *backward = find(timeline, rank, step, l, "backward", 0);
    const struct timeline_event *up = find(timeline, rank, step, l, "gather", 0);
    const struct timeline_event *down = find(timeline, rank, step, l, "gather", 1);
    const struct timeline_event *reduce = find(timeline, rank, step, l, "reduce, update", 0);
    expect_order(up, forward);
    expect_order(forward, down);
    expect_order(down, backward);
    expect_order(backward, reduce);
    if (l + 2 < LAYERS) {
        expect_order(forward, find(timeline, rank, step, l + 2, "gather", 0));
        expect_order(find(timeline, rank, step, l + 2, "backward", 0), down);
    }
    if (l + 1 < LAYERS)
        expect_order(find(timeline, rank, step, l + 1, "reduce, update", 0), reduce);
}

/* How often, over all ranks and steps, layer m+1's gather had begun before layer m's compute was over, and its sum and
 * update before layer m's backward was: threads run as the system likes, so one step shows nothing. */
static void check_overlap(const struct timeline *timeline, int l)
{
    int gathers = 0, sums = 0, all = RANKS * TRACED_STEPS;
    for (int rank = 0; rank < RANKS; rank++)
        for (int step = 1; step <= TRACED_STEPS; step++) {
            gathers += find(timeline, rank, step, l + 1, "gather", 0)->begin_us <
                       find(timeline, rank, step, l, "forward", 0)->end_us;
            sums += find(timeline, rank, step, l + 1, "reduce, update", 0)->begin_us <
                    find(timeline, rank, step, l, "backward", 0)->end_us;
        }
    print_message("layer %d: gather of the next overlaps in %d, sum and update in %d of %d\n", l + 1, gathers, sums, all);
    assert_true(gathers > 0 && sums > 0);
}

static void the_timeline_shows_the_order(void **state)
{
    struct timeline timeline;
    struct embedded_result result;
    struct embedded_order order = {.yaml = yaml, .workers = RANKS, .folder = folder, .init = init, .trace = 1};
    (void)state;
    embedded_set(&order, "steps=%d", TRACED_STEPS);
    embedded_set(&order, "optimizer.lr=0.001");
    embedded_run_well(&order, &result);
    timeline_read(&timeline, result.trace_path);
    for (int l = 0; l < LAYERS; l++) {
        for (int rank = 0; rank < RANKS; rank++)
            for (int step = 1; step <= TRACED_STEPS; step++)
                check_layer(&timeline, rank, step, l);
        if (l + 1 < LAYERS)
            check_overlap(&timeline, l);
    }
    timeline_close(&timeline);
    embedded_result_close(&result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_follows_from_the_formulas),
        cmocka_unit_test(every_rank_computes_its_sample),
        cmocka_unit_test(the_step_updates_every_layer_at_its_owner),
        cmocka_unit_test(the_timeline_shows_the_order),
    };

    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
