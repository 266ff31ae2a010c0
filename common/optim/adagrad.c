#include "optim/rows.h"

#include <math.h>

struct adagrad_args {
    float scale, l2, lr, eps;
    float *w;
    struct gradient gradient;
    float *sum; /* Σ g² */
    int64_t count;
    uint32_t *top; /* out: see gradient_at */
};

ISA_INLINE void adagrad_loop(const struct adagrad_args *args, int sources_count, int with_l2)
{
    const struct adagrad_args a = *args;
    float *restrict w = a.w, *restrict sum = a.sum;
    uint32_t top = 0;

    ISA_LOOP
    for (int64_t i = 0; i < a.count; i++) {
        float g = gradient_at(&a.gradient, sources_count, i, &top) * a.scale;
        if (with_l2)
            g = g + a.l2 * w[i];
        float s = sum[i] + g * g;
        sum[i] = s;
        w[i] = w[i] - (a.lr * g) / (sqrtf(s) + a.eps);
    }
    *a.top = top;
}

ISA_BODY adagrad_body(const struct adagrad_args *args)
{
    GRADIENT_VARIANTS(adagrad_loop, args, args->l2);
}

ISA_PATHS(adagrad, struct adagrad_args)

int adagrad_update_on(enum isa isa, const struct optimizer_call *call, const struct gradient *gradient)
{
    uint32_t top = 0;
    const struct adagrad_args args = {
        .scale = call->step->grad_scale,
        .l2 = (float)optimizer_call_decay(call),
        .lr = (float)call->step->lr,
        .eps = (float)call->params->eps,
        .w = call->w,
        .gradient = *gradient,
        .sum = call->slots[0],
        .count = call->count,
        .top = &top,
    };

    adagrad_run(isa, &args);
    return finite_top(top);
}

static int adagrad_slots(const struct optimizer_params *params)
{
    (void)params;
    return 1;
}

static int adagrad_update_sum(const struct optimizer_call *call, const float *const *sources, int sources_count)
{
    const struct gradient gradient = gradient_of(sources, sources_count);

    return adagrad_update_on(isa_best(), call, &gradient);
}

static void adagrad_update(const struct optimizer_params *params, const struct optimizer_step *step, int decay,
                           float *w, float *grad, float *const *slots, int64_t count)
{
    const struct optimizer_call call = {params, step, decay, w, slots, count};
    const struct gradient gradient = {{grad}, 1};

    adagrad_update_on(isa_best(), &call, &gradient);
}

const struct optimizer_ops optimizer_adagrad = {
    .version = OPTIMIZER_OPS_VERSION,
    .name = "adagrad",
    .help = "Adagrad (Duchi et al. 2011); the sum starts at 0, weight_decay is added to the gradient (L2)",
    .slots = adagrad_slots,
    .update = adagrad_update,
    .update_sum = adagrad_update_sum,
};
