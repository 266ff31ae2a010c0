/* S1 to S4 and N08 of cases.md for one process: model + optimizer without a network. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "cluster/norm_stats.h"
#include "tests/cases/case_data.h"
#include "tests/lib/reference.h"

static void open_or_fail(struct reference *reference, const struct job *job, const struct reference_data *data,
                         int groups)
{
    struct errbuf err;
    errbuf_init(&err);
    if (reference_open(reference, job, data, groups, 1, &err) != STATUS_OK)
        fail_msg("%s", err.text);
}

static void steps(struct reference *reference, int count)
{
    for (int i = 0; i < count; i++)
        assert_int_equal(reference_step(reference, NULL), STATUS_OK);
}

static void near(const char *what, double found, double wanted, double tolerance)
{
    if (!(fabs(found - wanted) <= tolerance))
        fail_msg("%s: found %.8f, wanted %.8f", what, found, wanted);
}

/* --- S1 ------------------------------------------------------------------------------------------------------ */

static const float s1_x[] = {1, 2, -1, 0.5, 2, 1, -2, -1};
static const int32_t s1_labels[] = {0, 1, 0, 1};
static const struct reference_data s1_data = {
    .x = s1_x, .labels = s1_labels, .rows = 4, .features = 2, .outputs = 2};

struct s1_row {
    const char *name;
    enum job_optimizer_kind kind;
    double lr, momentum, decay, eps, l1, l2;
    int nesterov, weights_only;
    double losses[6];
};
static const struct s1_row s1_rows[] = {
    {.name = "sgd",
     .kind = JOB_SGD,
     .lr = 0.5,
     .losses = {0.69314718, 0.22782775, 0.16158376, 0.12855686, 0.10778109, 0.09321433}},
    {.name = "momentum",
     .kind = JOB_SGD,
     .lr = 0.1,
     .momentum = 0.9,
     .losses = {0.69314718, 0.55533153, 0.37480350, 0.23412646, 0.14851036, 0.09938100}},
    {.name = "nesterov",
     .kind = JOB_SGD,
     .lr = 0.1,
     .momentum = 0.9,
     .nesterov = 1,
     .losses = {0.69314718, 0.45280575, 0.28091844, 0.18061816, 0.12298119, 0.08795678}},
    {.name = "adam",
     .kind = JOB_ADAM,
     .lr = 0.1,
     .eps = 1e-8,
     .losses = {0.69314718, 0.48921513, 0.34355258, 0.24489119, 0.17865177, 0.13341953}},
    {.name = "adamw, all",
     .kind = JOB_ADAMW,
     .lr = 0.1,
     .decay = 0.1,
     .eps = 1e-8,
     .losses = {0.69314718, 0.48921513, 0.34475574, 0.24737860, 0.18212680, 0.13758160}},
    {.name = "adamw, weights only",
     .kind = JOB_ADAMW,
     .lr = 0.1,
     .decay = 0.1,
     .eps = 1e-8,
     .weights_only = 1,
     .losses = {0.69314718, 0.48921513, 0.34475574, 0.24735098, 0.18205841, 0.13746860}},
    {.name = "adamw, eps 0.1",
     .kind = JOB_ADAMW,
     .lr = 0.1,
     .decay = 0.1,
     .eps = 0.1,
     .losses = {0.69314718, 0.51409376, 0.38503184, 0.29464246, 0.23164081, 0.18704885}},
    {.name = "ftrl",
     .kind = JOB_FTRL,
     .lr = 0.5,
     .l1 = 0.05,
     .l2 = 0.1,
     .losses = {0.69314718, 0.37917223, 0.26888646, 0.21498441, 0.18126772, 0.15782644}},
    {.name = "adam, L2",
     .kind = JOB_ADAM,
     .lr = 0.1,
     .decay = 0.1,
     .eps = 1e-8,
     .losses = {0.69314718, 0.48921513, 0.34384628, 0.24589684, 0.18092811, 0.13767893}},
    {.name = "adagrad",
     .kind = JOB_ADAGRAD,
     .lr = 0.1,
     .eps = 1e-10,
     .losses = {0.69314718, 0.48921513, 0.39441256, 0.33691576, 0.29719848, 0.26763472}},
};

static void s1_job(struct job *job, const struct s1_row *row)
{
    static char *const biases[] = {"*.bias"};
    reference_job(job);
    job->batch_size = 4;
    job->epochs = 5;
    job->model.init = JOB_INIT_ZEROS;
    job->optimizer.kind = row->kind;
    job->optimizer.lr = row->lr;
    job->optimizer.momentum = row->momentum;
    job->optimizer.nesterov = row->nesterov;
    job->optimizer.weight_decay = row->decay;
    job->optimizer.eps = row->eps;
    job->optimizer.l1 = row->l1;
    job->optimizer.l2 = row->l2;
    job->optimizer.no_decay.items = (char **)biases;
    job->optimizer.no_decay.count = row->weights_only;
}

static void s1_every_optimizer_row(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof s1_rows / sizeof *s1_rows; i++)
        for (int groups = 1; groups <= 4; groups *= 2) {
            struct job job;
            struct reference reference;
            s1_job(&job, &s1_rows[i]);
            open_or_fail(&reference, &job, &s1_data, groups);
            for (int step = 0; step < 6; step++) {
                near(s1_rows[i].name, reference_evaluate(&reference, &s1_data, NULL), s1_rows[i].losses[step],
                     1e-6);
                steps(&reference, 1);
                near(s1_rows[i].name, reference.loss, s1_rows[i].losses[step], 1e-6);
            }
            reference_close(&reference);
        }
}

static void s1_weights_after_five_sgd_steps(void **state)
{
    (void)state;
    static const double wanted[] = {0.72243870, 0.32851786, -0.72243870, -0.32851786, -0.08907066, 0.08907066};
    struct job job;
    struct reference reference;
    s1_job(&job, &s1_rows[0]);
    open_or_fail(&reference, &job, &s1_data, 1);
    steps(&reference, 5);
    for (int i = 0; i < 6; i++)
        near("weight", reference.w[i], wanted[i], 1e-6);
    reference_close(&reference);
}

/* --- S2, S3 ----------------------------------------------------------------------------------------------------
 */

struct loss_at {
    int step;
    double loss;
};

/* Steps in order of `wanted` (ended by step -1), each loss to 1e-4. */
static void descend(struct reference *reference, const struct loss_at *wanted)
{
    for (; wanted->step >= 0; wanted++) {
        steps(reference, wanted->step - (int)reference->step);
        near("loss", reference_evaluate(reference, &reference->data, NULL), wanted->loss, 1e-4);
    }
}

static void softmax_job(struct job *job, int64_t batch_size, double lr)
{
    reference_job(job);
    job->batch_size = batch_size;
    job->epochs = 1000;
    job->model.init = JOB_INIT_ZEROS;
    job->optimizer.lr = lr;
}

static void full_batch(struct reference_data *data, double lr, int groups, const struct loss_at *wanted,
                       int64_t right)
{
    struct job job;
    struct reference reference;
    int64_t correct;
    softmax_job(&job, data->rows, lr);
    open_or_fail(&reference, &job, data, groups);
    descend(&reference, wanted);
    reference_evaluate(&reference, data, &correct);
    assert_in_range(correct, right - 1, right + 1);
    reference_close(&reference);
    case_data_free(data);
}

static void s2_heart_scale(void **state)
{
    (void)state;
    for (int groups = 1; groups <= 4; groups++) {
        struct reference_data data;
        case_data_heart_scale(&data);
        full_batch(&data, 1.0, groups,
                   (struct loss_at[]){{0, 0.69314718}, {1, 0.45628108}, {50, 0.34170109}, {-1, 0}}, 227);
    }
}

static void s2_iris(void **state)
{
    (void)state;
    for (int groups = 1; groups <= 4; groups++) {
        struct reference_data data;
        case_data_iris(&data);
        full_batch(
            &data, 0.1, groups,
            (struct loss_at[]){{0, 1.09861229}, {1, 1.03236722}, {10, 0.85650918}, {200, 0.26204785}, {-1, 0}},
            147);
    }
}

static void s2_digits(void **state)
{
    (void)state;
    struct reference_data data;
    case_data_digits(&data);
    full_batch(&data, 1.0, 3,
               (struct loss_at[]){{0, 2.30258509}, {1, 2.11065219}, {10, 1.10524890}, {100, 0.27446484}, {-1, 0}},
               1713);
}

static void s2_breast_cancer(void **state)
{
    (void)state;
    struct reference_data data;
    case_data_breast_cancer(&data);
    full_batch(&data, 0.5, 2,
               (struct loss_at[]){{0, 0.69314718}, {1, 0.16959117}, {10, 0.09309339}, {100, 0.06027283}, {-1, 0}},
               561);
}

static void s2_fashion_mnist(void **state)
{
    (void)state;
    struct reference_data train, test;
    struct job job;
    struct reference reference;
    int64_t correct;
    case_data_fashion(&train, 0);
    case_data_fashion(&test, 1);
    softmax_job(&job, train.rows, 0.1);
    open_or_fail(&reference, &job, &train, 2);
    descend(&reference, (struct loss_at[]){{0, 2.30258509},
                                           {1, 2.07707567},
                                           {2, 1.91860202},
                                           {5, 1.59041025},
                                           {10, 1.30283410},
                                           {20, 1.05664812},
                                           {-1, 0}});
    reference_evaluate(&reference, &test, &correct);
    assert_in_range(correct, 6739 - 3, 6739 + 3);
    reference_close(&reference);
    case_data_free(&train);
    case_data_free(&test);
}

static void s3_heart_scale_in_batches_even_and_with_a_short_last_one(void **state)
{
    (void)state;
    struct reference_data data;
    case_data_heart_scale(&data);
    for (int groups = 1; groups <= 4; groups++) {
        struct job job;
        struct reference reference;
        int64_t correct;
        softmax_job(&job, 30, 0.1);
        open_or_fail(&reference, &job, &data, groups);
        descend(&reference, (struct loss_at[]){{9, 0.49196363}, {-1, 0}});
        reference_evaluate(&reference, &data, &correct);
        assert_int_equal(correct, 226);
        descend(&reference, (struct loss_at[]){{45, 0.38521108}, {-1, 0}});
        reference_evaluate(&reference, &data, &correct);
        assert_int_equal(correct, 227);
        reference_close(&reference);
        softmax_job(&job, 32, 0.1);
        open_or_fail(&reference, &job, &data, groups);
        assert_int_equal(reference_steps_per_epoch(&reference), 9);
        descend(&reference, (struct loss_at[]){{9, 0.49449328}, {-1, 0}});
        reference_evaluate(&reference, &data, &correct);
        assert_int_equal(correct, 226);
        reference_close(&reference);
    }
    case_data_free(&data);
}

static void s3_fashion_mnist_in_batches(void **state)
{
    (void)state;
    struct reference_data train, test;
    struct job job;
    struct reference reference;
    int64_t correct;
    case_data_fashion(&train, 0);
    case_data_fashion(&test, 1);
    softmax_job(&job, 600, 0.1);
    open_or_fail(&reference, &job, &train, 4);
    descend(&reference, (struct loss_at[]){{100, 0.71677013}, {-1, 0}});
    near("test loss", reference_evaluate(&reference, &test, &correct), 0.73434673, 1e-4);
    assert_in_range(correct, 7540 - 3, 7540 + 3);
    reference_close(&reference);
    case_data_free(&train);
    case_data_free(&test);
}

/* --- S4 ------------------------------------------------------------------------------------------------------ */

static int64_t s4_hidden[] = {8};

static void s4_job(struct job *job)
{
    reference_job(job);
    job->batch_size = 150;
    job->epochs = 1000;
    job->model.kind = JOB_MODEL_MLP;
    job->model.hidden = s4_hidden;
    job->model.hidden_count = 1;
    job->model.activation = JOB_ACTIVATION_RELU;
    job->model.batch_norm = 1;
}

/* v(k,i) = 0.5 sin(0.37k + 0.11i), i running over (in, out) for matrices, which are stored (out, in). */
static void formula_weights(const struct param_table *table, float *w)
{
    for (int k = 0; k < table->tensor_count; k++) {
        const struct param_tensor *tensor = &table->tensors[k];
        float *to = w + table->layers[tensor->layer].offset + tensor->offset;
        int64_t out = tensor->shape[0], in = tensor->dims == 2 ? tensor->shape[1] : 1;
        double plus = strstr(tensor->name, "norm.weight") ? 1 : 0;
        for (int64_t i = 0; i < tensor->count; i++)
            to[i % out * in + i / out] = (float)(plus + 0.5 * sin(0.37 * k + 0.11 * (double)i));
    }
}

static void s4_mlp_in_one_group(void **state)
{
    (void)state;
    static const double losses[] = {1.35170542, 1.03980600, 0.94268818, 0.90801141, 0.88816974, 0.87346283};
    static const double mean[] = {1.42963619, 1.57778752, 1.70689080}, var[] = {0.98826975, 0.97075853, 0.94571872};
    struct reference_data data;
    struct job job;
    struct reference reference;
    int64_t correct;
    case_data_iris(&data);
    s4_job(&job);
    open_or_fail(&reference, &job, &data, 1);
    formula_weights(model_params(reference.model), reference.w);
    for (int step = 0; step < 5; step++) {
        steps(&reference, 1);
        near("training loss", reference.loss, losses[step], 1e-6);
    }
    const float *running = model_buffers(reference.model)->values;
    for (int i = 0; i < 3; i++) {
        near("running mean", running[i], mean[i], 1e-6);
        near("running variance", running[8 + i], var[i], 1e-6);
    }
    near("evaluation loss", reference_evaluate(&reference, &data, &correct), 2.10394141, 1e-5);
    assert_int_equal(correct, 50);
    steps(&reference, 1);
    near("training loss", reference.loss, losses[5], 1e-6);
    steps(&reference, 44);
    near("evaluation loss after 50", reference_evaluate(&reference, &data, &correct), 0.64080364, 1e-5);
    assert_int_equal(correct, 114);
    steps(&reference, 1);
    near("training loss after 50", reference.loss, 0.64185083, 1e-5);
    reference_close(&reference);
    case_data_free(&data);
}

static void s4_mlp_in_two_groups_with_local_statistics(void **state)
{
    (void)state;
    static const double losses[] = {1.26440728, 1.09052493, 1.03827491, 1.01679071, 1.00512505, 0.99718267};
    struct reference_data data;
    struct job job;
    struct reference reference, whole;
    case_data_iris(&data);
    s4_job(&job);
    open_or_fail(&whole, &job, &data, 1);
    open_or_fail(&reference, &job, &data, 2);
    formula_weights(model_params(whole.model), whole.w);
    formula_weights(model_params(reference.model), reference.w);
    for (int step = 0; step < 6; step++) {
        steps(&reference, 1);
        near("training loss", reference.loss, losses[step], 1e-6);
        if (step == 0) { /* running statistics are those of the whole batch, however it is cut */
            steps(&whole, 1);
            for (int i = 0; i < 16; i++)
                near("running", model_buffers(reference.model)->values[i], model_buffers(whole.model)->values[i],
                     1e-6);
        }
    }
    reference_close(&reference);
    reference_close(&whole);
    case_data_free(&data);
}

/* --- N08 ----------------------------------------------------------------------------------------------------- */

static void n08_batch_norm_of_a_column(void **state)
{
    (void)state;
    static const float x[] = {1, 2, 3, 4}, targets[] = {0, 0, 0, 0};
    static int64_t hidden[] = {1};
    const struct reference_data data = {.x = x, .targets = targets, .rows = 4, .features = 1, .outputs = 1};
    static const double wanted[] = {-1.34163542, -0.44721181, 0.44721181, 1.34163542};
    for (int groups = 1; groups <= 2; groups++) {
        struct job job;
        struct reference reference;
        reference_job(&job);
        job.batch_size = 4;
        job.optimizer.lr = 0;
        job.model.kind = JOB_MODEL_MLP;
        job.model.hidden = hidden;
        job.model.hidden_count = 1;
        job.model.activation = JOB_ACTIVATION_NONE;
        job.model.batch_norm = 1;
        job.model.loss = JOB_LOSS_MSE;
        open_or_fail(&reference, &job, &data, groups);
        const float passing[] = {1, 0, 1, 0, 1, 0}; /* linear, norm and head let the column through */
        memcpy(reference.w, passing, sizeof passing);
        steps(&reference, 1);
        for (int i = 0; i < 4 && groups == 1; i++)
            near("output", model_logits(reference.model)[i], wanted[i], 1e-6);
        near("running mean", model_buffers(reference.model)->values[0], 0.25, 1e-7);
        near("running variance", model_buffers(reference.model)->values[1], 1.06666667, 1e-7);
        assert_int_equal(model_buffers(reference.model)->num_batches_tracked, 1);
        reference_close(&reference);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(s1_every_optimizer_row),
        cmocka_unit_test(s1_weights_after_five_sgd_steps),
        cmocka_unit_test(s2_heart_scale),
        cmocka_unit_test(s2_iris),
        cmocka_unit_test(s2_digits),
        cmocka_unit_test(s2_breast_cancer),
        cmocka_unit_test(s2_fashion_mnist),
        cmocka_unit_test(s3_heart_scale_in_batches_even_and_with_a_short_last_one),
        cmocka_unit_test(s3_fashion_mnist_in_batches),
        cmocka_unit_test(s4_mlp_in_one_group),
        cmocka_unit_test(s4_mlp_in_two_groups_with_local_statistics),
        cmocka_unit_test(n08_batch_norm_of_a_column),
    };
    return cmocka_run_group_tests_name("model_cases", tests, NULL, NULL);
}
