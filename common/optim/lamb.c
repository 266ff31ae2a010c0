#include "optim/adam_common.h"

#include <math.h>

/* You et al. 2020, algorithm 2 with phi the identity: u = m̂/(√v̂ + eps) + decay·w; w ← w - lr·(|w|/|u|)·u. The norms
 * are the whole tensor's, so the step has two phases with a round between. slots: m, v. */

enum { LANES = 16, CHUNK = 1024 }; /* CHUNK is a multiple of LANES: an element's lane is its index mod 16 */

struct lamb_args {
    float scale, decay, beta1, rest1, beta2, rest2, scale1, root_scale, eps;
    const float *w;
    float *grad;
    float *m, *v;
    int64_t count;
    double *norms;
};

ISA_INLINE void lamb_direction(const struct lamb_args *args, int with_decay, int64_t first, int64_t last)
{
    const struct lamb_args a = *args;
    const float *restrict w = a.w;
    float *restrict grad = a.grad, *restrict m = a.m, *restrict v = a.v;

    ISA_LOOP
    for (int64_t i = first; i < last; i++) {
        float g = grad[i] * a.scale;
        float mi = a.beta1 * m[i] + a.rest1 * g;
        float vi = a.beta2 * v[i] + a.rest2 * (g * g);
        float u = (mi * a.scale1) / (sqrtf(vi) * a.root_scale + a.eps);
        m[i] = mi;
        v[i] = vi;
        grad[i] = with_decay ? u + a.decay * w[i] : u;
    }
}

ISA_INLINE void lanes_add_squares(double *restrict lanes, const float *restrict x, int64_t count)
{
    int64_t i = 0;

    for (; i + LANES <= count; i += LANES)
        for (int j = 0; j < LANES; j++)
            lanes[j] += (double)x[i + j] * (double)x[i + j];
    for (int j = 0; i + j < count; j++)
        lanes[j] += (double)x[i + j] * (double)x[i + j];
}

ISA_BODY lamb_body(const struct lamb_args *args)
{
    double w_lanes[LANES] = {0}, u_lanes[LANES] = {0};

    for (int64_t first = 0; first < args->count; first += CHUNK) {
        int64_t last = first + CHUNK < args->count ? first + CHUNK : args->count;
        if (args->decay != 0.0f)
            lamb_direction(args, 1, first, last);
        else
            lamb_direction(args, 0, first, last);
        lanes_add_squares(w_lanes, args->w + first, last - first);
        lanes_add_squares(u_lanes, args->grad + first, last - first);
    }
    double w_sum = 0, u_sum = 0;
    for (int j = 0; j < LANES; j++) {
        w_sum += w_lanes[j];
        u_sum += u_lanes[j];
    }
    args->norms[0] += w_sum;
    args->norms[1] += u_sum;
}

ISA_PATHS(lamb, struct lamb_args)

void lamb_prepare_on(enum isa isa, const struct optimizer_call *call, float *grad, double norms[2])
{
    const struct optimizer_params *p = call->params;
    const struct optimizer_step *step = call->step;
    const struct lamb_args args = {
        .scale = step->grad_scale,
        .decay = (float)optimizer_call_decay(call),
        .beta1 = (float)p->beta1,
        .rest1 = (float)(1.0 - p->beta1),
        .beta2 = (float)p->beta2,
        .rest2 = (float)(1.0 - p->beta2),
        .scale1 = (float)(1.0 / (1.0 - adam_common_power(p->beta1, step->t))),
        .root_scale = (float)(1.0 / sqrt(1.0 - adam_common_power(p->beta2, step->t))),
        .eps = (float)p->eps,
        .w = call->w,
        .grad = grad,
        .m = call->slots[0],
        .v = call->slots[1],
        .count = call->count,
        .norms = norms,
    };

    lamb_run(isa, &args);
}

struct lamb_move_args {
    float rate;
    float *w;
    const float *u;
    int64_t count;
};

ISA_BODY lamb_move_body(const struct lamb_move_args *args)
{
    const struct lamb_move_args a = *args;
    float *restrict w = a.w;
    const float *restrict u = a.u;

    for (int64_t i = 0; i < a.count; i++)
        w[i] = w[i] - a.rate * u[i];
}

ISA_PATHS(lamb_move, struct lamb_move_args)

void lamb_update_on(enum isa isa, const struct optimizer_call *call, const float *grad)
{
    const struct lamb_move_args args = {
        .rate = (float)(call->step->lr * call->step->trust_ratio),
        .w = call->w,
        .u = grad,
        .count = call->count,
    };

    lamb_move_run(isa, &args);
}

static int lamb_slots(const struct optimizer_params *params)
{
    (void)params;
    return 2;
}

static void lamb_prepare(const struct optimizer_params *params, const struct optimizer_step *step, int decay,
                         const float *w, float *grad, float *const *slots, int64_t count, double norms[2])
{
    const struct optimizer_call call = {params, step, decay, (float *)w, slots, count}; /* w is only read */

    lamb_prepare_on(isa_best(), &call, grad, norms);
}

static void lamb_update(const struct optimizer_params *params, const struct optimizer_step *step, int decay,
                        float *w, float *grad, float *const *slots, int64_t count)
{
    const struct optimizer_call call = {params, step, decay, w, slots, count};

    lamb_update_on(isa_best(), &call, grad);
}

const struct optimizer_ops optimizer_lamb = {
    .version = OPTIMIZER_OPS_VERSION,
    .name = "lamb",
    .help = "LAMB (You et al. 2020): Adam's direction with decay, scaled by |w|/|u| of each tensor",
    .slots = lamb_slots,
    .update = lamb_update,
    .prepare = lamb_prepare,
};
