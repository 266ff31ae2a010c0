#include <stdlib.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "worker/strategy/strategy.h"

int strategy_alloc_layers(struct strategy *strategy, struct errbuf *err)
{
    size_t layers = (size_t)strategy->table->layer_count + 1;
    strategy->w = calloc(layers, sizeof(*strategy->w));
    strategy->g = calloc(layers, sizeof(*strategy->g));
    return strategy->w && strategy->g ? 0 : errbuf_set(err, STATUS_NOMEM, "out of memory for %zu layers", layers - 1);
}
