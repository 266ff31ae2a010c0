#include "tensor_support.h"

#include <math.h>
#include <string.h>

#include "tensor/kernels.h"
#include "tensor/naive.h"
#include "tensor/reduce.h"

enum { SOURCES = 9 };

static void adding_many_equals_adding_one_after_the_other(void **state)
{
    (void)state;
    for (int l = 0; l < LENGTHS; l++) {
        int64_t n = test_lengths[l];
        float *source[SOURCES], *acc = test_array(n, 7), *slow = test_array(n, 0);
        for (int s = 0; s < SOURCES; s++) {
            source[s] = test_array(n, s);
            test_fill(source[s], n, 1.0f, 20 + (uint32_t)s);
        }
        for (int count = 0; count <= SOURCES; count++)
            for (int first = 0; first < 2; first++) {
                test_fill(acc, n, 3.0f, 30);
                test_fill(slow, n, 3.0f, 30);
                naive_reduce_add_many(slow, (const float *const *)source, count, first, n);
                reduce_add_many(acc, (const float *const *)source, count, first, n);
                assert_same_bits(acc, slow, n);
            }
        for (int s = 0; s < SOURCES; s++)
            test_release(source[s], s);
        test_release(acc, 7);
        test_release(slow, 0);
    }
}

static void single_steps_equal_the_pass_over_many(void **state)
{
    (void)state;
    enum { N = 5003 };
    float *a = test_array(N, 1), *b = test_array(N, 2), *acc = test_array(N, 3), *many = test_array(N, 0);
    test_fill(a, N, 1.0f, 1);
    test_fill(b, N, 1.0f, 2);
    const float *sources[] = {a, b};
    reduce_copy(acc, a, N);
    reduce_add(acc, b, N);
    reduce_add_many(many, sources, 2, 1, N);
    assert_same_bits(acc, many, N);
    reduce_scale(acc, 0.1f, N);
    naive_reduce_scale(many, 0.1f, N);
    assert_same_bits(acc, many, N);
    test_release(a, 1);
    test_release(b, 2);
    test_release(acc, 3);
    test_release(many, 0);
}

static void every_instruction_set_and_offset_gives_the_same_bits(void **state)
{
    (void)state;
    for (int l = 0; l < LENGTHS; l++)
        for (int offset = 0; offset < OFFSETS; offset++) {
            int64_t n = test_lengths[l];
            int finite = 1;
            if (n > 1000 && offset > 3)
                continue;
            float *x = test_array(n, offset);
            test_fill(x, n, 1e3f, 40);
            double square = naive_reduce_norm_squared(x, n, &finite), sum = naive_reduce_sum(x, n);
            for (int i = 0; kernel_ops_at(i) != NULL; i++) {
                double got_square = kernel_ops_at(i)->reduce_norm_squared(x, n);
                double got_sum = kernel_ops_at(i)->reduce_sum(x, n);
                assert_memory_equal(&got_square, &square, sizeof square);
                assert_memory_equal(&got_sum, &sum, sizeof sum);
            }
            assert_int_equal(finite, 1);
            test_release(x, offset);
        }
}

static void adding_many_gives_the_same_bits_on_every_instruction_set(void **state)
{
    (void)state;
    enum { N = 9001 };
    float *source[5], *slow = test_array(N, 0);
    for (int s = 0; s < 5; s++) {
        source[s] = test_array(N, s + 1);
        test_fill(source[s], N, 1.0f, 50 + (uint32_t)s);
    }
    naive_reduce_add_many(slow, (const float *const *)source, 5, 1, N);
    for (int i = 0; kernel_ops_at(i) != NULL; i++)
        for (int offset = 0; offset < OFFSETS; offset++) {
            float *acc = test_array(N, offset);
            kernel_ops_at(i)->reduce_add_many(acc, (const float *const *)source, 5, 1, N);
            assert_same_bits(acc, slow, N);
            test_release(acc, offset);
        }
    for (int s = 0; s < 5; s++)
        test_release(source[s], s + 1);
    test_release(slow, 0);
}

static void a_sum_may_go_to_the_place_of_one_of_its_sources(void **state)
{
    (void)state;
    enum { N = 9001, SOURCES = 8 };
    for (int count = 1; count <= SOURCES; count++)
        for (int place = 0; place <= count; place++)
            for (int i = 0; kernel_ops_at(i) != NULL; i++) {
                float *source[SOURCES + 1], *slow = test_array(N, 0);
                for (int s = 0; s <= count; s++) {
                    source[s] = test_array(N, s + 1);
                    test_fill(source[s], N, 1.0f, 70 + (uint32_t)s);
                }
                naive_reduce_add_many(slow, (const float *const *)source, count, 1, N);
                kernel_ops_at(i)->reduce_sum_to(source[place], (const float *const *)source, count, N);
                assert_same_bits(source[place], slow, N);
                for (int s = 0; s <= count; s++)
                    test_release(source[s], s + 1);
                test_release(slow, 0);
            }
}

static void one_bad_element_anywhere_clears_the_finite_flag(void **state)
{
    (void)state;
    enum { N = 67 };
    float x[N];
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int at = 0; at < N; at++)
        for (int b = 0; b < 3; b++) {
            int finite = 1;
            test_fill(x, N, 1.0f, 60);
            x[at] = bad[b];
            reduce_norm_squared(x, N, &finite);
            assert_int_equal(finite, 0);
        }
}

static void the_largest_floats_are_finite(void **state)
{
    (void)state;
    float x[33];
    int finite = 1;
    for (int i = 0; i < 33; i++)
        x[i] = 3.4028234e38f;
    assert_near(reduce_norm_squared(x, 33, &finite) / (33.0 * 3.4028234e38 * 3.4028234e38), 1.0, 1e-6);
    assert_int_equal(finite, 1);
    finite = 0; /* never set back */
    reduce_norm_squared(x, 33, &finite);
    assert_int_equal(finite, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adding_many_equals_adding_one_after_the_other),
        cmocka_unit_test(single_steps_equal_the_pass_over_many),
        cmocka_unit_test(every_instruction_set_and_offset_gives_the_same_bits),
        cmocka_unit_test(adding_many_gives_the_same_bits_on_every_instruction_set),
        cmocka_unit_test(a_sum_may_go_to_the_place_of_one_of_its_sources),
        cmocka_unit_test(one_bad_element_anywhere_clears_the_finite_flag),
        cmocka_unit_test(the_largest_floats_are_finite),
    };
    return cmocka_run_group_tests_name("tensor reduce", tests, NULL, NULL);
}
