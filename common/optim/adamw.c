#include "optim/adam_common.h"

int adamw_update_on(enum isa isa, const struct optimizer_call *call, const struct gradient *gradient)
{
    const double shrink = 1.0 - call->step->lr * optimizer_call_decay(call);

    return adam_common_update(isa, call, gradient, (struct adam_decay){0.0, shrink});
}

static int adamw_slots(const struct optimizer_params *params)
{
    (void)params;
    return 2;
}

static int adamw_update_sum(const struct optimizer_call *call, const float *const *sources, int sources_count)
{
    const struct gradient gradient = gradient_of(sources, sources_count);

    return adamw_update_on(isa_best(), call, &gradient);
}

static void adamw_update(const struct optimizer_params *params, const struct optimizer_step *step, int decay,
                         float *w, float *grad, float *const *slots, int64_t count)
{
    const struct optimizer_call call = {params, step, decay, w, slots, count};
    const struct gradient gradient = {{grad}, 1};

    adamw_update_on(isa_best(), &call, &gradient);
}

const struct optimizer_ops optimizer_adamw = {
    .version = OPTIMIZER_OPS_VERSION,
    .name = "adamw",
    .help = "Adam with decoupled decay (Loshchilov and Hutter 2019): first w·(1 - lr·weight_decay)",
    .slots = adamw_slots,
    .update = adamw_update,
    .update_sum = adamw_update_sum,
};
