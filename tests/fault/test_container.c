/* O01: daemons as process 1 of a PID namespace each, as containers start them, directly and through a shell script.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/fault/fault_job.h"
#include "tests/lib/marked.h"

static const double stop_s = 5;
static const char *const directly[] = {"unshare", "--pid", "--fork", "--mount-proc", "--kill-child=KILL", NULL};
/* The script leaves an orphan behind that ends only after the daemon has taken the script's place. */
static const char *const by_script[] = {
    "unshare", "--pid", "--fork", "--mount-proc", "--kill-child=KILL", "sh", "-c", "(sleep 3 &); exec \"$@\"",
    "start",   NULL};

static char folder[MARKED_PATH], sha[FAULT_SHA];
static struct marked_set *set;
static struct fault_run run;

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

/* Where namespaces are not allowed there is nothing to test. */
static void need_namespaces(void)
{
    struct marked *process =
        marked_start(set, "may", (const char *[]){"unshare", "--pid", "--fork", "--mount-proc", "true", NULL});
    if (marked_wait(process, fault_deadline_s) != 0)
        skip();
}

struct wanted {
    const char *program, *word, *next;
    pid_t pid;
};

static int is_there(void *context)
{
    struct wanted *wanted = context;
    wanted->pid = marked_set_find(set, wanted->program, wanted->word, wanted->next);
    return wanted->pid != 0;
}

/* The daemon behind `unshare`, by its number outside. */
static pid_t find(const char *program, const char *word, const char *next)
{
    struct wanted wanted = {program, word, next, 0};
    if (!marked_until(is_there, &wanted, 30))
        fail_msg("no %s %s", program, word);
    return wanted.pid;
}

/* Its number inside is 1: the last of NSpid. */
static void expect_process_1(pid_t pid)
{
    char path[64], line[256] = "";
    int last = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file) && strncmp(line, "NSpid:", 6) != 0) {
    }
    if (file)
        fclose(file);
    const char *at = strrchr(line, '\t');
    if (at)
        sscanf(at, "%d", &last);
    assert_int_equal(last, 1);
}

static void expect_stop(struct marked *outer, pid_t pid, int number)
{
    double began = marked_now_s();
    kill(pid, number);
    int code = marked_wait(outer, fault_deadline_s);
    double seconds = marked_now_s() - began;
    if (code != 128 + number || seconds > stop_s)
        fault_fail(outer, "ended with %d after %.1f s, expected %d within %.0f s", code, seconds, 128 + number,
                   stop_s);
}

static void start_cluster(struct fault_daemons *daemons, const char *const *prefix, int steps, int every)
{
    run = (struct fault_run){.name = "run", .workers = 2, .servers = 2, .steps = steps, .every = every};
    fault_daemons_plan(daemons, set, folder, &run);
    daemons->prefix = prefix;
    fault_daemons_start(daemons);
}

static void wait_step(const struct fault_daemons *daemons, int step)
{
    if (!fault_wait_step(folder, "run", step, fault_deadline_s))
        fault_fail(daemons->coordinator, "step %d never came", step);
}

/* Every process is number 1 on the same host: they are told apart all the same. */
static void O01_a_cluster_of_processes_1_trains_exactly(void **state)
{
    struct fault_daemons daemons;
    struct marked *process;
    char found[FAULT_SHA];
    (void)state;
    need_namespaces();
    fault_reference(set, folder, 2, 2, sha);
    start_cluster(&daemons, directly, 0, 0);
    for (int i = 0; (process = fault_daemon_at(&daemons, i)) != NULL; i++) {
        int code = marked_wait(process, fault_deadline_s);
        if (code != 0)
            fault_fail(process, "daemon %d ended with %d", i, code);
    }
    fault_sha(folder, "run", found);
    assert_string_equal(found, sha);
}

static void a_worker_then_a_server(const char *const *prefix, int number)
{
    struct fault_daemons daemons;
    struct marked *process;
    need_namespaces();
    start_cluster(&daemons, prefix, 1000000, 0);
    wait_step(&daemons, 3);
    pid_t worker = find("shoal-worker", "--rank", "1");
    expect_process_1(worker);
    expect_stop(daemons.worker[1], worker, number);
    for (int i = 0; (process = fault_daemon_at(&daemons, i)) != NULL; i++) {
        if (marked_wait(process, 10) < 0)
            fault_fail(process, "it stays when a worker was stopped");
    }
    close_all(NULL);
    open_all(NULL);
    start_cluster(&daemons, prefix, 1000000, 0);
    wait_step(&daemons, 3);
    expect_stop(daemons.server[1], find("shoal-server", "--rank", "1"), number);
}

static void O01_sigterm_started_directly(void **state)
{
    (void)state;
    a_worker_then_a_server(directly, SIGTERM);
}

static void O01_sigint_started_by_a_script(void **state)
{
    (void)state;
    a_worker_then_a_server(by_script, SIGINT);
}

static void O01_sigterm_during_a_save_leaves_a_snapshot_that_loads(void **state)
{
    struct fault_daemons daemons;
    (void)state;
    need_namespaces();
    start_cluster(&daemons, by_script, 1000000, 1);
    wait_step(&daemons, 5);
    expect_stop(daemons.coordinator, find("shoal-server", "--coordinator", NULL), SIGTERM);
    assert_int_equal(marked_set_wait_none(set, 10), 0);
    struct fault_run after = {
        .name = "after", .workers = 2, .servers = 2, .steps = 1000000, .every = 1, .resume = 1};
    struct marked *launcher = fault_start(set, folder, &after);
    if (!fault_wait_step(folder, "after", 1, fault_deadline_s))
        fault_fail(launcher, "the last snapshot does not load");
    expect_stop(launcher, marked_pid(launcher), SIGTERM);
}

/* Of the orphans that the script left: one that runs, none that waits to be reaped. */
static int has_no_children(void *context)
{
    const pid_t *pid = context;
    char path[96], text[64] = "";
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)*pid, (int)*pid);
    FILE *file = fopen(path, "r");
    size_t got = file ? fread(text, 1, sizeof text - 1, file) : 1;
    if (file)
        fclose(file);
    return got == 0;
}

static void O01_orphans_are_reaped(void **state)
{
    char cluster[64];
    const char *argv[32];
    int count = 0;
    (void)state;
    need_namespaces();
    snprintf(cluster, sizeof cluster, "tcp://127.0.0.1:%d", marked_free_port());
    for (; by_script[count]; count++)
        argv[count] = by_script[count];
    const char *const rest[] = {SHOAL_BINARY_DIR "/bin/shoal-worker", "--cluster", cluster, NULL};
    for (int i = 0; i < 4; i++)
        argv[count + i] = rest[i];
    struct marked *outer = marked_start(set, "alone", argv);
    pid_t pid = find("shoal-worker", "--cluster", cluster), orphan = find("sleep", "3", NULL);
    expect_process_1(pid);
    assert_true(orphan > 0);
    if (!marked_until(has_no_children, &pid, 30))
        fault_fail(outer, "an orphan was not reaped");
    expect_stop(outer, pid, SIGTERM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(O01_a_cluster_of_processes_1_trains_exactly, open_all, close_all),
        cmocka_unit_test_setup_teardown(O01_sigterm_started_directly, open_all, close_all),
        cmocka_unit_test_setup_teardown(O01_sigint_started_by_a_script, open_all, close_all),
        cmocka_unit_test_setup_teardown(O01_sigterm_during_a_save_leaves_a_snapshot_that_loads, open_all,
                                        close_all),
        cmocka_unit_test_setup_teardown(O01_orphans_are_reaped, open_all, close_all),
    };
    return cmocka_run_group_tests_name("O01", tests, NULL, NULL);
}
