#include <math.h>

#include "base/rng.h"
#include "worker/model/model_kind.h"

/* U(±bound): element i of tensor t from (seed, site of t, i), whoever asks. */
static void fill_uniform(uint64_t seed, int tensor, double bound, float *w, int64_t count)
{
    rng_uniform_fill(seed, RNG_SITE_INIT + (uint32_t)tensor, 0, 0, w, count);
    for (int64_t i = 0; i < count; i++)
        w[i] = (float)((2.0 * w[i] - 1.0) * bound);
}

void model_init_layer(const struct model *model, int layer, float *w)
{
    const struct param_layer *range = &model->params.layers[layer];
    for (int t = range->tensor_first; t < range->tensor_first + range->tensor_count; t++) {
        const struct param_tensor *tensor = &model->params.tensors[t];
        const struct tensor_init *init = &model->inits[t];
        float *to = w + tensor->offset;
        if (init->uniform) {
            fill_uniform(model->seed, t, init->value, to, tensor->count);
            continue;
        }
        for (int64_t i = 0; i < tensor->count; i++)
            to[i] = (float)init->value;
    }
}
