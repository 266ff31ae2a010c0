#include "tensor/elementwise.h"

#include <string.h>

#include "base/pool.h"
#include "base/rng.h"
#include "tensor/kernels.h"
#include "tensor/vector_math.h"

float math_expf(float x)
{
    return vector_expf(x);
}

float math_tanhf(float x)
{
    return vector_tanhf(x);
}

float math_erff(float x)
{
    return vector_erff(x);
}

/* Through double: the rounding to float32 is nearly all of the error. */
float math_logf(float x)
{
    return (float)vector_log((double)x);
}

void bias_add(float *y, const float *bias, int64_t rows, int64_t n)
{
    kernel_ops_best()->bias_add(y, bias, rows, n);
}

void bias_grad(float *dbias, const float *dy, int64_t rows, int64_t n)
{
    kernel_ops_best()->bias_grad(dbias, dy, rows, n);
}

enum { CHUNK = 16384 }; /* elements a pool thread takes at a time */

/* Runs body over 0..count in chunks; on the caller when there is no pool or only one chunk. */
static void for_chunks(struct pool *pool, int64_t count, void (*body)(void *context, int64_t chunk), void *context)
{
    int64_t chunks = (count + CHUNK - 1) / CHUNK;
    if (pool != NULL && chunks > 1) {
        pool_for(pool, chunks, body, context);
        return;
    }
    for (int64_t chunk = 0; chunk < chunks; chunk++)
        body(context, chunk);
}

static int64_t chunk_length(int64_t first, int64_t count)
{
    return count - first < CHUNK ? count - first : CHUNK;
}

struct activation_call {
    const struct kernel_ops *ops;
    enum activation kind;
    const float *x, *y_read, *dy;
    float *out;
    int64_t count;
};

static void forward_chunk(void *context, int64_t chunk)
{
    const struct activation_call *call = context;
    int64_t at = chunk * CHUNK;
    call->ops->activation_forward(call->kind, call->x + at, call->out + at, chunk_length(at, call->count));
}

void activation_forward(enum activation kind, struct pool *pool, const float *x, float *y, int64_t count)
{
    struct activation_call call = {.ops = kernel_ops_best(), .kind = kind, .x = x, .out = y, .count = count};
    if (kind == ACTIVATION_NONE && x == y)
        return;
    for_chunks(pool, count, forward_chunk, &call);
}

static void backward_chunk(void *context, int64_t chunk)
{
    const struct activation_call *call = context;
    int64_t at = chunk * CHUNK;
    const float *x = call->x != NULL ? call->x + at : NULL;
    const float *y = call->y_read != NULL ? call->y_read + at : NULL;
    call->ops->activation_backward(call->kind, x, y, call->dy + at, call->out + at, chunk_length(at, call->count));
}

void activation_backward(enum activation kind, struct pool *pool, const float *x, const float *y, const float *dy,
                         float *dx, int64_t count)
{
    struct activation_call call = {
        .ops = kernel_ops_best(), .kind = kind, .x = x, .y_read = y, .dy = dy, .out = dx, .count = count};
    if (kind == ACTIVATION_NONE && dx == dy)
        return;
    for_chunks(pool, count, backward_chunk, &call);
}

struct dropout_call {
    const struct kernel_ops *ops;
    double p;
    float factor;
    uint32_t site, step;
    uint64_t seed;
    int64_t first_element, count;
    const float *x;
    float *y;
};

static void dropout_chunk(void *context, int64_t chunk)
{
    enum { TILE = 1024 };
    const struct dropout_call *call = context;
    int64_t end = chunk * CHUNK + chunk_length(chunk * CHUNK, call->count);
    float u[TILE];
    for (int64_t at = chunk * CHUNK; at < end; at += TILE) {
        int64_t length = end - at < TILE ? end - at : TILE;
        rng_uniform_fill(call->seed, call->site, call->step, (uint64_t)(call->first_element + at), u, length);
        call->ops->dropout_select(call->x + at, u, call->p, call->factor, call->y + at, length);
    }
}

void dropout_apply(struct pool *pool, double p, uint64_t seed, uint32_t layer, uint32_t step, int64_t first_element,
                   const float *x, float *y, int64_t count)
{
    if (p <= 0.0) {
        if (x != y && count > 0)
            memmove(y, x, (size_t)count * sizeof *y);
        return;
    }
    struct dropout_call call = {.ops = kernel_ops_best(),
                                .p = p,
                                .factor = p < 1.0 ? (float)(1.0 / (1.0 - p)) : 0.0f,
                                .site = RNG_SITE_DROPOUT + layer,
                                .step = step,
                                .seed = seed,
                                .first_element = first_element,
                                .count = count,
                                .x = x,
                                .y = y};
    for_chunks(pool, count, dropout_chunk, &call);
}
