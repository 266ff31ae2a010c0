#include "optim/rows.h"

#include <math.h>

struct adagrad_args {
    float scale, l2, lr, eps;
    float *w;
    const float *grad;
    float *sum; /* Σ g² */
    int64_t count;
};

static inline __attribute__((always_inline)) void adagrad_loop(const struct adagrad_args *args, int with_l2)
{
    const struct adagrad_args a = *args;
    float *restrict w = a.w, *restrict sum = a.sum;
    const float *restrict grad = a.grad;

    for (int64_t i = 0; i < a.count; i++) {
        float g = grad[i] * a.scale;
        if (with_l2)
            g = g + a.l2 * w[i];
        float s = sum[i] + g * g;
        sum[i] = s;
        w[i] = w[i] - (a.lr * g) / (sqrtf(s) + a.eps);
    }
}

ISA_BODY adagrad_body(const struct adagrad_args *args)
{
    if (args->l2 != 0.0f)
        adagrad_loop(args, 1);
    else
        adagrad_loop(args, 0);
}

ISA_PATHS(adagrad, struct adagrad_args)

void adagrad_update_on(enum isa isa, const struct update_call *call)
{
    const struct adagrad_args args = {
        .scale = call->step->grad_scale,
        .l2 = (float)update_call_decay(call),
        .lr = (float)call->step->lr,
        .eps = (float)call->params->eps,
        .w = call->w,
        .grad = call->grad,
        .sum = call->slots[0],
        .count = call->count,
    };

    adagrad_run(isa, &args);
}

static int adagrad_slots(const struct optimizer_params *params)
{
    (void)params;
    return 1;
}

static void adagrad_update(const struct optimizer_params *params, const struct optimizer_step *step, int decay,
                           float *w, float *grad, float *const *slots, int64_t count)
{
    const struct update_call call = {params, step, decay, w, grad, slots, count};

    adagrad_update_on(isa_best(), &call);
}

const struct optimizer_ops optimizer_adagrad = {
    .version = OPTIMIZER_OPS_VERSION,
    .name = "adagrad",
    .help = "Adagrad (Duchi et al. 2011); the sum starts at 0, weight_decay is added to the gradient (L2)",
    .slots = adagrad_slots,
    .update = adagrad_update,
};
