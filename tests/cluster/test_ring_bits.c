/* The rings end with the bits of the parameter server: at a given number of workers, placement and accumulate the exported
 * file does not depend on parallel.data, buckets, transport, who updates when, what is gathered ahead, or threads. */
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

enum { SETS = 6 };
struct variant {
    const char *mode;
    int threads, eager; /* eager: not where the whole gradient's norm is needed */
    const char *sets[SETS];
};
#define TCP "parallel.transport=tcp"
#define SHM "parallel.transport=shm"
#define EACH_LAYER "parallel.bucket_bytes=1"
#define SMALL "parallel.bucket_bytes=65536"
#define HUGE_BUCKET "parallel.bucket_bytes=1073741824"
#define EAGER "parallel.update=eager", "optimizer.nonfinite=stop"
/* The first CORE meet every kind of job, all of them every number of workers. */
enum { CORE = 8 };
static const struct variant variants[] = {
    {"ddp", 1, 0, {NULL}},
    {"zero1", 1, 0, {TCP, EACH_LAYER}},
    {"zero2", 2, 0, {SHM, SMALL}},
    {"zero3", 1, 0, {NULL}},
    {"ddp", 2, 0, {TCP, EACH_LAYER}},
    {"zero1", 1, 0, {SHM}},
    {"zero2", 1, 0, {TCP, HUGE_BUCKET}},
    {"zero3", 2, 0, {TCP, EACH_LAYER, "parallel.prefetch_layers=2", "parallel.keep_last_layer=true"}},
    {"ddp", 1, 0, {SHM, SMALL, "parallel.message_bytes=65536"}},
    {"zero1", 2, 0, {HUGE_BUCKET, "parallel.digest_every=1"}},
    {"zero2", 1, 0, {EACH_LAYER, "parallel.digest_every=1"}},
    {"zero3", 1, 0, {SHM, SMALL, "parallel.prefetch_layers=0"}},
    {"zero3", 1, 0, {TCP, "parallel.prefetch_layers=0", "parallel.keep_last_layer=true", "parallel.digest_every=1"}},
    {"zero3", 2, 0, {HUGE_BUCKET, "parallel.persistence_threshold=1000", "parallel.prefetch_layers=1024"}},
    {"zero3", 1, 0, {TCP, EACH_LAYER, "parallel.persistence_threshold=1000000"}}, /* nothing is ever dropped */
    {"ddp", 1, 1, {EAGER, TCP, EACH_LAYER}},
    {"ddp", 2, 1, {EAGER}},
    {"zero1", 1, 1, {EAGER, EACH_LAYER}},
    {"zero1", 1, 1, {EAGER, TCP}},
    {"zero2", 1, 1, {EAGER, SHM, EACH_LAYER}},
    {"zero2", 2, 1, {EAGER, TCP, HUGE_BUCKET}},
    {"zero3", 1, 1, {EAGER, EACH_LAYER, "parallel.prefetch_layers=0"}},
    {"zero3", 1, 1, {EAGER, TCP, SMALL, "parallel.persistence_threshold=1000"}},
    {"zero3", 1, 1, {EAGER, SHM, "parallel.keep_last_layer=true"}},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

/* What is run: the same job for every variant. extra: sets of the job itself, NULL-terminated. */
struct job_kind {
    int workers, accumulate;
    const char *const *extra;
};

static void run_order(struct embedded_order *order, const struct job_kind *kind, char sha256[EMBEDDED_SHA])
{
    struct embedded_result result;
    order->yaml = yaml;
    order->folder = folder;
    order->workers = kind->workers;
    for (int i = 0; kind->extra != NULL && kind->extra[i] != NULL; i++)
        embedded_set(order, "%s", kind->extra[i]);
    embedded_set(order, "accumulate=%d", kind->accumulate);
    embedded_run_well(order, &result);
    assert_int_equal(result.steps_count, 8);
    memcpy(sha256, result.sha256, EMBEDDED_SHA);
    embedded_result_close(&result);
}

static void by_servers(const struct job_kind *kind, int servers, char sha256[EMBEDDED_SHA])
{
    struct embedded_order order = {.servers = servers};
    run_order(&order, kind, sha256);
}

static int differs(const struct job_kind *kind, int v, const char *wanted)
{
    char sha256[EMBEDDED_SHA];
    struct embedded_order order = {.threads = variants[v].threads};
    embedded_set(&order, "parallel.data=%s", variants[v].mode);
    for (int i = 0; i < SETS && variants[v].sets[i] != NULL; i++)
        embedded_set(&order, "%s", variants[v].sets[i]);
    run_order(&order, kind, sha256);
    if (strcmp(sha256, wanted) == 0)
        return 0;
    print_error("%d workers, accumulate %d, %s: variant %d, %s %s, ends with %s, ps with %s\n", kind->workers,
                kind->accumulate, kind->extra == NULL ? "plain" : kind->extra[0], v, variants[v].mode,
                variants[v].sets[0] == NULL ? "" : variants[v].sets[0], sha256, wanted);
    return 1;
}

static void compare(const struct job_kind *kind, int variants_count)
{
    char wanted[EMBEDDED_SHA];
    int differing = 0;
    by_servers(kind, 1, wanted);
    for (int v = 0; v < variants_count; v++)
        differing += differs(kind, v, wanted);
    assert_int_equal(differing, 0);
}

static void all_variants(int workers)
{
    for (int accumulate = 1; accumulate <= 2; accumulate++) {
        struct job_kind kind = {workers, accumulate, NULL};
        compare(&kind, VARIANTS);
    }
}

static void same_bits_as_servers_on_1_worker(void **state)
{
    struct job_kind kind = {1, 1, NULL};
    (void)state;
    compare(&kind, VARIANTS);
    kind.accumulate = 2;
    compare(&kind, CORE);
}

static void same_bits_as_servers_on_2_workers(void **state)
{
    (void)state;
    all_variants(2);
}

static void same_bits_as_servers_on_3_workers(void **state)
{
    (void)state;
    all_variants(3);
}

static void same_bits_as_servers_on_4_workers(void **state)
{
    (void)state;
    all_variants(4);
}

/* The servers of one number of workers: test_bits has the smaller ones. */
static void same_bits_as_servers_on_5_workers(void **state)
{
    char first[EMBEDDED_SHA], sha256[EMBEDDED_SHA];
    struct job_kind kind = {5, 2, NULL};
    (void)state;
    by_servers(&kind, 1, first);
    for (int servers = 2; servers <= 3; servers++) {
        by_servers(&kind, servers, sha256);
        assert_string_equal(sha256, first);
    }
    all_variants(5);
}

static void same_bits_with_whole_layers_in_turn(void **state)
{
    static const char *const layer[] = {"parallel.placement=layer", NULL};
    static const struct job_kind kinds[] = {{2, 1, layer}, {3, 1, layer}, {4, 2, layer}, {5, 1, layer}};
    (void)state;
    for (int i = 0; i < 4; i++)
        compare(&kinds[i], i == 3 ? VARIANTS : CORE);
}

static void same_bits_with_clipping(void **state)
{
    static const char *const clip[] = {"optimizer.clip_norm=0.05", NULL};
    static const char *const layer[] = {"optimizer.clip_norm=0.05", "parallel.placement=layer", NULL};
    static const struct job_kind kinds[] = {{2, 1, clip}, {3, 2, clip}, {4, 1, clip}, {5, 2, clip}, {3, 1, layer}};
    (void)state;
    for (int i = 0; i < 5; i++)
        compare(&kinds[i], CORE);
}

static void same_bits_with_statistics_of_all_workers(void **state)
{
    static const char *const global[] = {"parallel.batch_norm_stats=global", "optimizer.kind=adamw",
                                         "optimizer.no_decay=[\"*.bias\", \"*.norm.*\"]", NULL};
    static const struct job_kind kinds[] = {{3, 1, global}, {4, 2, global}};
    (void)state;
    for (int i = 0; i < 2; i++)
        compare(&kinds[i], CORE);
}

/* A whole layer, and some tensors of others. */
static void same_bits_with_frozen_layers_and_tensors(void **state)
{
    static const char *const first[] = {"optimizer.freeze=[\"layers.0.*\", \"head.bias\"]", "optimizer.kind=sgd",
                                        "optimizer.momentum=0.9", "optimizer.nesterov=true", NULL};
    static const char *const inner[] = {"optimizer.freeze=[\"layers.1.*\", \"layers.0.linear.weight\"]", NULL};
    static const char *const last[] = {"optimizer.freeze=[\"head.*\", \"layers.0.norm.weight\", \"layers.1.linear.bias\"]",
                                       "parallel.placement=layer", NULL};
    static const struct job_kind kinds[] = {{3, 1, first}, {4, 2, first}, {3, 2, inner}, {5, 1, inner}, {3, 1, last}};
    (void)state;
    for (int i = 0; i < 5; i++)
        compare(&kinds[i], CORE);
    compare(&kinds[2], VARIANTS);
}

/* lamb's trust ratios are norms of whole tensors, which several ranks hold. */
static void same_bits_with_every_optimizer(void **state)
{
    static const char *const lamb[] = {"optimizer.kind=lamb", NULL};
    static const char *const clipped[] = {"optimizer.kind=lamb", "optimizer.clip_norm=0.05", NULL};
    static const char *const plain[] = {"optimizer.kind=sgd", NULL};
    static const char *const momentum[] = {"optimizer.kind=sgd", "optimizer.momentum=0.9", NULL};
    static const char *const adagrad[] = {"optimizer.kind=adagrad", "optimizer.lr=0.02", NULL};
    static const char *const ftrl[] = {"optimizer.kind=ftrl", "optimizer.l1=0.001", "optimizer.l2=0.01", NULL};
    static const char *const adamw[] = {"optimizer.kind=adamw", "optimizer.weight_decay=0.1", NULL};
    static const struct job_kind kinds[] = {{3, 1, lamb},    {2, 2, clipped}, {5, 1, lamb}, {4, 1, plain},
                                            {3, 2, momentum}, {2, 1, adagrad}, {5, 1, ftrl}, {4, 2, adamw}};
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        compare(&kinds[i], CORE);
}

/* Layers with fewer elements than ranks times the part's grain: some ranks own nothing of them. */
static void same_bits_where_the_world_divides_nothing(void **state)
{
    static const char *const tiny[] = {"model.hidden=[7, 3]", "data.features=5", NULL};
    static const char *const layer[] = {"model.hidden=[7, 3]", "data.features=5", "parallel.placement=layer", NULL};
    static const char *const linear[] = {"model.kind=linear", "data.features=3", NULL};
    static const struct job_kind kinds[] = {{5, 1, tiny}, {8, 1, tiny}, {8, 2, tiny}, {7, 1, layer}};
    (void)state;
    for (int i = 0; i < 4; i++)
        compare(&kinds[i], i == 0 || i == 3 ? VARIANTS : CORE);
    snprintf(yaml, sizeof yaml,
             "seed: 7\nsteps: 8\nbatch_size: 24\nlog_every: 1\n"
             "data: {kind: synthetic, samples: 100, features: 150, classes: 5, seed: 3}\n"
             "model: {kind: linear}\noptimizer: {kind: adam, lr: 0.01}\n");
    struct job_kind kind = {8, 1, linear};
    compare(&kind, CORE);
    cluster_jobs_mlp(yaml, sizeof yaml);
}

/* The last batch of every epoch has fewer rows than there are workers. */
static void same_bits_with_empty_shares(void **state)
{
    static const char *const short_epoch[] = {"data.samples=26", "data.order=shuffled", NULL};
    static const char *const idle[] = {"data.samples=26", "parallel.batch_norm_stats=global", NULL};
    static const struct job_kind kinds[] = {{5, 1, short_epoch}, {3, 2, short_epoch}, {4, 1, idle}};
    (void)state;
    for (int i = 0; i < 3; i++)
        compare(&kinds[i], CORE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_as_servers_on_1_worker),
        cmocka_unit_test(same_bits_as_servers_on_2_workers),
        cmocka_unit_test(same_bits_as_servers_on_3_workers),
        cmocka_unit_test(same_bits_as_servers_on_4_workers),
        cmocka_unit_test(same_bits_as_servers_on_5_workers),
        cmocka_unit_test(same_bits_with_whole_layers_in_turn),
        cmocka_unit_test(same_bits_with_clipping),
        cmocka_unit_test(same_bits_with_statistics_of_all_workers),
        cmocka_unit_test(same_bits_with_frozen_layers_and_tensors),
        cmocka_unit_test(same_bits_with_every_optimizer),
        cmocka_unit_test(same_bits_where_the_world_divides_nothing),
        cmocka_unit_test(same_bits_with_empty_shares),
    };

    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
