/* What the built-in rows share: their declarations, and each update on a stated instruction set, which lets tests
 * compare the paths bit for bit. Pure; any thread; borrows every pointer. */
#ifndef SHOAL_OPTIM_ROWS_H
#define SHOAL_OPTIM_ROWS_H

#include "optim/isa.h"
#include "optim/optimizer.h"

#include <string.h>

extern const struct optimizer_ops optimizer_sgd, optimizer_adam, optimizer_adamw, optimizer_adagrad, optimizer_ftrl,
    optimizer_lamb;

/* A gradient as the sum of up to four sources. */
struct gradient {
    const float *sources[OPTIMIZER_SOURCES_MAX];
    int sources_count;
};

/* As optimizer_ops.update_sum. */
int sgd_update_on(enum isa isa, const struct optimizer_call *call, const struct gradient *gradient);
int adam_update_on(enum isa isa, const struct optimizer_call *call, const struct gradient *gradient);
int adamw_update_on(enum isa isa, const struct optimizer_call *call, const struct gradient *gradient);
int adagrad_update_on(enum isa isa, const struct optimizer_call *call, const struct gradient *gradient);
int ftrl_update_on(enum isa isa, const struct optimizer_call *call, const struct gradient *gradient);
/* As optimizer_ops.prepare and update. */
void lamb_prepare_on(enum isa isa, const struct optimizer_call *call, float *grad, double norms[2]);
void lamb_update_on(enum isa isa, const struct optimizer_call *call, const float *grad);

/* Element i of the sum; sources_count is a constant at each call. *top gathers the bits that finite_top looks at.
 */
ISA_INLINE float gradient_at(const struct gradient *gradient, int sources_count, int64_t i, uint32_t *top)
{
    uint32_t bits;
    float sum = gradient->sources[0][i];

    for (int s = 1; s < sources_count; s++)
        sum = sum + gradient->sources[s][i];
    memcpy(&bits, &sum, sizeof bits);
    *top |= (bits & 0x7fffffffu) + 0x00800000u; /* carries into the top bit when the exponent is all ones */
    return sum;
}

static inline int finite_top(uint32_t top)
{
    return !(top & 0x80000000u);
}

static inline struct gradient gradient_of(const float *const *sources, int sources_count)
{
    struct gradient gradient = {.sources_count = sources_count};

    for (int s = 0; s < sources_count; s++)
        gradient.sources[s] = sources[s];
    return gradient;
}

/* Calls LOOP(args, number of sources, with_l2) with both as constants, so that each variant is one plain loop. l2
 * is not just added as 0·w, which would turn an infinite weight into NaN. */
#define GRADIENT_VARIANTS(loop, args, l2)                                                                          \
    do {                                                                                                           \
        int with_l2 = (l2) != 0.0f;                                                                                \
        if ((args)->gradient.sources_count == 1)                                                                   \
            with_l2 ? loop(args, 1, 1) : loop(args, 1, 0);                                                         \
        else if ((args)->gradient.sources_count == 2)                                                              \
            with_l2 ? loop(args, 2, 1) : loop(args, 2, 0);                                                         \
        else if ((args)->gradient.sources_count == 3)                                                              \
            with_l2 ? loop(args, 3, 1) : loop(args, 3, 0);                                                         \
        else                                                                                                       \
            with_l2 ? loop(args, 4, 1) : loop(args, 4, 0);                                                         \
    } while (0)

/* The decay of this call: weight_decay, or 0 for a tensor of no_decay. */
static inline double optimizer_call_decay(const struct optimizer_call *call)
{
    return call->decay ? call->params->weight_decay : 0.0;
}

#endif
