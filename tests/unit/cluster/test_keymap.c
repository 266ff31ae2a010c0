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
#include "cluster/canonical.h"
#include "cluster/keymap.h"

enum { KEY_BYTES = KEY_ELEMENTS * 4, SERVERS_MAX = 9 };

/* Counts down to the allocation that fails; one thread. The linker sends calloc here (--wrap). */
static int failing_in;
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);

void *__wrap_calloc(size_t count, size_t bytes)
{
    return failing_in > 0 && --failing_in == 0 ? NULL : __real_calloc(count, bytes);
}

/* Tensors of each layer by their length; -1 ends a layer, -2 the model. Negative lengths below -2: frozen. */
struct model {
    const char *name;
    int64_t lengths[16];
};
#define FROZEN(n) (-(n)-100)

static const struct model models[] = {
    {"nothing", {-2}},
    {"an empty layer", {-1, -2}},
    {"one element", {1, -1, -2}},
    {"one key", {KEY_ELEMENTS, -1, -2}},
    {"one more than a key", {KEY_ELEMENTS + 1, -1, -2}},
    {"mlp", {784 * 512, 512, -1, 512 * 512, 512, -1, 512 * 10, 10, -1, -2}},
    {"odd", {3, 0, KEY_ELEMENTS * 2 + 7, 1, -1, 0, -1, 5, KEY_ELEMENTS, 17, -1, 90001, -1, -2}},
    {"frozen between", {70000, FROZEN(70001), 70002, -1, FROZEN(12), -1, 9, FROZEN(0), 0, FROZEN(3), 33, -1, -2}},
    {"small layers", {1, -1, 2, -1, 3, -1, 4, -1, 5, -1, 6, -1, 7, -2}},
};
enum { MODELS = sizeof models / sizeof models[0] };

static void build(struct param_table *table, const struct model *model)
{
    param_table_init(table);
    for (int i = 0, open = 0; model->lengths[i] != -2; i++) {
        int64_t n = model->lengths[i];
        if (!open) {
            assert_true(param_table_add_layer(table) >= 0);
            open = 1;
        }
        if (n == -1) {
            open = 0;
            continue;
        }
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        int index = param_table_add(table, name, 1, (int64_t[]){n <= -100 ? -n - 100 : n}, NULL);
        assert_true(index >= 0);
        table->tensors[index].frozen = n <= -100;
    }
}

static void check_grid(const struct keymap *map)
{
    int64_t key = 0;
    for (int t = 0; t < map->table->tensor_count; t++) {
        const struct param_tensor *tensor = &map->table->tensors[t];
        for (int64_t at = 0; at < tensor->count; at += KEY_ELEMENTS, key++) {
            assert_true(key < map->keys_count);
            assert_int_equal(map->keys[key].tensor, t);
            assert_int_equal(map->keys[key].begin, tensor->offset + at);
            int64_t left = tensor->count - at;
            assert_int_equal(map->keys[key].end - map->keys[key].begin, left < KEY_ELEMENTS ? left : KEY_ELEMENTS);
        }
    }
    assert_int_equal(key, map->keys_count);
}

static void check_servers(const struct keymap *map)
{
    int64_t held[SERVERS_MAX] = {0};
    int64_t elements = 0;
    for (int64_t k = 0; k < map->keys_count; k++) {
        assert_in_range(map->keys[k].server, 0, map->servers - 1);
        held[map->keys[k].server]++;
        elements += map->keys[k].end - map->keys[k].begin;
        if (k > 0 && map->table->tensors[map->keys[k].tensor].layer ==
                         map->table->tensors[map->keys[k - 1].tensor].layer)
            assert_true(map->keys[k].server >= map->keys[k - 1].server); /* consecutive blocks within a layer */
    }
    int64_t all = 0;
    int64_t trainable = 0;
    for (int s = 0; s < map->servers; s++) {
        for (int o = 0; o < map->servers; o++)
            assert_true(held[s] - held[o] <= 1);
        all += keymap_server_elements(map, s);
        trainable += keymap_server_trainable(map, s);
    }
    assert_int_equal(elements, map->table->count);
    assert_int_equal(all, map->table->count);
    assert_int_equal(trainable, param_table_trainable(map->table));
}

static void check_ranges(const struct keymap *map, int64_t message_bytes)
{
    int at_server[SERVERS_MAX] = {0};
    int64_t key = 0;
    for (int r = 0; r < map->ranges_count; r++) {
        const struct keymap_range *range = &map->ranges[r];
        assert_int_equal(range->key_first, key);
        assert_true(range->key_end > range->key_first);
        assert_int_equal(range->begin, map->keys[key].begin);
        assert_int_equal(range->index_at_server, at_server[range->server]++);
        assert_int_equal(keymap_range_at(map, (uint64_t)key), r);
        for (; key < range->key_end; key++) {
            const struct keymap_key *k = &map->keys[key];
            const struct param_tensor *tensor = &map->table->tensors[k->tensor];
            assert_int_equal(k->server, range->server);
            assert_int_equal(tensor->layer, range->layer);
            assert_int_equal(tensor->frozen, range->frozen);
            if (key > range->key_first) {
                assert_int_equal(k->begin, map->keys[key - 1].end);
                assert_int_equal(keymap_range_at(map, (uint64_t)key), -1);
            }
        }
        assert_int_equal(range->end, map->keys[key - 1].end);
        assert_true(keymap_range_elements(range) * 4 <= message_bytes);
    }
    assert_int_equal(key, map->keys_count);
    assert_int_equal(keymap_range_at(map, (uint64_t)key), -1);
    assert_int_equal(keymap_range_at(map, UINT64_MAX), -1);
    for (int s = 0, before = 0; s < map->servers; before += at_server[s++])
        assert_int_equal(map->server_ranges[s], before);
    assert_int_equal(map->server_ranges[map->servers], map->ranges_count);
    for (int layer = 0; layer < map->table->layer_count; layer++)
        for (int r = map->layer_range_first[layer]; r < map->layer_range_first[layer + 1]; r++)
            assert_int_equal(map->ranges[r].layer, layer);
    assert_int_equal(map->layer_range_first[0], 0);
    assert_int_equal(map->layer_range_first[map->table->layer_count], map->ranges_count);
}

/* The runs of the model, independent of ranges: elements, owner, key, one after the other. */
static struct keymap_run *plain_runs(const struct param_table *table, int ranks, int placement, int64_t *count)
{
    struct keymap_run *runs = calloc((size_t)(table->count / 16 + 16 * table->tensor_count + 64), sizeof *runs);
    int64_t key = -1;
    *count = 0;
    for (int t = 0; t < table->tensor_count; t++) {
        const struct param_tensor *tensor = &table->tensors[t];
        int64_t n = table->layers[tensor->layer].count;
        for (int64_t at = 0; at < tensor->count;) {
            int64_t e = tensor->offset + at;
            key += at % KEY_ELEMENTS == 0;
            int by_layer = placement == CANONICAL_LAYER;
            int owner = by_layer ? tensor->layer % ranks : canonical_owner(n, ranks, e);
            int64_t part_end = by_layer ? n : canonical_part_end(n, ranks, owner);
            int64_t end = tensor->offset + (at / KEY_ELEMENTS + 1) * KEY_ELEMENTS;
            end = end < tensor->offset + tensor->count ? end : tensor->offset + tensor->count;
            end = end < part_end ? end : part_end;
            if (!tensor->frozen)
                runs[(*count)++] = (struct keymap_run){e, end, owner, key};
            at = end - tensor->offset;
        }
    }
    return runs;
}

/* Numbers are contiguous, in order of elements, and the same with any S and message_bytes. */
static void check_runs(const struct keymap *map)
{
    int64_t count = 0;
    struct keymap_run *want = plain_runs(map->table, map->ranks, map->placement, &count);
    int64_t next = 0;
    assert_int_equal(map->runs_count, count);
    for (int r = 0; r < map->ranges_count; r++) {
        const struct keymap_range *range = &map->ranges[r];
        if (range->frozen) {
            assert_int_equal(range->runs, 0);
            assert_int_equal(range->run_first, -1);
            continue;
        }
        struct keymap_run *got = calloc((size_t)range->runs + 1, sizeof *got);
        assert_int_equal(range->run_first, next);
        got[range->runs].owner = -7;
        keymap_runs(map, range, got);
        assert_int_equal(got[range->runs].owner, -7);
        for (int i = 0; i < range->runs; i++, next++) {
            assert_int_equal(got[i].begin, want[next].begin);
            assert_int_equal(got[i].end, want[next].end);
            assert_int_equal(got[i].owner, want[next].owner);
            assert_int_equal(got[i].key, want[next].key);
        }
        free(got);
    }
    assert_int_equal(next, count);
    for (int64_t k = 0, run = 0; k < map->keys_count; k++) {
        int frozen = map->table->tensors[map->keys[k].tensor].frozen;
        assert_int_equal(map->keys[k].run_first, frozen ? -1 : run);
        assert_true(frozen ? map->keys[k].runs == 0 : map->keys[k].runs > 0);
        run += map->keys[k].runs;
    }
    free(want);
}

static void every_model(void (*check)(const struct keymap *map, int64_t message_bytes))
{
    static const int64_t limits[] = {KEY_BYTES, KEY_BYTES + 4, 3 * KEY_BYTES, 1 << 20, INT64_C(1) << 40};
    for (int m = 0; m < MODELS; m++) {
        struct param_table table;
        build(&table, &models[m]);
        for (int ranks = 1; ranks <= 7; ranks++)
            for (int servers = 1; servers <= SERVERS_MAX; servers++)
                for (size_t l = 0; l < 2 * sizeof limits / sizeof limits[0]; l++) {
                    struct keymap map;
                    struct keymap_layout layout = {ranks, servers, limits[l / 2], l % 2 ? CANONICAL_LAYER : CANONICAL_PART};
                    assert_int_equal(keymap_init(&map, &table, &layout, NULL), 0);
                    check(&map, limits[l / 2]);
                    keymap_close(&map);
                }
        param_table_close(&table);
    }
}

/* Parts tile each layer in order of rank and are what keymap_owner says; a rank's elements are those of its parts. */
static void check_parts(const struct keymap *map, int64_t message_bytes)
{
    const struct param_table *table = map->table;
    int64_t mine[8] = {0};
    int64_t trained[8] = {0};
    (void)message_bytes;
    for (int layer = 0; layer < table->layer_count; layer++) {
        int64_t at = 0;
        for (int rank = 0; rank < map->ranks; rank++) {
            int64_t begin = -1;
            int64_t end = -1;
            keymap_part(map, layer, rank, &begin, &end);
            assert_int_equal(begin, at);
            assert_true(end >= begin);
            assert_true(map->placement == CANONICAL_PART || end == begin || rank == layer % map->ranks);
            if (end > begin) {
                assert_int_equal(keymap_owner(map, layer, begin), rank);
                assert_int_equal(keymap_owner(map, layer, end - 1), rank);
            }
            at = end;
            mine[rank] += end - begin;
            for (int t = table->layers[layer].tensor_first; t < table->layers[layer].tensor_first +
                                                                table->layers[layer].tensor_count; t++)
                for (int64_t e = begin; e < end && !table->tensors[t].frozen; e++)
                    trained[rank] += e >= table->tensors[t].offset && e < table->tensors[t].offset + table->tensors[t].count;
        }
        assert_int_equal(at, table->layers[layer].count);
    }
    for (int rank = 0; rank < map->ranks; rank++) {
        assert_int_equal(keymap_rank_elements(map, rank, 0), mine[rank]);
        assert_int_equal(keymap_rank_elements(map, rank, 1), trained[rank]);
    }
}

static void parts_of_any_placement_tile_each_layer_in_order_of_rank(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        struct param_table table;
        build(&table, &models[m]);
        for (int ranks = 1; ranks <= 7; ranks++)
            for (int placement = CANONICAL_PART; placement <= CANONICAL_LAYER; placement++) {
                struct keymap map;
                assert_int_equal(keymap_init(&map, &table, &(struct keymap_layout){ranks, 1, KEY_BYTES, placement}, NULL), 0);
                check_parts(&map, 0);
                keymap_close(&map);
            }
        param_table_close(&table);
    }
}

static void grid_of(const struct keymap *map, int64_t message_bytes)
{
    (void)message_bytes;
    check_grid(map);
}

static void servers_of(const struct keymap *map, int64_t message_bytes)
{
    (void)message_bytes;
    check_servers(map);
}

static void runs_of(const struct keymap *map, int64_t message_bytes)
{
    (void)message_bytes;
    check_runs(map);
}

static void each_tensor_is_cut_by_a_grid_of_64_kib(void **state)
{
    (void)state;
    every_model(grid_of);
}

static void every_key_has_one_server_and_servers_differ_by_one_key_at_most(void **state)
{
    (void)state;
    every_model(servers_of);
}

static void ranges_are_of_one_layer_server_and_kind_and_fit_a_message(void **state)
{
    (void)state;
    every_model(check_ranges);
}

static void runs_tile_what_is_trained_and_depend_on_model_and_ranks_only(void **state)
{
    (void)state;
    every_model(runs_of);
}

static void keys_are_joined_as_far_as_a_message_allows(void **state)
{
    (void)state;
    struct param_table table;
    struct keymap map;
    param_table_init(&table);
    param_table_add_layer(&table);
    param_table_add(&table, "w", 1, (int64_t[]){10 * KEY_ELEMENTS}, NULL);
    assert_int_equal(keymap_init(&map, &table, &(struct keymap_layout){2, 1, 4 * KEY_BYTES, CANONICAL_PART}, NULL), 0);
    assert_int_equal(map.ranges_count, 3);
    assert_int_equal(map.ranges[0].key_end, 4);
    assert_int_equal(map.ranges[2].key_end, 10);
    keymap_close(&map);
    param_table_close(&table);
}

static void a_model_beyond_32_bits_needs_memory_for_its_keys_only(void **state)
{
    (void)state;
    struct param_table table;
    struct keymap map;
    int64_t n = (INT64_C(1) << 32) + 5;
    param_table_init(&table);
    param_table_add_layer(&table);
    assert_int_equal(param_table_add(&table, "w", 2, (int64_t[]){n, 1}, NULL), 0);
    assert_int_equal(param_table_add(&table, "b", 1, (int64_t[]){3}, NULL), 1);
    assert_int_equal(keymap_init(&map, &table, &(struct keymap_layout){3, 5, INT64_C(1) << 40, CANONICAL_PART}, NULL), 0);
    assert_int_equal(map.keys_count, (INT64_C(1) << 18) + 2);
    assert_int_equal(map.ranges_count, 5);
    int64_t elements = 0;
    int64_t runs = 0;
    for (int r = 0; r < map.ranges_count; r++) {
        elements += keymap_range_elements(&map.ranges[r]);
        struct keymap_run *list = calloc((size_t)map.ranges[r].runs, sizeof *list);
        keymap_runs(&map, &map.ranges[r], list);
        for (int i = 0; i < map.ranges[r].runs; i++, runs++)
            assert_true(list[i].end > list[i].begin &&
                        (i == 0 ? list[i].begin == map.ranges[r].begin : list[i].begin == list[i - 1].end));
        assert_int_equal(list[map.ranges[r].runs - 1].end, map.ranges[r].end);
        free(list);
    }
    assert_int_equal(elements, n + 3);
    assert_int_equal(runs, map.runs_count);
    assert_int_equal(runs, map.keys_count + 2); /* two parts' borders lie inside a key */
    keymap_close(&map);
    param_table_close(&table);
}

static void numbers_that_cannot_be_are_refused(void **state)
{
    (void)state;
    struct param_table table;
    struct keymap map;
    struct errbuf err;
    errbuf_init(&err);
    build(&table, &models[2]);
    assert_int_equal(keymap_init(&map, &table, &(struct keymap_layout){0, 1, KEY_BYTES, 0}, &err), STATUS_RANGE);
    assert_int_equal(keymap_init(&map, &table, &(struct keymap_layout){1, 0, KEY_BYTES, 0}, &err), STATUS_RANGE);
    assert_int_equal(keymap_init(&map, &table, &(struct keymap_layout){1, 1, KEY_BYTES - 1, 0}, &err), STATUS_RANGE);
    assert_non_null(strstr(err.text, "message_bytes"));
    errbuf_init(&err);
    assert_int_equal(keymap_init(&map, &table, &(struct keymap_layout){1, 1, KEY_BYTES, 2}, &err), STATUS_RANGE);
    assert_non_null(strstr(err.text, "placement"));
    keymap_close(&map); /* may be closed after a refusal */
    param_table_close(&table);
}

static void no_memory_is_told_and_nothing_is_lost(void **state)
{
    (void)state;
    struct param_table table;
    struct keymap map;
    int status = STATUS_NOMEM;
    build(&table, &models[6]);
    for (int n = 1; status != 0; n++) {
        struct errbuf err;
        errbuf_init(&err);
        failing_in = n;
        status = keymap_init(&map, &table, &(struct keymap_layout){3, 2, KEY_BYTES, CANONICAL_PART}, &err);
        assert_true(n <= 4 ? status == STATUS_NOMEM && strstr(err.text, "memory") : status == 0);
        failing_in = 0;
        keymap_close(&map);
    }
    param_table_close(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_tensor_is_cut_by_a_grid_of_64_kib),
        cmocka_unit_test(every_key_has_one_server_and_servers_differ_by_one_key_at_most),
        cmocka_unit_test(ranges_are_of_one_layer_server_and_kind_and_fit_a_message),
        cmocka_unit_test(runs_tile_what_is_trained_and_depend_on_model_and_ranks_only),
        cmocka_unit_test(parts_of_any_placement_tile_each_layer_in_order_of_rank),
        cmocka_unit_test(keys_are_joined_as_far_as_a_message_allows),
        cmocka_unit_test(a_model_beyond_32_bits_needs_memory_for_its_keys_only),
        cmocka_unit_test(numbers_that_cannot_be_are_refused),
        cmocka_unit_test(no_memory_is_told_and_nothing_is_lost),
    };
    return cmocka_run_group_tests_name("keymap", tests, NULL, NULL);
}
