#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "owner/trust.h"
#include "owner_rank.h"
#include "tensor/reduce.h"

enum { RANKS_MAX = 5, F = SHARD_WORLD_FROZEN, L = SHARD_WORLD_LAYER };

/* Large tensors and small ones, keys that parts cut, frozen and empty ones, layers smaller than a part. */
static const int lengths[] = {20000, 100, 50 + F, L, 3, 0, 33000, 7, L, 17, L, 40 + F, L, 5, 16 + F, 70, L, 40000, L,
                              SHARD_WORLD_END};

static struct shard_world_setup setup_of(int ranks, int placement, const char *optimizer)
{
    return (struct shard_world_setup){.lengths = lengths, .ranks = ranks, .server = -1, .threads = 1, .mean = 1,
                                      .placement = placement, .optimizer = optimizer, .momentum = 0.9};
}

static void open_all(struct owner_rank *ranks, struct shard_world *world)
{
    for (int k = 0; k < world->setup.ranks; k++) {
        owner_rank_open(&ranks[k], world, k, 1 + k % 3);
    }
}

static void close_all(struct owner_rank *ranks, struct shard_world *world)
{
    for (int k = 0; k < world->setup.ranks; k++) {
        owner_rank_close(&ranks[k]);
    }
    shard_world_close(world);
}

/* Every number of ranks and placement. */
static void everywhere(const char *optimizer, void (*check)(struct shard_world *world))
{
    for (int count = 1; count <= RANKS_MAX; count++) {
        for (int placement = CANONICAL_PART; placement <= CANONICAL_LAYER; placement++) {
            struct shard_world world;
            struct shard_world_setup setup = setup_of(count, placement, optimizer);
            shard_world_open(&world, &setup, 40 + (uint64_t)count, 1);
            check(&world);
        }
    }
}

static struct owned_step step_of(const struct optimizer_step *step)
{
    return (struct owned_step){.lr = step->lr, .t = step->t, .grad_scale = step->grad_scale};
}

/* --- pieces and books ----------------------------------------------------------------------------------------- */

static void mark_piece(const struct owner_rank *rank, const struct owned_piece *piece, uint8_t *marks, uint8_t *runs)
{
    const struct keymap *map = &rank->world->map;
    const struct param_tensor *tensor = &rank->world->table.tensors[piece->tensor];
    assert_int_equal(tensor->layer, piece->layer);
    assert_false(tensor->frozen);
    assert_true(piece->begin < piece->end && piece->begin >= tensor->offset &&
                piece->end <= tensor->offset + tensor->count);
    for (int64_t e = piece->begin; e < piece->end; e++) {
        assert_true(rank->rank < 0 || keymap_owner(map, piece->layer, e) == rank->rank);
        marks[owner_rank_flat(rank, piece->layer, e)]++;
    }
    for (int r = map->layer_range_first[piece->layer]; r < map->layer_range_first[piece->layer + 1]; r++) {
        struct keymap_run *list = calloc((size_t)map->ranges[r].runs + 1, sizeof *list);
        keymap_runs(map, &map->ranges[r], list);
        for (int i = 0; i < map->ranges[r].runs; i++) {
            int64_t run = map->ranges[r].run_first + i;
            int inside = list[i].begin >= piece->begin && list[i].end <= piece->end;
            assert_int_equal(run >= piece->run_first && run < piece->run_first + piece->runs, inside);
            runs[run] += (uint8_t)inside;
        }
        free(list);
    }
}

static void check_pieces(struct shard_world *world)
{
    struct owner_rank ranks[RANKS_MAX];
    uint8_t *marks = calloc((size_t)world->table.count, 1);
    uint8_t *runs = calloc((size_t)world->map.runs_count, 1);
    int64_t before = world->account.bytes[ACCOUNT_OPTIMIZER];
    int64_t held = 0;
    open_all(ranks, world);
    for (int k = 0; k < world->setup.ranks; k++) {
        int64_t elements = 0;
        int at = 0;
        for (int layer = 0; layer < world->table.layer_count; layer++) {
            int first = -1;
            int end = -1;
            owned_layer(ranks[k].owned, layer, &first, &end);
            assert_int_equal(first, at);
            for (at = first; at < end; at++) {
                assert_int_equal(ranks[k].pieces[at].layer, layer);
                assert_true(at == first || ranks[k].pieces[at].begin >= ranks[k].pieces[at - 1].end);
                mark_piece(&ranks[k], &ranks[k].pieces[at], marks, runs);
                elements += ranks[k].pieces[at].end - ranks[k].pieces[at].begin;
            }
        }
        assert_int_equal(at, ranks[k].count);
        assert_int_equal(owned_elements(ranks[k].owned), elements);
        assert_int_equal(keymap_rank_elements(&world->map, k, 1), elements);
        held += elements * 4 * owned_slots(ranks[k].owned);
    }
    assert_int_equal(world->account.bytes[ACCOUNT_OPTIMIZER] - before, held);
    for (int t = 0; t < world->table.tensor_count; t++) {
        const struct param_tensor *tensor = &world->table.tensors[t];
        for (int64_t e = 0; e < tensor->count; e++) {
            assert_int_equal(marks[owner_rank_flat(&ranks[0], tensor->layer, tensor->offset + e)], !tensor->frozen);
        }
    }
    for (int64_t run = 0; run < world->map.runs_count; run++) {
        assert_int_equal(runs[run], 1);
    }
    free(marks);
    free(runs);
    close_all(ranks, world);
}

static void pieces_of_all_ranks_tile_what_is_trained_and_cost_their_slots(void **state)
{
    (void)state;
    everywhere("adam", check_pieces);
    everywhere("sgd", check_pieces);
}

static void everything_is_whole_tensors(void **state)
{
    (void)state;
    struct shard_world world;
    struct owner_rank rank;
    struct shard_world_setup setup = setup_of(3, CANONICAL_PART, "adam");
    shard_world_open(&world, &setup, 1, 1);
    owner_rank_open(&rank, &world, -1, 1);
    int at = 0;
    for (int t = 0; t < world.table.tensor_count; t++) {
        const struct param_tensor *tensor = &world.table.tensors[t];
        if (!tensor->frozen && tensor->count > 0) {
            assert_int_equal(rank.pieces[at].tensor, t);
            assert_int_equal(rank.pieces[at].begin, tensor->offset);
            assert_int_equal(rank.pieces[at].end, tensor->offset + tensor->count);
            at++;
        }
    }
    assert_int_equal(rank.count, at);
    assert_int_equal(owned_elements(rank.owned), param_table_trainable(&world.table));
    owner_rank_close(&rank);
    shard_world_close(&world);
}

static void no_memory_is_told_and_the_books_are_empty_again(void **state)
{
    (void)state;
    struct shard_world world;
    struct shard_world_setup setup = setup_of(2, CANONICAL_PART, "adam");
    shard_world_open(&world, &setup, 2, 1);
    struct job job = {.optimizer = {.kind = JOB_ADAM, .beta1 = 0.9, .beta2 = 0.999}};
    struct owned_options options = {.job = &job, .table = &world.table, .map = &world.map, .account = &world.account,
                                    .rank = 0};
    int64_t before = world.account.bytes[ACCOUNT_OPTIMIZER];
    for (int n = 1; n <= 4; n++) {
        struct owned *owned = NULL;
        struct errbuf err;
        errbuf_init(&err);
        account_fail_after(&world.account, n);
        assert_int_equal(owned_create(&owned, &options, &err), STATUS_NOMEM);
        assert_null(owned);
        assert_non_null(strstr(err.text, "optimizer's state"));
        assert_int_equal(world.account.bytes[ACCOUNT_OPTIMIZER], before);
    }
    owned_destroy(NULL);
    shard_world_close(&world);
}

/* --- updates ---------------------------------------------------------------------------------------------------- */

/* The shard and the plain reference make a step; every rank makes its own part of it, in any cut into calls. */
static void check_updates(struct shard_world *world)
{
    struct owner_rank ranks[RANKS_MAX];
    open_all(ranks, world);
    for (uint64_t clock = 1; clock <= 3; clock++) {
        shard_world_whole_step(world, clock, NULL);
        struct optimizer_step step = shard_world_step(world, clock);
        struct owned_step own = step_of(&step);
        for (int k = 0; k < world->setup.ranks; k++) {
            owner_rank_take_sums(&ranks[k]);
            int first = 0;
            for (int layer = world->table.layer_count - 1; layer >= 0 && clock > 1; layer--) {
                int end = 0;
                owned_layer(ranks[k].owned, layer, &first, &end);
                owned_update(ranks[k].owned, first, end, &own);
            }
            if (clock == 1) {
                owned_update(ranks[k].owned, 0, ranks[k].count, &own);
            }
            owner_rank_check(&ranks[k], world->w);
        }
    }
    close_all(ranks, world);
}

static void updates_of_parts_have_the_bits_of_a_server(void **state)
{
    (void)state;
    static const char *const kinds[] = {"sgd", "adam", "adamw", "adagrad", "ftrl"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        everywhere(kinds[i], check_updates);
    }
}

/* Contributions of the elements from `begin` on, in canonical order of the rank that owns them. */
static void sources_of(const struct owner_rank *rank, int owner, int layer, int64_t begin, const float **sources)
{
    int count = rank->world->setup.ranks;
    for (int turn = 0; turn < count; turn++) {
        sources[turn] = rank->world->g[(owner + 1 + turn) % count] + owner_rank_flat(rank, layer, begin);
    }
}

/* Calls for each segment of a rank's parts, cut at random. */
static void check_eager(struct shard_world *world)
{
    struct owner_rank ranks[RANKS_MAX];
    open_all(ranks, world);
    for (uint64_t clock = 1; clock <= 3; clock++) {
        shard_world_gradients(world);
        for (int rank = 0; rank < world->setup.ranks; rank++) {
            world->weight[rank] = 1; /* a ring's contributions are scaled already */
        }
        shard_world_expect_sums(world);
        struct optimizer_step step = shard_world_step(world, clock);
        struct owned_step own = step_of(&step);
        shard_world_expect_update(world, &step);
        for (int k = 0; k < world->setup.ranks; k++) {
            for (int layer = 0; layer < world->table.layer_count; layer++) {
                for (int64_t at = ranks[k].begin[layer], end; at < ranks[k].end[layer]; at = end) {
                    const float *list[RANKS_MAX];
                    end = at + 1 + (int64_t)shard_world_random(world, 9000);
                    end = end < ranks[k].end[layer] ? end : ranks[k].end[layer];
                    sources_of(&ranks[k], k, layer, at, list);
                    struct owned_sources sources = {.sources = list, .count = world->setup.ranks};
                    struct keymap_run range = {.begin = at, .end = end, .owner = k};
                    assert_int_equal(owned_update_sum(ranks[k].owned, &range, layer, &sources, &own), 1);
                }
            }
            owner_rank_check(&ranks[k], world->w);
        }
    }
    close_all(ranks, world);
}

static void eager_updates_from_contributions_have_the_same_bits(void **state)
{
    (void)state;
    everywhere("adam", check_eager);
    everywhere("sgd", check_eager);
}

static void an_eager_sum_that_is_not_finite_is_told(void **state)
{
    (void)state;
    struct shard_world world;
    struct owner_rank rank;
    struct shard_world_setup setup = setup_of(2, CANONICAL_PART, "adam");
    shard_world_open(&world, &setup, 3, 1);
    owner_rank_open(&rank, &world, 0, 1);
    float *bad = calloc(20000, sizeof *bad);
    struct owned_sources sources = {.sources = (const float *const[]){bad, bad}, .count = 2};
    struct owned_step step = {.lr = 0.1, .t = 1, .grad_scale = 1};
    struct keymap_run range = {.begin = 100, .end = 200};
    assert_int_equal(owned_update_sum(rank.owned, &range, 0, &sources, &step), 1);
    bad[99] = (float)NAN;
    assert_int_equal(owned_update_sum(rank.owned, &range, 0, &sources, &step), 0);
    bad[99] = 3e38f; /* only the sum is too large */
    assert_int_equal(owned_update_sum(rank.owned, &range, 0, &sources, &step), 0);
    free(bad);
    owner_rank_close(&rank);
    shard_world_close(&world);
}

/* lamb: a server makes the step; ranks prepare their runs into one array, as their ballots would bring them together. */
static void check_lamb(struct shard_world *world)
{
    struct owner_rank ranks[RANKS_MAX];
    size_t runs = (size_t)world->map.runs_count;
    double *norms = malloc(2 * runs * sizeof *norms);
    double *ratios = calloc((size_t)world->table.tensor_count, sizeof *ratios);
    open_all(ranks, world);
    for (uint64_t clock = 1; clock <= 3; clock++) {
        shard_world_gradients(world);
        shard_world_push_all(world, clock, NULL);
        shard_world_settle(world);
        struct optimizer_step step = shard_world_step(world, clock);
        struct owned_step own = step_of(&step);
        assert_int_equal(shard_verdict(world->shard, clock, SHARD_APPLY, &step), 0);
        shard_world_settle(world);
        shard_world_expect_sums(world);
        memset(norms, 0xff, 2 * runs * sizeof *norms);
        for (int k = 0; k < world->setup.ranks; k++) {
            assert_int_equal(owned_needs_norms(ranks[k].owned), 1);
            owner_rank_take_sums(&ranks[k]);
            owned_prepare(ranks[k].owned, &own, norms);
        }
        assert_memory_equal(norms, shard_trust_norms(world->shard), 2 * runs * sizeof *norms);
        trust_ratios(&world->map, norms, ratios);
        own.ratios = ratios;
        assert_int_equal(shard_trust_ratios(world->shard, clock, ratios), 0);
        shard_world_settle(world);
        for (int r = 0; r < world->map.ranges_count; r++) {
            struct buf *got = shard_share(world->shard, r);
            memcpy(world->w + owner_rank_flat(&ranks[0], world->map.ranges[r].layer, world->map.ranges[r].begin),
                   got->data, got->bytes);
            buf_release(got);
        }
        for (int k = 0; k < world->setup.ranks; k++) {
            owned_update(ranks[k].owned, 0, ranks[k].count, &own);
            owner_rank_check(&ranks[k], world->w);
        }
    }
    free(norms);
    free(ratios);
    close_all(ranks, world);
}

static void lamb_of_parts_has_the_bits_of_a_server(void **state)
{
    (void)state;
    everywhere("lamb", check_lamb);
}

/* --- sums -------------------------------------------------------------------------------------------------------- */

/* The runs of a layer's part in order, frozen gaps between them. */
static int runs_of(const struct keymap *map, int layer, int owner, struct keymap_run *out, int64_t *numbers)
{
    int count = 0;
    for (int r = map->layer_range_first[layer]; r < map->layer_range_first[layer + 1]; r++) {
        struct keymap_run *list = calloc((size_t)map->ranges[r].runs + 1, sizeof *list);
        keymap_runs(map, &map->ranges[r], list);
        for (int i = 0; i < map->ranges[r].runs; i++) {
            if (list[i].owner == owner) {
                numbers[count] = map->ranges[r].run_first + i;
                out[count++] = list[i];
            }
        }
        free(list);
    }
    return count;
}

static void check_one_sum(struct owner_rank *rank, int layer, const struct keymap_run *range, int64_t run_first,
                          const struct owned_norms *norms)
{
    const float *list[RANKS_MAX];
    struct owned_sources sources = {.sources = list, .count = rank->world->setup.ranks};
    sources_of(rank, range->owner, layer, range->begin, list);
    owned_sum(&rank->world->map, range, run_first, rank->g[layer] + (range->begin - rank->begin[layer]), &sources, norms);
}

static void check_sums(struct shard_world *world)
{
    struct owner_rank ranks[RANKS_MAX];
    struct keymap_run runs[64];
    int64_t numbers[64];
    int64_t all = world->map.runs_count;
    struct owned_norms norms = {.squares = malloc((size_t)all * sizeof(double)), .finite = calloc((size_t)all + 1, 1)};
    open_all(ranks, world);
    memset(norms.finite, 7, (size_t)all + 1);
    for (int rank = 0; rank < world->setup.ranks; rank++) {
        world->weight[rank] = 1;
    }
    shard_world_expect_sums(world);
    for (int k = 0; k < world->setup.ranks; k++) {
        for (int layer = 0; layer < world->table.layer_count; layer++) {
            int count = runs_of(&world->map, layer, k, runs, numbers);
            for (int i = 0, next; i < count; i = next) { /* one to three runs at once, what is frozen between included */
                next = i + 1 + (int)shard_world_random(world, 3);
                next = next < count ? next : count;
                struct keymap_run range = runs[i];
                range.end = runs[next - 1].end;
                check_one_sum(&ranks[k], layer, &range, numbers[i], &norms);
            }
            for (int i = 0; i < count; i++) {
                const float *want = world->sums + owner_rank_flat(&ranks[k], layer, runs[i].begin);
                const float *got = ranks[k].g[layer] + (runs[i].begin - ranks[k].begin[layer]);
                int finite = 1;
                double squares = reduce_norm_squared(want, runs[i].end - runs[i].begin, &finite);
                assert_memory_equal(got, want, (size_t)(runs[i].end - runs[i].begin) * sizeof(float));
                assert_memory_equal(&norms.squares[numbers[i]], &squares, sizeof squares);
            }
        }
    }
    for (int64_t run = 0; run < all; run++) {
        assert_int_equal(norms.finite[run], 1);
    }
    assert_int_equal(norms.finite[all], 7);
    free(norms.squares);
    free(norms.finite);
    close_all(ranks, world);
}

static void sums_and_norms_of_parts_are_those_of_a_server(void **state)
{
    (void)state;
    everywhere("adam", check_sums);
}

static void a_sum_that_is_not_finite_marks_its_run_only(void **state)
{
    (void)state;
    struct shard_world world;
    struct shard_world_setup setup = setup_of(1, CANONICAL_PART, "adam");
    shard_world_open(&world, &setup, 5, 1);
    float *x = calloc(20150, sizeof *x);
    float *g = calloc(20150, sizeof *g);
    double squares[3] = {0};
    uint8_t finite[3] = {0};
    struct owned_norms norms = {.squares = squares, .finite = finite};
    struct keymap_run range = {.begin = 0, .end = 20150, .owner = 0, .key = 0}; /* two keys, a bias, frozen 50 */
    x[16384] = (float)INFINITY;
    x[20100] = (float)NAN; /* of the frozen tensor */
    g[20100] = 5;
    owned_sum(&world.map, &range, 0, g, &(struct owned_sources){.sources = (const float *const[]){x}, .count = 1}, &norms);
    assert_int_equal(finite[0], 1);
    assert_int_equal(finite[1], 0);
    assert_int_equal(finite[2], 1);
    assert_true(squares[0] == 0 && squares[2] == 0 && g[20100] == 5);
    free(x);
    free(g);
    shard_world_close(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_of_all_ranks_tile_what_is_trained_and_cost_their_slots),
        cmocka_unit_test(everything_is_whole_tensors),
        cmocka_unit_test(no_memory_is_told_and_the_books_are_empty_again),
        cmocka_unit_test(updates_of_parts_have_the_bits_of_a_server),
        cmocka_unit_test(eager_updates_from_contributions_have_the_same_bits),
        cmocka_unit_test(an_eager_sum_that_is_not_finite_is_told),
        cmocka_unit_test(lamb_of_parts_has_the_bits_of_a_server),
        cmocka_unit_test(sums_and_norms_of_parts_are_those_of_a_server),
        cmocka_unit_test(a_sum_that_is_not_finite_marks_its_run_only),
    };
    return cmocka_run_group_tests_name("owned", tests, NULL, NULL);
}
