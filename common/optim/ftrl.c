#include "optim/rows.h"

#include <math.h>

/* McMahan et al. 2013, "Ad Click Prediction", algorithm 1, with alpha = lr. slots: z, n. The weights follow from z
 * and n alone: those the tensor had before the first step fade, and a schedule scales all of w, not only the step.
 */
struct ftrl_args {
    float scale, l2_grad, alpha, beta, l1, l2;
    float *w;
    struct gradient gradient;
    float *z, *n;
    int64_t count;
    uint32_t *top; /* out: see gradient_at */
};

ISA_INLINE void ftrl_loop(const struct ftrl_args *args, int sources_count, int with_l2)
{
    const struct ftrl_args a = *args;
    float *restrict w = a.w, *restrict z = a.z, *restrict n = a.n;
    uint32_t top = 0;

    ISA_LOOP
    for (int64_t i = 0; i < a.count; i++) {
        float g = gradient_at(&a.gradient, sources_count, i, &top) * a.scale;
        if (with_l2)
            g = g + a.l2_grad * w[i];
        float n_new = n[i] + g * g;
        float root = sqrtf(n_new);
        float sigma = (root - sqrtf(n[i])) / a.alpha;
        float zi = z[i] + (g - sigma * w[i]);
        float shrunk = zi < 0.0f ? zi + a.l1 : zi - a.l1; /* z - sgn(z)·l1 */
        float wi = -shrunk / ((a.beta + root) / a.alpha + a.l2);
        n[i] = n_new;
        z[i] = zi;
        w[i] = fabsf(zi) <= a.l1 ? 0.0f : wi;
    }
    *a.top = top;
}

ISA_BODY ftrl_body(const struct ftrl_args *args)
{
    GRADIENT_VARIANTS(ftrl_loop, args, args->l2_grad);
}

ISA_PATHS(ftrl, struct ftrl_args)

int ftrl_update_on(enum isa isa, const struct optimizer_call *call, const struct gradient *gradient)
{
    const struct optimizer_params *p = call->params;
    uint32_t top = 0;
    const struct ftrl_args args = {
        .scale = call->step->grad_scale,
        .l2_grad = (float)optimizer_call_decay(call),
        .alpha = (float)call->step->lr,
        .beta = (float)p->beta,
        .l1 = call->decay ? (float)p->l1 : 0.0f,
        .l2 = call->decay ? (float)p->l2 : 0.0f,
        .w = call->w,
        .gradient = *gradient,
        .z = call->slots[0],
        .n = call->slots[1],
        .count = call->count,
        .top = &top,
    };

    /* alpha 0, the end of a schedule with min_lr 0, has no step to take: the rule divides by it. */
    if (args.alpha > 0.0f)
        ftrl_run(isa, &args);
    return finite_top(top);
    return finite_top(top);
}

static int ftrl_slots(const struct optimizer_params *params)
{
    (void)params;
    return 2;
}

static int ftrl_update_sum(const struct optimizer_call *call, const float *const *sources, int sources_count)
{
    const struct gradient gradient = gradient_of(sources, sources_count);

    return ftrl_update_on(isa_best(), call, &gradient);
}

static void ftrl_update(const struct optimizer_params *params, const struct optimizer_step *step, int decay,
                        float *w, float *grad, float *const *slots, int64_t count)
{
    const struct optimizer_call call = {params, step, decay, w, slots, count};
    const struct gradient gradient = {{grad}, 1};

    ftrl_update_on(isa_best(), &call, &gradient);
}

const struct optimizer_ops optimizer_ftrl = {
    .version = OPTIMIZER_OPS_VERSION,
    .name = "ftrl",
    .help = "FTRL-proximal (McMahan et al. 2013) with alpha = lr, beta, l1, l2; no_decay tensors have neither l1 "
            "nor l2",
    .slots = ftrl_slots,
    .update = ftrl_update,
    .update_sum = ftrl_update_sum,
};
