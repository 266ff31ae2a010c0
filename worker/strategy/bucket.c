#include "worker/strategy/bucket.h"

#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "worker/collective/collective.h"

int bucket_layer_trainable(const struct param_table *table, int layer)
{
    const struct param_layer *l = &table->layers[layer];
    for (int t = l->tensor_first; t < l->tensor_first + l->tensor_count; t++) {
        if (!table->tensors[t].frozen && table->tensors[t].count > 0) {
            return 1;
        }
    }
    return 0;
}

int bucket_list(const struct param_table *table, int64_t bucket_bytes, struct bucket **out, int *count, int *of_layer,
                struct errbuf *err)
{
    struct bucket *buckets = calloc((size_t)table->layer_count + 1, sizeof(*buckets));
    if (!buckets) {
        return errbuf_set(err, STATUS_NOMEM, "out of memory for buckets of %d layers", table->layer_count);
    }
    int made = 0;
    int open = 0;
    for (int layer = table->layer_count - 1; layer >= 0; layer--) {
        of_layer[layer] = -1;
        if (!bucket_layer_trainable(table, layer)) {
            continue;
        }
        made += !open;
        struct bucket *bucket = &buckets[made - 1];
        bucket->high = open ? bucket->high : layer;
        bucket->low = layer;
        bucket->layers++;
        bucket->elements += table->layers[layer].count;
        of_layer[layer] = made - 1;
        open = bucket->elements * (int64_t)sizeof(float) < bucket_bytes;
    }
    *out = buckets;
    *count = made;
    return 0;
}

struct segment_list {
    struct bucket_segment *segments;
    int count, room;
};

static int append(struct segment_list *list, const struct bucket_segment *segment)
{
    if (list->count == list->room) {
        int room = list->room ? 2 * list->room : 16;
        struct bucket_segment *segments = realloc(list->segments, (size_t)room * sizeof(*segments));
        if (!segments) {
            return STATUS_NOMEM;
        }
        list->segments = segments;
        list->room = room;
    }
    list->segments[list->count++] = *segment;
    return 0;
}

static int add_run(struct segment_list *list, const struct bucket_segment *run)
{
    struct bucket_segment *last = list->count ? &list->segments[list->count - 1] : NULL;
    if (last && last->layer == run->layer && last->owner == run->owner && last->end == run->begin &&
        run->end - last->begin <= COLLECTIVE_SEGMENT_MAX) {
        last->end = run->end;
        last->runs++;
        return 0;
    }
    return append(list, run);
}

static int add_range(struct segment_list *list, const struct keymap *map, const struct keymap_range *range,
                     struct keymap_run *runs)
{
    keymap_runs(map, range, runs);
    int status = 0;
    for (int i = 0; i < range->runs && status == 0; i++) {
        struct bucket_segment run = {.layer = range->layer, .owner = runs[i].owner, .begin = runs[i].begin,
                                     .end = runs[i].end, .run_first = range->run_first + i, .runs = 1,
                                     .key = runs[i].key};
        status = add_run(list, &run);
    }
    return status;
}

static int runs_most(const struct keymap *map)
{
    int most = 1;
    for (int r = 0; r < map->ranges_count; r++) {
        most = map->ranges[r].runs > most ? map->ranges[r].runs : most;
    }
    return most;
}

int bucket_trainable_segments(const struct keymap *map, int low, int high, struct bucket_segment **segments,
                              int *count, struct errbuf *err)
{
    struct segment_list list = {0};
    struct keymap_run *runs = calloc((size_t)runs_most(map), sizeof(*runs));
    int status = runs ? 0 : STATUS_NOMEM;
    for (int r = map->layer_range_first[low]; status == 0 && r < map->layer_range_first[high + 1]; r++) {
        if (!map->ranges[r].frozen) {
            status = add_range(&list, map, &map->ranges[r], runs);
        }
    }
    free(runs);
    if (status != 0) {
        free(list.segments);
        return errbuf_set(err, status, "out of memory for the segments of layers %d to %d", low, high);
    }
    *segments = list.segments;
    *count = list.count;
    return 0;
}

int bucket_layer_segments(const struct keymap *map, int layer, int owner, struct bucket_segment **segments, int *count,
                          struct errbuf *err)
{
    struct segment_list list = {0};
    int status = 0;
    for (int k = 0; k < map->ranks && status == 0; k++) {
        int64_t begin;
        int64_t end;
        keymap_part(map, layer, k, &begin, &end);
        for (int64_t at = begin; at < end && status == 0; at += COLLECTIVE_SEGMENT_MAX) {
            int64_t stop = at + COLLECTIVE_SEGMENT_MAX < end ? at + COLLECTIVE_SEGMENT_MAX : end;
            struct bucket_segment segment = {.layer = layer, .owner = owner < 0 ? k : owner, .begin = at, .end = stop,
                                             .run_first = -1, .key = -1};
            status = append(&list, &segment);
        }
    }
    if (status != 0) {
        free(list.segments);
        return errbuf_set(err, status, "out of memory for the segments of layer %d", layer);
    }
    *segments = list.segments;
    *count = list.count;
    return 0;
}
