#include "optim/adam_common.h"

void adam_update_on(enum isa isa, const struct update_call *call)
{
    adam_common_update(isa, call, update_call_decay(call), 1.0);
}

static int adam_slots(const struct optimizer_params *params)
{
    (void)params;
    return 2;
}

static void adam_update(const struct optimizer_params *params, const struct optimizer_step *step, int decay,
                        float *w, float *grad, float *const *slots, int64_t count)
{
    const struct update_call call = {params, step, decay, w, grad, slots, count};

    adam_update_on(isa_best(), &call);
}

const struct optimizer_ops optimizer_adam = {
    .version = OPTIMIZER_OPS_VERSION,
    .name = "adam",
    .help = "Adam (Kingma and Ba 2015); weight_decay is added to the gradient (L2)",
    .slots = adam_slots,
    .update = adam_update,
};
