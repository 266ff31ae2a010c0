/* The arithmetic adam and adamw share: Kingma and Ba 2015, algorithm 1, with the bias corrections folded into two
 * constants; m and v stay raw. Pure; any thread. */
#ifndef SHOAL_OPTIM_ADAM_COMMON_H
#define SHOAL_OPTIM_ADAM_COMMON_H

#include "optim/rows.h"

/* w ← w·shrink, then Adam's step on g = gradient·grad_scale + l2·w (l2 0: without). slots: m, v. As update_sum. */
struct adam_decay {
    double l2, shrink;
};
int adam_common_update(enum isa isa, const struct optimizer_call *call, const struct gradient *gradient,
                       struct adam_decay decay);

/* base^t, t >= 0, by squaring: unlike pow() the same bits with every C library and processor. */
double adam_common_power(double base, int64_t t);

#endif
