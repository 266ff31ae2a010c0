/* The fused sum and update gives the bits of summing everything first and updating then, in one pass and in two,
 * for every optimizer, number of sources and cut. */
#include "optim/optimizer.h"
#include "owner/apply.h"
#include "tensor/reduce.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { COUNT = 9001, SOURCES = 37 };

struct owned {
    float w[COUNT], a[COUNT], b[COUNT];
};

struct fixture {
    float sources[SOURCES][COUNT];
    const float *pointers[SOURCES];
    struct owned first, want, got;
    float grad[COUNT];
};

static const struct optimizer_params params = {.beta1 = 0.9,
                                               .beta2 = 0.999,
                                               .eps = 1e-8,
                                               .weight_decay = 0.1,
                                               .momentum = 0.9,
                                               .l1 = 0.01,
                                               .l2 = 0.1,
                                               .beta = 1};
static const struct optimizer_step step = {.lr = 0.01, .t = 2, .grad_scale = 0.3f, .trust_ratio = 1};

static float noise(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(int32_t)*seed * (1.0f / 1073741824.0f);
}

static int fixture_open(void **state)
{
    struct fixture *f = malloc(sizeof *f);
    uint32_t seed = 9;

    if (!f)
        return -1;
    for (int s = 0; s < SOURCES; s++) {
        for (int i = 0; i < COUNT; i++)
            f->sources[s][i] = noise(&seed);
        f->pointers[s] = f->sources[s];
    }
    for (int i = 0; i < COUNT; i++) {
        f->first.w[i] = noise(&seed);
        f->first.a[i] = fabsf(noise(&seed));
        f->first.b[i] = fabsf(noise(&seed));
    }
    *state = f;
    return 0;
}

static int fixture_close(void **state)
{
    free(*state);
    return 0;
}

/* Plain loops: the sum of each element in the order given, then one update of everything. */
static void plain(struct fixture *f, const struct owner_rule *rule, int sources)
{
    float *slots[2] = {f->want.a, f->want.b};

    f->want = f->first;
    for (int i = 0; i < COUNT; i++) {
        float sum = f->sources[0][i];
        for (int s = 1; s < sources; s++)
            sum += f->sources[s][i];
        f->grad[i] = sum;
    }
    rule->ops->update(rule->params, rule->step, rule->decay, f->want.w, f->grad, slots, COUNT);
}

static void one_pass_gives_the_bits_of_a_plain_sum_and_update(void **state)
{
    struct fixture *f = *state;
    static const int numbers[] = {1, 2, 3, 4, 5, 8, 16, 17, 33, 37};

    for (int row = 0; optimizer_at(row); row++)
        for (size_t k = 0; k < sizeof numbers / sizeof numbers[0]; k++) {
            struct owner_rule rule = {optimizer_at(row), &params, &step, 1};
            float *slots[2] = {f->got.a, f->got.b};
            if (rule.ops->prepare)
                continue;
            plain(f, &rule, numbers[k]);
            f->got = f->first;
            assert_int_equal(owner_apply_sum(&rule, f->got.w, slots, f->pointers, numbers[k], COUNT), 1);
            assert_memory_equal(&f->got, &f->want, sizeof f->got);
        }
}

/* A plug-in need not bring update_sum. */
static void a_rule_without_a_loop_for_sums_gives_the_same_bits(void **state)
{
    struct fixture *f = *state;
    struct optimizer_ops ops = *optimizer_find("adam");
    struct owner_rule rule = {&ops, &params, &step, 1};
    float *slots[2] = {f->got.a, f->got.b};

    ops.update_sum = NULL;
    for (int sources = 1; sources <= SOURCES; sources += 3) {
        plain(f, &rule, sources);
        f->got = f->first;
        assert_int_equal(owner_apply_sum(&rule, f->got.w, slots, f->pointers, sources, COUNT), 1);
        assert_memory_equal(&f->got, &f->want, sizeof f->got);
    }
    f->sources[2][COUNT - 1] = NAN;
    assert_int_equal(owner_apply_sum(&rule, f->got.w, slots, f->pointers, 3, COUNT), 0);
}

static void two_passes_give_the_same_bits_and_the_norm(void **state)
{
    struct fixture *f = *state;

    for (int row = 0; optimizer_at(row); row++)
        for (int sources = 1; sources <= SOURCES; sources += 6) {
            struct owner_rule rule = {optimizer_at(row), &params, &step, 1};
            float *slots[2] = {f->got.a, f->got.b};
            int finite = 1;
            double norm = 0;
            if (rule.ops->prepare)
                continue;
            plain(f, &rule, sources);
            f->got = f->first;
            double got = owner_sum(f->grad, f->pointers, sources, COUNT, &finite);
            for (int i = 0; i < COUNT; i++)
                norm += (double)f->grad[i] * (double)f->grad[i];
            assert_int_equal(finite, 1);
            assert_true(fabs(got - norm) <= 1e-12 * norm);
            owner_apply(&rule, f->got.w, f->grad, slots, COUNT);
            assert_memory_equal(&f->got, &f->want, sizeof f->got);
        }
}

static void the_cut_of_a_part_does_not_change_its_bits(void **state)
{
    struct fixture *f = *state;
    struct owner_rule rule = {optimizer_find("adam"), &params, &step, 0};

    plain(f, &rule, 3);
    f->got = f->first;
    for (int first = 0, length = 1; first < COUNT; first += length, length = length * 3 + 1) {
        const float *sources[3] = {f->sources[0] + first, f->sources[1] + first, f->sources[2] + first};
        float *slots[2] = {f->got.a + first, f->got.b + first};
        if (length > COUNT - first)
            length = COUNT - first;
        assert_int_equal(owner_apply_sum(&rule, f->got.w + first, slots, sources, 3, length), 1);
    }
    assert_memory_equal(&f->got, &f->want, sizeof f->got);
}

static void the_sum_may_be_taken_in_any_source(void **state)
{
    struct fixture *f = *state;
    static float kept[COUNT];
    int finite = 1;

    for (int sources = 1; sources <= 9; sources++)
        for (int into = 0; into < sources; into++) {
            memcpy(kept, f->sources[into], sizeof kept);
            double apart = owner_sum(f->grad, f->pointers, sources, COUNT, &finite);
            double inside = owner_sum(f->sources[into], f->pointers, sources, COUNT, &finite);
            assert_memory_equal(f->grad, f->sources[into], sizeof f->grad);
            assert_true(apart == inside);
            memcpy(f->sources[into], kept, sizeof kept);
        }
}

static void a_sum_that_is_not_finite_is_told(void **state)
{
    struct fixture *f = *state;
    static const float bad[] = {INFINITY, -INFINITY, NAN, 3e38f};
    struct owner_rule rule = {optimizer_find("adam"), &params, &step, 1};

    for (int k = 0; k < 4; k++)
        for (int at = 0; at < COUNT; at += 1500) {
            float *slots[2] = {f->got.a, f->got.b};
            float kept[2] = {f->sources[1][at], f->sources[2][at]};
            int finite = 1;
            f->sources[1][at] = f->sources[2][at] = bad[k]; /* 3e38 twice: only the sum is infinite */
            f->got = f->first;
            assert_int_equal(owner_apply_sum(&rule, f->got.w, slots, f->pointers, 3, COUNT), 0);
            assert_int_equal(owner_apply_sum(&rule, f->got.w, slots, f->pointers, 9, COUNT), 0);
            owner_sum(f->grad, f->pointers, 3, COUNT, &finite);
            assert_int_equal(finite, 0);
            f->sources[1][at] = kept[0];
            f->sources[2][at] = kept[1];
        }
}

static void extreme_but_finite_gradients_are_applied(void **state)
{
    struct fixture *f = *state;
    struct owner_rule rule = {optimizer_find("sgd"), &params, &step, 1};
    float *slots[1] = {f->got.a};
    float grad[4] = {3.4e38f, -3.4e38f, 1e-45f, -0.0f};
    const float *sources[1] = {grad};

    f->got = f->first;
    assert_int_equal(owner_apply_sum(&rule, f->got.w, slots, sources, 1, 4), 1);
    assert_int_equal(owner_apply_sum(&rule, f->got.w, slots, sources, 1, 0), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_pass_gives_the_bits_of_a_plain_sum_and_update, fixture_open,
                                        fixture_close),
        cmocka_unit_test_setup_teardown(a_rule_without_a_loop_for_sums_gives_the_same_bits, fixture_open,
                                        fixture_close),
        cmocka_unit_test_setup_teardown(two_passes_give_the_same_bits_and_the_norm, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(the_cut_of_a_part_does_not_change_its_bits, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(the_sum_may_be_taken_in_any_source, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(a_sum_that_is_not_finite_is_told, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(extreme_but_finite_gradients_are_applied, fixture_open, fixture_close),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
