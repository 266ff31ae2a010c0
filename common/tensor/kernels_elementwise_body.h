/* See kernels_table_body.h. */

static void kernel_bias_add(float *y, const float *bias, int64_t rows, int64_t n)
{
    for (int64_t r = 0; r < rows; r++) {
        float *row = y + r * n;
        KERNEL_LOOP
        for (int64_t j = 0; j < n; j++)
            row[j] += bias[j];
    }
}

enum { COLUMN_TILE = 128 }; /* columns whose double sums stay in the first cache */

static void kernel_bias_grad(float *dbias, const float *dy, int64_t rows, int64_t n)
{
    for (int64_t first = 0; first < n; first += COLUMN_TILE) {
        int64_t width = n - first < COLUMN_TILE ? n - first : COLUMN_TILE;
        double sum[COLUMN_TILE] = {0};
        for (int64_t r = 0; r < rows; r++) {
            const float *row = dy + r * n + first;
            for (int64_t j = 0; j < width; j++)
                sum[j] += (double)row[j];
        }
        for (int64_t j = 0; j < width; j++)
            dbias[first + j] = (float)((double)dbias[first + j] + sum[j]);
    }
}

static inline float relu(float x)
{
    return x <= 0.0f ? 0.0f : x;
}

static inline float gelu(float x)
{
    return 0.5f * x * (1.0f + vector_erff(x * 0.70710678f));
}

/* Beyond 16 the derivatives are 0 or 1 in float32, and x^2, x^3 must not overflow into inf * 0. */
static inline float clamp_16(float x)
{
    x = x > 16.0f ? 16.0f : x;
    return x < -16.0f ? -16.0f : x;
}

/* Phi(x) + x phi(x) */
static inline float gelu_derivative(float x)
{
    float c = clamp_16(x);
    float density = 0.39894228f * vector_expf(-0.5f * c * c);
    return 0.5f * (1.0f + vector_erff(c * 0.70710678f)) + c * density;
}

/* sqrt(2/pi) (x + 0.044715 x^3) */
static inline float gelu_tanh_inner(float c)
{
    return 0.79788456f * (c + 0.044715f * (c * c * c));
}

static inline float gelu_tanh(float x)
{
    return 0.5f * x * (1.0f + vector_tanhf(gelu_tanh_inner(clamp_16(x))));
}

static inline float gelu_tanh_derivative(float x)
{
    float c = clamp_16(x);
    float t = vector_tanhf(gelu_tanh_inner(c));
    float slope = 0.79788456f * (1.0f + 0.134145f * (c * c));
    return 0.5f * (1.0f + t) + 0.5f * c * (1.0f - t * t) * slope;
}

static void kernel_activation_forward(enum activation kind, const float *x, float *y, int64_t count)
{
    switch (kind) {
    case ACTIVATION_RELU:
        KERNEL_LOOP
        for (int64_t i = 0; i < count; i++)
            y[i] = relu(x[i]);
        break;
    case ACTIVATION_GELU:
        KERNEL_LOOP
        for (int64_t i = 0; i < count; i++)
            y[i] = gelu(x[i]);
        break;
    case ACTIVATION_GELU_TANH:
        KERNEL_LOOP
        for (int64_t i = 0; i < count; i++)
            y[i] = gelu_tanh(x[i]);
        break;
    case ACTIVATION_TANH:
        KERNEL_LOOP
        for (int64_t i = 0; i < count; i++)
            y[i] = vector_tanhf(x[i]);
        break;
    case ACTIVATION_NONE:
        memmove(y, x, (size_t)count * sizeof *y);
        break;
    }
}

static void kernel_activation_backward(enum activation kind, const float *x, const float *y, const float *dy,
                                       float *dx, int64_t count)
{
    switch (kind) {
    case ACTIVATION_RELU: /* a NaN in y lets dy through, so that it is seen */
        KERNEL_LOOP
        for (int64_t i = 0; i < count; i++)
            dx[i] = y[i] <= 0.0f ? 0.0f : dy[i];
        break;
    case ACTIVATION_GELU:
        KERNEL_LOOP
        for (int64_t i = 0; i < count; i++)
            dx[i] = dy[i] * gelu_derivative(x[i]);
        break;
    case ACTIVATION_GELU_TANH:
        KERNEL_LOOP
        for (int64_t i = 0; i < count; i++)
            dx[i] = dy[i] * gelu_tanh_derivative(x[i]);
        break;
    case ACTIVATION_TANH:
        KERNEL_LOOP
        for (int64_t i = 0; i < count; i++)
            dx[i] = dy[i] * (1.0f - y[i] * y[i]);
        break;
    case ACTIVATION_NONE:
        memmove(dx, dy, (size_t)count * sizeof *dx);
        break;
    }
}

static void kernel_dropout_select(const float *x, const float *u, double p, float factor, float *y, int64_t count)
{
    KERNEL_LOOP
    for (int64_t i = 0; i < count; i++) {
        float kept = x[i] * factor;
        y[i] = (double)u[i] >= p ? kept : 0.0f;
    }
}
