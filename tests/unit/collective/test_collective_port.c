/* Where a rank is reached, and who gets in under CURVE. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <zmq.h>

#include "base/status.h"
#include "ranks.h"
#include "worker/collective/port.h"

static int open_port(struct collective_port **port, const char *cluster, const char *advertise, struct errbuf *err)
{
    static struct role_host host;
    const struct collective_port_options options = {&host, cluster, advertise};
    log_init(&host.log, "worker");
    *port = NULL;
    return collective_port_open(port, &options, err);
}

static void a_port_listens_on_loopback_when_the_coordinator_does(void **state)
{
    static const char *const clusters[] = {"tcp://127.0.0.1:7070", "tcp://localhost:7070", "inproc://coordinator",
                                           "ipc:///tmp/x"};
    struct errbuf err;
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        struct collective_port *port;
        assert_int_equal(open_port(&port, clusters[i], "", &err), 0);
        assert_memory_equal(collective_port_address(port), "tcp://127.0.0.1:", 16);
        assert_string_equal(collective_port_public_key(port), "");
        assert_memory_equal(collective_port_socket(port), "shoal-", 6);
        collective_port_close(port);
    }
}

static void an_advertised_address_is_said_as_it_is_typed(void **state)
{
    struct collective_port *port;
    struct errbuf err;
    char again[PORT_ADDRESS_MAX];
    (void)state;
    assert_int_equal(open_port(&port, "tcp://127.0.0.1:7070", "localhost", &err), 0);
    assert_memory_equal(collective_port_address(port), "tcp://localhost:", 16);
    snprintf(again, sizeof again, "%s", collective_port_address(port) + strlen("tcp://"));
    collective_port_close(port);
    assert_int_equal(open_port(&port, "tcp://127.0.0.1:7070", again, &err), 0); /* with a port */
    assert_string_equal(collective_port_address(port) + strlen("tcp://"), again);
    collective_port_close(port);
    assert_int_equal(open_port(&port, "tcp://127.0.0.1:7070", "tcp://127.0.0.1:0", &err), 0);
    collective_port_close(port);
    assert_int_equal(open_port(&port, "tcp://127.0.0.1:7070", "*", &err), STATUS_INVALID);
    assert_int_not_equal(open_port(&port, "tcp://127.0.0.1:7070", "no such host", &err), 0);
}

static void beyond_loopback_keys_or_a_word_are_needed(void **state)
{
    struct collective_port *port;
    struct errbuf err;
    (void)state;
    assert_int_equal(open_port(&port, "tcp://127.0.0.1:7070", "192.0.2.1", &err), STATUS_DENIED);
    assert_non_null(strstr(err.text, "--insecure"));
    assert_int_equal(open_port(&port, "nonsense", "", &err), STATUS_INVALID);
}

/* --- keys ----------------------------------------------------------------------------------------- */

static char folder[] = "/tmp/shoal-ring-keys-XXXXXX";

static void give_keys(struct ranks *ranks, const char *const *names)
{
    for (int i = 0; i < ranks->world; i++) {
        ranks->rank[i].host.keys_dir = folder;
        ranks->rank[i].host.key_name = names[i];
    }
}

static void add_up(struct rank *rank)
{
    enum { N = 40000 };
    struct collective_segment *segments;
    struct collective_plan *plan = NULL;
    int count = segments_make(&segments, N, rank->world, 5000);
    float *whole = calloc(N, sizeof *whole);
    const struct collective_layout layout = {
        .segments = segments, .segments_count = count, .whole = whole, .name = "x"};
    rank_check(rank, rank->open_status == 0);
    for (int i = 0; i < N; i++)
        whole[i] = (float)rank->rank;
    rank_check(rank, collective_plan_create(&plan, rank->group, &layout, &rank->err) == 0);
    rank_check(rank, collective_all_reduce(plan, &rank->err) == 0);
    for (int i = 0; i < N; i++)
        rank_check(rank, whole[i] == (float)(rank->world * (rank->world - 1) / 2));
    collective_plan_destroy(plan);
    free(whole);
    free(segments);
}

static void ranks_with_keys_reach_each_other(void **state)
{
    static const char *const names[] = {"a", "b", "a"};
    struct ranks ranks;
    (void)state;
    ranks_init(&ranks, 3);
    give_keys(&ranks, names);
    ranks_ports(&ranks);
    assert_int_equal(strlen(collective_port_public_key(ranks.rank[0].port)), 40);
    ranks_run(&ranks, add_up, NULL);
    ranks_close(&ranks);
}

static void nobody_comes(struct rank *rank)
{
    rank_check(rank, rank->open_status == STATUS_TIMEOUT);
}

/* Rank 1 says another key than it has: rank 0 does not let it in. */
static void a_key_that_is_not_a_peers_is_shut_out(void **state)
{
    static const char *const names[] = {"a", "b"};
    struct ranks ranks;
    (void)state;
    ranks_init(&ranks, 2);
    ranks.timeout_s = 0.5;
    give_keys(&ranks, names);
    ranks_ports(&ranks);
    ranks.peers[1].public_key = ranks.peers[0].public_key;
    ranks_run(&ranks, nobody_comes, NULL);
    ranks_close(&ranks);
}

static int make_keys(void **state)
{
    struct errbuf err;
    (void)state;
    return mkdtemp(folder) == NULL || net_keys_generate(folder, "a", &err) || net_keys_generate(folder, "b", &err);
}

static int remove_keys(void **state)
{
    static const char *const files[] = {"a.public", "a.secret", "b.public", "b.secret"};
    char path[256];
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        unlink(path);
    }
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_port_listens_on_loopback_when_the_coordinator_does),
        cmocka_unit_test(an_advertised_address_is_said_as_it_is_typed),
        cmocka_unit_test(beyond_loopback_keys_or_a_word_are_needed),
        cmocka_unit_test(ranks_with_keys_reach_each_other),
        cmocka_unit_test(a_key_that_is_not_a_peers_is_shut_out),
    };
    return cmocka_run_group_tests(tests, make_keys, remove_keys);
}
