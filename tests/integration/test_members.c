/* Cases F01 (one rank twice, one worker too many), F04 (ports) and F05 (names) with real processes. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <sys/socket.h>

#include "tests/integration/cluster.h"
#include "tests/lib/island.h"

/* The cases ask for 5 and 2 s on a machine that is not loaded. */
enum { SOON_S = 20 };

static int alone = 1; /* in a network of our own */

static void need_island(void)
{
    if (!alone)
        skip();
}

static void coordinate_s1(struct cluster *cluster, const char *more)
{
    char arguments[4096];
    snprintf(arguments, sizeof arguments, "--once --job %s --metrics %s %s", cluster->job, cluster->metrics, more);
    cluster_coordinate(cluster, arguments);
}

static void F01_a_second_worker_of_a_rank_is_told_who_has_it_and_the_first_goes_on(void **state)
{
    (void)state;
    struct cluster cluster;
    char holder[64];
    cluster_open(&cluster, 2, 1, 5, "");
    coordinate_s1(&cluster, "");
    cluster_work(&cluster, 1, "--once --rank 1");
    process_until(&cluster.coordinator, "joined worker=1");
    cluster_work(&cluster, 2, "--once --rank 1");
    process_expect(&cluster.worker[2], 1, SOON_S);
    snprintf(holder, sizeof holder, "rank 1 is taken by pid %d on ", (int)cluster.worker[1].pid);
    process_expect_said(&cluster.worker[2], holder);
    cluster_work(&cluster, 0, "--once --rank 0");
    cluster_serve(&cluster, 0, "--once");
    cluster_expect(&cluster, 1, 2, 0);
    cluster_expect_s1(&cluster, 1);
    cluster_close(&cluster);
}

static void F01_a_third_worker_where_two_are_declared_is_refused(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, 2, 1, 5, "");
    coordinate_s1(&cluster, "");
    cluster_work(&cluster, 0, "--once");
    cluster_work(&cluster, 1, "--once");
    process_until(&cluster.coordinator, "joined worker=0");
    process_until(&cluster.coordinator, "joined worker=1");
    cluster_work(&cluster, 2, "--once");
    process_expect(&cluster.worker[2], 1, SOON_S);
    process_expect_said(&cluster.worker[2], "all 2 workers are in: one more than cluster.workers says");
    cluster_work(&cluster, 2, "--once --rank 2");
    process_wait(&cluster.worker[2], SOON_S);
    assert_int_not_equal(cluster.worker[2].code, 0);
    process_expect_said(&cluster.worker[2], "rank 2 is out of range: the job has 2 (cluster.workers)");
    cluster_serve(&cluster, 0, "--once");
    cluster_expect(&cluster, 1, 2, 0);
    cluster_expect_s1(&cluster, 1);
    cluster_close(&cluster);
}

/* --- F04 ---------------------------------------------------------------------------------------------------- */

/* Takes a port of loopback; its descriptor. */
static int take_port(int *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

static void expect_port_taken(struct process *process, int port)
{
    char text[64];
    process_start(process);
    process_expect(process, 1, SOON_S);
    snprintf(text, sizeof text, "127.0.0.1:%d: Address already in use", port);
    process_expect_said(process, text);
    process_forget(process);
}

static void F04_a_port_that_is_taken_is_named_at_once(void **state)
{
    (void)state;
    struct process process;
    int port, fd = take_port(&port);
    process_init(&process, "shoal-server");
    process_add(&process, "--coordinator --listen tcp://127.0.0.1:%d", port);
    expect_port_taken(&process, port);
    process_init(&process, "shoal-server");
    process_add(&process, "--cluster tcp://127.0.0.1:9 --listen tcp://127.0.0.1:%d", port);
    expect_port_taken(&process, port);
    close(fd);
}

static void F04_the_second_of_two_servers_on_one_port_is_refused_and_the_first_goes_on(void **state)
{
    (void)state;
    struct cluster cluster;
    char arguments[160], address[128];
    cluster_open(&cluster, 1, 1, 5, "");
    coordinate_s1(&cluster, "");
    cluster_serve(&cluster, 0, "--once");
    process_until(&cluster.coordinator, "joined server=0");
    cluster_server_address(&cluster, 0, "", address);
    snprintf(arguments, sizeof arguments, "--once --listen %s", address);
    cluster_serve(&cluster, 1, arguments);
    process_expect(&cluster.server[1], 1, SOON_S);
    process_expect_said(&cluster.server[1], "Address already in use");
    cluster_work(&cluster, 0, "--once");
    cluster_expect(&cluster, 1, 1, 0);
    cluster_expect_s1(&cluster, 1);
    cluster_close(&cluster);
}

static void F04_two_jobs_with_defaults_on_one_host_never_mix(void **state)
{
    (void)state;
    need_island(); /* the default port may be taken outside */
    struct cluster first, second;
    cluster_open(&first, 1, 1, 5, "");
    cluster_open(&second, 1, 1, 5, "");
    coordinate_s1(&first, "--listen tcp://127.0.0.1:7070");
    struct process late;
    process_init(&late, "shoal-server");
    process_add(&late, "--coordinator --once --job %s", second.job);
    expect_port_taken(&late, 7070);
    coordinate_s1(&second, "");
    cluster_members(&first, 1, 1, "--once");
    cluster_members(&second, 1, 1, "--once");
    cluster_expect(&first, 1, 1, 0);
    cluster_expect(&second, 1, 1, 0);
    cluster_expect_s1(&first, 1);
    cluster_expect_s1(&second, 1);
    cluster_close(&first);
    cluster_close(&second);
}

static void F04_shoal_run_twice_at_once_gives_two_whole_jobs(void **state)
{
    (void)state;
    struct cluster cluster[2];
    struct process run[2];
    for (int i = 0; i < 2; i++) {
        cluster_open(&cluster[i], 2, 2, 5, "");
        process_init(&run[i], "shoal");
        process_add(&run[i], "run %s --metrics %s", cluster[i].job, cluster[i].metrics);
        process_start(&run[i]);
    }
    for (int i = 0; i < 2; i++) {
        process_expect(&run[i], 0, PROCESS_DEADLINE_S);
        process_forget(&run[i]);
        cluster_expect_s1(&cluster[i], 1);
        cluster_close(&cluster[i]);
    }
}

static void F04_port_0_prints_the_port_that_was_chosen(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, 1, 1, 5, "");
    coordinate_s1(&cluster, "");
    assert_int_equal(strncmp(cluster.address, "tcp://127.0.0.1:", 16), 0);
    assert_true(atoi(cluster.address + 16) > 0);
    cluster_members(&cluster, 1, 1, "--once");
    cluster_expect(&cluster, 1, 1, 0);
    cluster_close(&cluster);
}

static void F04_a_restart_right_after_a_kill_gets_the_port(void **state)
{
    (void)state;
    struct cluster cluster;
    char listen[160];
    cluster_open(&cluster, 1, 1, 5, "");
    coordinate_s1(&cluster, "");
    cluster_serve(&cluster, 0, "--once");
    process_until(&cluster.coordinator, "joined server=0"); /* a connection is open */
    process_signal(&cluster.coordinator, SIGKILL);
    process_expect(&cluster.coordinator, 128 + SIGKILL, SOON_S);
    snprintf(listen, sizeof listen, "--listen %s", cluster.address);
    coordinate_s1(&cluster, listen);
    process_forget(&cluster.server[0]);
    cluster_members(&cluster, 1, 1, "--once");
    cluster_expect(&cluster, 1, 1, 0);
    cluster_expect_s1(&cluster, 1);
    cluster_close(&cluster);
}

/* --- F05 ---------------------------------------------------------------------------------------------------- */

/* The coordinator and the server listen under this name, and are reached under it. */
static void train_under(const char *host, const char *more)
{
    struct cluster cluster;
    char arguments[512];
    cluster_open(&cluster, 1, 1, 5, "");
    snprintf(arguments, sizeof arguments, "--listen tcp://%s:0 %s", host, more);
    coordinate_s1(&cluster, arguments);
    snprintf(arguments, sizeof arguments, "--once --cluster tcp://%s%s %s", host, strrchr(cluster.address, ':'), more);
    cluster_work(&cluster, 0, arguments);
    snprintf(arguments + strlen(arguments), sizeof arguments - strlen(arguments), " --listen tcp://%s:0", host);
    cluster_serve(&cluster, 0, arguments);
    cluster_expect(&cluster, 1, 1, 0);
    cluster_expect_s1(&cluster, 1);
    cluster_close(&cluster);
}

static void cover_hosts(struct cluster *cluster)
{
    cluster_open(cluster, 1, 1, 5, "");
    island_cover("/etc/hosts", "127.0.0.1 localhost\n127.0.1.1 debian-style\n" ISLAND_ADDRESS " shoal-own shoal-head\n",
                 cluster->folder);
    assert_int_equal(sethostname("shoal-own", 9), 0);
}

static void F05_names_work_for_listening_and_connecting(void **state)
{
    (void)state;
    struct cluster cluster;
    train_under("localhost", "");
    need_island();
    cover_hosts(&cluster);
    train_under("shoal-own", "--insecure");
    train_under("debian-style", "");
    island_unmount("/etc/hosts");
    cluster_close(&cluster);
}

static void F05_a_name_that_does_not_resolve_is_in_the_error(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "--coordinator --listen tcp://no-such-host.invalid:0", "--cluster tcp://no-such-host.invalid:7070",
        "--cluster tcp://127.0.0.1:9 --listen tcp://no-such-host.invalid:0"};
    struct process process;
    for (int i = 0; i < 4; i++) {
        process_init(&process, i < 3 ? "shoal-server" : "shoal-worker");
        process_add(&process, "%s", i < 3 ? lines[i] : lines[1]);
        assert_int_equal(process_run(&process), 2);
        process_expect_said(&process, "host name no-such-host.invalid: ");
        process_forget(&process);
    }
}

static void F05_bound_to_all_with_an_advertised_address(void **state)
{
    (void)state;
    need_island();
    struct cluster cluster;
    char arguments[256];
    cluster_open(&cluster, 1, 1, 5, "");
    coordinate_s1(&cluster, "--listen tcp://0.0.0.0:0 --insecure");
    snprintf(arguments, sizeof arguments,
             "--once --insecure --cluster tcp://" ISLAND_ADDRESS "%s --listen tcp://*:7171 --advertise tcp://"
             ISLAND_ADDRESS ":7171",
             strrchr(cluster.address, ':'));
    cluster_serve(&cluster, 0, arguments);
    snprintf(arguments, sizeof arguments, "--once --insecure --cluster tcp://" ISLAND_ADDRESS "%s",
             strrchr(cluster.address, ':'));
    cluster_work(&cluster, 0, arguments);
    cluster_expect(&cluster, 1, 1, 0);
    process_expect_said(&cluster.coordinator, "address=tcp://" ISLAND_ADDRESS ":7171");
    cluster_expect_s1(&cluster, 1);
    cluster_close(&cluster);
}

static void F05_a_server_from_elsewhere_that_advertises_loopback_is_warned_about(void **state)
{
    (void)state;
    need_island();
    struct cluster cluster;
    char arguments[256];
    cluster_open(&cluster, 1, 1, 5, "");
    coordinate_s1(&cluster, "--listen tcp://0.0.0.0:0 --insecure");
    snprintf(arguments, sizeof arguments, "--once --insecure --cluster tcp://" ISLAND_ADDRESS "%s",
             strrchr(cluster.address, ':'));
    cluster_serve(&cluster, 0, arguments);
    process_until(&cluster.coordinator, "advertises tcp://127.0.0.1:");
    cluster_close(&cluster);
}

static void F05_bound_to_all_without_an_advertised_address_is_refused(void **state)
{
    (void)state;
    struct process process;
    process_init(&process, "shoal-server");
    process_add(&process, "--cluster tcp://127.0.0.1:9 --listen tcp://0.0.0.0:0 --insecure");
    assert_int_equal(process_run(&process), 2);
    process_expect_said(&process, "--advertise tcp://HOST:PORT");
    process_forget(&process);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_teardown(name, processes_end)
        CASE(F01_a_second_worker_of_a_rank_is_told_who_has_it_and_the_first_goes_on),
        CASE(F01_a_third_worker_where_two_are_declared_is_refused),
        CASE(F04_a_port_that_is_taken_is_named_at_once),
        CASE(F04_the_second_of_two_servers_on_one_port_is_refused_and_the_first_goes_on),
        CASE(F04_two_jobs_with_defaults_on_one_host_never_mix),
        CASE(F04_shoal_run_twice_at_once_gives_two_whole_jobs),
        CASE(F04_port_0_prints_the_port_that_was_chosen),
        CASE(F04_a_restart_right_after_a_kill_gets_the_port),
        CASE(F05_names_work_for_listening_and_connecting),
        CASE(F05_a_name_that_does_not_resolve_is_in_the_error),
        CASE(F05_bound_to_all_with_an_advertised_address),
        CASE(F05_bound_to_all_without_an_advertised_address_is_refused),
        CASE(F05_a_server_from_elsewhere_that_advertises_loopback_is_warned_about),
    };
    alone = island_open() == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
