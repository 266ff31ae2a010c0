#include "owner/apply.h"

#include "optim/isa.h"
#include "optim/optimizer.h"
#include "tensor/reduce.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

/* Floats of a tile: the summed gradient stays in the first-level cache until the update has read it, and the
 * constants of an update are computed once for so many elements. */
enum { TILE = 2048, SOURCES_AT_ONCE = 16 };

struct finite_args {
    const float *x;
    int64_t count;
    uint32_t *top; /* out: top bit set when an exponent is all ones */
};

ISA_BODY finite_body(const struct finite_args *args)
{
    const float *x = args->x;
    uint32_t top = 0;

    for (int64_t i = 0; i < args->count; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        top |= (bits & 0x7fffffffu) + 0x00800000u; /* carries into the top bit for inf and NaN only */
    }
    *args->top = top;
}

ISA_PATHS(finite, struct finite_args)

static int all_finite(enum isa isa, const float *x, int64_t count)
{
    uint32_t top = 0;
    const struct finite_args args = {x, count, &top};

    finite_run(isa, &args);
    return !(top & 0x80000000u);
}

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

int owner_apply_sum(const struct owner_rule *rule, float *w, float *const *slots, const float *const *sources,
                    int sources_count, int64_t count)
{
    _Alignas(64) float tile[TILE];
    float *shifted[OPTIMIZER_SLOTS_MAX] = {NULL};
    const int slots_count = rule->ops->slots(rule->params);
    const enum isa isa = isa_best();

    assert(sources_count >= 1 && !rule->ops->prepare);
    for (int64_t first = 0; first < count; first += TILE) {
        int64_t now = count - first < TILE ? count - first : TILE;
        tile_sum(tile, sources, sources_count, first, now);
        if (!all_finite(isa, tile, now))
            return 0;
        for (int s = 0; s < slots_count; s++)
            shifted[s] = slots[s] + first;
        rule->ops->update(rule->params, rule->step, rule->decay, w + first, tile, shifted, now);
    }
    return 1;
}

double owner_sum(float *grad, const float *const *sources, int sources_count, int64_t count, int *finite)
{
    assert(sources_count >= 1);
    reduce_add_many(grad, sources, sources_count, 1, count);
    return reduce_norm_squared(grad, count, finite);
}

void owner_apply(const struct owner_rule *rule, float *w, float *grad, float *const *slots, int64_t count)
{
    rule->ops->update(rule->params, rule->step, rule->decay, w, grad, slots, count);
}
