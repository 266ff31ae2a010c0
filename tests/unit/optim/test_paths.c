/* Every instruction-set path gives the portable path's bits, at any offset and length, and a tensor cut in pieces
 * gives the whole tensor's. */
#include "optim/rows.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { ARRAYS = 4, OFFSETS = 16, LONGEST = 1000003 }; /* arrays: w, grad, slot 0, slot 1 */

struct arena {
    float *arrays[ARRAYS];
};

static float noise(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)((int32_t)*state) * (1.0f / 1073741824.0f);
}

static void arena_fill(struct arena *arena, int64_t offset, int64_t count)
{
    uint32_t seed = 1;

    for (int a = 0; a < ARRAYS; a++)
        for (int64_t i = 0; i < count; i++) {
            float x = noise(&seed);
            arena->arrays[a][offset + i] = a == 3 ? x * x : x; /* second moments are not negative */
        }
}

static void arena_copy(struct arena *to, int64_t offset, const struct arena *from, int64_t count)
{
    for (int a = 0; a < ARRAYS; a++)
        memcpy(to->arrays[a] + offset, from->arrays[a], sizeof(float) * (size_t)count);
}

static void arena_open(struct arena *arena, int64_t count)
{
    for (int a = 0; a < ARRAYS; a++) {
        arena->arrays[a] = malloc(sizeof(float) * (size_t)(count + OFFSETS));
        assert_non_null(arena->arrays[a]);
    }
}

static void arena_close(struct arena *arena)
{
    for (int a = 0; a < ARRAYS; a++)
        free(arena->arrays[a]);
}

static int lamb_both_on(enum isa isa, const struct optimizer_call *call, const struct gradient *gradient)
{
    float *grad = (float *)gradient->sources[0]; /* the arena's own */
    double norms[2] = {0, 0};
    struct optimizer_step step = *call->step;
    struct optimizer_call second = *call;

    lamb_prepare_on(isa, call, grad, norms);
    step.trust_ratio =
        norms[1] > 0 ? norms[0] / norms[1] : 1; /* any function of the norms: their bits must agree */
    second.step = &step;
    lamb_update_on(isa, &second, grad);
    return 1;
}

struct path {
    const char *name;
    int (*update_on)(enum isa isa, const struct optimizer_call *call, const struct gradient *gradient);
    double momentum;
    int nesterov;
    int sources_count;
};

static const struct path paths[] = {
    {"sgd", sgd_update_on, 0, 0, 1},
    {"sgd of 2 sources", sgd_update_on, 0, 0, 2},
    {"sgd momentum", sgd_update_on, 0.9, 0, 1},
    {"sgd momentum of 3 sources", sgd_update_on, 0.9, 0, 3},
    {"sgd nesterov", sgd_update_on, 0.9, 1, 1},
    {"sgd nesterov of 4 sources", sgd_update_on, 0.9, 1, 4},
    {"adam", adam_update_on, 0, 0, 1},
    {"adam of 2 sources", adam_update_on, 0, 0, 2},
    {"adam of 3 sources", adam_update_on, 0, 0, 3},
    {"adam of 4 sources", adam_update_on, 0, 0, 4},
    {"adamw", adamw_update_on, 0, 0, 1},
    {"adamw of 3 sources", adamw_update_on, 0, 0, 3},
    {"adagrad", adagrad_update_on, 0, 0, 1},
    {"adagrad of 4 sources", adagrad_update_on, 0, 0, 4},
    {"ftrl", ftrl_update_on, 0, 0, 1},
    {"ftrl of 2 sources", ftrl_update_on, 0, 0, 2},
    {"lamb", lamb_both_on, 0, 0, 1},
};

enum { PATHS = sizeof paths / sizeof paths[0] };

static void run(const struct path *path, enum isa isa, int decay, struct arena *arena, int64_t offset,
                int64_t count)
{
    const struct optimizer_params params = {.beta1 = 0.9,
                                            .beta2 = 0.999,
                                            .eps = 1e-8,
                                            .weight_decay = 0.1,
                                            .momentum = path->momentum,
                                            .l1 = 0.2,
                                            .l2 = 0.1,
                                            .beta = 1,
                                            .nesterov = path->nesterov};
    const struct optimizer_step step = {.lr = 0.01, .t = 3, .grad_scale = 0.37f};
    /* n of ftrl and Σg² of adagrad are roots' arguments: give them the array without negatives. */
    float *first = path->update_on == adagrad_update_on ? arena->arrays[3] : arena->arrays[2];
    float *slots[2] = {first + offset, arena->arrays[3] + offset};
    const struct optimizer_call call = {&params, &step, decay, arena->arrays[0] + offset, slots, count};
    const float *grad = arena->arrays[1] + offset; /* each source is the same array */
    const struct gradient gradient = {{grad, grad, grad, grad}, path->sources_count};

    assert_int_equal(path->update_on(isa, &call, &gradient), 1);
}

static void assert_same(const struct arena *x, int64_t x_offset, const struct arena *y, int64_t y_offset,
                        int64_t count, const char *what, enum isa isa)
{
    for (int a = 0; a < ARRAYS; a++)
        if (memcmp(x->arrays[a] + x_offset, y->arrays[a] + y_offset, sizeof(float) * (size_t)count) != 0)
            fail_msg("%s: array %d differs on %s at offset %lld, length %lld", what, a, isa_name(isa),
                     (long long)y_offset, (long long)count);
}

static void compare_length(const struct path *path, int decay, int64_t count, int64_t offset_step)
{
    struct arena first, want, got;

    arena_open(&first, count);
    arena_open(&want, count);
    arena_open(&got, count);
    arena_fill(&first, 0, count);
    arena_copy(&want, 0, &first, count);
    run(path, ISA_PORTABLE, decay, &want, 0, count);
    for (int isa = ISA_PORTABLE; isa < ISA_COUNT; isa++) {
        if (!isa_available((enum isa)isa))
            continue;
        for (int64_t offset = 0; offset < OFFSETS; offset += offset_step) {
            arena_copy(&got, offset, &first, count);
            run(path, (enum isa)isa, decay, &got, offset, count);
            assert_same(&want, 0, &got, offset, count, path->name, (enum isa)isa);
        }
    }
    arena_close(&first);
    arena_close(&want);
    arena_close(&got);
}

static void short_tensors_give_the_same_bits_on_every_path_at_every_offset(void **state)
{
    (void)state;
    for (int p = 0; p < PATHS; p++)
        for (int64_t count = 0; count <= 70; count += count < 34 ? 1 : 13)
            for (int decay = 0; decay <= 1; decay++)
                compare_length(&paths[p], decay, count, 1);
}

static void a_long_tensor_gives_the_same_bits_on_every_path(void **state)
{
    (void)state;
    for (int p = 0; p < PATHS; p++)
        compare_length(&paths[p], 1, LONGEST, 9);
}

static void a_tensor_cut_in_pieces_gives_the_bits_of_the_whole(void **state)
{
    (void)state;
    enum { COUNT = 5000 };
    struct arena whole, cut;

    arena_open(&whole, COUNT);
    arena_open(&cut, COUNT);
    for (int p = 0; p < PATHS; p++) {
        if (paths[p].update_on == lamb_both_on)
            continue; /* its norms are those of a call */
        arena_fill(&whole, 0, COUNT);
        arena_fill(&cut, 0, COUNT);
        run(&paths[p], isa_best(), 1, &whole, 0, COUNT);
        for (int64_t first = 0, length = 1; first < COUNT; first += length, length = length * 2 + 1) {
            if (length > COUNT - first)
                length = COUNT - first;
            run(&paths[p], isa_best(), 1, &cut, first, length);
        }
        assert_same(&whole, 0, &cut, 0, COUNT, paths[p].name, isa_best());
    }
    arena_close(&whole);
    arena_close(&cut);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_tensors_give_the_same_bits_on_every_path_at_every_offset),
        cmocka_unit_test(a_long_tensor_gives_the_same_bits_on_every_path),
        cmocka_unit_test(a_tensor_cut_in_pieces_gives_the_bits_of_the_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
