/* A plug-in built for another version of the ops: must be refused before anything in it is called. */
#include "optim/optimizer.h"

#include <stddef.h>

extern const struct optimizer_ops shoal_optimizer;
__attribute__((visibility("default")))
const struct optimizer_ops shoal_optimizer = {.version = OPTIMIZER_OPS_VERSION + 6, .name = "from the future"};
