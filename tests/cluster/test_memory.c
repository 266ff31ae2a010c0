/* Resident memory does not grow over 10,000 steps: the resident pages of a whole cluster in this process are sampled while
 * it runs, and a late stretch is compared with an early one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>
#include <pthread.h>

#include "base/account.h"
#include "base/host.h"
#include "tests/cases/cluster_jobs.h"
#include "tests/lib/embedded.h"

enum { SAMPLES_MAX = 1 << 16, STEPS = 10000 };
static const int64_t GROWTH_MAX = 1 << 20; /* bytes; 10,000 steps that lose 200 bytes each would show */

struct sampler {
    _Atomic int over;
    int count;
    int64_t rss[SAMPLES_MAX];
};

static void *sample(void *argument)
{
    struct sampler *sampler = argument;
    const struct timespec pause = {.tv_nsec = 5 * 1000 * 1000};
    while (!sampler->over && sampler->count < SAMPLES_MAX) {
        sampler->rss[sampler->count++] = host_rss_bytes();
        nanosleep(&pause, NULL);
    }
    return NULL;
}

static int64_t largest(const struct sampler *sampler, double from, double to)
{
    int64_t most = 0;
    for (int i = (int)(from * sampler->count); i < (int)(to * sampler->count); i++) {
        most = sampler->rss[i] > most ? sampler->rss[i] : most;
    }
    return most;
}

static void resident_memory_does_not_grow_over_10000_steps(void **state)
{
    (void)state;
    static char folder[EMBEDDED_TEXT], yaml[2048];
    struct embedded_result result;
    pthread_t thread;
    memory_keep_heap();
    embedded_folder_create(folder);
    cluster_jobs_mlp(yaml, sizeof yaml);
    struct embedded_order order = {.yaml = yaml, .workers = 2, .servers = 2, .folder = folder, .seconds = 200};
    embedded_set(&order, "steps=%d", STEPS);
    embedded_set(&order, "log_every=%d", STEPS);
    struct sampler *sampler = calloc(1, sizeof *sampler);
    assert_non_null(sampler);
    assert_int_equal(pthread_create(&thread, NULL, sample, sampler), 0);
    embedded_run_well(&order, &result);
    sampler->over = 1;
    pthread_join(thread, NULL);
    int64_t early = largest(sampler, 0.3, 0.4);
    int64_t late = largest(sampler, 0.8, 0.9);
    print_message("%d samples: %lld bytes early, %lld late\n", sampler->count, (long long)early, (long long)late);
    assert_true(late - early <= GROWTH_MAX);
    assert_int_equal(result.steps_count, STEPS);
    embedded_result_close(&result);
    embedded_folder_remove(folder);
    free(sampler);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(resident_memory_does_not_grow_over_10000_steps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
