/* The list of what is trained: layers of tensors, in forward order. Built by the model (or by a client
 * program that registers tensors), sent to the coordinator at registration, learnt by every owner.
 *
 * A layer is its tensors end to end in one flat vector without padding; all layers end to end, in order, are
 * the flat vector of N parameters. Any thread may read a finished table. */
#ifndef SHOAL_CLUSTER_PARAM_TABLE_H
#define SHOAL_CLUSTER_PARAM_TABLE_H

#include <stdint.h>

struct errbuf;

enum { PARAM_DIMS_MAX = 8, PARAM_NAME_MAX = 255 };

struct param_tensor {
    char *name; /* owned by the table; unique; "layers.0.linear.weight" */
    int dims;
    int64_t shape[PARAM_DIMS_MAX];
    int64_t count;  /* product of shape; 0 is allowed */
    int layer;      /* index into layers */
    int64_t offset; /* elements from the layer's start */
    int frozen;     /* no gradient, no optimizer state, no norm, no decay */
    int no_decay;
};

struct param_layer {
    int tensor_first, tensor_count;
    int64_t offset; /* elements from the flat vector's start */
    int64_t count;  /* n */
};

struct param_table {
    struct param_tensor *tensors;
    struct param_layer *layers;
    int tensor_count, layer_count;
    int64_t count; /* N, frozen tensors included */
    int *by_name;  /* hash table of tensor indices, -1: free; by_name_room is a power of two */
    int by_name_room;
};

void param_table_init(struct param_table *table);
void param_table_close(struct param_table *table);
/* Opens a new layer; later tensors belong to it. Returns its index or STATUS_NOMEM. */
int param_table_add_layer(struct param_table *table);
/* Appends a float32 tensor to the last layer. Returns its index, or STATUS_EXISTS (name taken),
 * STATUS_RANGE (dims, a negative size, a product beyond 2^40), STATUS_INVALID (no layer open, empty or overlong
 * name), STATUS_NOMEM. */
int param_table_add(struct param_table *table, const char *name, int dims, const int64_t *shape,
                    struct errbuf *err);
int param_table_find(const struct param_table *table, const char *name); /* index or STATUS_UNKNOWN */
/* Marks tensors by fnmatch(3) globs; globs_count 0 marks none. A glob that matches nothing is
 * STATUS_UNKNOWN and named. */
int param_table_freeze(struct param_table *table, char *const *globs, int globs_count, struct errbuf *err);
int param_table_no_decay(struct param_table *table, char *const *globs, int globs_count, struct errbuf *err);
int64_t param_table_trainable(const struct param_table *table); /* elements that are not frozen */
int param_table_copy(struct param_table *to, const struct param_table *from); /* STATUS_NOMEM */
/* 64-bit fingerprint of names, shapes and layers, for comparing ranks. */
uint64_t param_table_fingerprint(const struct param_table *table);

#endif
