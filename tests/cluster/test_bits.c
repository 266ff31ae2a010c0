/* The same bits: at a given number of workers and accumulate, the exported file does not depend on servers, threads, who
 * updates, when, or how the exchange is cut up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/cases/cluster_jobs.h"
#include "tests/lib/embedded.h"

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

struct variant {
    int servers, threads;
    const char *sets[3];
    int sockets; /* tcp loopback, or memory shared as between processes */
};
static const struct variant variants[] = {
    {1, 1, {NULL}, 0}, /* twice over */
    {2, 1, {NULL}, 0},
    {3, 2, {NULL}, 0},
    {1, 2, {"parallel.update=eager", "optimizer.nonfinite=stop"}, 0},
    {3, 1, {"parallel.update=eager", "optimizer.nonfinite=stop"}, 0},
    {2, 1, {"parallel.update_at=worker"}, 0},
    {1, 1, {"parallel.bucket_bytes=65536", "parallel.message_bytes=65536", "parallel.credit_bytes=65536"}, 0},
    {3, 1, {"parallel.bucket_bytes=100000", "parallel.message_bytes=131072", "parallel.credit_bytes=200000"}, 0},
    {2, 2, {"parallel.bucket_bytes=1073741824", "parallel.message_bytes=16777216"}, 0},
    {2, 1, {"parallel.update_at=worker", "parallel.bucket_bytes=65536", "parallel.message_bytes=65536"}, 0},
    {2, 1, {"parallel.transport=shm", "parallel.message_bytes=65536"}, 1},
    {1, 2, {"parallel.transport=tcp"}, 1},
};

static void run_one(const struct variant *variant, int workers, int accumulate, const char *const *extra,
                    char sha256[EMBEDDED_SHA])
{
    struct embedded_order order = {.yaml = yaml, .workers = workers, .servers = variant->servers,
                                   .threads = variant->threads, .folder = folder, .sockets = variant->sockets};
    struct embedded_result result;
    for (int i = 0; i < 3 && variant->sets[i] != NULL; i++)
        embedded_set(&order, "%s", variant->sets[i]);
    for (int i = 0; extra != NULL && extra[i] != NULL; i++)
        embedded_set(&order, "%s", extra[i]);
    embedded_set(&order, "accumulate=%d", accumulate);
    embedded_run_well(&order, &result);
    assert_int_equal(result.steps_count, 8);
    memcpy(sha256, result.sha256, EMBEDDED_SHA);
    embedded_result_close(&result);
}

static int is_eager(const struct variant *variant)
{
    return variant->sets[0] != NULL && strstr(variant->sets[0], "eager") != NULL;
}

/* extra: sets of the job itself, NULL-terminated. */
static void all_variants(int workers, int accumulate, const char *const *extra, int eager)
{
    char first[EMBEDDED_SHA], sha256[EMBEDDED_SHA];
    run_one(&variants[0], workers, accumulate, extra, first);
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        if (!eager && is_eager(&variants[i]))
            continue;
        run_one(&variants[i], workers, accumulate, extra, sha256);
        if (strcmp(sha256, first) != 0)
            fail_msg("%d workers, accumulate %d: variant %zu ends with %s, not %s", workers, accumulate, i, sha256,
                     first);
    }
}

static void same_bits_on_1_worker(void **state)
{
    (void)state;
    all_variants(1, 1, NULL, 1);
    all_variants(1, 2, NULL, 1);
}

static void same_bits_on_2_workers(void **state)
{
    (void)state;
    all_variants(2, 1, NULL, 1);
    all_variants(2, 2, NULL, 1);
}

static void same_bits_on_3_workers(void **state)
{
    (void)state;
    all_variants(3, 1, NULL, 1);
    all_variants(3, 2, NULL, 1);
}

static void same_bits_on_4_workers(void **state)
{
    (void)state;
    all_variants(4, 1, NULL, 1);
}

static void same_bits_with_whole_layers_in_turn(void **state)
{
    static const char *const layer[] = {"parallel.placement=layer", NULL};
    (void)state;
    all_variants(3, 1, layer, 1);
    all_variants(4, 2, layer, 1);
}

/* Another owner, another order of the sums. */
static void placement_changes_the_bits_of_3_workers_and_not_of_2(void **state)
{
    static const char *const layer[] = {"parallel.placement=layer", NULL};
    char by_part[EMBEDDED_SHA], by_layer[EMBEDDED_SHA];
    (void)state;
    run_one(&variants[1], 3, 1, NULL, by_part);
    run_one(&variants[1], 3, 1, layer, by_layer);
    assert_string_not_equal(by_part, by_layer);
    run_one(&variants[1], 2, 1, NULL, by_part);
    run_one(&variants[1], 2, 1, layer, by_layer);
    assert_string_equal(by_part, by_layer);
}

static void same_bits_with_clipping(void **state)
{
    static const char *const clip[] = {"optimizer.clip_norm=0.05", NULL};
    (void)state;
    all_variants(1, 1, clip, 0);
    all_variants(3, 2, clip, 0);
}

static void same_bits_with_statistics_of_all_workers(void **state)
{
    static const char *const global[] = {"parallel.batch_norm_stats=global", "optimizer.kind=adamw",
                                         "optimizer.no_decay=[\"*.bias\", \"*.norm.*\"]", NULL};
    (void)state;
    all_variants(3, 1, global, 1);
}

static void same_bits_with_frozen_layers_and_momentum(void **state)
{
    static const char *const frozen[] = {"optimizer.freeze=[\"layers.0.*\", \"head.bias\"]", "optimizer.kind=sgd",
                                         "optimizer.momentum=0.9", "optimizer.nesterov=true", NULL};
    (void)state;
    all_variants(3, 1, frozen, 1);
}

/* Its trust ratios are norms of whole tensors, which several servers hold. */
static void same_bits_with_lamb(void **state)
{
    static const char *const lamb[] = {"optimizer.kind=lamb", NULL};
    static const char *const clipped[] = {"optimizer.kind=lamb", "optimizer.clip_norm=0.05", NULL};
    (void)state;
    all_variants(3, 1, lamb, 0);
    all_variants(2, 2, clipped, 0);
}

static void clipping_changes_the_bits(void **state)
{
    static const char *const clip[] = {"optimizer.clip_norm=0.05", "optimizer.kind=sgd", NULL};
    static const char *const plain[] = {"optimizer.kind=sgd", NULL};
    char with[EMBEDDED_SHA], without[EMBEDDED_SHA];
    (void)state;
    run_one(&variants[0], 2, 1, clip, with);
    run_one(&variants[0], 2, 1, plain, without);
    assert_string_not_equal(with, without);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_on_1_worker),
        cmocka_unit_test(same_bits_on_2_workers),
        cmocka_unit_test(same_bits_on_3_workers),
        cmocka_unit_test(same_bits_on_4_workers),
        cmocka_unit_test(same_bits_with_whole_layers_in_turn),
        cmocka_unit_test(placement_changes_the_bits_of_3_workers_and_not_of_2),
        cmocka_unit_test(same_bits_with_clipping),
        cmocka_unit_test(same_bits_with_statistics_of_all_workers),
        cmocka_unit_test(same_bits_with_frozen_layers_and_momentum),
        cmocka_unit_test(same_bits_with_lamb),
        cmocka_unit_test(clipping_changes_the_bits),
    };

    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
