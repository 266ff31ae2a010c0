/* lamb's trust ratios: one a tensor, from the norms of its runs added in order of run number, so that the ratio does not
 * depend on who held which run. You et al. 2020, algorithm 2. Pure; any thread. */
#ifndef SHOAL_OWNER_TRUST_H
#define SHOAL_OWNER_TRUST_H

#include "cluster/keymap.h"

/* norms: Σw², Σu² of every run of the map (2 x runs_count). ratios: one a tensor, |w|/|u|, 1 where either is 0 and for
 * frozen tensors. */
void trust_ratios(const struct keymap *map, const double *norms, double *ratios);

#endif
