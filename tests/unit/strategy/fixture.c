#include "tests/unit/strategy/fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/errbuf.h"

const struct fixture_model fixture_models[FIXTURE_MODELS] = {
    {"nothing", {-2}},
    {"one element", {1, -1, -2}},
    {"layers smaller than a part's grain", {1, -1, 2, -1, 15, -1, 16, -1, 17, -1, 47, -1, 5, -1, -2}},
    {"all frozen", {FIXTURE_FROZEN(20), FIXTURE_FROZEN(3), -1, FIXTURE_FROZEN(7), -1, -2}},
    {"mlp", {784 * 30, 30, -1, 30 * 30, 30, -1, 30 * 10, 10, -1, -2}},
    {"frozen layers between", {400, 20, -1, FIXTURE_FROZEN(900), FIXTURE_FROZEN(30), -1, 300, 10, -1, FIXTURE_FROZEN(5), -1, -2}},
    {"frozen tensors between", {FIXTURE_FROZEN(100), 40, FIXTURE_FROZEN(33), 70, -1, 12, FIXTURE_FROZEN(20000), 500, -1, -2}},
    {"keys and their rests", {KEY_ELEMENTS, -1, KEY_ELEMENTS + 1, 3, -1, 2 * KEY_ELEMENTS + 7, 0, 9, -1, -2}},
    {"longer than a segment", {600001, 300, -1, 262144, -1, 5, -1, -2}},
    {"empty tensors and layers", {0, -1, 30, 0, 2, -1, -1, 0, 0, -1, 8, -1, -2}},
};

void fixture_build(struct param_table *table, const struct fixture_model *model)
{
    int open = 0;
    param_table_init(table);
    for (int i = 0; model->lengths[i] != -2; i++) {
        int64_t n = model->lengths[i], elements = n <= -100 ? -n - 100 : n;
        char name[16];
        if (!open)
            assert_true(param_table_add_layer(table) >= 0);
        open = n != -1;
        if (n == -1)
            continue;
        snprintf(name, sizeof name, "t%d", i);
        int index = param_table_add(table, name, 1, &elements, NULL);
        assert_true(index >= 0);
        table->tensors[index].frozen = n <= -100;
    }
}

void fixture_each(void (*check)(const struct keymap *map))
{
    static const int ranks[] = {1, 2, 3, 5, 8};
    for (int m = 0; m < FIXTURE_MODELS; m++)
        for (int r = 0; r < 5 * FIXTURE_PLACEMENTS; r++) {
            struct param_table table;
            struct keymap map;
            struct keymap_layout layout = {.ranks = ranks[r / FIXTURE_PLACEMENTS], .servers = 1,
                                           .message_bytes = 1 << 20, .placement = r % FIXTURE_PLACEMENTS};
            fixture_build(&table, &fixture_models[m]);
            assert_int_equal(keymap_init(&map, &table, &layout, NULL), 0);
            print_message("%s, %d ranks, placement %d\n", fixture_models[m].name, layout.ranks, layout.placement);
            check(&map);
            keymap_close(&map);
            param_table_close(&table);
        }
}

int fixture_owner(const struct keymap *map, int layer, int64_t element)
{
    int64_t n = map->table->layers[layer].count, m = (n + map->ranks - 1) / map->ranks;
    if (map->placement == CANONICAL_LAYER)
        return layer % map->ranks;
    return (int)(element / ((m + 15) / 16 * 16));
}

int fixture_frozen(const struct param_table *table, int layer, int64_t element)
{
    const struct param_layer *l = &table->layers[layer];
    for (int t = l->tensor_first; t < l->tensor_first + l->tensor_count; t++) {
        const struct param_tensor *tensor = &table->tensors[t];
        if (element >= tensor->offset && element < tensor->offset + tensor->count)
            return tensor->frozen;
    }
    fail_msg("layer %d has no element %lld", layer, (long long)element);
    return 0;
}
