/* Models by the lengths of their tensors, and key maps of them as a ring has them (one server): what the tests of the
 * strategies' pure parts run over. One thread. */
#ifndef SHOAL_TESTS_STRATEGY_FIXTURE_H
#define SHOAL_TESTS_STRATEGY_FIXTURE_H

#include <stdint.h>

#include "cluster/keymap.h"

enum { FIXTURE_TENSORS = 24, FIXTURE_MODELS = 10, FIXTURE_PLACEMENTS = 2 };

/* -1 ends a layer, -2 the model; FIXTURE_FROZEN(n): a frozen tensor of n elements. */
struct fixture_model {
    const char *name;
    int64_t lengths[FIXTURE_TENSORS];
};
#define FIXTURE_FROZEN(n) (-(n)-100)
extern const struct fixture_model fixture_models[FIXTURE_MODELS];

void fixture_build(struct param_table *table, const struct fixture_model *model);
/* Calls check with every model on 1, 2, 3, 5 and 8 ranks in both placements; print_message says which when it fails. */
void fixture_each(void (*check)(const struct keymap *map));
/* The rank that owns an element, by the words of the specification. */
int fixture_owner(const struct keymap *map, int layer, int64_t element);
int fixture_frozen(const struct param_table *table, int layer, int64_t element);

#endif
