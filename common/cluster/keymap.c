#include "cluster/keymap.h"

#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"

static int64_t tensor_keys(const struct param_tensor *tensor)
{
    return (tensor->count + KEY_ELEMENTS - 1) / KEY_ELEMENTS;
}

static int64_t layer_keys(const struct param_table *table, int layer)
{
    const struct param_layer *l = &table->layers[layer];
    int64_t keys = 0;
    for (int t = l->tensor_first; t < l->tensor_first + l->tensor_count; t++) {
        keys += tensor_keys(&table->tensors[t]);
    }
    return keys;
}

/* Parts that [begin, end) of a layer touches. */
static int runs_in(const struct keymap *map, int layer, int64_t begin, int64_t end)
{
    return keymap_owner(map, layer, end - 1) - keymap_owner(map, layer, begin) + 1;
}

static void fill_keys(struct keymap *map)
{
    const struct param_table *table = map->table;
    int64_t key = 0;
    int64_t run = 0;
    for (int t = 0; t < table->tensor_count; t++) {
        const struct param_tensor *tensor = &table->tensors[t];
        for (int64_t at = 0; at < tensor->count; at += KEY_ELEMENTS) {
            int64_t end = at + KEY_ELEMENTS < tensor->count ? at + KEY_ELEMENTS : tensor->count;
            struct keymap_key *k = &map->keys[key++];
            k->tensor = t;
            k->begin = tensor->offset + at;
            k->end = tensor->offset + end;
            k->runs = tensor->frozen ? 0 : runs_in(map, tensor->layer, k->begin, k->end);
            k->run_first = tensor->frozen ? -1 : run;
            run += k->runs;
        }
    }
    map->runs_count = run;
}

/* Deals each layer's keys in consecutive blocks; `turn` carries the remainders round the servers. */
static void deal_servers(struct keymap *map)
{
    const struct param_table *table = map->table;
    int64_t key = 0;
    int turn = 0;
    for (int layer = 0; layer < table->layer_count; layer++) {
        int64_t keys = layer_keys(table, layer);
        int64_t each = keys / map->servers;
        int extra = (int)(keys % map->servers);
        for (int s = 0; s < map->servers; s++) {
            int lucky = (s - turn + map->servers) % map->servers < extra;
            for (int64_t i = 0; i < each + lucky; i++) {
                map->keys[key++].server = s;
            }
        }
        turn = (turn + extra) % map->servers;
    }
}

static int joins_range(const struct keymap *map, const struct keymap_range *range, int64_t key, int64_t limit)
{
    const struct keymap_key *k = &map->keys[key];
    const struct param_tensor *tensor = &map->table->tensors[k->tensor];
    return range->server == k->server && range->layer == tensor->layer && range->frozen == tensor->frozen &&
           k->end - range->begin <= limit;
}

/* Cuts the keys into ranges; with ranges NULL only counts. */
static int cut_ranges(const struct keymap *map, struct keymap_range *ranges, int64_t limit)
{
    struct keymap_range range = {.layer = -1};
    int count = 0;
    for (int64_t key = 0; key < map->keys_count; key++) {
        const struct keymap_key *k = &map->keys[key];
        if (count == 0 || !joins_range(map, &range, key, limit)) {
            const struct param_tensor *tensor = &map->table->tensors[k->tensor];
            range = (struct keymap_range){.key_first = key, .begin = k->begin, .run_first = k->run_first,
                                          .layer = tensor->layer, .server = k->server, .frozen = tensor->frozen};
            count++;
        }
        range.key_end = key + 1;
        range.end = k->end;
        range.runs += k->runs;
        if (ranges) {
            ranges[count - 1] = range;
        }
    }
    return count;
}

static void index_ranges(struct keymap *map)
{
    int layer = 0;
    for (int r = 0; r < map->ranges_count; r++) {
        struct keymap_range *range = &map->ranges[r];
        while (layer <= range->layer) {
            map->layer_range_first[layer++] = r;
        }
        range->index_at_server = map->server_ranges[range->server + 1]++;
    }
    while (layer <= map->table->layer_count) {
        map->layer_range_first[layer++] = map->ranges_count;
    }
    for (int s = 0; s < map->servers; s++) {
        map->server_ranges[s + 1] += map->server_ranges[s];
    }
}

static int check_layout(const struct keymap_layout *layout, struct errbuf *err)
{
    if (layout->ranks < 1 || layout->servers < 1 || layout->message_bytes < (int64_t)(KEY_ELEMENTS * sizeof(float))) {
        return errbuf_set(err, STATUS_RANGE, "keymap: %d ranks, %d servers, message_bytes %lld: need at least 1, 1, %d",
                          layout->ranks, layout->servers, (long long)layout->message_bytes,
                          (int)(KEY_ELEMENTS * sizeof(float)));
    }
    if (layout->placement != CANONICAL_PART && layout->placement != CANONICAL_LAYER) {
        return errbuf_set(err, STATUS_RANGE, "keymap: no placement %d", layout->placement);
    }
    return 0;
}

int keymap_init(struct keymap *map, const struct param_table *table, const struct keymap_layout *layout,
                struct errbuf *err)
{
    memset(map, 0, sizeof(*map));
    int status = check_layout(layout, err);
    if (status != 0) {
        return status;
    }
    map->table = table;
    map->ranks = layout->ranks;
    map->servers = layout->servers;
    map->placement = layout->placement;
    for (int layer = 0; layer < table->layer_count; layer++) {
        map->keys_count += layer_keys(table, layer);
    }
    map->keys = calloc((size_t)map->keys_count + 1, sizeof(*map->keys));
    map->layer_range_first = calloc((size_t)table->layer_count + 1, sizeof(int));
    map->server_ranges = calloc((size_t)map->servers + 1, sizeof(int));
    if (!map->keys || !map->layer_range_first || !map->server_ranges) {
        goto no_memory;
    }
    fill_keys(map);
    deal_servers(map);
    int64_t limit = layout->message_bytes / (int64_t)sizeof(float);
    map->ranges_count = cut_ranges(map, NULL, limit);
    map->ranges = calloc((size_t)map->ranges_count + 1, sizeof(*map->ranges));
    if (!map->ranges) {
        goto no_memory;
    }
    cut_ranges(map, map->ranges, limit);
    index_ranges(map);
    return 0;

no_memory:
    keymap_close(map);
    return errbuf_set(err, STATUS_NOMEM, "keymap: out of memory for %lld keys", (long long)map->keys_count);
}

void keymap_close(struct keymap *map)
{
    free(map->keys);
    free(map->ranges);
    free(map->layer_range_first);
    free(map->server_ranges);
    memset(map, 0, sizeof(*map));
}

int keymap_range_at(const struct keymap *map, uint64_t key)
{
    int low = 0;
    int high = map->ranges_count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if ((uint64_t)map->ranges[middle].key_first < key) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < map->ranges_count && (uint64_t)map->ranges[low].key_first == key ? low : -1;
}

int64_t keymap_range_elements(const struct keymap_range *range)
{
    return range->end - range->begin;
}

static int64_t server_sum(const struct keymap *map, int server, int with_frozen)
{
    int64_t sum = 0;
    for (int r = 0; r < map->ranges_count; r++) {
        const struct keymap_range *range = &map->ranges[r];
        if (range->server == server && (with_frozen || !range->frozen)) {
            sum += keymap_range_elements(range);
        }
    }
    return sum;
}

int64_t keymap_server_elements(const struct keymap *map, int server)
{
    return server_sum(map, server, 1);
}

int64_t keymap_server_trainable(const struct keymap *map, int server)
{
    return server_sum(map, server, 0);
}

void keymap_part(const struct keymap *map, int layer, int rank, int64_t *begin, int64_t *end)
{
    int64_t n = map->table->layers[layer].count;
    if (map->placement == CANONICAL_LAYER) {
        int owner = canonical_layer_owner(layer, map->ranks);
        *begin = rank > owner ? n : 0;
        *end = rank < owner ? 0 : n;
    } else {
        *begin = canonical_part_begin(n, map->ranks, rank);
        *end = canonical_part_end(n, map->ranks, rank);
    }
}

int keymap_owner(const struct keymap *map, int layer, int64_t element)
{
    return map->placement == CANONICAL_LAYER
               ? canonical_layer_owner(layer, map->ranks)
               : canonical_owner(map->table->layers[layer].count, map->ranks, element);
}

int64_t keymap_rank_elements(const struct keymap *map, int rank, int trainable_only)
{
    int64_t sum = 0;
    for (int t = 0; t < map->table->tensor_count; t++) {
        const struct param_tensor *tensor = &map->table->tensors[t];
        int64_t begin = 0;
        int64_t end = 0;
        keymap_part(map, tensor->layer, rank, &begin, &end);
        begin = begin > tensor->offset ? begin : tensor->offset;
        end = end < tensor->offset + tensor->count ? end : tensor->offset + tensor->count;
        sum += end > begin && !(trainable_only && tensor->frozen) ? end - begin : 0;
    }
    return sum;
}

void keymap_runs(const struct keymap *map, const struct keymap_range *range, struct keymap_run *runs)
{
    int count = 0;
    for (int64_t key = range->key_first; key < range->key_end; key++) {
        const struct keymap_key *k = &map->keys[key];
        for (int64_t at = k->begin; at < k->end && count < range->runs;) {
            int64_t end = keymap_run_end(map, key, at);
            runs[count++] = (struct keymap_run){.begin = at, .end = end, .key = key,
                                                .owner = keymap_owner(map, range->layer, at)};
            at = end;
        }
    }
}

int64_t keymap_key_at(const struct keymap *map, int layer, int64_t element)
{
    int64_t low = map->ranges[map->layer_range_first[layer]].key_first;
    int64_t high = map->ranges[map->layer_range_first[layer + 1] - 1].key_end;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (map->keys[middle].begin <= element) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

int64_t keymap_run_at(const struct keymap *map, int64_t key, int64_t element)
{
    const struct keymap_key *k = &map->keys[key];
    int layer = map->table->tensors[k->tensor].layer;
    return k->run_first + keymap_owner(map, layer, element) - keymap_owner(map, layer, k->begin);
}

int64_t keymap_run_end(const struct keymap *map, int64_t key, int64_t element)
{
    const struct keymap_key *k = &map->keys[key];
    int layer = map->table->tensors[k->tensor].layer;
    int64_t begin = 0;
    int64_t end = 0;
    keymap_part(map, layer, keymap_owner(map, layer, element), &begin, &end);
    return end < k->end ? end : k->end;
}
