/* State moves between every two layouts: peers' parts, whole layers, one worker that owns everything, servers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "files/safetensors.h"
#include "owner/shard_internal.h"
#include "owner/state_file.h"
#include "owner_rank.h"

enum { OWNERS_MAX = 5, CLOCK = 7, PATH = 96, SLOTS = 2, F = SHARD_WORLD_FROZEN, L = SHARD_WORLD_LAYER };

/* Parts and keys cut each other, frozen tensors and layers, empty tensors and parts. */
static const int lengths[] = {20000, 100, 50 + F, L, 3, 0, 33000, 7, L, 17, L, 40 + F, L, 5, 16 + F, 70, L, 17000 + F, 9, L,
                              SHARD_WORLD_END};

struct layout {
    const char *name;
    int ranks, servers; /* servers > 0: they own */
    int placement;
    int everything; /* one worker owns all */
};
static const struct layout layouts[] = {
    {"part-1", 1, 0, CANONICAL_PART, 0},   {"part-2", 2, 0, CANONICAL_PART, 0},   {"part-3", 3, 0, CANONICAL_PART, 0},
    {"part-4", 4, 0, CANONICAL_PART, 0},   {"part-5", 5, 0, CANONICAL_PART, 0},   {"layer-1", 1, 0, CANONICAL_LAYER, 0},
    {"layer-2", 2, 0, CANONICAL_LAYER, 0}, {"layer-3", 3, 0, CANONICAL_LAYER, 0}, {"layer-4", 4, 0, CANONICAL_LAYER, 0},
    {"layer-5", 5, 0, CANONICAL_LAYER, 0}, {"all-3", 3, 0, CANONICAL_PART, 1},    {"servers-1", 2, 1, CANONICAL_PART, 0},
    {"servers-2", 4, 2, CANONICAL_PART, 0}, {"servers-3", 3, 3, CANONICAL_LAYER, 0},
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

struct fixture {
    char folder[PATH];
    const char *names[LAYOUTS][OWNERS_MAX]; /* paths, owned */
    int files[LAYOUTS];
};

/* Any bits, NaNs among them: they are moved, not computed with. slot -1: values. */
static float content(int64_t at, int slot)
{
    uint32_t bits = (uint32_t)(at * 2654435761u) ^ (uint32_t)(slot + 2) * 0x9e3779b9u;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void fill(float *to, int64_t at, int64_t count, int slot)
{
    for (int64_t i = 0; i < count; i++) {
        to[i] = content(at + i, slot);
    }
}

static void check(const float *got, int64_t at, int64_t count, int slot)
{
    for (int64_t i = 0; i < count; i++) {
        float want = content(at + i, slot);
        assert_memory_equal(&got[i], &want, sizeof want);
    }
}

/* Visits all that an owner holds. */
typedef void visit_fn(float *data, int64_t at, int64_t count, int slot);
static void fill_one(float *data, int64_t at, int64_t count, int slot)
{
    fill(data, at, count, slot);
}

static void check_one(float *data, int64_t at, int64_t count, int slot)
{
    check(data, at, count, slot);
}

static void visit_rank(struct owner_rank *rank, visit_fn *visit)
{
    for (int layer = 0; layer < rank->world->table.layer_count; layer++) {
        if (rank->w[layer]) {
            visit(rank->w[layer], owner_rank_flat(rank, layer, rank->begin[layer]), rank->end[layer] - rank->begin[layer], -1);
        }
    }
    for (int p = 0; p < rank->count; p++) {
        const struct owned_piece *piece = &rank->pieces[p];
        for (int s = 0; s < SLOTS; s++) {
            visit(piece->slots[s], owner_rank_flat(rank, piece->layer, piece->begin), piece->end - piece->begin, s);
        }
    }
}

static void visit_shard(struct shard_world *world, visit_fn *visit)
{
    for (int i = 0; i < world->shard->ranges_count; i++) {
        struct shard_range *range = &world->shard->ranges[i];
        int64_t at = world->table.layers[range->range->layer].offset + range->range->begin;
        visit((float *)range->values->data, at, keymap_range_elements(range->range), -1);
        for (int s = 0; s < SLOTS && !range->range->frozen; s++) {
            visit(range->slots[s], at, keymap_range_elements(range->range), s);
        }
    }
}

static int owners_of(const struct layout *layout)
{
    return layout->servers > 0 ? layout->servers : layout->everything ? 1 : layout->ranks;
}

static void open_world(struct shard_world *world, const struct layout *layout, int owner, int values)
{
    struct shard_world_setup setup = {.lengths = lengths, .ranks = layout->ranks, .servers = layout->servers,
                                      .server = layout->servers > 0 ? owner : -1, .threads = 1, .mean = 1,
                                      .placement = layout->placement, .optimizer = "adam"};
    shard_world_open(world, &setup, 9, values);
}

static void save_one(struct fixture *f, int index, int owner)
{
    const struct layout *layout = &layouts[index];
    struct shard_world world;
    char *path = NULL;
    assert_true(asprintf(&path, "%s/%s.%d", f->folder, layout->name, owner) > 0);
    f->names[index][owner] = path;
    open_world(&world, layout, owner, 1);
    if (layout->servers > 0) {
        char sha256[65];
        uint64_t bytes = 0;
        visit_shard(&world, fill_one);
        assert_int_equal(shard_save(world.shard, path, CLOCK, sha256, &bytes, NULL), 0);
    } else {
        struct owner_rank rank;
        struct owned_file file = {.path = path, .clock = CLOCK};
        owner_rank_open(&rank, &world, layout->everything ? -1 : owner, 1);
        visit_rank(&rank, fill_one);
        assert_int_equal(owned_save(rank.owned, &rank.values, &file, NULL), 0);
        assert_int_equal(strlen(file.sha256), 64);
        int64_t values = layout->everything ? world.table.count : keymap_rank_elements(&world.map, owner, 0);
        int64_t held = values + owned_elements(rank.owned) * SLOTS;
        assert_true(file.bytes > (uint64_t)held * 4 && file.bytes < (uint64_t)held * 4 + 8192); /* the rest is the header */
        owner_rank_close(&rank);
    }
    shard_world_close(&world);
}

static int save_all(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    *state = f;
    strcpy(f->folder, "/tmp/owned-files-XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    for (int i = 0; i < LAYOUTS; i++) {
        f->files[i] = owners_of(&layouts[i]);
        for (int owner = 0; owner < f->files[i]; owner++) {
            save_one(f, i, owner);
        }
    }
    return 0;
}

static int remove_all(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < LAYOUTS; i++) {
        for (int owner = 0; owner < f->files[i]; owner++) {
            unlink(f->names[i][owner]);
            free((char *)(uintptr_t)f->names[i][owner]);
        }
    }
    assert_int_equal(rmdir(f->folder), 0);
    free(f);
    return 0;
}

/* Loads as an owner of a layout; with check_all what it holds must be right then. */
static int load_one(const struct layout *layout, int owner, const char *const *paths, int count, struct errbuf *err)
{
    struct shard_world world;
    int status;
    open_world(&world, layout, owner, 0);
    if (layout->servers > 0) {
        status = shard_load(world.shard, paths, count, CLOCK, err);
        if (status == 0) {
            visit_shard(&world, check_one);
        }
    } else {
        struct owner_rank rank;
        owner_rank_open(&rank, &world, layout->everything ? -1 : owner, 1);
        status = owned_load(rank.owned, &rank.values, paths, count, err);
        if (status == 0) {
            visit_rank(&rank, check_one);
        }
        owner_rank_close(&rank);
    }
    shard_world_close(&world);
    return status;
}

static void every_layout_reads_what_every_other_wrote(void **state)
{
    struct fixture *f = *state;
    for (int from = 0; from < LAYOUTS; from++) {
        for (int to = 0; to < LAYOUTS; to++) {
            for (int owner = 0; owner < owners_of(&layouts[to]); owner++) {
                struct errbuf err;
                errbuf_init(&err);
                if (load_one(&layouts[to], owner, f->names[from], f->files[from], &err) != 0) {
                    fail_msg("%s to %s: %s", layouts[from].name, layouts[to].name, err.text);
                }
            }
        }
    }
}

static int layout_named(const char *name)
{
    for (int i = 0; i < LAYOUTS; i++) {
        if (strcmp(layouts[i].name, name) == 0) {
            return i;
        }
    }
    fail_msg("no layout %s", name);
    return -1;
}

/* Files of several layouts together hold most elements more than once, alike. */
static void equal_copies_do_no_harm_in_any_order(void **state)
{
    struct fixture *f = *state;
    static const char *const mixed[] = {"part-4", "servers-3", "all-3", "part-3"};
    const char *paths[4 * OWNERS_MAX];
    for (int turn = 0; turn < 4; turn++) {
        int count = 0;
        for (int i = 0; i < 4; i++) {
            int from = layout_named(mixed[(turn + i) % 4]);
            for (int owner = f->files[from] - 1; owner >= 0; owner--) {
                paths[count++] = f->names[from][owner];
            }
        }
        assert_int_equal(load_one(&layouts[layout_named("part-5")], 2, paths, count, NULL), 0);
        assert_int_equal(load_one(&layouts[layout_named("servers-2")], 1, paths, count, NULL), 0);
        /* What one layout lacks comes from another: half of each. */
        const char *halves[] = {f->names[layout_named("part-2")][0], f->names[layout_named("servers-2")][0],
                                f->names[layout_named("servers-2")][1]};
        assert_int_equal(load_one(&layouts[layout_named("all-3")], 0, halves, 3, NULL), 0);
    }
}

/* Without one of the files some owner misses something, and is told which tensor's. */
static void a_hole_is_named(void **state)
{
    struct fixture *f = *state;
    for (int from = 0; from < LAYOUTS; from++) {
        for (int missing = 0; missing < f->files[from]; missing++) {
            const char *paths[OWNERS_MAX];
            struct errbuf err;
            int count = 0;
            errbuf_init(&err);
            for (int owner = 0; owner < f->files[from]; owner++) {
                if (owner != missing) {
                    paths[count++] = f->names[from][owner];
                }
            }
            assert_int_equal(load_one(&layouts[layout_named("all-3")], 0, paths, count, &err), STATUS_FORMAT);
            if (!strstr(err.text, "key ") || !strstr(err.text, " of tensor t") || !strstr(err.text, "has no stored values")) {
                fail_msg("%s without %d: %s", layouts[from].name, missing, err.text);
            }
        }
    }
}

/* --- by hand ---------------------------------------------------------------------------------------------------- */

struct hand {
    struct shard_world world;
    struct state_files *files;
    char paths[2][PATH + 24];
    const char *names[2];
    struct errbuf err;
};

static void hand_open(struct hand *hand, const struct fixture *f)
{
    memset(hand, 0, sizeof *hand);
    open_world(&hand->world, &layouts[0], 0, 0);
    for (int i = 0; i < 2; i++) {
        snprintf(hand->paths[i], sizeof hand->paths[i], "%s/hand-%d", f->folder, i);
        hand->names[i] = hand->paths[i];
    }
    errbuf_init(&hand->err);
}

static void hand_close(struct hand *hand)
{
    state_files_close(hand->files);
    shard_world_close(&hand->world);
    unlink(hand->paths[0]);
    unlink(hand->paths[1]);
}

/* One span of layer 0 in file `index`, its element e being `first` + e, or `spoilt` at one place. */
static void hand_write(struct hand *hand, int index, int64_t begin, int64_t end, int64_t spoilt, uint64_t clock)
{
    float *data = calloc((size_t)(end - begin) + 1, sizeof *data);
    fill(data, begin, end - begin, -1);
    if (spoilt >= begin && spoilt < end) {
        data[spoilt - begin] = 0.5f;
    }
    struct state_span span = state_span_of(&hand->world.map, 0, begin, end);
    span.data = data;
    struct state_file file = {.path = hand->paths[index], .clock = clock};
    assert_int_equal(state_file_write(&file, &hand->world.map, &span, 1, NULL), 0);
    free(data);
}

static int hand_read(struct hand *hand, int count)
{
    state_files_close(hand->files);
    hand->files = NULL;
    errbuf_init(&hand->err);
    return state_files_open(&hand->files, &hand->world.map, hand->names, count, &hand->err);
}

static int hand_copy(struct hand *hand, int64_t begin, int64_t end)
{
    float *out = calloc((size_t)(end - begin) + 1, sizeof *out);
    struct state_span span = state_span_of(&hand->world.map, 0, begin, end);
    errbuf_init(&hand->err);
    int status = state_files_copy(hand->files, &span, out, &hand->err);
    if (status == 0) {
        check(out, begin, end - begin, -1);
    }
    free(out);
    return status;
}

static void names_say_what_a_span_is(void **state)
{
    static const struct {
        int64_t begin, end;
        const char *name;
    } cases[] = {
        {0, 16384, "0-1/values"},           {0, 20150, "0-4/values"},       {16384, 20100, "1-3/values"},
        {16, 16384, "0-1+16:16368/values"}, {0, 16, "0-1+0:16/values"},     {16000, 20001, "0-3+16000:4001/values"},
        {20099, 20100, "2-3+99:1/values"},  {20000, 20150, "2-4/values"},
    };
    struct hand hand;
    hand_open(&hand, *state);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct safetensors *file = NULL;
        hand_write(&hand, 0, cases[i].begin, cases[i].end, -1, CLOCK);
        assert_int_equal(safetensors_open(&file, hand.paths[0], NULL), 0);
        assert_int_equal(safetensors_count(file), 1);
        assert_string_equal(safetensors_at(file, 0)->name, cases[i].name);
        assert_string_equal(safetensors_metadata(file, "clock"), "7");
        safetensors_close(file);
        assert_int_equal(hand_read(&hand, 1), 0);
        assert_int_equal(hand_copy(&hand, cases[i].begin, cases[i].end), 0);
    }
    hand_close(&hand);
}

static void a_span_of_nothing_is_left_out(void **state)
{
    struct hand hand;
    hand_open(&hand, *state);
    struct safetensors *file = NULL;
    hand_write(&hand, 0, 100, 100, -1, CLOCK);
    assert_int_equal(safetensors_open(&file, hand.paths[0], NULL), 0);
    assert_int_equal(safetensors_count(file), 0);
    safetensors_close(file);
    assert_int_equal(hand_read(&hand, 1), 0);
    assert_int_equal(hand_copy(&hand, 100, 100), 0);
    assert_int_equal(hand_copy(&hand, 100, 101), STATUS_FORMAT);
    hand_close(&hand);
}

static void a_hole_inside_a_key_is_named_to_the_element(void **state)
{
    struct hand hand;
    hand_open(&hand, *state);
    hand_write(&hand, 0, 0, 17000, -1, CLOCK);
    hand_write(&hand, 1, 17100, 20100, -1, CLOCK);
    assert_int_equal(hand_read(&hand, 2), 0);
    assert_int_equal(hand_copy(&hand, 10, 17000), 0);
    assert_int_equal(hand_copy(&hand, 17100, 20100), 0);
    assert_int_equal(hand_copy(&hand, 16000, 20000), STATUS_FORMAT);
    assert_string_equal(hand.err.text, "snapshot: key 1 of tensor t0 has no stored values for its elements 616 to 715");
    assert_int_equal(hand_copy(&hand, 17050, 17060), STATUS_FORMAT);
    assert_string_equal(hand.err.text, "snapshot: key 1 of tensor t0 has no stored values for its elements 666 to 675");
    assert_int_equal(hand_copy(&hand, 20000, 20150), STATUS_FORMAT);
    assert_string_equal(hand.err.text, "snapshot: key 3 of tensor t2 has no stored values");
    hand_close(&hand);
}

static void copies_that_differ_are_refused_and_named(void **state)
{
    static const int64_t spans[][2] = {{500, 19000}, {0, 20150}, {100, 600}, {499, 501}, {500, 501}};
    struct hand hand;
    hand_open(&hand, *state);
    for (size_t i = 0; i < sizeof spans / sizeof *spans; i++) {
        hand_write(&hand, 0, 100, 18000, -1, CLOCK);
        hand_write(&hand, 1, spans[i][0], spans[i][1], -1, CLOCK);
        assert_int_equal(hand_read(&hand, 2), 0);
        assert_int_equal(hand_copy(&hand, 100, 18000), 0);
        hand_write(&hand, 1, spans[i][0], spans[i][1], 500, CLOCK);
        assert_int_equal(hand_read(&hand, 2), STATUS_FORMAT);
        assert_non_null(strstr(hand.err.text, "key 0 of tensor t0 is stored twice and differs at its element 500"));
        assert_non_null(strstr(hand.err.text, "hand-0"));
        assert_non_null(strstr(hand.err.text, "hand-1"));
    }
    hand_close(&hand);
}

static void files_of_two_steps_are_not_mixed(void **state)
{
    struct hand hand;
    hand_open(&hand, *state);
    hand_write(&hand, 0, 0, 100, -1, CLOCK);
    hand_write(&hand, 1, 100, 20150, -1, CLOCK + 1);
    assert_int_equal(hand_read(&hand, 2), STATUS_FORMAT);
    assert_non_null(strstr(hand.err.text, "hand-0 is of step 7"));
    assert_non_null(strstr(hand.err.text, "hand-1 of step 8"));
    hand_close(&hand);
}

static void names_that_fit_no_key_are_refused(void **state)
{
    static const struct {
        const char *name;
        int64_t count;
        int good;
    } cases[] = {
        {"0-1+0:16384/values", 16384, 1}, /* whole keys may be named in full */
        {"0-1+5:10/values", 10, 1},       {"0-1+5:10/slot1", 10, 1},     {"0-2+16383:2/values", 2, 1},
        {"0-1+5:10/values", 11, 0},       {"0-1+16384:1/values", 1, 0},  {"0-1+16383:2/values", 2, 0},
        {"0-2+5:10/values", 10, 0},       {"0-1+5:0/values", 0, 0},      {"0-1+5/values", 1, 0},
        {"0-1+5:/values", 1, 0},          {"0-1+:5/values", 5, 0},       {"0-1+-5:10/values", 10, 0},
        {"0-1+ 5:10/values", 10, 0},      {"0-1+5:10", 10, 0},           {"0-1+5:10/slot", 10, 0},
        {"0-1+5:10/slot4", 10, 0},        {"0-1+5:10/valuesx", 10, 0},   {"0-1+5:10/slot1x", 10, 0},
        {"0-1+9223372036854775807:1/values", 1, 0}, {"0-1+1:9223372036854775807/values", 1, 0},
        {"0-1+1:99999999999999999999/values", 1, 0}, {"99-100+1:1/values", 1, 0}, {"1-0+1:1/values", 1, 0},
    };
    static const float zeros[20000];
    struct hand hand;
    hand_open(&hand, *state);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct safetensors_tensor tensor = {.name = cases[i].name, .dtype = SAFETENSORS_F32, .dims = 1,
                                            .shape = {cases[i].count}, .count = cases[i].count,
                                            .bytes = (size_t)cases[i].count * 4, .data = zeros};
        assert_int_equal(safetensors_write(hand.paths[0], &tensor, 1, NULL, 0, NULL, NULL), 0);
        int status = hand_read(&hand, 1);
        if (status != (cases[i].good ? 0 : STATUS_FORMAT)) {
            fail_msg("%s: %d %s", cases[i].name, status, hand.err.text);
        }
        assert_true(status == 0 || (strstr(hand.err.text, cases[i].name) && strstr(hand.err.text, "hand-0")));
    }
    hand_close(&hand);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_reads_what_every_other_wrote),
        cmocka_unit_test(equal_copies_do_no_harm_in_any_order),
        cmocka_unit_test(a_hole_is_named),
        cmocka_unit_test(names_say_what_a_span_is),
        cmocka_unit_test(a_span_of_nothing_is_left_out),
        cmocka_unit_test(a_hole_inside_a_key_is_named_to_the_element),
        cmocka_unit_test(copies_that_differ_are_refused_and_named),
        cmocka_unit_test(files_of_two_steps_are_not_mixed),
        cmocka_unit_test(names_that_fit_no_key_are_refused),
    };
    return cmocka_run_group_tests_name("owned_files", tests, save_all, remove_all);
}
