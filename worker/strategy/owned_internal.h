/* The inside of what a worker owns, shared by owned.c and owned_files.c. */
#ifndef SHOAL_STRATEGY_OWNED_INTERNAL_H
#define SHOAL_STRATEGY_OWNED_INTERNAL_H

#include "worker/strategy/owned.h"

struct owned {
    struct owned_options options;
    const struct optimizer_ops *ops;
    struct optimizer_params params;
    void *plugin; /* of optimizer_of_job */
    struct owned_piece *pieces;
    int64_t *key_first;  /* by piece: the first key it touches */
    int64_t *unit_first; /* count + 1: keys that earlier pieces touch */
    int *layer_first;    /* layers + 1: the first piece of a layer */
    int64_t elements;
    int count, slots;
};

/* What is owned of a layer, frozen tensors included; begin == end when nothing. */
void owned_part(const struct owned *owned, int layer, int64_t *begin, int64_t *end);

#endif
