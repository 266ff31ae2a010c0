/* The mlp block of spec section 4: linear -> batch_norm -> activation -> dropout, each of the last three optional.
 * Parameters end to end: linear.weight (out,in), linear.bias (out), norm.weight (out), norm.bias (out). */
#ifndef SHOAL_MODEL_LAYER_LINEAR_H
#define SHOAL_MODEL_LAYER_LINEAR_H

#include "tensor/elementwise.h"
#include "worker/model/layer.h"

struct layer_linear_spec {
    int64_t in, out;
    const char *linear_name; /* "layers.0.linear", "head" */
    const char *norm_name;   /* "layers.0.norm"; NULL: no batch_norm */
    enum activation activation;
    double dropout;
};

/* Adds the param layer and makes the layer, which lives in setup->memory. STATUS_NOMEM, STATUS_RANGE, …. */
int layer_linear_create(struct layer **layer, const struct layer_setup *setup, const struct layer_linear_spec *spec,
                        struct errbuf *err);

#endif
