/* Row `mlp`: blocks layers.{i} of linear -> batch_norm -> activation -> dropout, then head. */
#ifndef SHOAL_MODEL_MLP_H
#define SHOAL_MODEL_MLP_H

#include "worker/model/model_kind.h"

extern const struct model_ops model_mlp;

#endif
