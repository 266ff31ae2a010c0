/* Row `linear`: head.weight (outputs, features), head.bias. */
#ifndef SHOAL_MODEL_LINEAR_H
#define SHOAL_MODEL_LINEAR_H

#include "worker/model/model_kind.h"

extern const struct model_ops model_linear;

#endif
