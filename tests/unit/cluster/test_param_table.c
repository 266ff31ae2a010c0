#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "cluster/param_table.h"

/* Two layers: w (3,4), b (3); head (2,3). */
static void fill(struct param_table *table)
{
    param_table_init(table);
    assert_int_equal(param_table_add_layer(table), 0);
    assert_int_equal(param_table_add(table, "layers.0.linear.weight", 2, (int64_t[]){3, 4}, NULL), 0);
    assert_int_equal(param_table_add(table, "layers.0.linear.bias", 1, (int64_t[]){3}, NULL), 1);
    assert_int_equal(param_table_add_layer(table), 1);
    assert_int_equal(param_table_add(table, "head.weight", 2, (int64_t[]){2, 3}, NULL), 2);
}

static void lays_tensors_end_to_end(void **state)
{
    (void)state;
    struct param_table table;
    fill(&table);
    assert_int_equal(table.count, 21);
    assert_int_equal(table.layers[0].count, 15);
    assert_int_equal(table.layers[1].offset, 15);
    assert_int_equal(table.layers[1].tensor_first, 2);
    assert_int_equal(table.tensors[1].offset, 12);
    assert_int_equal(table.tensors[2].offset, 0);
    assert_int_equal(param_table_find(&table, "head.weight"), 2);
    assert_int_equal(param_table_find(&table, "head.bias"), STATUS_UNKNOWN);
    param_table_close(&table);
}

static void refuses_what_cannot_be_a_tensor(void **state)
{
    (void)state;
    struct param_table table;
    struct errbuf err;
    errbuf_init(&err);
    param_table_init(&table);
    assert_int_equal(param_table_add(&table, "w", 1, (int64_t[]){1}, &err), STATUS_INVALID);
    param_table_close(&table);
    fill(&table);
    char name[PARAM_NAME_MAX + 2];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    assert_int_equal(param_table_add(&table, name, 0, NULL, &err), STATUS_INVALID);
    assert_int_equal(param_table_add(&table, "", 0, NULL, &err), STATUS_INVALID);
    assert_int_equal(param_table_add(&table, "head.weight", 1, (int64_t[]){1}, &err), STATUS_EXISTS);
    assert_non_null(strstr(err.text, "head.weight"));
    assert_int_equal(param_table_add(&table, "n", 2, (int64_t[]){2, -1}, &err), STATUS_RANGE);
    assert_int_equal(param_table_add(&table, "n", 9, (int64_t[9]){1}, &err), STATUS_RANGE);
    assert_int_equal(param_table_add(&table, "n", -1, NULL, &err), STATUS_RANGE);
    int64_t wide[2] = {INT64_C(1) << 20, (INT64_C(1) << 20) + 1};
    assert_int_equal(param_table_add(&table, "n", 2, wide, &err), STATUS_RANGE);
    int64_t wraps[3] = {INT64_C(1) << 62, 4, 1};
    assert_int_equal(param_table_add(&table, "n", 3, wraps, &err), STATUS_RANGE);
    assert_int_equal(table.count, 21);
    assert_int_equal(table.tensor_count, 3);
    param_table_close(&table);
}

static void takes_scalars_and_empty_tensors(void **state)
{
    (void)state;
    struct param_table table;
    param_table_init(&table);
    assert_int_equal(param_table_add_layer(&table), 0);
    assert_int_equal(param_table_add(&table, "scalar", 0, NULL, NULL), 0);
    assert_int_equal(param_table_add(&table, "empty", 2, (int64_t[]){INT64_MAX, 0}, NULL), 1);
    assert_int_equal(table.tensors[0].count, 1);
    assert_int_equal(table.tensors[1].count, 0);
    assert_int_equal(table.count, 1);
    param_table_close(&table);
}

static void marks_by_glob_and_names_a_glob_without_match(void **state)
{
    (void)state;
    struct param_table table;
    struct errbuf err;
    errbuf_init(&err);
    fill(&table);
    assert_int_equal(param_table_trainable(&table), 21);
    assert_int_equal(param_table_no_decay(&table, (char *[]){"*.bias"}, 1, &err), STATUS_OK);
    assert_int_equal(param_table_freeze(&table, (char *[]){"layers.0.*", "nothing*"}, 2, &err), STATUS_UNKNOWN);
    assert_non_null(strstr(err.text, "nothing*"));
    assert_int_equal(table.tensors[0].frozen, 0);
    assert_int_equal(param_table_freeze(&table, (char *[]){"layers.0.*"}, 1, &err), STATUS_OK);
    assert_int_equal(param_table_freeze(&table, NULL, 0, &err), STATUS_OK);
    assert_int_equal(table.tensors[0].frozen, 1);
    assert_int_equal(table.tensors[1].frozen, 1);
    assert_int_equal(table.tensors[2].frozen, 0);
    assert_int_equal(table.tensors[0].no_decay, 0);
    assert_int_equal(table.tensors[1].no_decay, 1);
    assert_int_equal(param_table_trainable(&table), 6);
    param_table_close(&table);
}

static void copy_is_equal_and_independent(void **state)
{
    (void)state;
    struct param_table table, copy;
    fill(&table);
    assert_int_equal(param_table_add_layer(&table), 2); /* an empty layer */
    assert_int_equal(param_table_freeze(&table, (char *[]){"head.*"}, 1, NULL), STATUS_OK);
    assert_int_equal(param_table_copy(&copy, &table), STATUS_OK);
    uint64_t fingerprint = param_table_fingerprint(&table);
    param_table_close(&table);
    assert_true(param_table_fingerprint(&copy) == fingerprint);
    assert_int_equal(copy.layer_count, 3);
    assert_int_equal(copy.layers[1].count, 6);
    assert_int_equal(copy.tensors[2].frozen, 1);
    assert_string_equal(copy.tensors[2].name, "head.weight");
    param_table_close(&copy);
}

/* One layer with one tensor. */
static uint64_t fingerprint_of(const char *name, int dims, const int64_t *shape, int empty_layers)
{
    struct param_table table;
    param_table_init(&table);
    for (int i = 0; i < empty_layers; i++)
        param_table_add_layer(&table);
    param_table_add_layer(&table);
    assert_int_equal(param_table_add(&table, name, dims, shape, NULL), 0);
    uint64_t fingerprint = param_table_fingerprint(&table);
    param_table_close(&table);
    return fingerprint;
}

static void fingerprint_tells_names_shapes_and_layers_apart(void **state)
{
    (void)state;
    uint64_t one = fingerprint_of("w", 2, (int64_t[]){2, 3}, 0);
    assert_true(one == fingerprint_of("w", 2, (int64_t[]){2, 3}, 0));
    assert_true(one != fingerprint_of("v", 2, (int64_t[]){2, 3}, 0));
    assert_true(one != fingerprint_of("w", 2, (int64_t[]){3, 2}, 0));
    assert_true(one != fingerprint_of("w", 1, (int64_t[]){6}, 0));
    assert_true(one != fingerprint_of("w", 2, (int64_t[]){2, 3}, 1));
}

static void grows_to_many_tensors(void **state)
{
    (void)state;
    struct param_table table;
    param_table_init(&table);
    for (int i = 0; i < 100; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        assert_int_equal(param_table_add_layer(&table), i);
        assert_int_equal(param_table_add(&table, name, 1, (int64_t[]){i}, NULL), i);
    }
    assert_int_equal(table.count, 4950);
    assert_int_equal(table.layers[99].offset, 4851);
    assert_int_equal(param_table_find(&table, "t57"), 57);
    param_table_close(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lays_tensors_end_to_end),
        cmocka_unit_test(refuses_what_cannot_be_a_tensor),
        cmocka_unit_test(takes_scalars_and_empty_tensors),
        cmocka_unit_test(marks_by_glob_and_names_a_glob_without_match),
        cmocka_unit_test(copy_is_equal_and_independent),
        cmocka_unit_test(fingerprint_tells_names_shapes_and_layers_apart),
        cmocka_unit_test(grows_to_many_tensors),
    };
    return cmocka_run_group_tests_name("param_table", tests, NULL, NULL);
}
