/* ZeRO stage 1 (Rajbhandari et al., SC 2020): a worker holds the optimizer state of its parts. Gradients are reduce-scattered to
 * the owners, updated parameters all-gathered: the payload of an all-reduce, not more. */
#ifndef SHOAL_STRATEGY_ZERO1_H
#define SHOAL_STRATEGY_ZERO1_H

#include "worker/strategy/strategy.h"

extern const struct strategy_ops strategy_zero1;

#endif
