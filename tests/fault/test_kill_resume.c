/* A process of `shoal run` is killed at a moment picked by a seed: everything ends, one line says who died, nothing
 * is left; resumed, also after a second kill in the resumed run, the export has the bits of a run that nobody
 * disturbed. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "tests/fault/fault_job.h"
#include "tests/lib/marked.h"

static char folder[MARKED_PATH];
static struct marked_set *set;

static int open_all(void **state)
{
    (void)state;
    marked_folder_create(folder);
    set = marked_set_create(folder);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    marked_set_destroy(set);
    marked_folder_remove(folder);
    return 0;
}

static int pick(uint64_t seed, uint64_t index, int count)
{
    return (int)(rng_uniform(seed, 1, 0, index) * (float)count);
}

/* What is left when a launcher or one of its children was killed. */
static void check_end(struct marked *launcher, struct fault_who who, pid_t pid)
{
    char name[32], line[80];
    int code = marked_wait(launcher, fault_deadline_s);
    int left = marked_set_wait_none(set, who.role == FAULT_LAUNCHER ? 15 : 1);
    fault_who_text(who, name);
    snprintf(line, sizeof line, "%s (pid %d) was killed by signal 9", name, (int)pid);
    if (left != 0)
        fault_fail(launcher, "%d processes are left after the kill of %s", left, name);
    if (who.role == FAULT_LAUNCHER) {
        assert_int_equal(code, 128 + SIGKILL);
        return;
    }
    if (code != 1)
        fault_fail(launcher, "exit code %d after the kill of %s", code, name);
    if (!marked_said(launcher, line))
        fault_fail(launcher, "nobody said \"%s\"", line);
}

/* Kills `who` when the run's metrics file has `step` lines. Whether it was still training. */
static void run_and_kill(const struct fault_run *run, struct fault_who who, int step)
{
    struct marked *launcher = fault_start(set, folder, run);
    if (!fault_wait_step(folder, run->name, step, fault_deadline_s))
        fault_fail(launcher, "step %d never came", step);
    pid_t pid = fault_find(set, launcher, who, 0);
    if (pid == 0)
        fault_fail(launcher, "nobody to kill");
    kill(pid, SIGKILL);
    check_end(launcher, who, pid);
}

/* mode: "parallel.data=zero1"; NULL: two servers. */
static void killed_and_resumed(uint64_t seed, int workers, struct fault_who who, const char *mode, const char *sha)
{
    char name[32], found[FAULT_SHA];
    /* Every so often enough that the second run has steps to die in, and after the first snapshot. */
    int every = 2 + pick(seed, 0, 4), first = every + 1 + pick(seed, 1, 12), again = pick(seed, 2, 2);
    struct fault_run run = {.name = "first", .workers = workers, .servers = mode ? 0 : 2, .every = every,
                            .sets = {mode}};
    fault_who_text(who, name);
    print_message("seed %llu: %d workers, %s, %s killed after step %d, snapshots every %d%s\n",
                  (unsigned long long)seed, workers, mode ? mode : "two servers", name, first, every,
                  again ? ", and a second kill" : "");
    run_and_kill(&run, who, first);
    run.resume = 1;
    if (again) {
        struct fault_who other = {.role = mode ? FAULT_WORKER : FAULT_SERVER + pick(seed, 3, 2), .rank = 0};
        run.name = "second";
        run_and_kill(&run, other, 2 + pick(seed, 4, 6));
    }
    run.name = "third";
    struct marked *launcher = fault_start(set, folder, &run);
    int code = marked_wait(launcher, fault_deadline_s);
    if (code != 0)
        fault_fail(launcher, "the resumed run ended with code %d", code);
    fault_sha(folder, "third", found);
    if (strcmp(found, sha) != 0)
        fault_fail(launcher, "seed %llu: found %s, undisturbed %s", (unsigned long long)seed, found, sha);
    assert_int_equal(marked_set_wait_none(set, 1), 0);
}

/* A fresh set and folder: the next case must not find the snapshots of this one. */
static void start_over(void)
{
    close_all(NULL);
    open_all(NULL);
}

static void all_roles(int workers)
{
    const struct fault_who who[] = {{FAULT_SERVER, 0},
                                    {FAULT_SERVER, 1},
                                    {FAULT_WORKER, workers - 1},
                                    {FAULT_COORDINATOR, 0},
                                    {FAULT_LAUNCHER, 0}};
    char sha[FAULT_SHA];
    fault_reference(set, folder, workers, 2, sha);
    for (size_t i = 0; i < sizeof who / sizeof *who; i++) {
        start_over();
        killed_and_resumed((uint64_t)workers * 100 + i, workers, who[i], NULL, sha);
    }
}

/* Peers are each other's memory: whoever dies, the others end, and a ring resumed has the bits of servers that nobody
 * disturbed. */
static void in_a_ring(void **state)
{
    static const struct {
        const char *mode;
        struct fault_who who;
    } runs[] = {{"parallel.data=ddp", {FAULT_WORKER, 0}},        {"parallel.data=zero1", {FAULT_WORKER, 1}},
                {"parallel.data=zero2", {FAULT_WORKER, 2}},      {"parallel.data=zero3", {FAULT_WORKER, 0}},
                {"parallel.data=zero3", {FAULT_COORDINATOR, 0}}, {"parallel.data=zero2", {FAULT_LAUNCHER, 0}}};
    char sha[FAULT_SHA];
    (void)state;
    fault_reference(set, folder, 3, 2, sha);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        start_over();
        killed_and_resumed(700 + i, 3, runs[i].who, runs[i].mode, sha);
    }
}

static void with_one_worker(void **state)
{
    (void)state;
    all_roles(1);
}

static void with_two_workers(void **state)
{
    (void)state;
    all_roles(2);
}

static void with_three_workers(void **state)
{
    (void)state;
    all_roles(3);
}

static void with_four_workers(void **state)
{
    (void)state;
    all_roles(4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(with_one_worker, open_all, close_all),
        cmocka_unit_test_setup_teardown(with_two_workers, open_all, close_all),
        cmocka_unit_test_setup_teardown(with_three_workers, open_all, close_all),
        cmocka_unit_test_setup_teardown(with_four_workers, open_all, close_all),
        cmocka_unit_test_setup_teardown(in_a_ring, open_all, close_all),
    };
    return cmocka_run_group_tests_name("killed and resumed ends with the bits of an undisturbed run", tests, NULL,
                                       NULL);
}
