#include "optim/adam_common.h"

void adamw_update_on(enum isa isa, const struct update_call *call)
{
    adam_common_update(isa, call, 0.0, 1.0 - call->step->lr * update_call_decay(call));
}

static int adamw_slots(const struct optimizer_params *params)
{
    (void)params;
    return 2;
}

static void adamw_update(const struct optimizer_params *params, const struct optimizer_step *step, int decay,
                         float *w, float *grad, float *const *slots, int64_t count)
{
    const struct update_call call = {params, step, decay, w, grad, slots, count};

    adamw_update_on(isa_best(), &call);
}

const struct optimizer_ops optimizer_adamw = {
    .version = OPTIMIZER_OPS_VERSION,
    .name = "adamw",
    .help = "Adam with decoupled decay (Loshchilov and Hutter 2019): first w·(1 - lr·weight_decay)",
    .slots = adamw_slots,
    .update = adamw_update,
};
