/* Case P05 end to end: keys by `shoal keygen`, an allow-list, a coordinator, two servers and two workers with key pairs of
 * their own on an address beyond loopback; then every way to set them wrongly. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <sys/stat.h>

#include "tests/integration/cluster.h"
#include "tests/lib/island.h"

enum { HANDSHAKE_S = 20, WORD = CLUSTER_PATH + 64 };

static const char *host = ISLAND_ADDRESS; /* 127.0.0.1 where we may not have a network of our own */

struct keyed {
    struct cluster cluster;
    char keys[WORD], allow[WORD + 16];
};

static void make_key(struct keyed *keyed, const char *name, const char *role)
{
    struct process keygen;
    char path[WORD + 32], line[128];
    process_init(&keygen, "shoal");
    process_add(&keygen, "keygen --keys %s --name %s", keyed->keys, name);
    assert_int_equal(process_run(&keygen), 0);
    process_forget(&keygen);
    if (!role)
        return;
    snprintf(path, sizeof path, "%s/%s.public", keyed->keys, name);
    FILE *from = fopen(path, "r"), *to = fopen(keyed->allow, "a");
    assert_non_null(from);
    assert_non_null(to);
    assert_non_null(fgets(line, sizeof line, from));
    line[strcspn(line, "\n")] = '\0';
    fprintf(to, "%s %s\n", line, role);
    fclose(from);
    assert_int_equal(fclose(to), 0);
}

static void keyed_open(struct keyed *keyed, int steps, const char *more)
{
    memset(keyed, 0, sizeof *keyed);
    cluster_open(&keyed->cluster, 2, 2, steps, more);
    snprintf(keyed->keys, sizeof keyed->keys, "%s/keys", keyed->cluster.folder);
    snprintf(keyed->allow, sizeof keyed->allow, "%s/allow.list", keyed->keys);
    make_key(keyed, "coordinator", NULL);
    make_key(keyed, "server", "server");
    make_key(keyed, "server-b", "server");
    make_key(keyed, "worker", "worker");
    make_key(keyed, "worker-b", "worker");
    make_key(keyed, "operator", "operator");
    make_key(keyed, "stranger", NULL);
}

static void coordinate(struct keyed *keyed, const char *more)
{
    char arguments[4096];
    snprintf(arguments, sizeof arguments, "--job %s --metrics %s --listen tcp://%s:0 --keys %s %s", keyed->cluster.job,
             keyed->cluster.metrics, host, keyed->keys, more);
    cluster_coordinate(&keyed->cluster, arguments);
}

/* names[i] is server i's key. */
static void serve(struct keyed *keyed, int i, const char *key, const char *more)
{
    char arguments[2048];
    snprintf(arguments, sizeof arguments, "--once --rank %d --listen tcp://%s:0 --keys %s --key-name %s %s", i, host,
             keyed->keys, key, more);
    cluster_serve(&keyed->cluster, i, arguments);
}

static void work(struct keyed *keyed, int i, const char *key)
{
    char arguments[2048];
    snprintf(arguments, sizeof arguments, "--once --keys %s --key-name %s", keyed->keys, key);
    cluster_work(&keyed->cluster, i, arguments);
}

static void P05_a_cluster_with_key_pairs_of_its_own_trains(void **state)
{
    (void)state;
    struct keyed keyed;
    char address[128], more[WORD + 16];
    keyed_open(&keyed, 5, "");
    coordinate(&keyed, "--once");
    serve(&keyed, 0, "server", "");
    serve(&keyed, 1, "server-b", "");
    work(&keyed, 0, "worker");
    process_until(&keyed.cluster.coordinator, "joined server=1");
    snprintf(more, sizeof more, "--keys %s", keyed.keys);
    cluster_server_address(&keyed.cluster, 1, more, address); /* an operator with a key */
    assert_non_null(strstr(address, host));
    work(&keyed, 1, "worker-b");
    cluster_expect(&keyed.cluster, 2, 2, 0);
    cluster_expect_s1(&keyed.cluster, 1);
    cluster_close(&keyed.cluster);
}

/* Servers with folders of their own: what one lacks it fetches from the other, under that one's key. */
static void P05_servers_fetch_snapshots_from_each_other_under_curve(void **state)
{
    (void)state;
    struct keyed keyed;
    char more[3][WORD + 64], arguments[2 * WORD], snapshot[2 * WORD], sha256[2][CLUSTER_SHA], export_path[2][WORD + 64];
    keyed_open(&keyed, 6, "");
    for (int i = 0; i < 2; i++) {
        snprintf(more[i], sizeof more[i], "--state %s/state-%d", keyed.cluster.folder, i);
        snprintf(export_path[i], sizeof export_path[i], "%s/export-%d.safetensors", keyed.cluster.folder, i);
    }
    snprintf(more[2], sizeof more[2], "--set snapshot.dir=%s/snapshots", keyed.cluster.folder);
    for (int life = 0; life < 2; life++) {
        /* First three steps of six; then the rest, with the folders exchanged. */
        snprintf(arguments, sizeof arguments, "--once %s --export %s", more[2], export_path[life]);
        if (life == 0)
            snprintf(arguments + strlen(arguments), sizeof arguments - strlen(arguments), " --set steps=3");
        else
            snprintf(arguments + strlen(arguments), sizeof arguments - strlen(arguments), " --resume %s/snapshots",
                     keyed.cluster.folder);
        coordinate(&keyed, arguments);
        serve(&keyed, 0, "server", more[life]);
        serve(&keyed, 1, "server-b", more[1 - life]);
        work(&keyed, 0, "worker");
        work(&keyed, 1, "worker-b");
        cluster_expect(&keyed.cluster, 2, 2, 0);
    }
    for (int i = 0; i < 2; i++) { /* each has both parts now */
        snprintf(snapshot, sizeof snapshot, "%s/state-0/step-00000003/owner-%d.safetensors", keyed.cluster.folder, i);
        cluster_sha256(snapshot, sha256[0]);
        snprintf(snapshot, sizeof snapshot, "%s/state-1/step-00000003/owner-%d.safetensors", keyed.cluster.folder, i);
        cluster_sha256(snapshot, sha256[1]);
        assert_string_equal(sha256[0], sha256[1]);
    }
    struct process run;
    process_init(&run, "shoal");
    process_add(&run, "run %s --export %s", keyed.cluster.job, export_path[0]);
    assert_int_equal(process_run(&run), 0);
    process_forget(&run);
    cluster_sha256(export_path[0], sha256[0]);
    cluster_sha256(export_path[1], sha256[1]);
    assert_string_equal(sha256[0], sha256[1]);
    cluster_close(&keyed.cluster);
}

/* --- wrongly set --------------------------------------------------------------------------------------------- */

/* The worker ends by itself, in time, with a line that names the handshake; the coordinator has seen no message of it. */
static void expect_handshake_failure(struct keyed *keyed, const char *how)
{
    struct process *worker = &keyed->cluster.worker[0];
    process_wait(worker, HANDSHAKE_S);
    assert_int_not_equal(worker->code, 0);
    process_expect_said(worker, "handshake with tcp://");
    process_expect_said(worker, how);
    assert_null(strstr(keyed->cluster.coordinator.said, "joined"));
    assert_null(strstr(keyed->cluster.coordinator.said, "join refused"));
}

static void P05_a_wrong_server_key_is_named(void **state)
{
    (void)state;
    struct keyed keyed;
    char to[WORD + 32];
    keyed_open(&keyed, 5, "");
    coordinate(&keyed, "");
    snprintf(to, sizeof to, "%s/coordinator.public", keyed.keys);
    assert_int_equal(unlink(to), 0);
    char from[WORD + 32];
    snprintf(from, sizeof from, "%s/stranger.public", keyed.keys);
    assert_int_equal(link(from, to), 0);
    work(&keyed, 0, "worker");
    expect_handshake_failure(&keyed, "wrong server key");
    cluster_close(&keyed.cluster);
}

static void P05_a_client_without_keys_is_told(void **state)
{
    (void)state;
    struct keyed keyed;
    keyed_open(&keyed, 5, "");
    coordinate(&keyed, "");
    cluster_work(&keyed.cluster, 0, "--once");
    expect_handshake_failure(&keyed, "it wants CURVE");
    cluster_close(&keyed.cluster);
}

static void P05_a_key_that_is_not_allowed_is_told(void **state)
{
    (void)state;
    struct keyed keyed;
    keyed_open(&keyed, 5, "");
    coordinate(&keyed, "");
    work(&keyed, 0, "stranger");
    expect_handshake_failure(&keyed, "allow.list");
    cluster_close(&keyed.cluster);
}

static void P05_a_key_of_another_role_is_told(void **state)
{
    (void)state;
    struct keyed keyed;
    keyed_open(&keyed, 5, "");
    coordinate(&keyed, "");
    work(&keyed, 0, "server");
    process_wait(&keyed.cluster.worker[0], HANDSHAKE_S);
    assert_int_not_equal(keyed.cluster.worker[0].code, 0);
    process_expect_said(&keyed.cluster.worker[0], "belongs to a server and speaks as worker");
    cluster_close(&keyed.cluster);
}

static void P05_a_plain_server_and_an_encrypted_client(void **state)
{
    (void)state;
    struct keyed keyed;
    char arguments[2048];
    keyed_open(&keyed, 5, "");
    snprintf(arguments, sizeof arguments, "--job %s --listen tcp://%s:0 --insecure", keyed.cluster.job, host);
    cluster_coordinate(&keyed.cluster, arguments);
    work(&keyed, 0, "worker");
    expect_handshake_failure(&keyed, "it does not use CURVE");
    cluster_close(&keyed.cluster);
}

/* Configuration that cannot work ends with 2, before anything else. */
static void expect_bad_keys(struct keyed *keyed, const char *says)
{
    struct process process[3];
    for (int i = 0; i < 3; i++) {
        process_init(&process[i], i < 2 ? "shoal-server" : "shoal-worker");
        process_add(&process[i], "%s --keys %s --key-name worker", i == 0 ? "--coordinator" : "--cluster tcp://127.0.0.1:9",
                    keyed->keys);
        process_run(&process[i]);
        process_expect_said(&process[i], says);
        process_expect(&process[i], 2, 1);
        assert_int_equal(process_lines(&process[i]), 1);
        process_forget(&process[i]);
    }
}

static void P05_a_key_file_that_is_missing_short_or_open_to_others(void **state)
{
    (void)state;
    struct keyed keyed;
    char path[WORD + 32];
    keyed_open(&keyed, 5, "");
    snprintf(path, sizeof path, "%s/worker.secret", keyed.keys);
    assert_int_equal(chmod(path, 0644), 0);
    expect_bad_keys(&keyed, "worker.secret can be read by others (mode 0644): chmod 600 it");
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(truncate(path, 39), 0);
    expect_bad_keys(&keyed, "worker.secret: not one line of 40 characters");
    assert_int_equal(unlink(path), 0);
    expect_bad_keys(&keyed, "worker.secret: No such file or directory");
    cluster_close(&keyed.cluster);
}

static void P05_beyond_loopback_without_keys_only_on_demand(void **state)
{
    (void)state;
    struct process process;
    for (int coordinator = 0; coordinator < 2; coordinator++) {
        process_init(&process, "shoal-server");
        process_add(&process, "%s --listen tcp://0.0.0.0:0", coordinator ? "--coordinator" : "--cluster tcp://127.0.0.1:9");
        assert_int_equal(process_run(&process), 2);
        process_expect_said(&process, "--keys DIR");
        process_expect_said(&process, "--insecure");
        process_forget(&process);
    }
    struct keyed keyed;
    char arguments[2048];
    keyed_open(&keyed, 5, "");
    snprintf(arguments, sizeof arguments, "--once --insecure --job %s --metrics %s --listen tcp://%s:0", keyed.cluster.job,
             keyed.cluster.metrics, host);
    cluster_coordinate(&keyed.cluster, arguments);
    snprintf(arguments, sizeof arguments, "--once --insecure --listen tcp://%s:0", host);
    cluster_serve(&keyed.cluster, 0, arguments);
    cluster_serve(&keyed.cluster, 1, arguments);
    cluster_work(&keyed.cluster, 0, "--once");
    cluster_work(&keyed.cluster, 1, "--once");
    cluster_expect(&keyed.cluster, 2, 2, 0);
    cluster_expect_s1(&keyed.cluster, 1);
    cluster_close(&keyed.cluster);
}

/* A worker's key is taken away and given back while the cluster lives. */
static void P05_a_hangup_signal_rereads_the_allow_list(void **state)
{
    (void)state;
    struct keyed keyed;
    char kept[WORD + 32];
    keyed_open(&keyed, 5, "");
    snprintf(kept, sizeof kept, "%s/allow.kept", keyed.keys);
    assert_int_equal(rename(keyed.allow, kept), 0);
    cluster_write(&keyed.cluster, "keys/allow.list", "# nobody yet\n");
    coordinate(&keyed, "--once");
    work(&keyed, 0, "worker");
    expect_handshake_failure(&keyed, "allow.list");
    cluster_write(&keyed.cluster, "keys/allow.list", "nonsense\n");
    process_signal(&keyed.cluster.coordinator, SIGHUP);
    process_until(&keyed.cluster.coordinator, "allow-list kept as it was: ");
    assert_int_equal(rename(kept, keyed.allow), 0);
    process_signal(&keyed.cluster.coordinator, SIGHUP);
    process_until(&keyed.cluster.coordinator, "allow-list read again");
    serve(&keyed, 0, "server", "");
    serve(&keyed, 1, "server-b", "");
    process_until(&keyed.cluster.coordinator, "joined server=1");
    process_signal(&keyed.cluster.server[1], SIGHUP);
    process_until(&keyed.cluster.server[1], "allow-list read again");
    work(&keyed, 0, "worker");
    work(&keyed, 1, "worker-b");
    cluster_expect(&keyed.cluster, 2, 2, 0);
    cluster_expect_s1(&keyed.cluster, 1);
    cluster_close(&keyed.cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_teardown(name, processes_end)
        CASE(P05_a_cluster_with_key_pairs_of_its_own_trains),
        CASE(P05_servers_fetch_snapshots_from_each_other_under_curve),
        CASE(P05_a_wrong_server_key_is_named),
        CASE(P05_a_client_without_keys_is_told),
        CASE(P05_a_key_that_is_not_allowed_is_told),
        CASE(P05_a_key_of_another_role_is_told),
        CASE(P05_a_plain_server_and_an_encrypted_client),
        CASE(P05_a_key_file_that_is_missing_short_or_open_to_others),
        CASE(P05_beyond_loopback_without_keys_only_on_demand),
        CASE(P05_a_hangup_signal_rereads_the_allow_list),
    };
    if (island_open() != 0)
        host = "127.0.0.1";
    return cmocka_run_group_tests(tests, NULL, NULL);
}
