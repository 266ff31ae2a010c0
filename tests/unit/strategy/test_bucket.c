/* Buckets and segments: every trained element is in exactly one, with the owner that the canonical order names, for layers
 * and world sizes that divide nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "tests/unit/strategy/fixture.h"
#include "worker/collective/collective.h"
#include "worker/strategy/bucket.h"

/* Counts down to the allocation that fails; one thread. The linker sends these here (--wrap). */
static int failing_in;
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);

void *__wrap_calloc(size_t count, size_t bytes)
{
    return failing_in > 0 && --failing_in == 0 ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    return failing_in > 0 && --failing_in == 0 ? NULL : __real_realloc(memory, bytes);
}

/* --- buckets ------------------------------------------------------------------------------------------------- */

/* By falling layers, filled until they hold the bytes, layers without trained elements left out. */
static void check_buckets(const struct param_table *table, int64_t bytes)
{
    int of_layer[FIXTURE_TENSORS], count = -1, layer = table->layer_count - 1;
    struct bucket *buckets = NULL;
    assert_int_equal(bucket_list(table, bytes, &buckets, &count, of_layer, NULL), 0);
    for (int b = 0; b < count; b++) {
        int layers = 0;
        int64_t elements = 0;
        for (; layer >= 0 && !bucket_layer_trainable(table, layer); layer--)
            assert_int_equal(of_layer[layer], -1);
        assert_int_equal(buckets[b].high, layer);
        for (; layer >= buckets[b].low; layer--) {
            int trainable = bucket_layer_trainable(table, layer);
            assert_int_equal(of_layer[layer], trainable ? b : -1);
            if (trainable && elements * 4 >= bytes)
                fail_msg("layer %d comes to bucket %d of %lld bytes that is full", layer, b, (long long)elements * 4);
            layers += trainable;
            elements += trainable ? table->layers[layer].count : 0;
        }
        assert_int_equal(buckets[b].layers, layers);
        assert_int_equal(buckets[b].elements, elements);
        assert_int_equal(of_layer[buckets[b].low], b);
        if (b + 1 < count)
            assert_true(elements * 4 >= bytes);
    }
    for (; layer >= 0; layer--) {
        assert_false(bucket_layer_trainable(table, layer));
        assert_int_equal(of_layer[layer], -1);
    }
    free(buckets);
}

static void buckets_are_filled_from_the_last_layer(void **state)
{
    static const int64_t bytes[] = {1, 4, 65, 4096, 65536, 1 << 22, 1 << 30};
    (void)state;
    for (int m = 0; m < FIXTURE_MODELS; m++) {
        struct param_table table;
        fixture_build(&table, &fixture_models[m]);
        for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++)
            check_buckets(&table, bytes[i]);
        param_table_close(&table);
    }
}

static void expect_bucket(const struct bucket *bucket, int low, int high, int layers, int64_t elements)
{
    assert_int_equal(bucket->low, low);
    assert_int_equal(bucket->high, high);
    assert_int_equal(bucket->layers, layers);
    assert_int_equal(bucket->elements, elements);
}

/* Layers of 420, 930 (frozen), 310 and 5 (frozen) elements. */
static void a_frozen_layer_inside_a_bucket_is_passed_over(void **state)
{
    struct param_table table;
    struct bucket *buckets = NULL;
    int of_layer[FIXTURE_TENSORS], count = 0;
    (void)state;
    fixture_build(&table, &fixture_models[5]);
    assert_int_equal(bucket_list(&table, 310 * 4 + 1, &buckets, &count, of_layer, NULL), 0);
    assert_int_equal(count, 1);
    expect_bucket(&buckets[0], 0, 2, 2, 730);
    free(buckets);
    assert_int_equal(bucket_list(&table, 310 * 4, &buckets, &count, of_layer, NULL), 0);
    assert_int_equal(count, 2);
    expect_bucket(&buckets[0], 2, 2, 1, 310);
    expect_bucket(&buckets[1], 0, 0, 1, 420);
    free(buckets);
    param_table_close(&table);
}

/* --- segments ------------------------------------------------------------------------------------------------ */

/* Trained runs by number, as the key map has them. */
struct run_list {
    struct keymap_run *runs;
    int *layers;
    int64_t count;
};

static void list_runs(const struct keymap *map, struct run_list *list)
{
    *list = (struct run_list){.count = map->runs_count};
    list->runs = calloc((size_t)map->runs_count + 1, sizeof *list->runs);
    list->layers = calloc((size_t)map->runs_count + 1, sizeof *list->layers);
    for (int r = 0; r < map->ranges_count; r++) {
        const struct keymap_range *range = &map->ranges[r];
        if (range->frozen)
            continue;
        keymap_runs(map, range, list->runs + range->run_first);
        for (int i = 0; i < range->runs; i++)
            list->layers[range->run_first + i] = range->layer;
    }
}

static void check_runs(const struct run_list *list, const struct bucket_segment *segment)
{
    int64_t at = segment->begin;
    assert_true(segment->run_first >= 0 && segment->runs >= 1 && segment->run_first + segment->runs <= list->count);
    for (int64_t run = segment->run_first; run < segment->run_first + segment->runs; run++) {
        assert_int_equal(list->layers[run], segment->layer);
        assert_int_equal(list->runs[run].owner, segment->owner);
        assert_int_equal(list->runs[run].begin, at);
        at = list->runs[run].end;
    }
    assert_int_equal(at, segment->end);
    assert_int_equal(segment->key, list->runs[segment->run_first].key);
}

/* No two neighbours could be one. */
static void check_joined(const struct run_list *list, const struct bucket_segment *a, const struct bucket_segment *b)
{
    if (a->layer != b->layer || a->owner != b->owner || a->end != b->begin)
        return;
    const struct keymap_run *first = &list->runs[b->run_first];
    assert_true(first->end - a->begin > COLLECTIVE_SEGMENT_MAX);
}

static void check_segments(const struct keymap *map, int low, int high)
{
    struct bucket_segment *segments = NULL;
    struct run_list list;
    int count = 0, s = 0;
    list_runs(map, &list);
    assert_int_equal(bucket_trainable_segments(map, low, high, &segments, &count, NULL), 0);
    for (int layer = low; layer <= high; layer++)
        for (int64_t e = 0; e < map->table->layers[layer].count; e++) {
            if (s < count && segments[s].layer == layer && e == segments[s].end)
                s++;
            int inside = s < count && segments[s].layer == layer && e >= segments[s].begin;
            if (inside == fixture_frozen(map->table, layer, e) ||
                (inside && segments[s].owner != fixture_owner(map, layer, e)))
                fail_msg("layer %d element %lld: inside %d, segment %d of %d", layer, (long long)e, inside, s, count);
            if (e + 1 == map->table->layers[layer].count && inside) {
                assert_int_equal(segments[s].end, e + 1);
                s++;
            }
        }
    assert_int_equal(s, count);
    for (int i = 0; i < count; i++) {
        assert_in_range(segments[i].end - segments[i].begin, 1, COLLECTIVE_SEGMENT_MAX);
        check_runs(&list, &segments[i]);
        if (i > 0)
            check_joined(&list, &segments[i - 1], &segments[i]);
    }
    free(segments);
    free(list.runs);
    free(list.layers);
}

static void check_all_segments(const struct keymap *map)
{
    int layers = map->table->layer_count;
    for (int layer = 0; layer < layers; layer++)
        check_segments(map, layer, layer);
    if (layers > 1)
        check_segments(map, 0, layers - 1);
}

static void segments_hold_what_is_trained_once_and_name_its_owner(void **state)
{
    (void)state;
    fixture_each(check_all_segments);
}

static void check_layer(const struct keymap *map)
{
    for (int layer = 0; layer < map->table->layer_count; layer++)
        for (int owner = -1; owner < map->ranks; owner++) {
            struct bucket_segment *segments = NULL;
            int count = 0;
            int64_t at = 0;
            assert_int_equal(bucket_layer_segments(map, layer, owner, &segments, &count, NULL), 0);
            for (int i = 0; i < count; at = segments[i++].end) {
                assert_int_equal(segments[i].layer, layer);
                assert_int_equal(segments[i].begin, at);
                assert_in_range(segments[i].end - at, 1, COLLECTIVE_SEGMENT_MAX);
                assert_int_equal(segments[i].owner, owner >= 0 ? owner : fixture_owner(map, layer, at));
                assert_int_equal(segments[i].owner, owner >= 0 ? owner : fixture_owner(map, layer, segments[i].end - 1));
            }
            assert_int_equal(at, map->table->layers[layer].count);
            free(segments);
        }
}

static void segments_of_a_layer_tile_it_frozen_tensors_included(void **state)
{
    (void)state;
    fixture_each(check_layer);
}

/* --- memory --------------------------------------------------------------------------------------------------- */

static int list_all(const struct keymap *map)
{
    struct bucket *buckets = NULL;
    struct bucket_segment *trained = NULL, *layer = NULL;
    int of_layer[FIXTURE_TENSORS], count;
    struct errbuf err;
    errbuf_init(&err);
    int status = bucket_list(map->table, 4096, &buckets, &count, of_layer, &err);
    if (status == 0)
        status = bucket_trainable_segments(map, 0, map->table->layer_count - 1, &trained, &count, &err);
    if (status == 0)
        status = bucket_layer_segments(map, 0, -1, &layer, &count, &err);
    if (status != 0)
        assert_non_null(strstr(err.text, "out of memory"));
    free(buckets);
    free(trained);
    free(layer);
    return status;
}

static void every_allocation_may_fail(void **state)
{
    struct param_table table;
    struct keymap map;
    struct keymap_layout layout = {.ranks = 8, .servers = 1, .message_bytes = 1 << 20};
    int failed = 0, status;
    (void)state;
    fixture_build(&table, &fixture_models[8]);
    assert_int_equal(keymap_init(&map, &table, &layout, NULL), 0);
    do {
        failing_in = ++failed;
        status = list_all(&map);
        assert_true(status == 0 || status == STATUS_NOMEM);
    } while (status != 0);
    failing_in = 0;
    assert_true(failed > 4);
    keymap_close(&map);
    param_table_close(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_are_filled_from_the_last_layer),
        cmocka_unit_test(a_frozen_layer_inside_a_bucket_is_passed_over),
        cmocka_unit_test(segments_hold_what_is_trained_once_and_name_its_owner),
        cmocka_unit_test(segments_of_a_layer_tile_it_frozen_tensors_included),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
