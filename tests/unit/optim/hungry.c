/* Plug-ins of the right version that cannot be used: too many state vectors, or (HUNGRY_EMPTY) nothing filled in.
 */
#include "optim/optimizer.h"

#include <stddef.h>

#ifndef HUNGRY_EMPTY
static int many_slots(const struct optimizer_params *params)
{
    (void)params;
    return OPTIMIZER_SLOTS_MAX + 1;
}

static void no_update(const struct optimizer_params *params, const struct optimizer_step *step, int decay, float *w,
                      float *grad, float *const *slots, int64_t count)
{
    (void)params, (void)step, (void)decay, (void)w, (void)grad, (void)slots, (void)count;
}
#endif

extern const struct optimizer_ops shoal_optimizer;
__attribute__((visibility("default"))) const struct optimizer_ops shoal_optimizer = {
    .version = OPTIMIZER_OPS_VERSION,
#ifndef HUNGRY_EMPTY
    .name = "hungry",
    .slots = many_slots,
    .update = no_update,
#endif
};
