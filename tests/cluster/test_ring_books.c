/* Memory and payload of every rank against the closed forms of the specification, written out here once more: M of a rank is the
 * sum of its parts, N the whole, Φ its bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/cases/cluster_jobs.h"
#include "tests/lib/embedded.h"

enum { LAYERS = 3, STEPS = 8, FLOAT = 4 };

/* Of cluster_jobs_mlp: 150 -> 200 -> 90 -> 5, the hidden ones with BatchNorm. */
static const int64_t sizes[LAYERS] = {150 * 200 + 3 * 200, 200 * 90 + 3 * 90, 90 * 5 + 5};

static char folder[EMBEDDED_TEXT], yaml[2048];

static int open_folder(void **state)
{
    (void)state;
    embedded_folder_create(folder);
    cluster_jobs_mlp(yaml, sizeof yaml);
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    embedded_folder_remove(folder);
    return 0;
}

enum mode { DDP, ZERO1, ZERO2, ZERO3, MODES };
static const char *const mode_names[MODES] = {"ddp", "zero1", "zero2", "zero3"};

struct form {
    enum mode mode;
    int ranks, accumulate, by_layer; /* by_layer: placement layer */
    int slots;                       /* state vectors of the optimizer */
    int keep_last, frozen_first;     /* frozen_first: layer 0 is frozen */
    int64_t persistence;             /* layers of fewer elements stay whole */
};

static int64_t part(const struct form *form, int layer, int rank)
{
    int64_t n = sizes[layer], m = (n + form->ranks - 1) / form->ranks;
    if (form->by_layer)
        return layer % form->ranks == rank ? n : 0;
    m = (m + 15) / 16 * 16;
    int64_t begin = rank * m < n ? rank * m : n, end = (rank + 1) * m < n ? (rank + 1) * m : n;
    return end - begin;
}

static int64_t parts(const struct form *form, int rank, int trained)
{
    int64_t sum = 0;
    for (int layer = trained && form->frozen_first; layer < LAYERS; layer++)
        sum += part(form, layer, rank);
    return sum;
}

static int64_t whole(const struct form *form, int trained)
{
    int64_t sum = 0;
    for (int layer = trained && form->frozen_first; layer < LAYERS; layer++)
        sum += sizes[layer];
    return sum;
}

static int64_t parameters(const struct form *form, int rank)
{
    int64_t sum = 0;
    if (form->mode != ZERO3)
        return whole(form, 0);
    for (int layer = 0; layer < LAYERS; layer++)
        sum += sizes[layer] < form->persistence ? sizes[layer] : part(form, layer, rank);
    return sum;
}

static int64_t gradients(const struct form *form, int rank)
{
    int own = form->mode >= ZERO2 && form->accumulate == 1;
    return own ? parts(form, rank, 1) : whole(form, 1);
}

static int64_t optimizer(const struct form *form, int rank)
{
    return form->slots * (form->mode == DDP ? whole(form, 1) : parts(form, rank, 1));
}

/* Sent by `rank` in all gathers; others' view of it with rank - 1. */
static int64_t gathered(const struct form *form, int missing)
{
    int64_t sum = 0;
    if (form->mode != ZERO3)
        return STEPS * (whole(form, 1) - parts(form, missing, 1));
    for (int layer = 0; layer < LAYERS; layer++) {
        int64_t times = layer == LAYERS - 1 && form->keep_last ? form->accumulate : 2 * form->accumulate;
        if (sizes[layer] < form->persistence)
            times = 1; /* after the update, for good */
        sum += STEPS * times * (sizes[layer] - part(form, layer, missing));
    }
    return sum;
}

static void expect(const struct form *form, int rank, const char *what, int64_t found, int64_t wanted)
{
    if (found != wanted * FLOAT)
        fail_msg("%s on %d ranks, accumulate %d, %s: rank %d has %s %lld, not %lld", mode_names[form->mode], form->ranks,
                 form->accumulate, form->by_layer ? "layer" : "part", rank, what, (long long)found,
                 (long long)wanted * FLOAT);
}

static void check_rank(const struct form *form, const struct embedded_result *result, int rank)
{
    static const char state[] = "model_state_bytes", sent[] = "sent_bytes", received[] = "received_bytes";
    int next = (rank + 1) % form->ranks;
    expect(form, rank, "parameters", embedded_bytes(result, rank, state, "parameters"), parameters(form, rank));
    expect(form, rank, "gradients", embedded_bytes(result, rank, state, "gradients"), gradients(form, rank));
    expect(form, rank, "optimizer", embedded_bytes(result, rank, state, "optimizer"), optimizer(form, rank));
    expect(form, rank, "sent reduce_scatter", embedded_bytes(result, rank, sent, "reduce_scatter"),
           STEPS * (whole(form, 1) - parts(form, rank, 1)));
    expect(form, rank, "sent all_gather", embedded_bytes(result, rank, sent, "all_gather"), gathered(form, next));
    expect(form, rank, "received all_gather", embedded_bytes(result, rank, received, "all_gather"),
           gathered(form, rank));
    expect(form, rank, "push", embedded_bytes(result, rank, sent, "push"), 0);
}

static void check_form(const struct form *form, const char *const *sets)
{
    struct embedded_order order = {.yaml = yaml, .workers = form->ranks, .folder = folder};
    struct embedded_result result;
    embedded_set(&order, "parallel.data=%s", mode_names[form->mode]);
    embedded_set(&order, "accumulate=%d", form->accumulate);
    embedded_set(&order, "parallel.placement=%s", form->by_layer ? "layer" : "part");
    embedded_set(&order, "parallel.persistence_threshold=%lld", (long long)form->persistence);
    embedded_set(&order, "parallel.keep_last_layer=%s", form->keep_last ? "true" : "false");
    if (form->frozen_first)
        embedded_set(&order, "optimizer.freeze=[\"layers.0.*\"]");
    for (int i = 0; sets != NULL && sets[i] != NULL; i++)
        embedded_set(&order, "%s", sets[i]);
    embedded_run_well(&order, &result);
    assert_int_equal(result.steps_count, STEPS);
    int64_t sent = 0;
    for (int rank = 0; rank < form->ranks; rank++) {
        check_rank(form, &result, rank);
        sent += embedded_bytes(&result, rank, "sent_bytes", "reduce_scatter");
        sent += embedded_bytes(&result, rank, "sent_bytes", "all_gather");
    }
    /* (P-1)Φ over all ranks for each time everything goes round. */
    int64_t times = form->mode == ZERO3 ? 1 + 2 * form->accumulate : 2;
    if (!form->frozen_first && !form->keep_last && form->persistence == 0)
        assert_int_equal(sent, STEPS * times * (form->ranks - 1) * whole(form, 1) * FLOAT);
    embedded_result_close(&result);
}

static void every_mode_holds_and_sends_what_its_form_says(void **state)
{
    static const int ranks[] = {1, 2, 3, 4, 5};
    (void)state;
    for (int mode = 0; mode < MODES; mode++)
        for (int r = 0; r < 5; r++)
            for (int accumulate = 1; accumulate <= 2; accumulate++) {
                struct form form = {.mode = (enum mode)mode, .ranks = ranks[r], .accumulate = accumulate, .slots = 2};
                check_form(&form, NULL);
            }
}

static void whole_layers_in_turn_are_uneven_parts(void **state)
{
    static const char *const sets[] = {"parallel.transport=tcp", "parallel.bucket_bytes=1", NULL};
    (void)state;
    for (int mode = 0; mode < MODES; mode++) {
        struct form form = {.mode = (enum mode)mode, .ranks = 2 + mode, .accumulate = 1 + mode % 2, .by_layer = 1,
                            .slots = 2};
        check_form(&form, mode % 2 ? sets : NULL);
    }
}

static void what_the_optimizer_keeps_is_counted(void **state)
{
    static const char *const plain[] = {"optimizer.kind=sgd", NULL};
    static const char *const momentum[] = {"optimizer.kind=sgd", "optimizer.momentum=0.9", NULL};
    (void)state;
    for (int mode = 0; mode < MODES; mode++) {
        struct form form = {.mode = (enum mode)mode, .ranks = 3, .accumulate = 1};
        check_form(&form, plain);
        form.slots = 1;
        check_form(&form, momentum);
    }
}

static void what_is_frozen_has_no_gradient_and_no_state_and_is_not_exchanged(void **state)
{
    (void)state;
    for (int mode = 0; mode < MODES; mode++)
        for (int accumulate = 1; accumulate <= 2; accumulate++) {
            struct form form = {.mode = (enum mode)mode, .ranks = 3, .accumulate = accumulate, .slots = 2,
                                .frozen_first = 1};
            check_form(&form, NULL);
        }
}

static void layers_that_stay_are_held_whole_and_gathered_once(void **state)
{
    static const char *const none_ahead[] = {"parallel.prefetch_layers=0", NULL};
    static const char *const all_ahead[] = {"parallel.prefetch_layers=7", "parallel.transport=tcp", NULL};
    static const struct form forms[] = {
        {ZERO3, 3, 1, 0, 2, 1, 0, 0},     {ZERO3, 2, 2, 0, 2, 1, 0, 0},      {ZERO3, 3, 1, 0, 2, 0, 0, 1000},
        {ZERO3, 4, 2, 0, 2, 0, 0, 20000}, {ZERO3, 3, 1, 1, 2, 0, 0, 100000}, {ZERO3, 5, 1, 0, 2, 1, 0, 1000},
        {ZERO3, 3, 1, 0, 2, 0, 0, 455},   {ZERO3, 3, 1, 0, 2, 0, 0, 456},
    };
    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        check_form(&forms[i], i % 3 == 0 ? NULL : i % 3 == 1 ? none_ahead : all_ahead);
}

/* With `update: eager` nothing changes in the books. */
static void eager_updates_hold_and_send_the_same(void **state)
{
    static const char *const eager[] = {"parallel.update=eager", "optimizer.nonfinite=stop", NULL};
    (void)state;
    for (int mode = 0; mode < MODES; mode++) {
        struct form form = {.mode = (enum mode)mode, .ranks = 3, .accumulate = 1, .slots = 2};
        check_form(&form, eager);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mode_holds_and_sends_what_its_form_says),
        cmocka_unit_test(whole_layers_in_turn_are_uneven_parts),
        cmocka_unit_test(what_the_optimizer_keeps_is_counted),
        cmocka_unit_test(what_is_frozen_has_no_gradient_and_no_state_and_is_not_exchanged),
        cmocka_unit_test(layers_that_stay_are_held_whole_and_gathered_once),
        cmocka_unit_test(eager_updates_hold_and_send_the_same),
    };

    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
