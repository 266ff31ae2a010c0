/* ZeRO stage 2 (Rajbhandari et al., SC 2020): as zero1, and gradients outside the own parts are gone as soon as their bucket is
 * reduced. With `accumulate` they stay until the last micro-step. */
#ifndef SHOAL_STRATEGY_ZERO2_H
#define SHOAL_STRATEGY_ZERO2_H

#include "worker/strategy/strategy.h"

extern const struct strategy_ops strategy_zero2;

#endif
