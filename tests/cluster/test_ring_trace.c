/* The exchange goes on under compute: read from the timelines that runs have written, by the order of begin and end. What must
 * never be (a layer used before it was gathered, a sum begun before its gradients were there, more gathered than allowed) holds
 * in every step; what must be possible (an overlap) is seen again and again, since the system schedules threads as it likes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/embedded.h"
#include "tests/lib/timeline.h"

enum { WORKERS = 2, LAYERS = 4, STEPS = 8 };

static char folder[EMBEDDED_TEXT];

/* Layers whose compute takes milliseconds. */
static const char yaml[] = "seed: 7\nsteps: 8\nbatch_size: 256\nlog_every: 1\n"
                           "data: {kind: synthetic, samples: 512, features: 400, classes: 5, seed: 3}\n"
                           "model: {kind: mlp, hidden: [400, 400, 400]}\noptimizer: {kind: sgd, lr: 0.01}\n"
                           "parallel: {bucket_bytes: 1}\n";

static int open_folder(void **state)
{
    (void)state;
    embedded_folder_create(folder);
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    embedded_folder_remove(folder);
    return 0;
}

static void run(struct timeline *timeline, const char *mode, const char *set, const char *transport)
{
    struct embedded_order order = {.yaml = yaml, .workers = WORKERS, .folder = folder, .trace = 1};
    struct embedded_result result;
    embedded_set(&order, "parallel.data=%s", mode);
    embedded_set(&order, "parallel.transport=%s", transport);
    embedded_set(&order, "%s", set);
    embedded_run_well(&order, &result);
    timeline_read(timeline, result.trace_path);
    embedded_result_close(&result);
}

static const struct timeline_event *find(const struct timeline *timeline, int rank, int step, int layer,
                                         const char *name, int nth)
{
    struct timeline_event like = {.rank = rank, .step = step, .layer = layer};
    snprintf(like.name, sizeof like.name, "%s", name);
    const struct timeline_event *event = timeline_find(timeline, &like, nth);
    if (event == NULL)
        fail_msg("worker %d, step %d, layer %d: no \"%s\" number %d", rank, step, layer, name, nth);
    return event;
}

/* Counts how often `first` had begun before `second` was over. */
struct overlap {
    const char *what;
    int seen, of;
};

static void look(struct overlap *overlap, const struct timeline_event *first, const struct timeline_event *second)
{
    overlap->of++;
    overlap->seen += first->begin_us < second->end_us;
}

static void expect_often(const struct overlap *overlap)
{
    print_message("%s: %d of %d\n", overlap->what, overlap->seen, overlap->of);
    assert_true(8 * overlap->seen >= overlap->of); /* on a machine that does much else, too */
}

static void expect_before(const struct timeline_event *first, const struct timeline_event *second)
{
    if (first->end_us > second->begin_us)
        fail_msg("worker %d, step %d: %s of layer %d ends at %.3f, %s of layer %d begins at %.3f", first->rank,
                 first->step, first->name, first->layer, first->end_us, second->name, second->layer, second->begin_us);
}

/* --- gradients ------------------------------------------------------------------------------------------------- */

static void check_reduces(const struct timeline *timeline, const char *reduce)
{
    struct overlap overlap = {"reduce of layer m+1 under backward of layer m", 0, 0};
    for (int rank = 0; rank < WORKERS; rank++)
        for (int step = 1; step <= STEPS; step++)
            for (int layer = 0; layer < LAYERS; layer++) {
                const struct timeline_event *backward = find(timeline, rank, step, layer, "backward", 0);
                const struct timeline_event *sum = find(timeline, rank, step, layer, reduce, 0);
                assert_true(sum->beside && !backward->beside);
                expect_before(backward, sum);
                if (layer + 1 < LAYERS)
                    look(&overlap, find(timeline, rank, step, layer + 1, reduce, 0), backward);
            }
    expect_often(&overlap);
}

static void gradients_leave_during_backward(void **state)
{
    static const char *const modes[] = {"ddp", "zero1", "zero2", "zero3"};
    (void)state;
    for (int m = 0; m < 4; m++) {
        struct timeline timeline;
        run(&timeline, modes[m], "name=trace", m % 2 ? "tcp" : "auto");
        check_reduces(&timeline, "reduce");
        timeline_close(&timeline);
    }
}

static void eager_updates_follow_each_sum(void **state)
{
    struct timeline timeline;
    (void)state;
    for (int m = 0; m < 2; m++) {
        struct embedded_order order = {.yaml = yaml, .workers = WORKERS, .folder = folder, .trace = 1};
        struct embedded_result result;
        embedded_set(&order, "parallel.data=%s", m ? "zero3" : "zero1");
        embedded_set(&order, "parallel.update=eager");
        embedded_set(&order, "optimizer.nonfinite=stop");
        embedded_run_well(&order, &result);
        timeline_read(&timeline, result.trace_path);
        check_reduces(&timeline, "reduce, update");
        embedded_result_close(&result);
        timeline_close(&timeline);
    }
}

/* --- parameters ------------------------------------------------------------------------------------------------ */

/* Forward's gather of a layer is the first of its step, backward's the second. */
static void check_gathers(const struct timeline *timeline, struct overlap *forward, struct overlap *backward)
{
    for (int rank = 0; rank < WORKERS; rank++)
        for (int step = 1; step <= STEPS; step++)
            for (int layer = 0; layer < LAYERS; layer++) {
                const struct timeline_event *up = find(timeline, rank, step, layer, "forward", 0);
                const struct timeline_event *down = find(timeline, rank, step, layer, "backward", 0);
                expect_before(find(timeline, rank, step, layer, "gather", 0), up);
                expect_before(up, find(timeline, rank, step, layer, "gather", 1)); /* dropped in between */
                expect_before(find(timeline, rank, step, layer, "gather", 1), down);
                if (layer + 1 < LAYERS)
                    look(forward, find(timeline, rank, step, layer + 1, "gather", 0), up);
                if (layer > 0)
                    look(backward, find(timeline, rank, step, layer - 1, "gather", 1), down);
            }
}

/* With one layer ahead, the gather of layer m+2 waits until layer m is done with. */
static void check_two_at_once(const struct timeline *timeline)
{
    for (int rank = 0; rank < WORKERS; rank++)
        for (int step = 1; step <= STEPS; step++)
            for (int layer = 0; layer + 2 < LAYERS; layer++) {
                expect_before(find(timeline, rank, step, layer, "forward", 0),
                              find(timeline, rank, step, layer + 2, "gather", 0));
                expect_before(find(timeline, rank, step, layer + 2, "backward", 0),
                              find(timeline, rank, step, layer, "gather", 1));
            }
}

static void the_next_layer_is_gathered_while_this_one_computes(void **state)
{
    (void)state;
    for (int tcp = 0; tcp < 2; tcp++) {
        struct overlap forward = {"gather of layer m+1 under forward of layer m", 0, 0};
        struct overlap backward = {"gather of layer m-1 under backward of layer m", 0, 0};
        struct timeline timeline;
        run(&timeline, "zero3", "parallel.prefetch_layers=1", tcp ? "tcp" : "auto");
        check_gathers(&timeline, &forward, &backward);
        check_two_at_once(&timeline);
        expect_often(&forward);
        expect_often(&backward);
        timeline_close(&timeline);
    }
}

/* The other side of it: nothing ahead, no overlap, in any step. */
static void without_prefetch_nothing_is_gathered_ahead(void **state)
{
    struct overlap forward = {"gather of layer m+1 under forward of layer m", 0, 0};
    struct overlap backward = {"gather of layer m-1 under backward of layer m", 0, 0};
    struct timeline timeline;
    (void)state;
    run(&timeline, "zero3", "parallel.prefetch_layers=0", "auto");
    check_gathers(&timeline, &forward, &backward);
    assert_int_equal(forward.seen, 0);
    assert_int_equal(backward.seen, 0);
    timeline_close(&timeline);
}

/* The last layer goes from forward to backward without a second gather. */
static void a_kept_last_layer_is_gathered_once(void **state)
{
    struct timeline timeline;
    (void)state;
    run(&timeline, "zero3", "parallel.keep_last_layer=true", "auto");
    for (int rank = 0; rank < WORKERS; rank++)
        for (int step = 1; step <= STEPS; step++) {
            struct timeline_event like = {.rank = rank, .step = step, .layer = LAYERS - 1, .name = "gather"};
            assert_non_null(timeline_find(&timeline, &like, 0));
            assert_true(timeline_find(&timeline, &like, 1) == NULL || step == STEPS); /* the evaluation after it */
        }
    timeline_close(&timeline);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_leave_during_backward),
        cmocka_unit_test(eager_updates_follow_each_sum),
        cmocka_unit_test(the_next_layer_is_gathered_while_this_one_computes),
        cmocka_unit_test(without_prefetch_nothing_is_gathered_ahead),
        cmocka_unit_test(a_kept_last_layer_is_gathered_once),
    };

    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
