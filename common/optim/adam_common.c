#include "optim/adam_common.h"

#include <math.h>

struct adam_args {
    float scale, l2, shrink, beta1, rest1, beta2, rest2, step_size, root_scale, eps;
    float *w;
    struct gradient gradient;
    float *m, *v;
    int64_t count;
    uint32_t *top; /* out: see gradient_at */
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

ISA_INLINE void adam_loop(const struct adam_args *args, int sources_count, int with_l2)
{
    const struct adam_args a = *args;
    float *restrict w = a.w, *restrict m = a.m, *restrict v = a.v;
    uint32_t top = 0;

    ISA_LOOP
    for (int64_t i = 0; i < a.count; i++) {
        float g = gradient_at(&a.gradient, sources_count, i, &top) * a.scale;
        if (with_l2)
            g = g + a.l2 * w[i];
        float mi = a.beta1 * m[i] + a.rest1 * g;
        float vi = a.beta2 * v[i] + a.rest2 * (g * g);
        float root = sqrtf(vi) * a.root_scale + a.eps;
        m[i] = mi;
        v[i] = vi;
        w[i] = w[i] * a.shrink - (a.step_size * mi) / root;
    }
    *a.top = top;
}

ISA_BODY adam_body(const struct adam_args *args)
{
    GRADIENT_VARIANTS(adam_loop, args, args->l2);
}

ISA_PATHS(adam, struct adam_args)

int adam_common_update(enum isa isa, const struct optimizer_call *call, const struct gradient *gradient,
                       struct adam_decay decay)
{
    const struct optimizer_params *p = call->params;
    const struct optimizer_step *step = call->step;
    uint32_t top = 0;
    const struct adam_args args = {
        .scale = step->grad_scale,
        .l2 = (float)decay.l2,
        .shrink = (float)decay.shrink,
        .beta1 = (float)p->beta1,
        .rest1 = (float)(1.0 - p->beta1),
        .beta2 = (float)p->beta2,
        .rest2 = (float)(1.0 - p->beta2),
        .step_size = (float)(step->lr / (1.0 - adam_common_power(p->beta1, step->t))),
        .root_scale = (float)(1.0 / sqrt(1.0 - adam_common_power(p->beta2, step->t))),
        .eps = (float)p->eps,
        .w = call->w,
        .gradient = *gradient,
        .m = call->slots[0],
        .v = call->slots[1],
        .count = call->count,
        .top = &top,
    };

    adam_run(isa, &args);
    return finite_top(top);
}
