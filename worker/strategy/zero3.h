/* ZeRO stage 3 (Rajbhandari et al., SC 2020): as zero2, and parameters live in parts, too; a layer is gathered for its forward and
 * again for its backward, the next one while it computes. */
#ifndef SHOAL_STRATEGY_ZERO3_H
#define SHOAL_STRATEGY_ZERO3_H

#include "worker/strategy/strategy.h"

extern const struct strategy_ops strategy_zero3;

#endif
