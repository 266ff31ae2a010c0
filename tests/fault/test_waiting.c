/* F03: not everybody came, or somebody stalls: who is missing is said, and it ends by policy or goes on exactly. And F02 for
 * peers. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/fault/fault_job.h"
#include "tests/lib/forwarder.h"
#include "tests/lib/marked.h"

static char folder[MARKED_PATH], sha[FAULT_SHA];
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

struct saying {
    struct marked *process;
    const char *text;
    int times;
};

static int has_said(void *context)
{
    const struct saying *saying = context;
    int count = 0;
    for (const char *at = marked_text(saying->process); (at = strstr(at, saying->text)) != NULL; at++)
        count++;
    return count >= saying->times;
}

static void wait_said(struct marked *process, const char *text, int times)
{
    struct saying saying = {process, text, times};
    if (!marked_until(has_said, &saying, fault_deadline_s))
        fault_fail(process, "\"%s\" was not said %d times", text, times);
}

/* Every daemon that was started but `except` ends with 1 and this text, its own or the coordinator's. */
static void expect_all_say(const struct fault_daemons *daemons, const struct marked *except, const char *text)
{
    struct marked *process;
    for (int i = 0; i < 1 + daemons->servers + daemons->workers; i++) {
        process = fault_daemon_at(daemons, i);
        if (!process || process == except)
            continue;
        int code = marked_wait(process, fault_deadline_s);
        if (code != 1 || !marked_said(process, text))
            fault_fail(process, "daemon %d ended with %d, expected 1 and \"%s\"", i, code, text);
    }
}

static void expect_exact(const struct fault_daemons *daemons)
{
    struct marked *process;
    char found[FAULT_SHA];
    for (int i = 0; (process = fault_daemon_at(daemons, i)) != NULL; i++) {
        int code = marked_wait(process, fault_deadline_s);
        if (code != 0)
            fault_fail(process, "daemon %d ended with %d", i, code);
    }
    fault_sha(folder, daemons->run->name, found);
    assert_string_equal(found, sha);
}

static void F03_three_workers_declared_and_two_started(void **state)
{
    (void)state;
    const struct fault_run run = {.name = "run",
                                  .workers = 3,
                                  .servers = 1,
                                  .sets = {"cluster.timeouts.start=6", "cluster.timeouts.stall_report=1"}};
    struct fault_daemons daemons;
    fault_daemons_plan(&daemons, set, folder, &run);
    fault_daemons_coordinate(&daemons);
    fault_daemons_serve(&daemons, 0);
    fault_daemons_work(&daemons, 0);
    fault_daemons_work(&daemons, 2);
    wait_said(daemons.coordinator, "waiting for workers 1 for", 2);
    expect_all_say(&daemons, NULL, "waiting for workers 1: not there within 6 s");
    assert_int_equal(marked_set_wait_none(set, 2), 0);
}

static void F03_workers_before_servers_before_the_coordinator(void **state)
{
    (void)state;
    const struct fault_run run = {
        .name = "run", .workers = 2, .servers = 2, .sets = {"cluster.timeouts.stall_report=1"}};
    struct fault_daemons daemons;
    fault_reference(set, folder, 2, 2, sha);
    fault_daemons_plan(&daemons, set, folder, &run);
    fault_daemons_work(&daemons, 0);
    fault_daemons_work(&daemons, 1);
    fault_daemons_coordinate(&daemons);
    wait_said(daemons.coordinator, "waiting for servers 0, 1", 1);
    fault_daemons_serve(&daemons, 1);
    fault_daemons_serve(&daemons, 0);
    expect_exact(&daemons);
}

static void F03_three_peers_declared_and_two_started(void **state)
{
    (void)state;
    const struct fault_run run = {
        .name = "run",
        .workers = 3,
        .sets = {"cluster.timeouts.start=6", "cluster.timeouts.stall_report=1", "parallel.data=zero1"}};
    struct fault_daemons daemons;
    fault_daemons_plan(&daemons, set, folder, &run);
    fault_daemons_coordinate(&daemons);
    fault_daemons_work(&daemons, 0);
    fault_daemons_work(&daemons, 2);
    wait_said(daemons.coordinator, "waiting for workers 1 for", 2);
    expect_all_say(&daemons, NULL, "waiting for workers 1: not there within 6 s");
    assert_int_equal(marked_set_wait_none(set, 2), 0);
}

/* The paused one is named, apart from those that only cannot go on without it. ring: "parallel.data=ddp"; NULL: servers. */
static void paused_until_said(enum fault_role role, const char *ring, const char *transport)
{
    const struct fault_run run = {.name = "run", .workers = 2, .servers = ring ? 0 : 2,
                                  .sets = {"cluster.timeouts.stall_report=1", ring ? ring : "seed=5", transport}};
    struct fault_daemons daemons;
    fault_reference(set, folder, 2, 2, sha);
    fault_daemons_plan(&daemons, set, folder, &run);
    fault_daemons_start(&daemons);
    if (!fault_wait_step(folder, "run", 5, fault_deadline_s))
        fault_fail(daemons.coordinator, "step 5 never came");
    pid_t pid = marked_pid(role == FAULT_WORKER ? daemons.worker[1] : daemons.server[1]);
    kill(pid, SIGSTOP);
    wait_said(daemons.coordinator,
              role == FAULT_WORKER ? "nothing heard from workers 1" : "nothing heard from servers 1", 1);
    kill(pid, SIGCONT);
    expect_exact(&daemons);
}

static void F03_a_paused_worker_is_named_and_goes_on_exactly(void **state)
{
    (void)state;
    paused_until_said(FAULT_WORKER, NULL, NULL);
}

static void F03_a_paused_peer_is_named_and_goes_on_exactly(void **state)
{
    (void)state;
    paused_until_said(FAULT_WORKER, "parallel.data=zero2", "parallel.transport=shm");
    close_all(NULL);
    open_all(NULL);
    paused_until_said(FAULT_WORKER, "parallel.data=ddp", "parallel.transport=tcp");
}

static void F03_a_paused_server_is_named_and_goes_on_exactly(void **state)
{
    (void)state;
    paused_until_said(FAULT_SERVER, NULL, NULL);
}

static void F03_an_abandoned_worker_ends_the_job_on_every_rank(void **state)
{
    (void)state;
    const struct fault_run run = {
        .name = "run",
        .workers = 3,
        .servers = 2,
        .steps = 1000000,
        .sets = {"cluster.timeouts.worker_dead=3", "cluster.timeouts.coordinator_dead=8"}};
    struct fault_daemons daemons;
    fault_daemons_plan(&daemons, set, folder, &run);
    fault_daemons_start(&daemons);
    if (!fault_wait_step(folder, "run", 5, fault_deadline_s))
        fault_fail(daemons.coordinator, "step 5 never came");
    kill(marked_pid(daemons.worker[2]), SIGSTOP);
    expect_all_say(&daemons, daemons.worker[2], "worker 2 (pid ");
    kill(marked_pid(daemons.worker[2]), SIGCONT);
    int code = marked_wait(daemons.worker[2], fault_deadline_s);
    if (code != 1)
        fault_fail(daemons.worker[2], "it woke up, nobody is there any more, and it ended with %d", code);
}

/* Stopped for good, or killed: the peers that wait in a collective end by policy, with the one that is missing. */
static void peer_leaves(int number, const char *ring, const char *transport)
{
    const struct fault_run run = {.name = "run",
                                  .workers = 3,
                                  .steps = 1000000,
                                  .sets = {"cluster.timeouts.worker_dead=3", "cluster.timeouts.coordinator_dead=8", ring,
                                           transport}};
    struct fault_daemons daemons;
    fault_daemons_plan(&daemons, set, folder, &run);
    fault_daemons_start(&daemons);
    if (!fault_wait_step(folder, "run", 5, fault_deadline_s))
        fault_fail(daemons.coordinator, "step 5 never came");
    kill(marked_pid(daemons.worker[1]), number);
    expect_all_say(&daemons, daemons.worker[1], "worker 1 (pid ");
    if (number == SIGSTOP)
        kill(marked_pid(daemons.worker[1]), SIGCONT);
    int code = marked_wait(daemons.worker[1], fault_deadline_s);
    if (code != (number == SIGSTOP ? 1 : 128 + SIGKILL))
        fault_fail(daemons.worker[1], "the peer that left ended with %d", code);
    assert_int_equal(marked_set_wait_none(set, 2), 0);
}

static void F03_an_abandoned_peer_ends_the_job_on_every_rank(void **state)
{
    (void)state;
    peer_leaves(SIGSTOP, "parallel.data=zero3", "parallel.transport=shm");
    close_all(NULL);
    open_all(NULL);
    peer_leaves(SIGSTOP, "parallel.data=zero1", "parallel.transport=tcp");
}

static void F02_a_killed_peer_ends_the_job_on_every_rank(void **state)
{
    (void)state;
    peer_leaves(SIGKILL, "parallel.data=zero2", "parallel.transport=shm");
    close_all(NULL);
    open_all(NULL);
    peer_leaves(SIGKILL, "parallel.data=ddp", "parallel.transport=tcp");
}

/* The coordinator hears the server all the time: only the workers can tell. */
static void F03_a_server_that_no_worker_reaches_ends_the_job_on_every_rank(void **state)
{
    (void)state;
    const struct fault_run run = {.name = "run",
                                  .workers = 2,
                                  .servers = 2,
                                  .steps = 1000000,
                                  .sets = {"cluster.timeouts.server_dead=3"}};
    struct fault_daemons daemons;
    fault_daemons_plan(&daemons, set, folder, &run);
    struct forwarder *forwarder = forwarder_open(daemons.server_port[1]);
    daemons.via_server[1] = forwarder_port(forwarder);
    fault_daemons_start(&daemons);
    if (!fault_wait_step(folder, "run", 5, fault_deadline_s))
        fault_fail(daemons.coordinator, "step 5 never came");
    forwarder_close(forwarder);
    expect_all_say(&daemons, NULL, "cannot be reached for 3 s");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(F03_three_workers_declared_and_two_started, open_all, close_all),
        cmocka_unit_test_setup_teardown(F03_workers_before_servers_before_the_coordinator, open_all, close_all),
        cmocka_unit_test_setup_teardown(F03_a_paused_worker_is_named_and_goes_on_exactly, open_all, close_all),
        cmocka_unit_test_setup_teardown(F03_a_paused_server_is_named_and_goes_on_exactly, open_all, close_all),
        cmocka_unit_test_setup_teardown(F03_three_peers_declared_and_two_started, open_all, close_all),
        cmocka_unit_test_setup_teardown(F03_a_paused_peer_is_named_and_goes_on_exactly, open_all, close_all),
        cmocka_unit_test_setup_teardown(F03_an_abandoned_peer_ends_the_job_on_every_rank, open_all, close_all),
        cmocka_unit_test_setup_teardown(F02_a_killed_peer_ends_the_job_on_every_rank, open_all, close_all),
        cmocka_unit_test_setup_teardown(F03_an_abandoned_worker_ends_the_job_on_every_rank, open_all, close_all),
        cmocka_unit_test_setup_teardown(F03_a_server_that_no_worker_reaches_ends_the_job_on_every_rank, open_all, close_all),
    };
    return cmocka_run_group_tests_name("F03", tests, NULL, NULL);
}
