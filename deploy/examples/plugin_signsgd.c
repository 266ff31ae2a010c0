/* An optimizer of one's own, as a plug-in: signSGD, with momentum Signum (Bernstein et al. 2018).
 *   job file: optimizer: {kind: plugin, plugin: ./plugin_signsgd.so, lr: 0.001, momentum: 0.9}
 *   build:    cc -std=c11 -O3 -ffp-contract=off -shared -fPIC -I common -o plugin_signsgd.so plugin_signsgd.c */
#include "optim/optimizer.h"

#include <stddef.h>

static int signsgd_slots(const struct optimizer_params *params)
{
    return params->momentum != 0.0 ? 1 : 0;
}

/* -1, 0, 1; NaN stays NaN, so that a broken gradient is seen. */
static float sign(float x)
{
    if (x > 0.0f)
        return 1.0f;
    return x < 0.0f ? -1.0f : x * 0.0f;
}

static void signsgd_update(const struct optimizer_params *params, const struct optimizer_step *step, int decay,
                           float *w, float *grad, float *const *slots, int64_t count)
{
    const float lr = (float)step->lr;
    const float shrink = (float)(1.0 - step->lr * (decay ? params->weight_decay : 0.0));
    const float momentum = (float)params->momentum, rest = (float)(1.0 - params->momentum);
    float *buffer = signsgd_slots(params) ? slots[0] : NULL;

    for (int64_t i = 0; i < count; i++) {
        float direction = grad[i] * step->grad_scale;
        if (buffer) {
            buffer[i] = momentum * buffer[i] + rest * direction;
            direction = buffer[i];
        }
        w[i] = w[i] * shrink - lr * sign(direction);
    }
}

extern const struct optimizer_ops shoal_optimizer;
__attribute__((visibility("default"))) const struct optimizer_ops shoal_optimizer = {
    .version = OPTIMIZER_OPS_VERSION,
    .name = "signsgd",
    .help = "signSGD and Signum (Bernstein et al. 2018) with decoupled weight_decay",
    .slots = signsgd_slots,
    .update = signsgd_update,
};
