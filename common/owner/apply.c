#include "owner/apply.h"

#include "optim/optimizer.h"
#include "tensor/reduce.h"

#include <assert.h>
#include <stddef.h>

/* Floats of a tile of summed gradients: it stays in the first-level cache until the update has read it, and an
 * update computes its constants once for so many elements. */
enum { TILE = 4096, SOURCES_AT_ONCE = 16 };

/* tile = sum of sources[..][first..first+count) in order. */
static void tile_sum(float *tile, const float *const *sources, int sources_count, int64_t first, int64_t count)
{
    const float *shifted[SOURCES_AT_ONCE];

    for (int done = 0; done < sources_count; done += SOURCES_AT_ONCE) {
        int now = sources_count - done < SOURCES_AT_ONCE ? sources_count - done : SOURCES_AT_ONCE;
        for (int s = 0; s < now; s++)
            shifted[s] = sources[done + s] + first;
        reduce_add_many(tile, shifted, now, done == 0, count);
    }
}

/* For more sources than the rule's own loop takes, and for rules without one: the tile holds the sum of all sources
 * but the last few, which that loop adds. */
static int apply_tiles(const struct optimizer_ops *ops, const struct optimizer_call *whole,
                       const float *const *sources, int sources_count)
{
    _Alignas(64) float tile[TILE];
    float *slots[OPTIMIZER_SLOTS_MAX] = {NULL};
    const float *last[OPTIMIZER_SOURCES_MAX] = {tile};
    const int slots_count = ops->slots(whole->params);
    const int last_count = ops->update_sum ? OPTIMIZER_SOURCES_MAX - 1 : 0;
    int finite = 1;

    for (int64_t first = 0; first < whole->count && finite; first += TILE) {
        struct optimizer_call call = *whole;
        call.count = whole->count - first < TILE ? whole->count - first : TILE;
        call.w = whole->w + first;
        call.slots = slots;
        for (int s = 0; s < slots_count; s++)
            slots[s] = whole->slots[s] + first;
        for (int s = 0; s < last_count; s++)
            last[1 + s] = sources[sources_count - last_count + s] + first;
        tile_sum(tile, sources, sources_count - last_count, first, call.count);
        if (ops->update_sum) {
            finite = ops->update_sum(&call, last, 1 + last_count);
        } else {
            reduce_norm_squared(tile, call.count, &finite);
            ops->update(call.params, call.step, call.decay, call.w, tile, slots, call.count);
        }
    }
    return finite;
}

int owner_apply_sum(const struct owner_rule *rule, float *w, float *const *slots, const float *const *sources,
                    int sources_count, int64_t count)
{
    const struct optimizer_call call = {rule->params, rule->step, rule->decay, w, slots, count};

    assert(sources_count >= 1 && !rule->ops->prepare);
    if (rule->ops->update_sum && sources_count <= OPTIMIZER_SOURCES_MAX)
        return rule->ops->update_sum(&call, sources, sources_count);
    return apply_tiles(rule->ops, &call, sources, sources_count);
}

double owner_sum(float *grad, const float *const *sources, int sources_count, int64_t count, int *finite)
{
    assert(sources_count >= 1);
    reduce_sum_to(grad, sources, sources_count, count);
    return reduce_norm_squared(grad, count, finite);
}

void owner_apply(const struct owner_rule *rule, float *w, float *grad, float *const *slots, int64_t count)
{
    rule->ops->update(rule->params, rule->step, rule->decay, w, grad, slots, count);
}
