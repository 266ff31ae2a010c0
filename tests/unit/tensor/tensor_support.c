#include "tensor_support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const int64_t test_lengths[LENGTHS] = {0, 1, 15, 16, 17, 127, 1000003};

void test_fill(float *x, int64_t count, float width, uint32_t salt)
{
    uint32_t state = salt * 2654435761u + 12345u;
    for (int64_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = ((float)(state >> 8) * 0x1p-23f - 1.0f) * width;
    }
}

float *test_array(int64_t count, int offset)
{
    size_t bytes = ((size_t)(count + offset) * sizeof(float) + 64) / 64 * 64;
    float *base = aligned_alloc(64, bytes);
    assert_non_null(base);
    memset(base, 0, bytes);
    return base + offset;
}

void test_release(float *array, int offset)
{
    free(array - offset);
}

void assert_same_bits(const float *a, const float *b, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0 && !(isnan(a[i]) && isnan(b[i])))
            fail_msg("element %lld: %.9g and %.9g", (long long)i, (double)a[i], (double)b[i]);
}

void assert_near(double got, double expected, double tolerance)
{
    if (!(fabs(got - expected) <= tolerance))
        fail_msg("got %.12g, expected %.12g within %g", got, expected, tolerance);
}

void assert_gradient(double (*f)(void *context), void *context, float *x, const float *gradient, int64_t count,
                     double tolerance)
{
    for (int64_t i = 0; i < count; i++) {
        float kept = x[i];
        float above = kept + 0x1p-8f, below = kept - 0x1p-8f;
        x[i] = above;
        double high = f(context);
        x[i] = below;
        double low = f(context);
        x[i] = kept;
        double slope = (high - low) / ((double)above - (double)below);
        if (!(fabs(slope - (double)gradient[i]) <= tolerance))
            fail_msg("gradient %lld: %.9g, by differences %.9g", (long long)i, (double)gradient[i], slope);
    }
}
