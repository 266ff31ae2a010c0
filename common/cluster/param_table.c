#include "cluster/param_table.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"

static const int64_t tensor_count_max = INT64_C(1) << 40;

/* FNV-1a, 64 bits. */
static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ byte[i]) * UINT64_C(0x100000001b3);
    return hash;
}

void param_table_init(struct param_table *table)
{
    memset(table, 0, sizeof *table);
}

void param_table_close(struct param_table *table)
{
    for (int i = 0; i < table->tensor_count; i++)
        free(table->tensors[i].name);
    free(table->tensors);
    free(table->layers);
    free(table->by_name);
    param_table_init(table);
}

/* Room for one more item when count has reached a power of two; the capacity is the next power above count. */
static void *grow(void *items, int count, size_t item_bytes)
{
    if (count & (count - 1)) /* not a power of two (and not 0): there is room */
        return items;
    size_t capacity = count == 0 ? 1 : 2 * (size_t)count;
    return realloc(items, capacity * item_bytes);
}

int param_table_add_layer(struct param_table *table)
{
    struct param_layer *layers = grow(table->layers, table->layer_count, sizeof *layers);
    if (!layers)
        return STATUS_NOMEM;
    table->layers = layers;
    layers[table->layer_count] = (struct param_layer){.tensor_first = table->tensor_count, .offset = table->count};
    return table->layer_count++;
}

/* *count = product of the dimensions. Sizes are bounded one by one, so that the product cannot wrap. */
static int shape_count(const char *name, int dims, const int64_t *shape, int64_t *count, struct errbuf *err)
{
    if (dims < 0 || dims > PARAM_DIMS_MAX)
        return errbuf_set(err, STATUS_RANGE, "tensor %s: %d dimensions, allowed are 0 to %d", name, dims,
                          PARAM_DIMS_MAX);
    int empty = 0;
    for (int d = 0; d < dims; d++) {
        if (shape[d] < 0)
            return errbuf_set(err, STATUS_RANGE, "tensor %s: dimension %d is %lld, a size cannot be negative", name,
                              d, (long long)shape[d]);
        empty |= shape[d] == 0;
    }
    *count = empty ? 0 : 1;
    for (int d = 0; d < dims && !empty; d++) {
        if (shape[d] > tensor_count_max / *count)
            return errbuf_set(err, STATUS_RANGE, "tensor %s: more than 2^40 elements", name);
        *count *= shape[d];
    }
    return STATUS_OK;
}

/* Where name is in by_name, or the free place for it. */
static int place_of(const struct param_table *table, const char *name)
{
    unsigned mask = (unsigned)table->by_name_room - 1;
    unsigned at = (unsigned)hash_bytes(UINT64_C(0xcbf29ce484222325), name, strlen(name)) & mask;
    while (table->by_name[at] >= 0 && strcmp(table->tensors[table->by_name[at]].name, name) != 0)
        at = (at + 1) & mask;
    return (int)at;
}

int param_table_find(const struct param_table *table, const char *name)
{
    int index = table->by_name_room > 0 ? table->by_name[place_of(table, name)] : -1;
    return index >= 0 ? index : STATUS_UNKNOWN;
}

/* Room for one more name, at most half full. */
static int grow_names(struct param_table *table)
{
    if (2 * (table->tensor_count + 1) <= table->by_name_room)
        return STATUS_OK;
    int room = table->by_name_room > 0 ? 2 * table->by_name_room : 16;
    int *by_name = malloc((size_t)room * sizeof *by_name);
    if (!by_name)
        return STATUS_NOMEM;
    free(table->by_name);
    table->by_name = by_name;
    table->by_name_room = room;
    for (int i = 0; i < room; i++)
        by_name[i] = -1;
    for (int i = 0; i < table->tensor_count; i++)
        by_name[place_of(table, table->tensors[i].name)] = i;
    return STATUS_OK;
}

int param_table_add(struct param_table *table, const char *name, int dims, const int64_t *shape, struct errbuf *err)
{
    if (table->layer_count == 0)
        return errbuf_set(err, STATUS_INVALID, "tensor %s: no layer is open", name);
    size_t length = strlen(name);
    if (length == 0 || length > PARAM_NAME_MAX)
        return errbuf_set(err, STATUS_INVALID, "a tensor's name has %zu bytes, allowed are 1 to %d", length,
                          PARAM_NAME_MAX);
    if (param_table_find(table, name) >= 0)
        return errbuf_set(err, STATUS_EXISTS, "tensor %s: the name is taken", name);
    int64_t count = 0;
    int status = shape_count(name, dims, shape, &count, err);
    if (status != STATUS_OK)
        return status;
    struct param_tensor *tensors = grow(table->tensors, table->tensor_count, sizeof *tensors);
    if (tensors)
        table->tensors = tensors;
    if (!tensors || grow_names(table) != STATUS_OK)
        return errbuf_set(err, STATUS_NOMEM, "tensor %s: out of memory", name);
    struct param_layer *layer = &table->layers[table->layer_count - 1];
    struct param_tensor *tensor = &tensors[table->tensor_count];
    *tensor = (struct param_tensor){.name = strdup(name),
                                    .dims = dims,
                                    .count = count,
                                    .layer = table->layer_count - 1,
                                    .offset = layer->count};
    if (!tensor->name)
        return errbuf_set(err, STATUS_NOMEM, "tensor %s: out of memory", name);
    if (dims > 0)
        memcpy(tensor->shape, shape, (size_t)dims * sizeof *shape);
    table->by_name[place_of(table, name)] = table->tensor_count;
    layer->tensor_count++;
    layer->count += count;
    table->count += count;
    return table->tensor_count++;
}

enum mark { MARK_FROZEN, MARK_NO_DECAY };

/* All globs are tried before any tensor is marked: a refused call changes nothing. */
static int mark_matches(struct param_table *table, enum mark mark, char *const *globs, int globs_count,
                        struct errbuf *err)
{
    for (int g = 0; g < globs_count; g++) {
        int found = 0;
        for (int i = 0; i < table->tensor_count && !found; i++)
            found = fnmatch(globs[g], table->tensors[i].name, 0) == 0;
        if (!found)
            return errbuf_set(err, STATUS_UNKNOWN, "no tensor matches \"%s\"", globs[g]);
    }
    for (int i = 0; i < table->tensor_count; i++) {
        struct param_tensor *tensor = &table->tensors[i];
        for (int g = 0; g < globs_count; g++)
            if (fnmatch(globs[g], tensor->name, 0) == 0)
                *(mark == MARK_FROZEN ? &tensor->frozen : &tensor->no_decay) = 1;
    }
    return STATUS_OK;
}

int param_table_freeze(struct param_table *table, char *const *globs, int globs_count, struct errbuf *err)
{
    return mark_matches(table, MARK_FROZEN, globs, globs_count, err);
}

int param_table_no_decay(struct param_table *table, char *const *globs, int globs_count, struct errbuf *err)
{
    return mark_matches(table, MARK_NO_DECAY, globs, globs_count, err);
}

int64_t param_table_trainable(const struct param_table *table)
{
    int64_t count = 0;
    for (int i = 0; i < table->tensor_count; i++)
        count += table->tensors[i].frozen ? 0 : table->tensors[i].count;
    return count;
}

/* Appends `from`'s tensor i, which was checked when it was first added. */
static int copy_tensor(struct param_table *to, const struct param_tensor *from)
{
    while (to->layer_count <= from->layer) { /* earlier layers may be empty */
        int status = param_table_add_layer(to);
        if (status < 0)
            return status;
    }
    int index = param_table_add(to, from->name, from->dims, from->shape, NULL);
    if (index < 0)
        return index;
    to->tensors[index].frozen = from->frozen;
    to->tensors[index].no_decay = from->no_decay;
    return STATUS_OK;
}

int param_table_copy(struct param_table *to, const struct param_table *from)
{
    param_table_init(to);
    int status = STATUS_OK;
    for (int i = 0; i < from->tensor_count && status == STATUS_OK; i++)
        status = copy_tensor(to, &from->tensors[i]);
    while (status == STATUS_OK && to->layer_count < from->layer_count) {
        int layer = param_table_add_layer(to);
        status = layer < 0 ? layer : STATUS_OK;
    }
    if (status != STATUS_OK)
        param_table_close(to);
    return status;
}

/* Little-endian whatever the host, so that unlike machines agree. */
static uint64_t hash_int(uint64_t hash, int64_t value)
{
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)((uint64_t)value >> (8 * i));
    return hash_bytes(hash, bytes, sizeof bytes);
}

uint64_t param_table_fingerprint(const struct param_table *table)
{
    uint64_t hash = hash_int(UINT64_C(0xcbf29ce484222325), table->layer_count);
    for (int i = 0; i < table->tensor_count; i++) {
        const struct param_tensor *tensor = &table->tensors[i];
        hash = hash_bytes(hash, tensor->name, strlen(tensor->name) + 1);
        hash = hash_int(hash, tensor->layer);
        hash = hash_int(hash, tensor->dims);
        for (int d = 0; d < tensor->dims; d++)
            hash = hash_int(hash, tensor->shape[d]);
    }
    return hash;
}
