#include "optim/rows.h"

#include <stddef.h>

struct sgd_args {
    float scale, l2, lr, momentum;
    int nesterov;
    float *w;
    struct gradient gradient;
    float *buffer; /* NULL without momentum */
    int64_t count;
    uint32_t *top; /* out: see gradient_at */
};

/* The flags are constants at each call, so that each variant is one plain loop. */
ISA_INLINE void sgd_kind(const struct sgd_args *args, int sources_count, int with_l2, int with_buffer, int nesterov)
{
    const struct sgd_args a = *args;
    float *restrict w = a.w, *restrict buffer = a.buffer;
    uint32_t top = 0;

    ISA_LOOP
    for (int64_t i = 0; i < a.count; i++) {
        float g = gradient_at(&a.gradient, sources_count, i, &top) * a.scale;
        if (with_l2)
            g = g + a.l2 * w[i];
        if (with_buffer) {
            /* The buffer starts at zero, which makes the first step's buffer g itself, as in PyTorch. */
            float b = a.momentum * buffer[i] + g;
            buffer[i] = b;
            g = nesterov ? g + a.momentum * b : b;
        }
        w[i] = w[i] - a.lr * g;
    }
    *a.top = top;
}

ISA_INLINE void sgd_loop(const struct sgd_args *args, int sources_count, int with_l2)
{
    if (!args->buffer)
        sgd_kind(args, sources_count, with_l2, 0, 0);
    else if (args->nesterov)
        sgd_kind(args, sources_count, with_l2, 1, 1);
    else
        sgd_kind(args, sources_count, with_l2, 1, 0);
}

ISA_BODY sgd_body(const struct sgd_args *args)
{
    GRADIENT_VARIANTS(sgd_loop, args, args->l2);
}

ISA_PATHS(sgd, struct sgd_args)

static int sgd_slots(const struct optimizer_params *params)
{
    return params->momentum != 0.0 ? 1 : 0;
}

int sgd_update_on(enum isa isa, const struct optimizer_call *call, const struct gradient *gradient)
{
    uint32_t top = 0;
    const struct sgd_args args = {
        .scale = call->step->grad_scale,
        .l2 = (float)optimizer_call_decay(call),
        .lr = (float)call->step->lr,
        .momentum = (float)call->params->momentum,
        .nesterov = call->params->nesterov,
        .w = call->w,
        .gradient = *gradient,
        .buffer = sgd_slots(call->params) ? call->slots[0] : NULL,
        .count = call->count,
        .top = &top,
    };

    sgd_run(isa, &args);
    return finite_top(top);
}

static int sgd_update_sum(const struct optimizer_call *call, const float *const *sources, int sources_count)
{
    const struct gradient gradient = gradient_of(sources, sources_count);

    return sgd_update_on(isa_best(), call, &gradient);
}

static void sgd_update(const struct optimizer_params *params, const struct optimizer_step *step, int decay,
                       float *w, float *grad, float *const *slots, int64_t count)
{
    const struct optimizer_call call = {params, step, decay, w, slots, count};
    const struct gradient gradient = {{grad}, 1};

    sgd_update_on(isa_best(), &call, &gradient);
}

const struct optimizer_ops optimizer_sgd = {
    .version = OPTIMIZER_OPS_VERSION,
    .name = "sgd",
    .help = "stochastic gradient descent with momentum, nesterov and L2 weight_decay as in PyTorch",
    .slots = sgd_slots,
    .update = sgd_update,
    .update_sum = sgd_update_sum,
};
