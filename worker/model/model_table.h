/* The rows of model kinds. A new kind is one new file, one line here and in model_table.c, and one build line. */
#ifndef SHOAL_MODEL_MODEL_TABLE_H
#define SHOAL_MODEL_MODEL_TABLE_H

#include "worker/model/model_kind.h"

extern const struct model_ops model_linear;
extern const struct model_ops model_mlp;

#endif
