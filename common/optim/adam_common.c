#include "optim/adam_common.h"

#include <math.h>

struct adam_args {
    float scale, l2, shrink, beta1, rest1, beta2, rest2, step_size, root_scale, eps;
    float *w;
    const float *grad;
    float *m, *v;
    int64_t count;
};

double adam_common_power(double base, int64_t t)
{
    double result = 1.0;

    for (; t > 0; t >>= 1) {
        if (t & 1)
            result *= base;
        base *= base;
    }
    return result;
}

/* with_l2 is a constant at each call: 0·w would turn an infinite weight into NaN, so it cannot just be added. */
static inline __attribute__((always_inline)) void adam_loop(const struct adam_args *args, int with_l2)
{
    const struct adam_args a = *args;
    float *restrict w = a.w, *restrict m = a.m, *restrict v = a.v;
    const float *restrict grad = a.grad;

    for (int64_t i = 0; i < a.count; i++) {
        float g = grad[i] * a.scale;
        if (with_l2)
            g = g + a.l2 * w[i];
        float mi = a.beta1 * m[i] + a.rest1 * g;
        float vi = a.beta2 * v[i] + a.rest2 * (g * g);
        float root = sqrtf(vi) * a.root_scale + a.eps;
        m[i] = mi;
        v[i] = vi;
        w[i] = w[i] * a.shrink - (a.step_size * mi) / root;
    }
}

ISA_BODY adam_body(const struct adam_args *args)
{
    if (args->l2 != 0.0f)
        adam_loop(args, 1);
    else
        adam_loop(args, 0);
}

ISA_PATHS(adam, struct adam_args)

void adam_common_update(enum isa isa, const struct update_call *call, double l2, double shrink)
{
    const struct optimizer_params *p = call->params;
    const struct optimizer_step *step = call->step;
    const struct adam_args args = {
        .scale = step->grad_scale,
        .l2 = (float)l2,
        .shrink = (float)shrink,
        .beta1 = (float)p->beta1,
        .rest1 = (float)(1.0 - p->beta1),
        .beta2 = (float)p->beta2,
        .rest2 = (float)(1.0 - p->beta2),
        .step_size = (float)(step->lr / (1.0 - adam_common_power(p->beta1, step->t))),
        .root_scale = (float)(1.0 / sqrt(1.0 - adam_common_power(p->beta2, step->t))),
        .eps = (float)p->eps,
        .w = call->w,
        .grad = call->grad,
        .m = call->slots[0],
        .v = call->slots[1],
        .count = call->count,
    };

    adam_run(isa, &args);
}
