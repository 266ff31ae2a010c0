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
#include "lib/shard_world.h"

enum { FILES = 3, CLOCK = 3, PATH = 64, SEED = 31 };

struct fixture {
    char folder[PATH], paths[FILES][PATH + 32];
    const char *names[FILES];
    struct shard_world reference; /* all keys, at clock CLOCK */
};

static void run_to_clock(struct shard_world *world)
{
    for (uint64_t clock = 1; clock <= CLOCK; clock++) {
        world->random = clock; /* every server sees the same contributions */
        shard_world_whole_step(world, clock, NULL);
    }
}

/* Three servers' files of one step of three ranks. */
static int save_three(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    *state = f;
    char folder[PATH] = "/tmp/shard-files-XXXXXX";
    assert_non_null(mkdtemp(folder));
    memcpy(f->folder, folder, sizeof folder);
    for (int s = 0; s < FILES; s++) {
        struct shard_world world;
        char sha256[65];
        uint64_t bytes = 0;
        shard_world_open(&world, &(struct shard_world_setup){.ranks = 3, .servers = FILES, .server = s, .threads = 1,
                                                             .mean = 1}, SEED, 1);
        run_to_clock(&world);
        snprintf(f->paths[s], sizeof f->paths[s], "%s/owner-%d", folder, s);
        f->names[s] = f->paths[s];
        assert_int_equal(shard_save(world.shard, f->paths[s], CLOCK, sha256, &bytes, NULL), 0);
        assert_int_equal(strlen(sha256), 64);
        int64_t trained = keymap_server_trainable(&world.map, s) * 4;
        assert_true(bytes > (uint64_t)(keymap_server_elements(&world.map, s) * 4 + 2 * trained));
        shard_world_close(&world);
    }
    shard_world_open(&f->reference, &(struct shard_world_setup){.ranks = 3, .server = -1, .threads = 1, .mean = 1}, SEED,
                     1);
    run_to_clock(&f->reference);
    return 0;
}

static int remove_all(void **state)
{
    struct fixture *f = *state;
    shard_world_close(&f->reference);
    for (int s = 0; s < FILES; s++) {
        unlink(f->paths[s]);
    }
    rmdir(f->folder);
    free(f);
    return 0;
}

static void state_is_found_in_files_of_any_other_layout(void **state)
{
    struct fixture *f = *state;
    static const struct shard_world_setup layouts[] = {
        {.ranks = 3, .servers = 1, .server = -1, .threads = 1, .mean = 1},
        {.ranks = 3, .servers = 2, .server = 0, .threads = 1, .mean = 1, .message_bytes = 1 << 20},
        {.ranks = 5, .servers = 2, .server = 1, .threads = 1, .mean = 1, .message_bytes = 1 << 20},
        {.ranks = 1, .servers = 9, .server = 4, .threads = 1, .mean = 1},
    };
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        struct shard_world world;
        shard_world_open(&world, &layouts[i], SEED, 0);
        assert_int_equal(shard_world_load(&world, &f->reference, f->names, FILES, CLOCK, NULL), 0);
        assert_int_equal(shard_has_values(world.shard), 1);
        shard_world_check_values(&world);
        for (int r = 0; r < world.map.ranges_count; r++) {
            if (shard_world_mine(&world, r)) {
                assert_int_equal(shard_clock(world.shard, r), CLOCK);
                assert_int_equal(shard_world_push(&world, r, 0, CLOCK), SHARD_REPEAT_DONE);
            }
        }
        for (uint64_t clock = CLOCK + 1; shard_runs(world.shard) > 0 && clock < CLOCK + 4; clock++) {
            shard_world_whole_step(&world, clock, NULL); /* the optimizer's state is there too */
        }
        shard_world_close(&world);
    }
}

static void what_no_file_has_is_named(void **state)
{
    struct fixture *f = *state;
    for (int missing = 0; missing < FILES; missing++) {
        struct shard_world world;
        struct errbuf err;
        const char *paths[2] = {f->names[(missing + 1) % FILES], f->names[(missing + 2) % FILES]};
        errbuf_init(&err);
        shard_world_open(&world, &(struct shard_world_setup){.ranks = 3, .server = -1, .threads = 1}, SEED, 0);
        assert_int_equal(shard_load(world.shard, paths, 2, CLOCK, &err), STATUS_FORMAT);
        assert_non_null(strstr(err.text, "of tensor t"));
        assert_non_null(strstr(err.text, "has no stored values"));
        assert_int_equal(shard_has_values(world.shard), 0);
        shard_world_close(&world);
    }
}

static void state_of_an_optimizer_without_it_is_named(void **state)
{
    struct fixture *f = *state;
    struct shard_world world;
    struct errbuf err;
    char path[PATH + 32], sha256[65];
    uint64_t bytes = 0;
    errbuf_init(&err);
    snprintf(path, sizeof path, "%s/sgd", f->folder);
    shard_world_open(&world, &(struct shard_world_setup){.ranks = 3, .server = -1, .threads = 1, .optimizer = "sgd"}, SEED,
                     1);
    assert_int_equal(shard_save(world.shard, path, CLOCK, sha256, &bytes, NULL), 0);
    shard_world_close(&world);
    shard_world_open(&world, &(struct shard_world_setup){.ranks = 3, .server = -1, .threads = 1}, SEED, 0);
    assert_int_equal(shard_load(world.shard, (const char *const[]){path}, 1, CLOCK, &err), STATUS_FORMAT);
    assert_non_null(strstr(err.text, "has no stored optimizer state"));
    shard_world_close(&world);
    unlink(path);
}

static void a_tensor_that_is_no_shards_or_of_another_model_is_refused(void **state)
{
    struct fixture *f = *state;
    static const float zeros[70000];
    static const struct {
        const char *name, *text;
        enum safetensors_dtype dtype;
        int64_t count;
    } cases[] = {
        {"weight", "is not an owner's", SAFETENSORS_F32, 4},
        {"0-1/values2", "is not an owner's", SAFETENSORS_F32, 16384},
        {"0-1/slot4", "is not an owner's", SAFETENSORS_F32, 16384},
        {"0-1/slot-1", "is not an owner's", SAFETENSORS_F32, 16384},
        {"0-1/values", "does not fit this model", SAFETENSORS_F32, 16383},
        {"0-1/values", "does not fit this model", SAFETENSORS_I32, 16384},
        {"1-1/values", "does not fit this model", SAFETENSORS_F32, 0},
        {"-1-1/values", "is not an owner's", SAFETENSORS_F32, 16384},
        {"0-100/slot0", "does not fit this model", SAFETENSORS_F32, 16384},
        {"0-9223372036854775807/slot0", "does not fit this model", SAFETENSORS_F32, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct shard_world world;
        struct errbuf err;
        char path[PATH + 32];
        struct safetensors_tensor tensor = {.name = cases[i].name, .dtype = cases[i].dtype, .dims = 1,
                                            .shape = {cases[i].count}, .count = cases[i].count,
                                            .bytes = (size_t)cases[i].count * 4, .data = zeros};
        errbuf_init(&err);
        snprintf(path, sizeof path, "%s/bad", f->folder);
        assert_int_equal(safetensors_write(path, &tensor, 1, NULL, 0, NULL, NULL), 0);
        shard_world_open(&world, &(struct shard_world_setup){.ranks = 3, .server = -1, .threads = 1}, SEED, 0);
        assert_int_equal(shard_load(world.shard, (const char *const[]){path}, 1, CLOCK, &err), STATUS_FORMAT);
        if (!strstr(err.text, cases[i].text) || !strstr(err.text, cases[i].name) || !strstr(err.text, "/bad")) {
            fail_msg("%s: %s", cases[i].name, err.text);
        }
        shard_world_close(&world);
        unlink(path);
    }
}

static void a_file_that_is_not_there_is_an_io_error(void **state)
{
    (void)state;
    struct shard_world world;
    struct errbuf err;
    errbuf_init(&err);
    shard_world_open(&world, &(struct shard_world_setup){.ranks = 1, .server = -1, .threads = 1}, SEED, 0);
    assert_int_equal(shard_load(world.shard, (const char *const[]){"/nowhere/owner-0"}, 1, CLOCK, &err), STATUS_IO);
    assert_non_null(strstr(err.text, "/nowhere/owner-0"));
    assert_int_equal(shard_load(world.shard, NULL, 0, CLOCK, &err), STATUS_FORMAT);
    shard_world_close(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(state_is_found_in_files_of_any_other_layout),
        cmocka_unit_test(what_no_file_has_is_named),
        cmocka_unit_test(state_of_an_optimizer_without_it_is_named),
        cmocka_unit_test(a_tensor_that_is_no_shards_or_of_another_model_is_refused),
        cmocka_unit_test(a_file_that_is_not_there_is_an_io_error),
    };
    return cmocka_run_group_tests_name("shard_files", tests, save_three, remove_all);
}
