/* S1 on whole clusters (N01): every optimizer's losses and weights in every mode, for any number of workers and servers, with
 * and without accumulation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/cases/cluster_jobs.h"
#include "tests/lib/embedded.h"

struct s1_row {
    const char *name, *sets[6];
    double losses[6];
};
static const struct s1_row rows[] = {
    {"sgd", {"optimizer.kind=sgd", "optimizer.lr=0.5"},
     {0.69314718, 0.22782775, 0.16158376, 0.12855686, 0.10778109, 0.09321433}},
    {"momentum", {"optimizer.kind=sgd", "optimizer.lr=0.1", "optimizer.momentum=0.9"},
     {0.69314718, 0.55533153, 0.37480350, 0.23412646, 0.14851036, 0.09938100}},
    {"nesterov", {"optimizer.kind=sgd", "optimizer.lr=0.1", "optimizer.momentum=0.9", "optimizer.nesterov=true"},
     {0.69314718, 0.45280575, 0.28091844, 0.18061816, 0.12298119, 0.08795678}},
    {"adam", {"optimizer.kind=adam", "optimizer.lr=0.1"},
     {0.69314718, 0.48921513, 0.34355258, 0.24489119, 0.17865177, 0.13341953}},
    {"adamw, all", {"optimizer.kind=adamw", "optimizer.lr=0.1", "optimizer.weight_decay=0.1"},
     {0.69314718, 0.48921513, 0.34475574, 0.24737860, 0.18212680, 0.13758160}},
    {"adamw, weights only",
     {"optimizer.kind=adamw", "optimizer.lr=0.1", "optimizer.weight_decay=0.1", "optimizer.no_decay=[\"*.bias\"]"},
     {0.69314718, 0.48921513, 0.34475574, 0.24735098, 0.18205841, 0.13746860}},
    {"adamw, eps 0.1",
     {"optimizer.kind=adamw", "optimizer.lr=0.1", "optimizer.weight_decay=0.1", "optimizer.eps=0.1"},
     {0.69314718, 0.51409376, 0.38503184, 0.29464246, 0.23164081, 0.18704885}},
    {"ftrl", {"optimizer.kind=ftrl", "optimizer.lr=0.5", "optimizer.l1=0.05", "optimizer.l2=0.1", "optimizer.beta=1"},
     {0.69314718, 0.37917223, 0.26888646, 0.21498441, 0.18126772, 0.15782644}},
    {"adam, L2", {"optimizer.kind=adam", "optimizer.lr=0.1", "optimizer.weight_decay=0.1"},
     {0.69314718, 0.48921513, 0.34384628, 0.24589684, 0.18092811, 0.13767893}},
    {"adagrad", {"optimizer.kind=adagrad", "optimizer.lr=0.1"},
     {0.69314718, 0.48921513, 0.39441256, 0.33691576, 0.29719848, 0.26763472}},
};

static char folder[EMBEDDED_TEXT], yaml[2048];

static int open_folder(void **state)
{
    (void)state;
    embedded_folder_create(folder);
    cluster_jobs_s1(folder, yaml, sizeof yaml);
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    embedded_folder_remove(folder);
    return 0;
}

/* Whatever the mode, they agree with those of the row's first run. */
static void check_weights(const struct s1_row *row, const struct embedded_result *result)
{
    static const struct s1_row *seen;
    static float first[6];
    float weights[6];
    embedded_tensor(result, "head.weight", weights, 4);
    embedded_tensor(result, "head.bias", weights + 4, 2);
    if (seen != row)
        memcpy(first, weights, sizeof first);
    seen = row;
    for (int i = 0; i < 6; i++)
        embedded_near(row->name, weights[i], first[i], 1e-6);
}

static void run_row(const struct s1_row *row, int workers, const struct cluster_way *way, int accumulate)
{
    struct embedded_order order = {.yaml = yaml, .workers = workers, .folder = folder};
    struct embedded_result result;
    char what[128];
    cluster_jobs_way(&order, way);
    for (int i = 0; row->sets[i] != NULL; i++)
        embedded_set(&order, "%s", row->sets[i]);
    embedded_set(&order, "accumulate=%d", accumulate);
    embedded_run_well(&order, &result);
    assert_int_equal(result.steps_count, 5);
    for (int i = 0; i <= 5; i++) {
        snprintf(what, sizeof what, "%s, %s, %d workers, %d servers, accumulate %d, loss %d", row->name, way->mode,
                 workers, way->servers, accumulate, i);
        embedded_near(what, i < 5 ? result.steps[i].loss : embedded_last(&result)->loss, row->losses[i], 1e-6);
    }
    check_weights(row, &result);
    embedded_result_close(&result);
}

/* In every mode, and accumulation where four rows allow it. */
static void S1_every_optimizer_row(int workers)
{
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (int w = 0; w < CLUSTER_WAYS; w++)
            for (int accumulate = 1; accumulate <= 2 && workers * accumulate <= 4; accumulate++)
                run_row(&rows[r], workers, &cluster_ways[w], accumulate);
}

static void S1_every_optimizer_row_by_four_micro_steps(void **state)
{
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r += 3)
        for (int w = 0; w < CLUSTER_WAYS; w++)
            run_row(&rows[r], 1, &cluster_ways[w], 4);
}

static void S1_every_optimizer_row_on_1_worker(void **state)
{
    (void)state;
    S1_every_optimizer_row(1);
}

static void S1_every_optimizer_row_on_2_workers(void **state)
{
    (void)state;
    S1_every_optimizer_row(2);
}

static void S1_every_optimizer_row_on_4_workers(void **state)
{
    (void)state;
    S1_every_optimizer_row(4);
}

static void weights_after_five_steps(const struct cluster_way *way)
{
    struct embedded_order order = {.yaml = yaml, .workers = 3, .folder = folder};
    struct embedded_result result;
    float weight[4], bias[2];
    cluster_jobs_way(&order, way);
    embedded_set(&order, "optimizer.kind=sgd");
    embedded_set(&order, "optimizer.lr=0.5");
    embedded_run_well(&order, &result);
    embedded_tensor(&result, "head.weight", weight, 4);
    embedded_tensor(&result, "head.bias", bias, 2);
    embedded_near("weight 0,0", weight[0], 0.72243870, 1e-6);
    embedded_near("weight 0,1", weight[1], 0.32851786, 1e-6);
    embedded_near("weight 1,0", weight[2], -0.72243870, 1e-6);
    embedded_near("weight 1,1", weight[3], -0.32851786, 1e-6);
    embedded_near("bias 0", bias[0], -0.08907066, 1e-6);
    embedded_near("bias 1", bias[1], 0.08907066, 1e-6);
    embedded_result_close(&result);
}

static void S1_weights_after_five_steps(void **state)
{
    (void)state;
    for (int w = 0; w < CLUSTER_WAYS; w++)
        weights_after_five_steps(&cluster_ways[w]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(S1_every_optimizer_row_on_1_worker),
        cmocka_unit_test(S1_every_optimizer_row_on_2_workers),
        cmocka_unit_test(S1_every_optimizer_row_on_4_workers),
        cmocka_unit_test(S1_every_optimizer_row_by_four_micro_steps),
        cmocka_unit_test(S1_weights_after_five_steps),
    };

    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
