#include "optim/adam_common.h"

int adam_update_on(enum isa isa, const struct optimizer_call *call, const struct gradient *gradient)
{
    return adam_common_update(isa, call, gradient, (struct adam_decay){optimizer_call_decay(call), 1.0});
}

static int adam_slots(const struct optimizer_params *params)
{
    (void)params;
    return 2;
}

static int adam_update_sum(const struct optimizer_call *call, const float *const *sources, int sources_count)
{
    const struct gradient gradient = gradient_of(sources, sources_count);

    return adam_update_on(isa_best(), call, &gradient);
}

static void adam_update(const struct optimizer_params *params, const struct optimizer_step *step, int decay,
                        float *w, float *grad, float *const *slots, int64_t count)
{
    const struct optimizer_call call = {params, step, decay, w, slots, count};
    const struct gradient gradient = {{grad}, 1};

    adam_update_on(isa_best(), &call, &gradient);
}

const struct optimizer_ops optimizer_adam = {
    .version = OPTIMIZER_OPS_VERSION,
    .name = "adam",
    .help = "Adam (Kingma and Ba 2015); weight_decay is added to the gradient (L2)",
    .slots = adam_slots,
    .update = adam_update,
    .update_sum = adam_update_sum,
};
