/* What the tests of the room share: reproducible values, arrays at an offset, finite differences. */
#ifndef SHOAL_TESTS_TENSOR_SUPPORT_H
#define SHOAL_TESTS_TENSOR_SUPPORT_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

enum { OFFSETS = 16, LENGTHS = 7 };
extern const int64_t test_lengths[LENGTHS]; /* 0, 1, 15, 16, 17, 127, 1000003 */

/* Uniform in [-width, width), the same for the same salt. */
void test_fill(float *x, int64_t count, float width, uint32_t salt);
/* count floats that start `offset` floats after a 64-byte boundary; freed by test_release. */
float *test_array(int64_t count, int offset);
void test_release(float *array, int offset);

/* Bits, not values: -0 differs from 0. Any NaN equals any other: which operand's sign it takes is the compiler's
 * choice. */
void assert_same_bits(const float *a, const float *b, int64_t count);
void assert_near(double got, double expected, double tolerance);

/* Compares gradient[i] with (f(x + h) - f(x - h)) / 2h for every i; f(context) reads x. */
void assert_gradient(double (*f)(void *context), void *context, float *x, const float *gradient, int64_t count,
                     double tolerance);

#endif
