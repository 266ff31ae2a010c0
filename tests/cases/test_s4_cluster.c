/* S4's MLP on whole clusters in every mode, and N08: one group of rows however many workers share it, two groups where statistics are
 * local; running statistics are the same on every rank and however the batch was cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/cases/cluster_jobs.h"
#include "tests/lib/embedded.h"

static const double one_group[] = {1.35170542, 1.03980600, 0.94268818, 0.90801141, 0.88816974, 0.87346283};
static const double two_groups[] = {1.26440728, 1.09052493, 1.03827491, 1.01679071, 1.00512505, 0.99718267};

static char folder[EMBEDDED_TEXT], yaml[2048], init[EMBEDDED_TEXT + 32];

static int open_folder(void **state)
{
    (void)state;
    embedded_folder_create(folder);
    cluster_jobs_s4(folder, yaml, sizeof yaml, init, sizeof init);
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    embedded_folder_remove(folder);
    return 0;
}

/* Six steps, so that the sixth step's loss is that after five. */
static void losses(struct embedded_order *order, const double wanted[6])
{
    struct embedded_result result;
    char what[128];
    embedded_set(order, "steps=6");
    embedded_run_well(order, &result);
    for (int i = 0; i < 6; i++) {
        snprintf(what, sizeof what, "%d workers, loss before step %d", order->workers, i + 1);
        embedded_near(what, result.steps[i].loss, wanted[i], 1e-6);
    }
    embedded_result_close(&result);
}

static void after_five_steps(struct embedded_order *order)
{
    struct embedded_result result;
    float mean[8], var[8];
    static const double wanted_mean[] = {1.42963619, 1.57778752, 1.70689080};
    static const double wanted_var[] = {0.98826975, 0.97075853, 0.94571872};
    embedded_run_well(order, &result);
    embedded_near("evaluation loss", embedded_last(&result)->loss, 2.10394141, 1e-6);
    assert_int_equal(embedded_right(&result, 150), 50);
    embedded_tensor(&result, "layers.0.norm.running_mean", mean, 8);
    embedded_tensor(&result, "layers.0.norm.running_var", var, 8);
    for (int i = 0; i < 3; i++) {
        embedded_near("running mean", mean[i], wanted_mean[i], 1e-6);
        embedded_near("running variance", var[i], wanted_var[i], 1e-6);
    }
    embedded_result_close(&result);
}

static void S4_one_group_on_any_number_of_workers(void **state)
{
    (void)state;
    for (int w = 0; w < CLUSTER_WAYS; w++)
        for (int workers = 1; workers <= 4; workers++) {
            struct embedded_order order = {.yaml = yaml, .workers = workers, .folder = folder, .init = init};
            cluster_jobs_way(&order, &cluster_ways[w]);
            embedded_set(&order, "parallel.batch_norm_stats=global");
            struct embedded_order longer = order;
            losses(&longer, one_group);
            after_five_steps(&order);
        }
}

static void S4_one_group_after_fifty_steps(void **state)
{
    (void)state;
    for (int w = 0; w < CLUSTER_WAYS; w++) {
        struct embedded_order order = {.yaml = yaml, .workers = 1 + w % 4, .folder = folder, .init = init};
        struct embedded_result result;
        cluster_jobs_way(&order, &cluster_ways[w]);
        embedded_set(&order, "parallel.batch_norm_stats=global");
        embedded_set(&order, "steps=51");
        embedded_run_well(&order, &result);
        embedded_near("training loss after 50 steps", result.steps[50].loss, 0.64185083, 1e-5);
        embedded_result_close(&result);
        embedded_set(&order, "steps=50");
        embedded_run_well(&order, &result);
        embedded_near("evaluation loss after 50 steps", embedded_last(&result)->loss, 0.64080364, 1e-5);
        embedded_near("right after 50 steps", (double)embedded_right(&result, 150), 114, 1);
        embedded_result_close(&result);
    }
}

static void S4_two_groups_on_two_workers(void **state)
{
    (void)state;
    for (int w = 0; w < CLUSTER_WAYS; w++) {
        struct embedded_order order = {.yaml = yaml, .workers = 2, .folder = folder, .init = init};
        cluster_jobs_way(&order, &cluster_ways[w]);
        losses(&order, two_groups);
    }
}

static void S4_two_groups_by_accumulation(void **state)
{
    (void)state;
    for (int w = 0; w < CLUSTER_WAYS; w++) {
        struct embedded_order order = {.yaml = yaml, .workers = 1, .folder = folder, .init = init};
        cluster_jobs_way(&order, &cluster_ways[w]);
        embedded_set(&order, "accumulate=2");
        losses(&order, two_groups);
    }
}

/* Groups of the same rows: the same statistics, whether ranks or micro-batches made them. Frozen weights, so that the
 * statistics of every step rest on the same numbers; the first layer's, so that they do not depend on the groups. */
static void running_statistics(const struct cluster_way *way, int workers, int accumulate, float values[16])
{
    struct embedded_order order = {.yaml = yaml, .workers = workers, .folder = folder, .init = init};
    struct embedded_result result;
    cluster_jobs_way(&order, way);
    embedded_set(&order, "accumulate=%d", accumulate);
    embedded_set(&order, "optimizer.freeze=[\"layers.*\"]");
    embedded_set(&order, "parallel.batch_norm_stats=%s", (workers + accumulate) % 2 ? "global" : "local");
    embedded_run_well(&order, &result);
    embedded_tensor(&result, "layers.0.norm.running_mean", values, 8);
    embedded_tensor(&result, "layers.0.norm.running_var", values + 8, 8);
    embedded_result_close(&result);
}

static void N08_running_statistics_are_those_of_the_whole_batch(void **state)
{
    float first[16], other[16];
    (void)state;
    running_statistics(&cluster_ways[0], 1, 1, first);
    for (int w = 0; w < CLUSTER_WAYS; w++)
        for (int accumulate = 1; accumulate <= 3; accumulate++)
            for (int workers = 1; workers <= 4; workers++) {
                if (w > 0 && w < CLUSTER_RINGS)
                    continue; /* the coordinator merges for any number of servers */
                running_statistics(&cluster_ways[w], workers, accumulate, other);
                for (int i = 0; i < 16; i++)
                    embedded_near(cluster_ways[w].mode, other[i], first[i], 2e-6);
            }
}

/* Column 1,2,3,4 through a layer that passes it on: mean 2.5, unbiased variance 5/3, momentum 0.1. */
static void N08_a_column_of_four(void **state)
{
    static const char text[] = "steps: 1\nbatch_size: 4\n"
                               "data: {kind: csv, train: {file: column.csv}, order: sequential}\n"
                               "model: {kind: mlp, hidden: [1], batch_norm: true, loss: mse}\n"
                               "optimizer: {kind: sgd, lr: 0.1, freeze: [\"layers.0.linear.*\"]}\n";
    (void)state;
    cluster_jobs_write(folder, "column.csv", "1,0\n2,0\n3,0\n4,0\n");
    for (int i = 0; i < 3 * CLUSTER_WAYS; i++) { /* one batch, two micro-batches, two workers */
        int cut = i % 3;
        struct embedded_order order = {.yaml = text, .workers = cut == 2 ? 2 : 1, .folder = folder};
        struct embedded_result result;
        float weight, bias, mean, var;
        cluster_jobs_way(&order, &cluster_ways[i / 3]);
        embedded_set(&order, "accumulate=%d", cut == 1 ? 2 : 1);
        embedded_run_well(&order, &result);
        embedded_tensor(&result, "layers.0.linear.weight", &weight, 1);
        embedded_tensor(&result, "layers.0.linear.bias", &bias, 1);
        embedded_tensor(&result, "layers.0.norm.running_mean", &mean, 1);
        embedded_tensor(&result, "layers.0.norm.running_var", &var, 1);
        embedded_near("running mean", mean, 0.1 * (2.5 * (double)weight + (double)bias), 1e-6);
        embedded_near("running variance", var, 0.9 + 0.1 * 5 / 3 * (double)weight * (double)weight, 1e-6);
        embedded_result_close(&result);
    }
}

/* Every rank evaluates with the same statistics: the counts do not depend on who evaluates which block. */
static void N08_every_worker_evaluates_alike(void **state)
{
    double loss = 0;
    (void)state;
    for (int i = 0; i < 4 * CLUSTER_WAYS; i++) {
        int workers = 1 + i / CLUSTER_WAYS;
        struct embedded_order order = {.yaml = yaml, .workers = workers, .folder = folder, .init = init};
        struct embedded_result result;
        cluster_jobs_way(&order, &cluster_ways[i % CLUSTER_WAYS]);
        embedded_set(&order, "optimizer.freeze=[\"*\"]");
        embedded_run(&order, &result);
        if (result.coordinator != 0) { /* nothing to train may be refused, but then for everyone and in words */
            assert_true(result.why[0] != '\0');
            embedded_result_close(&result);
            continue;
        }
        if (i == 0)
            loss = embedded_last(&result)->loss;
        embedded_near("evaluation loss", embedded_last(&result)->loss, loss, 2e-6);
        embedded_result_close(&result);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(S4_one_group_on_any_number_of_workers),
        cmocka_unit_test(S4_one_group_after_fifty_steps),
        cmocka_unit_test(S4_two_groups_on_two_workers),
        cmocka_unit_test(S4_two_groups_by_accumulation),
        cmocka_unit_test(N08_running_statistics_are_those_of_the_whole_batch),
        cmocka_unit_test(N08_a_column_of_four),
        cmocka_unit_test(N08_every_worker_evaluates_alike),
    };

    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
