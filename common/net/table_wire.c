#include "net/table_wire.h"

#include <stdint.h>
#include <stdlib.h>

#include "base/errbuf.h"
#include "base/status.h"

enum { TENSORS_MAX = UINT16_MAX };

struct packed {
    Shoal__ParamTable message; /* first member */
    Shoal__Tensor *tensors;
};

Shoal__ParamTable *table_wire_pack(const struct param_table *table)
{
    struct packed *packed = calloc(1, sizeof(*packed));
    if (!packed) {
        return NULL;
    }
    shoal__param_table__init(&packed->message);
    packed->message.layers = (uint32_t)table->layer_count;
    packed->message.n_tensors = (size_t)table->tensor_count;
    packed->message.tensors = calloc((size_t)table->tensor_count + 1, sizeof(*packed->message.tensors));
    packed->tensors = calloc((size_t)table->tensor_count + 1, sizeof(*packed->tensors));
    if (!packed->message.tensors || !packed->tensors) {
        table_wire_free(&packed->message);
        return NULL;
    }
    for (int t = 0; t < table->tensor_count; t++) {
        struct param_tensor *tensor = &table->tensors[t];
        Shoal__Tensor *out = &packed->tensors[t];
        shoal__tensor__init(out);
        out->name = tensor->name;
        out->n_shape = (size_t)tensor->dims;
        out->shape = tensor->shape;
        out->layer = (uint32_t)tensor->layer;
        out->frozen = tensor->frozen;
        out->no_decay = tensor->no_decay;
        packed->message.tensors[t] = out;
    }
    return &packed->message;
}

void table_wire_free(Shoal__ParamTable *message)
{
    struct packed *packed = (struct packed *)message;
    if (packed) {
        free(packed->message.tensors);
        free(packed->tensors);
        free(packed);
    }
}

int table_wire_unpack(struct param_table *table, const Shoal__ParamTable *message, struct errbuf *err)
{
    param_table_init(table);
    if (!message) {
        return errbuf_set(err, STATUS_FORMAT, "no parameter table");
    }
    if (message->n_tensors > TENSORS_MAX) {
        return errbuf_set(err, STATUS_RANGE, "parameter table: %zu tensors, at most %d", message->n_tensors, TENSORS_MAX);
    }
    for (size_t i = 0; i < message->n_tensors; i++) {
        const Shoal__Tensor *t = message->tensors[i];
        int last = table->layer_count - 1;
        int status = 0;
        if ((int64_t)t->layer != last && (int64_t)t->layer != last + 1) {
            status = errbuf_set(err, STATUS_FORMAT, "tensor %s: layer %u after layer %d", t->name, t->layer, last);
        } else if ((int64_t)t->layer == last + 1) {
            status = param_table_add_layer(table) < 0 ? STATUS_NOMEM : 0;
        }
        int added = status == 0 ? param_table_add(table, t->name, (int)t->n_shape, t->shape, err) : status;
        if (added < 0) {
            param_table_close(table);
            return added;
        }
        table->tensors[added].frozen = t->frozen;
        table->tensors[added].no_decay = t->no_decay;
    }
    if ((int64_t)message->layers != table->layer_count) {
        param_table_close(table);
        return errbuf_set(err, STATUS_FORMAT, "parameter table: %u layers said, %d described", message->layers,
                          table->layer_count);
    }
    return 0;
}
