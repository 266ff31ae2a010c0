/* The rows against their double twin, against the losses of a small softmax known from outside, and against
 * PyTorch's weights in tests/golden/optimizers.txt. */
#include "optimizer_twin.h"

#include "base/errbuf.h"
#include "base/status.h"
#include "config/job.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const struct optimizer_params defaults = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .beta = 1.0};

struct tensor {
    int count;
    float w[TWIN_COUNT_MAX], a[TWIN_COUNT_MAX], b[TWIN_COUNT_MAX];
};

/* One step as an owner makes it, lamb's two phases included. */
static void tensor_step(const struct optimizer_ops *ops, const struct optimizer_params *params,
                        const struct optimizer_step *step, int decay, struct tensor *tensor, const float *grad)
{
    float *slots[2] = {tensor->a, tensor->b};
    float work[TWIN_COUNT_MAX];
    struct optimizer_step now = *step;

    memcpy(work, grad, sizeof(float) * (size_t)tensor->count);
    if (ops->prepare) {
        double norms[2] = {0, 0};
        ops->prepare(params, step, decay, tensor->w, work, slots, tensor->count, norms);
        now.trust_ratio = norms[0] > 0 && norms[1] > 0 ? sqrt(norms[0]) / sqrt(norms[1]) : 1;
    }
    ops->update(params, &now, decay, tensor->w, work, slots, tensor->count);
}

static double wave(int i, int t)
{
    return sin(1.3 * i + 0.7 * t) * (1 + 0.1 * i) + 0.05 * (i % 3);
}

static void compare_with_twin(const char *name, const struct optimizer_params *params, int decay, float grad_scale)
{
    const struct optimizer_ops *ops = optimizer_find(name);
    struct tensor fast = {.count = 37};
    struct twin_tensor twin = {.count = 37};

    assert_non_null(ops);
    for (int i = 0; i < fast.count; i++) {
        fast.w[i] = (float)cos(i);
        twin.w[i] = fast.w[i];
    }
    for (int t = 1; t <= 30; t++) {
        struct optimizer_step step = {.lr = 0.02, .t = t, .grad_scale = grad_scale};
        float grad[TWIN_COUNT_MAX];
        double wide[TWIN_COUNT_MAX];
        for (int i = 0; i < fast.count; i++) {
            grad[i] = (float)wave(i, t);
            wide[i] = grad[i];
        }
        tensor_step(ops, params, &step, decay, &fast, grad);
        twin_step(name, params, &step, decay, &twin, wide);
    }
    for (int i = 0; i < fast.count; i++)
        if (fabs(fast.w[i] - twin.w[i]) > 3e-6)
            fail_msg("%s: element %d is %.9g, its twin %.9g", name, i, (double)fast.w[i], twin.w[i]);
}

static void every_row_follows_its_double_twin(void **state)
{
    (void)state;
    for (int row = 0; optimizer_at(row); row++) {
        const char *name = optimizer_at(row)->name;
        for (int option = 0; option < 8; option++) {
            struct optimizer_params params = defaults;
            params.weight_decay = option & 1 ? 0.1 : 0.0;
            params.momentum = option & 2 ? 0.9 : 0.0;
            params.nesterov = option & 2 && option & 4;
            params.eps = option & 4 ? 0.1 : 1e-8;
            params.l1 = option & 1 ? 0.05 : 0.0;
            params.l2 = option & 2 ? 0.1 : 0.0;
            compare_with_twin(name, &params, 1, 1.0f);
            compare_with_twin(name, &params, 0, 0.25f);
        }
    }
}

/* S1: four rows, two classes; the gradient of the mean cross-entropy in double, the update in float32. */
static const double s1_rows[4][2] = {{1, 2}, {-1, 0.5}, {2, 1}, {-2, -1}};
static const int s1_labels[4] = {0, 1, 0, 1};

/* w: weights (2,2) row-major, then the two biases. */
static double s1_loss(const float *w, float *grad)
{
    double loss = 0, sums[6] = {0};

    for (int r = 0; r < 4; r++) {
        const double *x = s1_rows[r];
        double z0 = (double)w[0] * x[0] + (double)w[1] * x[1] + (double)w[4];
        double z1 = (double)w[2] * x[0] + (double)w[3] * x[1] + (double)w[5];
        double top = fmax(z0, z1), total = exp(z0 - top) + exp(z1 - top);
        double p[2] = {exp(z0 - top) / total, exp(z1 - top) / total};
        loss -= log(p[s1_labels[r]]) / 4;
        for (int c = 0; c < 2; c++) {
            double d = (p[c] - (s1_labels[r] == c)) / 4;
            sums[2 * c] += d * x[0];
            sums[2 * c + 1] += d * x[1];
            sums[4 + c] += d;
        }
    }
    for (int i = 0; i < 6; i++)
        grad[i] = (float)sums[i];
    return loss;
}

struct s1_row {
    const char *name;
    double lr;
    struct optimizer_params params;
    int decay_biases;
    double losses[6];
};

#define ADAM_BETAS .beta1 = 0.9, .beta2 = 0.999

static const struct s1_row s1_table[] = {
    {"sgd", 0.5, {.momentum = 0}, 1, {0.69314718, 0.22782775, 0.16158376, 0.12855686, 0.10778109, 0.09321433}},
    {"sgd", 0.1, {.momentum = 0.9}, 1, {0.69314718, 0.55533153, 0.37480350, 0.23412646, 0.14851036, 0.09938100}},
    {"sgd",
     0.1,
     {.momentum = 0.9, .nesterov = 1},
     1,
     {0.69314718, 0.45280575, 0.28091844, 0.18061816, 0.12298119, 0.08795678}},
    {"adam",
     0.1,
     {ADAM_BETAS, .eps = 1e-8},
     1,
     {0.69314718, 0.48921513, 0.34355258, 0.24489119, 0.17865177, 0.13341953}},
    {"adamw",
     0.1,
     {ADAM_BETAS, .eps = 1e-8, .weight_decay = 0.1},
     1,
     {0.69314718, 0.48921513, 0.34475574, 0.24737860, 0.18212680, 0.13758160}},
    {"adamw",
     0.1,
     {ADAM_BETAS, .eps = 1e-8, .weight_decay = 0.1},
     0,
     {0.69314718, 0.48921513, 0.34475574, 0.24735098, 0.18205841, 0.13746860}},
    {"adamw",
     0.1,
     {ADAM_BETAS, .eps = 0.1, .weight_decay = 0.1},
     1,
     {0.69314718, 0.51409376, 0.38503184, 0.29464246, 0.23164081, 0.18704885}},
    {"ftrl",
     0.5,
     {.beta = 1, .l1 = 0.05, .l2 = 0.1},
     1,
     {0.69314718, 0.37917223, 0.26888646, 0.21498441, 0.18126772, 0.15782644}},
    {"adam",
     0.1,
     {ADAM_BETAS, .eps = 1e-8, .weight_decay = 0.1},
     1,
     {0.69314718, 0.48921513, 0.34384628, 0.24589684, 0.18092811, 0.13767893}},
    {"adagrad", 0.1, {.eps = 1e-10}, 1, {0.69314718, 0.48921513, 0.39441256, 0.33691576, 0.29719848, 0.26763472}},
};

static void S1_losses_of_a_tiny_softmax_match_in_every_row(void **state)
{
    (void)state;
    for (size_t r = 0; r < sizeof s1_table / sizeof s1_table[0]; r++) {
        const struct s1_row *row = &s1_table[r];
        const struct optimizer_ops *ops = optimizer_find(row->name);
        struct tensor weights = {.count = 4}, biases = {.count = 2};
        for (int t = 0; t <= 5; t++) {
            float w[6], grad[6];
            memcpy(w, weights.w, 4 * sizeof(float));
            memcpy(w + 4, biases.w, 2 * sizeof(float));
            double loss = s1_loss(w, grad);
            if (fabs(loss - row->losses[t]) > 1e-6)
                fail_msg("row %zu (%s): loss after step %d is %.8f, not %.8f", r, row->name, t, loss,
                         row->losses[t]);
            struct optimizer_step step = {.lr = row->lr, .t = t + 1, .grad_scale = 1};
            tensor_step(ops, &row->params, &step, 1, &weights, grad);
            tensor_step(ops, &row->params, &step, row->decay_biases, &biases, grad + 4);
        }
    }
}

/* With the bias correction folded into the stored moments the steps would fall to 7e-8 by t = 10. */
static void adam_steps_stay_near_lr_when_the_gradient_is_constant(void **state)
{
    (void)state;
    struct tensor tensor = {.count = 1};
    const float one = 1.0f;

    for (int t = 1; t <= 1000; t++) {
        struct optimizer_step step = {.lr = 0.001, .t = t, .grad_scale = 1};
        float before = tensor.w[0];
        tensor_step(optimizer_find("adam"), &defaults, &step, 1, &tensor, &one);
        assert_true(fabs((double)(before - tensor.w[0]) - 0.001) < 1e-6);
    }
    assert_true(fabs(tensor.a[0] - 1.0) < 1e-5);                    /* raw m: 1 - 0.9^1000 */
    assert_true(fabs(tensor.b[0] - (1 - pow(0.999, 1000))) < 1e-5); /* raw v */
}

static void lamb_moves_a_zero_tensor_by_the_plain_direction(void **state)
{
    (void)state;
    struct tensor tensor = {.count = 3};
    const float grad[3] = {1, -2, 3};
    struct optimizer_step step = {.lr = 0.01, .t = 1, .grad_scale = 1};

    tensor_step(optimizer_find("lamb"), &defaults, &step, 1, &tensor, grad);
    assert_true(fabs(tensor.w[0] + 0.01) < 1e-7);
    assert_true(fabs(tensor.w[1] - 0.01) < 1e-7);
}

static void ftrl_keeps_small_weights_at_exactly_zero(void **state)
{
    (void)state;
    struct optimizer_params params = {.beta = 1, .l1 = 1.0};
    struct tensor tensor = {.count = 2};
    const float grad[2] = {0.4f, 4.0f};
    struct optimizer_step step = {.lr = 0.1, .t = 1, .grad_scale = 1};

    tensor_step(optimizer_find("ftrl"), &params, &step, 1, &tensor, grad);
    assert_true(tensor.w[0] == 0.0f);
    assert_true(fabs(tensor.w[1] + 3.0 * 0.1 / 5.0) < 1e-7);
}

static void ftrl_with_lr_zero_leaves_everything_alone(void **state)
{
    (void)state;
    struct tensor tensor = {.count = 1, .w = {0.5f}};
    const float grad = 1.0f;
    struct optimizer_step step = {.lr = 0, .t = 1, .grad_scale = 1};

    tensor_step(optimizer_find("ftrl"), &defaults, &step, 1, &tensor, &grad);
    assert_true(tensor.w[0] == 0.5f && tensor.a[0] == 0.0f && tensor.b[0] == 0.0f);
}

/* --- PyTorch's answers ------------------------------------------------------------------------------- */

static void golden_numbers(FILE *file, double *out, int count)
{
    for (int i = 0; i < count; i++)
        assert_int_equal(fscanf(file, "%lf", &out[i]), 1);
}

static void golden_case(FILE *file, const char *label)
{
    char name[32];
    struct optimizer_params params = defaults;
    struct tensor tensor = {0};
    double lr, numbers[TWIN_COUNT_MAX];
    int steps;

    assert_int_equal(fscanf(file, "%31s %lf %lf %lf %lf %lf %lf %d %d %d", name, &lr, &params.beta1, &params.beta2,
                            &params.eps, &params.weight_decay, &params.momentum, &params.nesterov, &tensor.count,
                            &steps),
                     10);
    assert_in_range(tensor.count, 1, TWIN_COUNT_MAX);
    const struct optimizer_ops *ops = optimizer_find(name);
    assert_non_null(ops);
    golden_numbers(file, numbers, tensor.count);
    for (int i = 0; i < tensor.count; i++)
        tensor.w[i] = (float)numbers[i];
    for (int t = 1; t <= steps; t++) {
        float grad[TWIN_COUNT_MAX];
        struct optimizer_step step = {.lr = lr, .t = t, .grad_scale = 1};
        golden_numbers(file, numbers, tensor.count);
        for (int i = 0; i < tensor.count; i++)
            grad[i] = (float)numbers[i];
        tensor_step(ops, &params, &step, 1, &tensor, grad);
        golden_numbers(file, numbers, tensor.count);
        for (int i = 0; i < tensor.count; i++)
            if (fabs(tensor.w[i] - numbers[i]) > 1e-6)
                fail_msg("%s: step %d, element %d is %.9g, PyTorch has %.9g", label, t, i, (double)tensor.w[i],
                         numbers[i]);
    }
}

static void ten_steps_with_every_option_match_pytorch(void **state)
{
    (void)state;
    FILE *file = fopen(SHOAL_SOURCE_DIR "/tests/golden/optimizers.txt", "r");
    char label[64];
    int cases = 0;

    assert_non_null(file);
    while (fscanf(file, " case %63s", label) == 1) {
        golden_case(file, label);
        cases++;
    }
    fclose(file);
    assert_int_equal(cases, 14);
}

static void rows_are_found_by_name_and_by_job(void **state)
{
    (void)state;
    static const char *const names[] = {"sgd", "adam", "adamw", "adagrad", "ftrl", "lamb"};

    for (int i = 0; i < 6; i++) {
        struct job job = {0};
        const struct optimizer_ops *ops;
        struct optimizer_params params;
        void *handle;
        struct errbuf err;
        job.optimizer.kind = (enum job_optimizer_kind)i;
        job.optimizer.beta1 = 0.8;
        job.optimizer.nesterov = 1;
        assert_int_equal(optimizer_of_job(&job, &ops, &params, &handle, &err), STATUS_OK);
        assert_string_equal(ops->name, names[i]);
        assert_ptr_equal(ops, optimizer_find(names[i]));
        assert_ptr_equal(ops, optimizer_at(i));
        assert_true(params.beta1 == 0.8 && params.nesterov == 1);
        assert_null(handle);
        optimizer_unload(handle);
    }
    assert_null(optimizer_find("newton"));
    assert_null(optimizer_at(6));
    assert_null(optimizer_at(-1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_follows_its_double_twin),
        cmocka_unit_test(S1_losses_of_a_tiny_softmax_match_in_every_row),
        cmocka_unit_test(adam_steps_stay_near_lr_when_the_gradient_is_constant),
        cmocka_unit_test(lamb_moves_a_zero_tensor_by_the_plain_direction),
        cmocka_unit_test(ftrl_keeps_small_weights_at_exactly_zero),
        cmocka_unit_test(ftrl_with_lr_zero_leaves_everything_alone),
        cmocka_unit_test(ten_steps_with_every_option_match_pytorch),
        cmocka_unit_test(rows_are_found_by_name_and_by_job),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
