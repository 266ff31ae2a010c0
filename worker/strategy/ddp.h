/* Data parallelism with everything on every worker (Li et al., VLDB 2020): gradients are all-reduced bucket by bucket during
 * backward, every worker updates everything. */
#ifndef SHOAL_STRATEGY_DDP_H
#define SHOAL_STRATEGY_DDP_H

#include "worker/strategy/strategy.h"

extern const struct strategy_ops strategy_ddp;

#endif
