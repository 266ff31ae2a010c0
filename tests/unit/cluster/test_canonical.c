#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cluster/canonical.h"

enum { RANKS_MAX = 9, LENGTH_MAX = 200 };

static void parts_cover_a_layer_once_and_in_order(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= RANKS_MAX; ranks++)
        for (int64_t n = 0; n <= LENGTH_MAX; n++) {
            int64_t at = 0;
            for (int owner = 0; owner < ranks; owner++) {
                assert_int_equal(canonical_part_begin(n, ranks, owner), at);
                at = canonical_part_end(n, ranks, owner);
                assert_true(at >= canonical_part_begin(n, ranks, owner));
            }
            assert_int_equal(at, n);
        }
}

static void part_size_is_the_least_multiple_of_16_that_suffices(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= RANKS_MAX; ranks++)
        for (int64_t n = 0; n <= LENGTH_MAX; n++) {
            int64_t m = canonical_part_size(n, ranks);
            assert_true(m > 0);
            assert_int_equal(m % 16, 0);
            assert_true(m * ranks >= n);
            assert_true(m == 16 || (m - 16) * ranks < n);
        }
}

static void the_owner_of_an_element_is_the_rank_whose_part_holds_it(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= RANKS_MAX; ranks++)
        for (int64_t n = 1; n <= LENGTH_MAX; n++)
            for (int64_t e = 0; e < n; e++) {
                int owner = canonical_owner(n, ranks, e);
                assert_in_range(owner, 0, ranks - 1);
                assert_true(canonical_part_begin(n, ranks, owner) <= e && e < canonical_part_end(n, ranks, owner));
            }
}

static void turns_begin_after_the_owner_and_end_with_it(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= RANKS_MAX; ranks++)
        for (int owner = 0; owner < ranks; owner++) {
            for (int turn = 0; turn < ranks; turn++) {
                int rank = canonical_rank_at(ranks, owner, turn);
                assert_int_equal(rank, (owner + 1 + turn) % ranks);
                assert_int_equal(canonical_turn(ranks, owner, rank), turn);
            }
            assert_int_equal(canonical_rank_at(ranks, owner, ranks - 1), owner);
            for (int rank = 0; rank < ranks; rank++)
                assert_int_equal(canonical_rank_at(ranks, owner, canonical_turn(ranks, owner, rank)), rank);
        }
}

static void layers_beyond_32_bits_are_cut_alike(void **state)
{
    (void)state;
    int64_t n = (INT64_C(1) << 40) + 7;
    int64_t m = canonical_part_size(n, 7);
    assert_true(m % 16 == 0 && m * 7 >= n && (m - 16) * 7 < n);
    assert_true(canonical_part_end(n, 7, 6) == n);
    assert_int_equal(canonical_owner(n, 7, n - 1), 6);
    assert_int_equal(canonical_owner(n, 7, 5 * m), 5);
    assert_int_equal(canonical_owner(n, 7, 5 * m - 1), 4);
}

static void whole_layers_go_round_the_ranks(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= RANKS_MAX; ranks++)
        for (int layer = 0; layer < 3 * RANKS_MAX; layer++)
            assert_int_equal(canonical_layer_owner(layer, ranks), layer % ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_cover_a_layer_once_and_in_order),
        cmocka_unit_test(part_size_is_the_least_multiple_of_16_that_suffices),
        cmocka_unit_test(the_owner_of_an_element_is_the_rank_whose_part_holds_it),
        cmocka_unit_test(turns_begin_after_the_owner_and_end_with_it),
        cmocka_unit_test(layers_beyond_32_bits_are_cut_alike),
        cmocka_unit_test(whole_layers_go_round_the_ranks),
    };
    return cmocka_run_group_tests_name("canonical", tests, NULL, NULL);
}
