/* Layers that are exchanged together, and how their elements are cut into segments for a collective. Buckets are filled in
 * the order of backward (last layer first) until they hold bucket_bytes; layers without trainable tensors are left out. The
 * same on every rank. Pure. */
#ifndef SHOAL_STRATEGY_BUCKET_H
#define SHOAL_STRATEGY_BUCKET_H

#include <stdint.h>

#include "cluster/keymap.h"

struct errbuf;

struct bucket {
    int low, high;    /* layers [low, high] */
    int layers;       /* of them with trainable tensors */
    int64_t elements; /* of those layers, end to end */
};

/* *buckets: owned, *count of them, by falling layers. of_layer (table->layer_count): its bucket, -1 for none. */
int bucket_list(const struct param_table *table, int64_t bucket_bytes, struct bucket **buckets, int *count,
                int *of_layer, struct errbuf *err);
/* Whether any of a layer's elements is trained. */
int bucket_layer_trainable(const struct param_table *table, int layer);

/* Consecutive elements of one layer and one owner, at most COLLECTIVE_SEGMENT_MAX. */
struct bucket_segment {
    int layer, owner;
    int64_t begin, end; /* elements in the layer */
    int64_t run_first;  /* -1 where runs do not count, as key */
    int64_t runs, key;  /* key: of the first run */
};

/* The trainable runs of layers [low, high], in order, joined as far as they go. *segments: owned. */
int bucket_trainable_segments(const struct keymap *map, int low, int high, struct bucket_segment **segments,
                              int *count, struct errbuf *err);
/* All elements of one layer by owner; owner >= 0: as if that rank owned all of it (a broadcast). */
int bucket_layer_segments(const struct keymap *map, int layer, int owner, struct bucket_segment **segments, int *count,
                          struct errbuf *err);

#endif
