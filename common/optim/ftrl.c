#include "optim/rows.h"

#include <math.h>

/* McMahan et al. 2013, "Ad Click Prediction", algorithm 1, with alpha = lr. slots: z, n. The weights follow from z
 * and n alone: those the tensor had before the first step fade, and a schedule scales all of w, not only the step. */
struct ftrl_args {
    float scale, l2_grad, alpha, beta, l1, l2;
    float *w;
    const float *grad;
    float *z, *n;
    int64_t count;
};

static inline __attribute__((always_inline)) void ftrl_loop(const struct ftrl_args *args, int with_l2)
{
    const struct ftrl_args a = *args;
    float *restrict w = a.w, *restrict z = a.z, *restrict n = a.n;
    const float *restrict grad = a.grad;

    for (int64_t i = 0; i < a.count; i++) {
        float g = grad[i] * a.scale;
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
}

ISA_BODY ftrl_body(const struct ftrl_args *args)
{
    if (args->l2_grad != 0.0f)
        ftrl_loop(args, 1);
    else
        ftrl_loop(args, 0);
}

ISA_PATHS(ftrl, struct ftrl_args)

void ftrl_update_on(enum isa isa, const struct update_call *call)
{
    const struct optimizer_params *p = call->params;
    const struct ftrl_args args = {
        .scale = call->step->grad_scale,
        .l2_grad = (float)update_call_decay(call),
        .alpha = (float)call->step->lr,
        .beta = (float)p->beta,
        .l1 = call->decay ? (float)p->l1 : 0.0f,
        .l2 = call->decay ? (float)p->l2 : 0.0f,
        .w = call->w,
        .grad = call->grad,
        .z = call->slots[0],
        .n = call->slots[1],
        .count = call->count,
    };

    /* alpha 0, the end of a schedule with min_lr 0, has no step to take: the rule divides by it. */
    if (args.alpha > 0.0f)
        ftrl_run(isa, &args);
}

static int ftrl_slots(const struct optimizer_params *params)
{
    (void)params;
    return 2;
}

static void ftrl_update(const struct optimizer_params *params, const struct optimizer_step *step, int decay,
                        float *w, float *grad, float *const *slots, int64_t count)
{
    const struct update_call call = {params, step, decay, w, grad, slots, count};

    ftrl_update_on(isa_best(), &call);
}

const struct optimizer_ops optimizer_ftrl = {
    .version = OPTIMIZER_OPS_VERSION,
    .name = "ftrl",
    .help = "FTRL-proximal (McMahan et al. 2013) with alpha = lr, beta, l1, l2; no_decay tensors have neither l1 nor l2",
    .slots = ftrl_slots,
    .update = ftrl_update,
};
