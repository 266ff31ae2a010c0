/* The parameter server (Li et al., OSDI 2014): owners are servers. Contributions are pushed as their layers' backward is
 * done, values (or, with update_at: worker, the sums) are pulled in the order of the next forward. */
#ifndef SHOAL_STRATEGY_PS_H
#define SHOAL_STRATEGY_PS_H

#include "worker/strategy/strategy.h"

extern const struct strategy_ops strategy_ps;

#endif
