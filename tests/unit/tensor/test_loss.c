#include "tensor_support.h"

#include <math.h>
#include <string.h>

#include "tensor/kernels.h"
#include "tensor/loss.h"
#include "tensor/naive.h"

enum { ROWS = 23, WIDTH_MAX = 1003 };

static void softmax_cross_entropy_is_its_slow_twin(void **state)
{
    (void)state;
    static const int64_t widths[] = {1, 2, 10, 15, 16, 17, 127, WIDTH_MAX};
    static float x[ROWS * WIDTH_MAX], dx[ROWS * WIDTH_MAX], slow[ROWS * WIDTH_MAX];
    int32_t labels[ROWS];
    for (int w = 0; w < 8; w++) {
        int64_t n = widths[w], correct, counted, slow_correct, slow_counted;
        double loss, slow_loss;
        test_fill(x, ROWS * n, 8.0f, 1);
        for (int r = 0; r < ROWS; r++)
            labels[r] = r % 5 == 3 ? -1 : (int32_t)(r * 7 % n);
        loss_softmax_cross_entropy(x, labels, ROWS, n, 0.25, &loss, dx, &correct, &counted);
        naive_softmax_cross_entropy(x, labels, ROWS, n, 0.25, &slow_loss, slow, &slow_correct, &slow_counted);
        assert_near(loss, slow_loss, 1e-12 * fabs(slow_loss) + 1e-13);
        assert_int_equal(correct, slow_correct);
        assert_int_equal(counted, slow_counted);
        for (int64_t i = 0; i < ROWS * n; i++)
            assert_near((double)dx[i], (double)slow[i], 1e-7 * fabs((double)slow[i]));
        softmax_rows(x, dx, ROWS, n);
        naive_softmax_rows(x, slow, ROWS, n);
        for (int64_t i = 0; i < ROWS * n; i++)
            assert_near((double)dx[i], (double)slow[i], 1e-7 * fabs((double)slow[i]));
        softmax_rows(x, x, ROWS, n);
        assert_same_bits(x, dx, ROWS * n);
    }
}

static void softmax_loops_give_the_same_bits_on_every_instruction_set(void **state)
{
    (void)state;
    enum { N = 333 };
    float expected[N], y[N];
    for (int offset = 0; offset < OFFSETS; offset++) {
        float *x = test_array(N, offset);
        test_fill(x, N, 20.0f, 2);
        const struct kernel_ops *portable = kernel_ops_at(0);
        float maximum = portable->row_maximum(x, N);
        double sum = portable->row_exp_sum(x, (double)maximum, N);
        portable->row_exp_scale(x, (double)maximum, 1.0 / sum, expected, N);
        for (int i = 1; kernel_ops_at(i) != NULL; i++) {
            double other = kernel_ops_at(i)->row_exp_sum(x, (double)maximum, N);
            assert_true(kernel_ops_at(i)->row_maximum(x, N) == maximum);
            assert_memory_equal(&other, &sum, sizeof sum);
            kernel_ops_at(i)->row_exp_scale(x, (double)maximum, 1.0 / sum, y, N);
            assert_same_bits(y, expected, N);
        }
        test_release(x, offset);
    }
}

static void equal_logits_give_log_of_the_classes_and_the_lowest_class(void **state)
{
    (void)state;
    float x[6] = {3, 3, 3, -1, -1, -1}, dx[6];
    int32_t labels[2] = {0, 1};
    double loss;
    int64_t correct, counted;
    loss_softmax_cross_entropy(x, labels, 2, 3, 1.0, &loss, dx, &correct, &counted);
    assert_near(loss, 2.0 * log(3.0), 1e-15);
    assert_int_equal(correct, 1); /* ties go to class 0, so only the first row is right */
    assert_near((double)dx[0], -2.0 / 3.0, 1e-7);
    assert_near((double)dx[1], 1.0 / 3.0, 1e-7);
}

static void huge_logits_stay_finite(void **state)
{
    (void)state;
    float x[3] = {3e38f, -3e38f, 0.0f}, dx[3];
    int32_t labels[1] = {0};
    double loss;
    loss_softmax_cross_entropy(x, labels, 1, 3, 1.0, &loss, dx, NULL, NULL);
    assert_near(loss, 0.0, 0.0);
    assert_near((double)dx[0], 0.0, 0.0);
    float t[3] = {1.0f, 0.0f, 0.5f};
    loss_binary_cross_entropy(x, t, 3, 1, 1.0, &loss, dx, NULL, NULL);
    assert_near(loss, log(2.0), 1e-15);
}

static void nan_reaches_the_loss_and_is_never_correct(void **state)
{
    (void)state;
    float x[3] = {NAN, 5.0f, 0.0f}, dx[3], one = NAN, target = 0.0f;
    int32_t labels[1] = {1};
    double loss;
    int64_t correct, counted;
    loss_softmax_cross_entropy(x, labels, 1, 3, 1.0, &loss, dx, &correct, &counted);
    assert_true(isnan(loss) && isnan(dx[2]));
    assert_int_equal(correct, 0);
    loss_binary_cross_entropy(&one, &target, 1, 1, 1.0, &loss, dx, &correct, &counted);
    assert_true(isnan(loss) && isnan(dx[0]));
    assert_int_equal(correct, 0);
}

static void padding_has_no_loss_no_gradient_and_no_count(void **state)
{
    (void)state;
    float x[6] = {1, 2, 3, 4, 5, 6}, t[6] = {NAN, 0, 1, 0, 1, NAN}, dx[6];
    int32_t labels[3] = {-1, -1, -1};
    double loss = 9.0;
    int64_t correct = 9, counted = 9;
    loss_softmax_cross_entropy(x, labels, 3, 2, 1.0, &loss, dx, &correct, &counted);
    assert_true(loss == 0.0 && correct == 0 && counted == 0 && dx[0] == 0.0f && dx[5] == 0.0f);
    loss_mse(x, t, 3, 2, 1.0, &loss, dx, &counted);
    assert_int_equal(counted, 1);
    assert_true(dx[0] == 0.0f && dx[1] == 0.0f && dx[2] != 0.0f && dx[4] == 0.0f && dx[5] == 0.0f);
    assert_near(loss, (4.0 + 16.0) / 2.0, 0.0);
    loss_half_squared_error(x, t, 3, 2, 1.0, &loss, dx, &counted);
    assert_near(loss, 10.0, 0.0);
    loss_binary_cross_entropy(x, t, 3, 2, 1.0, &loss, dx, &correct, &counted);
    assert_int_equal(counted, 1);
    assert_int_equal(correct, 0);
}

static void pointwise_losses_are_their_slow_twins(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= 17; n += 4) {
        float x[ROWS * 17], t[ROWS * 17], dx[ROWS * 17], slow[ROWS * 17];
        double loss, slow_loss;
        int64_t counted, slow_counted, correct, slow_correct;
        test_fill(x, ROWS * n, 9.0f, 3);
        test_fill(t, ROWS * n, 0.5f, 4);
        for (int64_t i = 0; i < ROWS * n; i++)
            t[i] += 0.5f;
        t[2 * n] = NAN;
        loss_binary_cross_entropy(x, t, ROWS, n, 0.5, &loss, dx, &correct, &counted);
        naive_binary_cross_entropy(x, t, ROWS, n, 0.5, &slow_loss, slow, &slow_correct, &slow_counted);
        assert_near(loss, slow_loss, 1e-12 * slow_loss);
        assert_int_equal(correct, slow_correct);
        assert_int_equal(counted, slow_counted);
        for (int64_t i = 0; i < ROWS * n; i++)
            assert_near((double)dx[i], (double)slow[i], 1e-7 * fabs((double)slow[i]) + 1e-15);
        for (int half = 0; half < 2; half++) {
            (half ? loss_half_squared_error : loss_mse)(x, t, ROWS, n, 0.5, &loss, dx, &counted);
            naive_squared_error(x, t, ROWS, n, half, 0.5, &slow_loss, slow, &slow_counted);
            assert_near(loss, slow_loss, 0.0);
            assert_int_equal(counted, slow_counted);
            assert_same_bits(dx, slow, ROWS * n);
        }
    }
}

enum loss_kind { SOFTMAX, BINARY, MSE, HALF, LOSS_KINDS };

struct loss_context {
    enum loss_kind kind;
    float *x, *t;
    int32_t *labels;
    float *dx; /* NULL: not wanted */
};

enum { G_ROWS = 5, G_WIDTH = 7 };

static double run_loss(void *context)
{
    struct loss_context *c = context;
    double loss = 0.0, scale = 0.3;
    switch (c->kind) {
    case SOFTMAX:
        loss_softmax_cross_entropy(c->x, c->labels, G_ROWS, G_WIDTH, scale, &loss, c->dx, NULL, NULL);
        break;
    case BINARY:
        loss_binary_cross_entropy(c->x, c->t, G_ROWS, G_WIDTH, scale, &loss, c->dx, NULL, NULL);
        break;
    case MSE:
        loss_mse(c->x, c->t, G_ROWS, G_WIDTH, scale, &loss, c->dx, NULL);
        break;
    default:
        loss_half_squared_error(c->x, c->t, G_ROWS, G_WIDTH, scale, &loss, c->dx, NULL);
        break;
    }
    return loss * scale;
}

static void gradients_are_the_slopes_of_the_losses(void **state)
{
    (void)state;
    float x[G_ROWS * G_WIDTH], t[G_ROWS * G_WIDTH], dx[G_ROWS * G_WIDTH], in_place[G_ROWS * G_WIDTH];
    int32_t labels[G_ROWS] = {0, 6, -1, 3, 2};
    test_fill(x, G_ROWS * G_WIDTH, 3.0f, 5);
    test_fill(t, G_ROWS * G_WIDTH, 0.5f, 6);
    for (int i = 0; i < G_ROWS * G_WIDTH; i++)
        t[i] += 0.5f;
    t[G_WIDTH + 3] = NAN;
    for (int kind = 0; kind < LOSS_KINDS; kind++) {
        struct loss_context c = {(enum loss_kind)kind, x, t, labels, dx};
        run_loss(&c);
        memcpy(in_place, x, sizeof x);
        struct loss_context own = {(enum loss_kind)kind, in_place, t, labels, in_place};
        run_loss(&own);
        assert_same_bits(in_place, dx, G_ROWS * G_WIDTH);
        c.dx = NULL;
        assert_gradient(run_loss, &c, x, dx, G_ROWS * G_WIDTH, 2e-5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(softmax_cross_entropy_is_its_slow_twin),
        cmocka_unit_test(softmax_loops_give_the_same_bits_on_every_instruction_set),
        cmocka_unit_test(equal_logits_give_log_of_the_classes_and_the_lowest_class),
        cmocka_unit_test(huge_logits_stay_finite),
        cmocka_unit_test(nan_reaches_the_loss_and_is_never_correct),
        cmocka_unit_test(padding_has_no_loss_no_gradient_and_no_count),
        cmocka_unit_test(pointwise_losses_are_their_slow_twins),
        cmocka_unit_test(gradients_are_the_slopes_of_the_losses),
    };
    return cmocka_run_group_tests_name("tensor loss", tests, NULL, NULL);
}
