#include "base/cores.h"
#include "base/pool.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

struct counts {
    struct pool *pool;
    int64_t count;
    int *hits;
};

static void hit(void *context, int64_t i)
{
    ((struct counts *)context)->hits[i]++; /* plain: TSan sees an index given out twice */
}

static void check_once_each(struct pool *pool, int64_t count)
{
    struct counts counts = {pool, count, calloc((size_t)count + 1, sizeof(int))};
    assert_non_null(counts.hits);
    pool_for(pool, count, hit, &counts);
    for (int64_t i = 0; i < count; i++)
        assert_int_equal(counts.hits[i], 1);
    free(counts.hits);
}

static void for_runs_every_index_once(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 4; threads++) {
        struct pool *pool = pool_create(threads, threads % 2);
        assert_non_null(pool);
        assert_int_equal(pool_threads(pool), threads);
        const int64_t counts[] = {0, 1, 2, 3, 5, 64, 1000, 10007};
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            check_once_each(pool, counts[c]);
        pool_destroy(pool);
    }
    check_once_each(NULL, 10);
}

/* Short jobs one after the other: a helper that comes late must never run an index of the wrong job. */
static void for_survives_many_short_jobs(void **state)
{
    (void)state;
    struct pool *pool = pool_create(3, 0);
    assert_non_null(pool);
    for (int round = 0; round < 3000; round++) {
        int hits[4] = {0};
        struct counts counts = {pool, 4, hits};
        int64_t count = 2 + round % 3;
        pool_for(pool, count, hit, &counts);
        for (int64_t i = 0; i < 4; i++)
            assert_int_equal(hits[i], i < count);
    }
    pool_destroy(pool);
}

struct nested {
    struct pool *pool;
    int64_t inner[8];
};

static void add_one(void *context, int64_t i)
{
    (void)i;
    ++*(int64_t *)context;
}

static void run_nested(void *context, int64_t i)
{
    struct nested *nested = context;
    pool_for(nested->pool, 100, add_one, &nested->inner[i]); /* inline, so the plain ++ is safe */
}

static void nested_for_runs_inline(void **state)
{
    (void)state;
    struct nested nested = {pool_create(3, 0), {0}};
    assert_non_null(nested.pool);
    pool_for(nested.pool, 8, run_nested, &nested);
    for (int i = 0; i < 8; i++)
        assert_int_equal(nested.inner[i], 100);
    pool_destroy(nested.pool);
}

static void *call_for(void *argument)
{
    struct counts *counts = argument;
    for (int round = 0; round < 200; round++)
        pool_for(counts->pool, counts->count, hit, counts);
    return NULL;
}

static void for_may_be_called_by_several_threads(void **state)
{
    (void)state;
    struct pool *pool = pool_create(2, 1);
    pthread_t threads[3];
    struct counts counts[3];
    for (int t = 0; t < 3; t++) {
        counts[t] = (struct counts){pool, 50, calloc(50, sizeof(int))};
        assert_int_equal(pthread_create(&threads[t], NULL, call_for, &counts[t]), 0);
    }
    for (int t = 0; t < 3; t++) {
        pthread_join(threads[t], NULL);
        for (int i = 0; i < 50; i++)
            assert_int_equal(counts[t].hits[i], 200);
        free(counts[t].hits);
    }
    pool_destroy(pool);
}

struct counted_task {
    struct pool_task task;
    atomic_int *done;
    pthread_t thread;
    unsigned mxcsr;
};

static void run_counted(struct pool_task *task)
{
    struct counted_task *counted = (struct counted_task *)task;
    counted->thread = pthread_self();
#if defined(__x86_64__)
    counted->mxcsr = _mm_getcsr();
#else
    counted->mxcsr = 0x1F80;
#endif
    atomic_fetch_add(counted->done, 1);
}

static void check_tasks(int threads, int background, int elsewhere)
{
    enum { TASKS = 100 };
    struct pool *pool = pool_create(threads, background);
    assert_non_null(pool);
    atomic_int done = 0;
    struct counted_task *tasks = calloc(TASKS, sizeof *tasks);
    for (int i = 0; i < TASKS; i++) {
        tasks[i].task.run = run_counted;
        tasks[i].done = &done;
        pool_submit(pool, &tasks[i].task);
    }
    pool_destroy(pool);
    assert_int_equal(atomic_load(&done), TASKS);
    for (int i = 0; i < TASKS; i++) {
        assert_int_equal(!pthread_equal(tasks[i].thread, pthread_self()), elsewhere);
        if (elsewhere)
            assert_int_equal(tasks[i].mxcsr & 0xFFC0u, 0x1F80u);
    }
    free(tasks);
}

static void submitted_tasks_run_before_destroy_returns(void **state)
{
    (void)state;
    check_tasks(1, 0, 0); /* no thread at all: inline */
    check_tasks(1, 1, 1);
    check_tasks(3, 2, 1);
    check_tasks(3, 0, 1); /* on the helpers of pool_for */
}

/* A task blocks until a pool_for of the submitting thread is over: tasks must not hold up pool_for. */
static void wait_for_flag(struct pool_task *task)
{
    struct counted_task *counted = (struct counted_task *)task;
    while (!atomic_load(counted->done))
        sched_yield();
}

static void for_does_not_wait_for_tasks(void **state)
{
    (void)state;
    for (int background = 0; background < 2; background++) {
        struct pool *pool = pool_create(2, background);
        atomic_int done = 0;
        struct counted_task blocked = {.task = {.run = wait_for_flag}, .done = &done};
        pool_submit(pool, &blocked.task);
        check_once_each(pool, 100);
        atomic_store(&done, 1);
        pool_destroy(pool);
    }
}

static void destroy_takes_null(void **state)
{
    (void)state;
    pool_destroy(NULL);
}

static void write_text(const char *folder, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

struct groups {
    char root[64], cgroup[128], mounts[128];
};

/* root/slice/job with the given quota files. */
static void groups_make(struct groups *groups)
{
    snprintf(groups->root, sizeof groups->root, "/tmp/shoal-cores-XXXXXX");
    assert_non_null(mkdtemp(groups->root));
    char path[128];
    snprintf(path, sizeof path, "%s/a b", groups->root);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/a b/job", groups->root);
    mkdir(path, 0700);
    snprintf(groups->cgroup, sizeof groups->cgroup, "%s/cgroup", groups->root);
    snprintf(groups->mounts, sizeof groups->mounts, "%s/mounts", groups->root);
}

static void groups_remove(struct groups *groups)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", groups->root);
    assert_int_equal(system(command), 0);
}

static int groups_cores(struct groups *groups, const char *cgroup, const char *mount_root, const char *type)
{
    char line[512];
    write_text(groups->root, "cgroup", cgroup);
    snprintf(line, sizeof line,
             "22 1 8:1 / / rw - ext4 /dev/root rw\nbroken line\n31 30 0:28 %s %s/a\\040b rw shared:9 - %s\n",
             mount_root, groups->root, type);
    write_text(groups->root, "mounts", line);
    return cores_by_cgroup(groups->cgroup, groups->mounts);
}

static void quota_of_version_2_is_rounded_up_and_the_smallest_above_counts(void **state)
{
    (void)state;
    struct groups groups;
    groups_make(&groups);
    const char *own = "0::/job\n", *type = "cgroup2 cgroup2 rw";
    assert_int_equal(groups_cores(&groups, own, "/", type), 0);
    write_text(groups.root, "a b/job/cpu.max", "max 100000\n");
    assert_int_equal(groups_cores(&groups, own, "/", type), 0);
    write_text(groups.root, "a b/job/cpu.max", "250000 100000\n");
    assert_int_equal(groups_cores(&groups, own, "/", type), 3);
    write_text(groups.root, "a b/cpu.max", "150000 100000\n");
    assert_int_equal(groups_cores(&groups, own, "/", type), 2);
    write_text(groups.root, "a b/cpu.max", "900000 100000\n");
    assert_int_equal(groups_cores(&groups, own, "/", type), 3);
    /* Seen from a container whose mount shows its own group as the root. */
    assert_int_equal(groups_cores(&groups, "0::/docker/job\n", "/docker", type), 3);
    assert_int_equal(groups_cores(&groups, "0::/../other\n", "/", type), 9);
    assert_int_equal(groups_cores(&groups, "0::/elsewhere\n", "/docker", type), 9);
    write_text(groups.root, "a b/job/cpu.max", "rubbish");
    assert_int_equal(groups_cores(&groups, own, "/", type), 9);
    groups_remove(&groups);
}

static void quota_of_version_1_is_read_from_the_cpu_hierarchy_alone(void **state)
{
    (void)state;
    struct groups groups;
    groups_make(&groups);
    const char *own = "4:memory:/other\n3:cpuset:/x\n2:cpu,cpuacct:/job\n0::/\n";
    write_text(groups.root, "a b/job/cpu.cfs_quota_us", "-1\n");
    write_text(groups.root, "a b/job/cpu.cfs_period_us", "100000\n");
    assert_int_equal(groups_cores(&groups, own, "/", "cgroup cgroup rw,cpu,cpuacct"), 0);
    write_text(groups.root, "a b/job/cpu.cfs_quota_us", "100001\n");
    assert_int_equal(groups_cores(&groups, own, "/", "cgroup cgroup rw,cpu,cpuacct"), 2);
    assert_int_equal(groups_cores(&groups, own, "/", "cgroup cgroup rw,cpuset"), 0);
    write_text(groups.root, "a b/job/cpu.cfs_period_us", "0\n");
    assert_int_equal(groups_cores(&groups, own, "/", "cgroup cgroup rw,cpu"), 0);
    groups_remove(&groups);
    assert_int_equal(cores_by_cgroup("/nonexistent/cgroup", "/nonexistent/mounts"), 0);
}

static void available_cores_are_at_least_one(void **state)
{
    (void)state;
    assert_true(pool_available_cores() >= 1);
    assert_true(pool_available_cores() <= cores_by_affinity());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(for_runs_every_index_once),
        cmocka_unit_test(for_survives_many_short_jobs),
        cmocka_unit_test(nested_for_runs_inline),
        cmocka_unit_test(for_may_be_called_by_several_threads),
        cmocka_unit_test(submitted_tasks_run_before_destroy_returns),
        cmocka_unit_test(for_does_not_wait_for_tasks),
        cmocka_unit_test(destroy_takes_null),
        cmocka_unit_test(quota_of_version_2_is_rounded_up_and_the_smallest_above_counts),
        cmocka_unit_test(quota_of_version_1_is_read_from_the_cpu_hierarchy_alone),
        cmocka_unit_test(available_cores_are_at_least_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
