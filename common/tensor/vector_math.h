/* exp, tanh, erf, log without branches, tables or FMA, so that loops over them vectorise and give the same bits on
 * every processor. Private to the room. Polynomials are our own least-maximum fits (weighted Lawson iteration on
 * Chebyshev nodes); the tests measure their errors against libm. */
#ifndef SHOAL_TENSOR_VECTOR_MATH_H
#define SHOAL_TENSOR_VECTOR_MATH_H

#include <stdint.h>
#include <string.h>

static inline uint32_t bits_of_float(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float float_of_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline uint64_t bits_of_double(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline double double_of_bits(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* x = n ln 2 + r, |r| <= ln 2 / 2. n comes from adding 1.5 * 2^23, whose last mantissa bits then hold n: a
 * conversion to int would be undefined for NaN. n * 0.693359375 is exact. 2^n is applied in two halves so that
 * denormal results are rounded once. */
static inline float vector_expf(float x)
{
    const float magic = 12582912.0f;
    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;
    float shifted = x * 1.44269504f + magic;
    float n = shifted - magic;
    float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.395051950e-03f;
    p = p * r + 8.368908428e-03f;
    p = p * r + 4.166620597e-02f;
    p = p * r + 1.666651815e-01f;
    p = p * r + 5.000000000e-01f;
    p = 1.0f + (r + (r * r) * p);
    uint32_t whole = bits_of_float(shifted) - 0x4B400000u;
    uint32_t half = (uint32_t)((int32_t)whole >> 1);
    float scale_a = float_of_bits((half + 127u) << 23);
    float scale_b = float_of_bits((whole - half + 127u) << 23);
    return (p * scale_a) * scale_b;
}

/* |x| < 0.625: odd polynomial; above: 1 - 2 / (e^2|x| + 1). */
static inline float vector_tanhf(float x)
{
    uint32_t sign = bits_of_float(x) & 0x80000000u;
    float a = float_of_bits(bits_of_float(x) & 0x7FFFFFFFu);
    float z = x * x;
    float p = -5.717025604e-03f;
    p = p * z + 2.065056935e-02f;
    p = p * z + -5.374349281e-02f;
    p = p * z + 1.333149076e-01f;
    p = p * z + -3.333328366e-01f;
    float small = a + a * (z * p);
    float large = 1.0f - 2.0f / (vector_expf(a + a) + 1.0f);
    float size = a < 0.625f ? small : large;
    return float_of_bits(bits_of_float(size) | sign);
}

/* |x| < 1: odd polynomial; above: 1 - e^-g(|x|) with g a polynomial for -log erfc. */
static inline float vector_erff(float x)
{
    uint32_t sign = bits_of_float(x) & 0x80000000u;
    float a = float_of_bits(bits_of_float(x) & 0x7FFFFFFFu);
    float z = x * x;
    float p = 7.889114931e-05f;
    p = p * z + -8.020839887e-04f;
    p = p * z + 5.189535208e-03f;
    p = p * z + -2.685444430e-02f;
    p = p * z + 1.128360033e-01f;
    p = p * z + -3.761262596e-01f;
    p = p * z + 1.283791661e-01f;
    float small = a + a * p;
    float t = a > 4.0f ? 4.0f : a;
    float g = -1.903380180e-04f;
    g = g * t + 2.987863263e-03f;
    g = g * t + -2.200441062e-02f;
    g = g * t + 1.034658328e-01f;
    g = g * t + 6.377180815e-01f;
    g = g * t + 1.127354145e+00f;
    g = g * t + 2.743423101e-04f;
    float large = 1.0f - vector_expf(-g);
    float size = a < 1.0f ? small : large;
    return float_of_bits(bits_of_float(size) | sign);
}

/* Below 2^-1022 the result is 0. Taylor series to r^13 on |r| <= ln 2 / 2. */
static inline double vector_exp(double x)
{
    const double magic = 6755399441055744.0; /* 1.5 * 2^52 */
    double c = x > 710.0 ? 710.0 : x;
    c = c < -708.0 ? -708.0 : c;
    double shifted = c * 1.4426950408889634 + magic;
    double n = shifted - magic;
    double r = (c - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = 1.0 + (r + (r * r) * p);
    uint64_t whole = bits_of_double(shifted) - bits_of_double(magic);
    /* Twice 2^(n-1): n reaches 1024. */
    double result = (p * 2.0) * double_of_bits((whole + 1022u) << 52);
    return x < -708.0 ? 0.0 : result;
}

/* log m = 2 atanh((m-1)/(m+1)) with m in [sqrt(1/2), sqrt(2)). */
static inline double vector_log(double x)
{
    double normal = x < 2.2250738585072014e-308 ? x * 18014398509481984.0 : x; /* 2^54 */
    double exponent = x < 2.2250738585072014e-308 ? -54.0 : 0.0;
    uint64_t u = bits_of_double(normal) - 0x3FE6A09E667F3BCDu; /* sqrt(1/2) */
    int32_t e = (int32_t)(uint32_t)(u >> 52);
    e = e >= 2048 ? e - 4096 : e;
    double m = double_of_bits((u & 0x000FFFFFFFFFFFFFu) + 0x3FE6A09E667F3BCDu);
    double f = m - 1.0;
    double s = f / (2.0 + f);
    double z = s * s;
    double p = 2.0 / 23.0;
    p = p * z + 2.0 / 21.0;
    p = p * z + 2.0 / 19.0;
    p = p * z + 2.0 / 17.0;
    p = p * z + 2.0 / 15.0;
    p = p * z + 2.0 / 13.0;
    p = p * z + 2.0 / 11.0;
    p = p * z + 2.0 / 9.0;
    p = p * z + 2.0 / 7.0;
    p = p * z + 2.0 / 5.0;
    p = p * z + 2.0 / 3.0;
    double half_square = 0.5 * f * f;
    double n = exponent + (double)e;
    double tail = half_square - (s * (half_square + z * p) + n * 1.90821492927058770002e-10);
    double result = n * 6.93147180369123816490e-01 - (tail - f);
    result = x > 1.7976931348623157e308 ? x : result;
    result = x == 0.0 ? -__builtin_inf() : result;
    result = x < 0.0 ? __builtin_nan("") : result;
    return x != x ? x : result;
}

/* log(1 + e) for e in [0, 1]. */
static inline double vector_log1p(double e)
{
    double u = 1.0 + e;
    return vector_log(u) + (e - (u - 1.0)) / u;
}

#endif
