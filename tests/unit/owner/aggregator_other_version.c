/* An aggregator built for another version of the ops. */
#include "owner/aggregator.h"

extern const struct shoal_aggregator shoal_aggregator;
__attribute__((visibility("default")))
const struct shoal_aggregator shoal_aggregator = {.version = AGGREGATOR_VERSION + 2, .name = "from the future"};
