#include "tensor_support.h"

#include <math.h>
#include <string.h>

#include "tensor/elementwise.h"
#include "tensor/vector_math.h"

/* Distance in units of the last place of a float32 at the exact value; denormals have one size. */
static double ulps(float got, double expected)
{
    int exponent;
    if (isnan(expected))
        return isnan(got) ? 0.0 : INFINITY;
    if (isinf((float)expected))
        return got == (float)expected ? 0.0 : INFINITY;
    frexp(expected, &exponent);
    if (expected == 0.0 || exponent < -125)
        exponent = -125;
    return fabs((double)got - expected) / ldexp(1.0, exponent - 24);
}

/* Every 997th bit pattern, so every exponent, both signs, denormals, infinities and NaN. */
static void assert_close_to_libm(float (*own)(float), double (*exact)(double), double limit)
{
    for (uint64_t u = 0; u <= 0xFFFFFFFFu; u += 997) {
        float x = float_of_bits((uint32_t)u);
        double error = ulps(own(x), exact((double)x));
        if (!(error <= limit))
            fail_msg("at %.9g: %.9g is %g ulp from %.12g", (double)x, (double)own(x), error, exact((double)x));
    }
}

static void exp_is_within_two_ulp_of_libm_in_double(void **state)
{
    (void)state;
    assert_close_to_libm(math_expf, exp, 2.0);
}

static void tanh_is_within_two_ulp(void **state)
{
    (void)state;
    assert_close_to_libm(math_tanhf, tanh, 2.0);
}

static void erf_is_within_two_ulp(void **state)
{
    (void)state;
    assert_close_to_libm(math_erff, erf, 2.0);
}

static void log_is_within_one_ulp(void **state)
{
    (void)state;
    assert_close_to_libm(math_logf, log, 1.0);
}

static void special_values_are_those_of_c(void **state)
{
    (void)state;
    assert_true(math_expf(INFINITY) == INFINITY && math_expf(-INFINITY) == 0.0f && isnan(math_expf(NAN)));
    assert_true(math_expf(0.0f) == 1.0f);
    assert_true(math_tanhf(INFINITY) == 1.0f && math_tanhf(-INFINITY) == -1.0f && isnan(math_tanhf(NAN)));
    assert_true(math_erff(INFINITY) == 1.0f && math_erff(-INFINITY) == -1.0f && isnan(math_erff(NAN)));
    assert_true(signbit(math_tanhf(-0.0f)) && signbit(math_erff(-0.0f)));
    assert_true(math_logf(INFINITY) == INFINITY && math_logf(0.0f) == -INFINITY && math_logf(-0.0f) == -INFINITY);
    assert_true(isnan(math_logf(-1.0f)) && isnan(math_logf(NAN)) && math_logf(1.0f) == 0.0f);
}

static void double_functions_are_within_four_ulp(void **state)
{
    (void)state;
    for (double x = -707.9; x < 709.5; x += 0.0173)
        assert_near(vector_exp(x) / exp(x), 1.0, 1e-15);
    for (double x = 1e-310; x < 1e308; x *= 1.0091)
        assert_near(vector_log(x) / log(x), 1.0, 1e-15);
    for (double x = 0.5; x < 2.0; x += 0.000137)
        assert_near(vector_log(x), log(x), 1e-15 * fabs(log(x)));
    for (double e = 1.0; e > 1e-300; e *= 0.93)
        assert_near(vector_log1p(e) / log1p(e), 1.0, 1e-15);
    assert_true(isnan(vector_exp(NAN)) && vector_exp(-INFINITY) == 0.0 && isinf(vector_exp(INFINITY)));
    assert_true(isnan(vector_log(NAN)) && vector_log(0.0) == -INFINITY && isnan(vector_log(-1.0)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_two_ulp_of_libm_in_double),
        cmocka_unit_test(tanh_is_within_two_ulp),
        cmocka_unit_test(erf_is_within_two_ulp),
        cmocka_unit_test(log_is_within_one_ulp),
        cmocka_unit_test(special_values_are_those_of_c),
        cmocka_unit_test(double_functions_are_within_four_ulp),
    };
    return cmocka_run_group_tests_name("tensor math", tests, NULL, NULL);
}
