/* N05: AdamW's decay comes before the step and apart from the moments; the L2 form goes through them. The same
 * answer in vector bodies and tails. */
#include "optim/optimizer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

static const int64_t lengths[] = {1, 7, 8, 9, 1000003};

/* Every element starts at `start` with the constant gradient; after each of three steps it must be want[step]. */
static void three_steps(const char *name, float start, float gradient, const double want[3], int64_t count)
{
    const struct optimizer_params params = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1};
    const struct optimizer_ops *ops = optimizer_find(name);
    float *w = malloc(sizeof(float) * (size_t)count), *grad = malloc(sizeof(float) * (size_t)count);
    float *slots[2] = {calloc((size_t)count, sizeof(float)), calloc((size_t)count, sizeof(float))};

    assert_true(ops && w && grad && slots[0] && slots[1]);
    for (int64_t i = 0; i < count; i++)
        w[i] = start;
    for (int t = 1; t <= 3; t++) {
        const struct optimizer_step step = {.lr = 0.1, .t = t, .grad_scale = 1};
        for (int64_t i = 0; i < count; i++)
            grad[i] = gradient;
        ops->update(&params, &step, 1, w, grad, slots, count);
        for (int64_t i = 0; i < count; i++)
            if (fabs(w[i] - want[t - 1]) > 1e-6)
                fail_msg("%s, length %lld: element %lld is %.9g after step %d, not %.8f", name, (long long)count,
                         (long long)i, (double)w[i], t, want[t - 1]);
    }
    free(w);
    free(grad);
    free(slots[0]);
    free(slots[1]);
}

static void N05_adamw_decays_apart_from_the_moments(void **state)
{
    (void)state;
    for (int l = 0; l < 5; l++) {
        three_steps("adamw", 2, 1, (const double[3]){1.88, 1.7612, 1.643588}, lengths[l]);
        three_steps("adamw", -1, -0.5f, (const double[3]){-0.89, -0.7811, -0.67328901}, lengths[l]);
    }
}

static void N05_adam_decays_through_the_gradient(void **state)
{
    (void)state;
    for (int l = 0; l < 5; l++) {
        three_steps("adam", 2, 1, (const double[3]){1.9, 1.80002269, 1.70008339}, lengths[l]);
        three_steps("adam", -1, -0.5f, (const double[3]){-0.9, -0.80004734, -0.70017457}, lengths[l]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(N05_adamw_decays_apart_from_the_moments),
        cmocka_unit_test(N05_adam_decays_through_the_gradient),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
