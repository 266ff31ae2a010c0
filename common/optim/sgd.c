#include "optim/rows.h"

#include <stddef.h>

struct sgd_args {
    float scale, l2, lr, momentum;
    int nesterov;
    float *w;
    const float *grad;
    float *buffer; /* NULL without momentum */
    int64_t count;
};

/* The flags are constants at each call, so that each variant is one plain loop. */
static inline __attribute__((always_inline)) void sgd_loop(const struct sgd_args *args, int with_l2,
                                                           int with_buffer, int nesterov)
{
    const struct sgd_args a = *args;
    float *restrict w = a.w, *restrict buffer = a.buffer;
    const float *restrict grad = a.grad;

    for (int64_t i = 0; i < a.count; i++) {
        float g = grad[i] * a.scale;
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
}

static inline __attribute__((always_inline)) void sgd_buffered(const struct sgd_args *args, int with_l2)
{
    if (!args->buffer)
        sgd_loop(args, with_l2, 0, 0);
    else if (args->nesterov)
        sgd_loop(args, with_l2, 1, 1);
    else
        sgd_loop(args, with_l2, 1, 0);
}

ISA_BODY sgd_body(const struct sgd_args *args)
{
    if (args->l2 != 0.0f)
        sgd_buffered(args, 1);
    else
        sgd_buffered(args, 0);
}

ISA_PATHS(sgd, struct sgd_args)

static int sgd_slots(const struct optimizer_params *params)
{
    return params->momentum != 0.0 ? 1 : 0;
}

void sgd_update_on(enum isa isa, const struct update_call *call)
{
    const struct sgd_args args = {
        .scale = call->step->grad_scale,
        .l2 = (float)update_call_decay(call),
        .lr = (float)call->step->lr,
        .momentum = (float)call->params->momentum,
        .nesterov = call->params->nesterov,
        .w = call->w,
        .grad = call->grad,
        .buffer = sgd_slots(call->params) ? call->slots[0] : NULL,
        .count = call->count,
    };

    sgd_run(isa, &args);
}

static void sgd_update(const struct optimizer_params *params, const struct optimizer_step *step, int decay,
                       float *w, float *grad, float *const *slots, int64_t count)
{
    const struct update_call call = {params, step, decay, w, grad, slots, count};

    sgd_update_on(isa_best(), &call);
}

const struct optimizer_ops optimizer_sgd = {
    .version = OPTIMIZER_OPS_VERSION,
    .name = "sgd",
    .help = "stochastic gradient descent with momentum, nesterov and L2 weight_decay as in PyTorch",
    .slots = sgd_slots,
    .update = sgd_update,
};
