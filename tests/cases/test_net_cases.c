/* Cases P05 (encryption set wrongly), F04 (port in use) and F05 (names instead of addresses). Calls have no deadline:
 * what hangs ends the test by ctest's time-out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <netdb.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "rig.h"

static const char *const key_names[] = {"server", "worker", "stranger", "reader"};
enum { KEYS = 4 };

/* A folder of keys, a server with CURVE and a worker's net. */
struct secured {
    char folder[64], allow[80];
    struct rig server, worker;
    struct echo echo;
    struct net_curve server_curve, worker_curve;
    struct errbuf err;
    struct net_link *link;
    struct answer answer;
};

static void write_text(const char *path, const char *text, mode_t mode)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    assert_int_equal(chmod(path, mode), 0);
}

static void folder_open(struct secured *s)
{
    memset(s, 0, sizeof *s);
    strcpy(s->folder, "/tmp/shoal-keys-XXXXXX");
    assert_non_null(mkdtemp(s->folder));
    for (int i = 0; i < KEYS; i++)
        assert_int_equal(net_keys_generate(s->folder, key_names[i], &s->err), STATUS_OK);
    assert_int_equal(net_keys_load(&s->server_curve, s->folder, "server", NULL, &s->err), STATUS_OK);
    assert_int_equal(net_keys_load(&s->worker_curve, s->folder, "worker", "server", &s->err), STATUS_OK);
    struct net_curve reader;
    assert_int_equal(net_keys_load(&reader, s->folder, "reader", NULL, &s->err), STATUS_OK);
    char text[256];
    snprintf(text, sizeof text, "# who may come in\n%s worker of host a\n\n%s reader\n", s->worker_curve.public_key,
             reader.public_key);
    snprintf(s->allow, sizeof s->allow, "%s/allow.list", s->folder);
    write_text(s->allow, text, 0644);
}

static void folder_close(struct secured *s)
{
    char path[128];
    for (int i = 0; i < KEYS; i++) {
        snprintf(path, sizeof path, "%s/%s.public", s->folder, key_names[i]);
        unlink(path);
        snprintf(path, sizeof path, "%s/%s.secret", s->folder, key_names[i]);
        unlink(path);
    }
    unlink(s->allow);
    assert_int_equal(rmdir(s->folder), 0);
}

static void secured_open(struct secured *s, const struct net_curve *server_curve)
{
    rig_open(&s->server, NULL, SHOAL__ROLE__SERVER);
    rig_open(&s->worker, NULL, SHOAL__ROLE__WORKER);
    echo_open(&s->echo, &s->server, &(struct net_listen){.endpoint = "tcp://127.0.0.1:0", .curve = server_curve,
                                                        .allow_file = server_curve ? s->allow : NULL});
}

static void secured_close(struct secured *s)
{
    rig_close(&s->worker);
    rig_close(&s->server);
    folder_close(s);
}

static void secured_link(struct secured *s, const struct net_curve *curve)
{
    assert_int_equal(net_link_open(&s->link, s->worker.net, net_router_endpoint(s->echo.router), curve, NULL, NULL,
                                   &s->err),
                     STATUS_OK);
}

static void secured_ask(struct secured *s)
{
    memset(&s->answer, 0, sizeof s->answer);
    ask(s->link, SHOAL__TYPE__HEARTBEAT, &s->answer, 0);
    while (!s->answer.done) {
        uv_run(&s->server.loop, UV_RUN_NOWAIT);
        uv_run(&s->worker.loop, UV_RUN_NOWAIT);
    }
}

static void assert_denied_in_the_handshake(struct secured *s)
{
    secured_ask(s);
    assert_int_equal(s->answer.status, STATUS_DENIED);
    assert_non_null(strstr(s->answer.text, "handshake with tcp://127.0.0.1:"));
    assert_int_equal(s->echo.served, 0);
    secured_ask(s); /* and again, since the link goes on trying */
    assert_int_equal(s->answer.status, STATUS_DENIED);
    secured_close(s);
}

static void P05_an_allowed_key_gets_in(void **state)
{
    (void)state;
    struct secured s;
    folder_open(&s);
    secured_open(&s, &s.server_curve);
    secured_link(&s, &s.worker_curve);
    secured_ask(&s);
    assert_int_equal(s.answer.status, STATUS_OK);
    secured_close(&s);
}

static void P05_a_wrong_server_key_is_named(void **state)
{
    (void)state;
    struct secured s;
    folder_open(&s);
    secured_open(&s, &s.server_curve);
    struct net_curve wrong = s.worker_curve;
    memcpy(wrong.server_key, s.worker_curve.public_key, sizeof wrong.server_key);
    secured_link(&s, &wrong);
    assert_denied_in_the_handshake(&s);
}

static void P05_a_client_without_keys_is_told(void **state)
{
    (void)state;
    struct secured s;
    folder_open(&s);
    secured_open(&s, &s.server_curve);
    secured_link(&s, NULL);
    assert_denied_in_the_handshake(&s);
}

static void P05_a_plain_server_refuses_an_encrypted_client(void **state)
{
    (void)state;
    struct secured s;
    folder_open(&s);
    secured_open(&s, NULL);
    secured_link(&s, &s.worker_curve);
    assert_denied_in_the_handshake(&s);
}

static void P05_a_key_outside_the_list_is_a_stranger(void **state)
{
    (void)state;
    struct secured s;
    struct net_curve stranger;
    folder_open(&s);
    secured_open(&s, &s.server_curve);
    assert_int_equal(net_keys_load(&stranger, s.folder, "stranger", "server", &s.err), STATUS_OK);
    secured_link(&s, &stranger);
    assert_denied_in_the_handshake(&s);
}

/* A reader's key opens the door, but not for a worker's messages. */
static void P05_a_key_speaks_only_for_its_role(void **state)
{
    (void)state;
    struct secured s;
    struct net_curve reader;
    folder_open(&s);
    secured_open(&s, &s.server_curve);
    assert_int_equal(net_keys_load(&reader, s.folder, "reader", "server", &s.err), STATUS_OK);
    secured_link(&s, &reader);
    secured_ask(&s);
    assert_int_equal(s.answer.status, STATUS_DENIED);
    assert_non_null(strstr(s.answer.text, "belongs to a reader and speaks as worker"));
    assert_int_equal(s.echo.served, 0);
    assert_int_equal(net_counters(s.server.net)->refused, 1);
    secured_close(&s);
}

static void P05_a_key_that_leaves_the_list_is_out_at_once(void **state)
{
    (void)state;
    struct secured s;
    folder_open(&s);
    secured_open(&s, &s.server_curve);
    secured_link(&s, &s.worker_curve);
    secured_ask(&s);
    assert_int_equal(s.answer.status, STATUS_OK);
    write_text(s.allow, "not a key\n", 0644);
    assert_int_equal(net_allow_reload(s.echo.router, &s.err), STATUS_FORMAT);
    assert_non_null(strstr(s.err.text, "allow.list:1"));
    secured_ask(&s); /* a bad file changes nothing */
    assert_int_equal(s.answer.status, STATUS_OK);
    write_text(s.allow, "# nobody\n", 0644);
    assert_int_equal(net_allow_reload(s.echo.router, &s.err), STATUS_OK);
    secured_ask(&s);
    assert_int_equal(s.answer.status, STATUS_DENIED);
    secured_close(&s);
}

static void P05_key_files_are_checked(void **state)
{
    (void)state;
    struct secured s;
    struct net_curve curve;
    char path[128];
    folder_open(&s);
    snprintf(path, sizeof path, "%s/worker.secret", s.folder);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(net_keys_generate(s.folder, "worker", &s.err), STATUS_EXISTS);
    assert_int_equal(net_keys_generate(s.folder, "../worker", &s.err), STATUS_INVALID);
    assert_int_equal(net_keys_load(&curve, s.folder, "nobody", NULL, &s.err), STATUS_IO);
    assert_non_null(strstr(s.err.text, "nobody.secret: No such file"));
    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(net_keys_load(&curve, s.folder, "worker", NULL, &s.err), STATUS_DENIED);
    assert_non_null(strstr(s.err.text, "can be read by others"));
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(net_keys_load(&curve, s.folder, "worker", NULL, &s.err), STATUS_DENIED);
    write_text(path, "short\n", 0600);
    assert_int_equal(net_keys_load(&curve, s.folder, "worker", NULL, &s.err), STATUS_FORMAT);
    write_text(path, "0123456789012345678901234567890123456789a\n", 0600);
    assert_int_equal(net_keys_load(&curve, s.folder, "worker", NULL, &s.err), STATUS_FORMAT);
    write_text(path, "", 0600);
    assert_int_equal(net_keys_load(&curve, s.folder, "worker", NULL, &s.err), STATUS_FORMAT);
    write_text(path, s.server_curve.secret_key, 0600);
    assert_int_equal(net_keys_load(&curve, s.folder, "worker", NULL, &s.err), STATUS_FORMAT);
    assert_non_null(strstr(s.err.text, "does not belong"));
    folder_close(&s);
}

/* --- F04 -------------------------------------------------------------------------------------------- */

static int listen_on(struct rig *rig, struct net_router **router, const char *endpoint, int insecure)
{
    struct net_listen listen = {.endpoint = endpoint, .insecure = insecure, .serve = echo_serve};
    return net_router_open(router, rig->net, &listen, &rig->err);
}

static void F04_a_port_in_use_is_named(void **state)
{
    (void)state;
    struct rig first, second;
    struct net_router *a, *b;
    rig_open(&first, NULL, SHOAL__ROLE__SERVER);
    rig_open(&second, NULL, SHOAL__ROLE__SERVER);
    assert_int_equal(listen_on(&first, &a, "tcp://127.0.0.1:0", 0), STATUS_OK);
    const char *endpoint = net_router_endpoint(a);
    assert_true(atoi(strrchr(endpoint, ':') + 1) > 0);
    assert_int_equal(listen_on(&second, &b, endpoint, 0), STATUS_IO);
    assert_non_null(strstr(second.err.text, endpoint + 6));
    assert_non_null(strstr(second.err.text, strerror(EADDRINUSE)));
    rig_close(&second);
    rig_close(&first);
}

/* The child is killed with a connection open, so that its port is left in TIME_WAIT or worse. */
static void F04_a_restart_right_after_a_kill_gets_the_port(void **state)
{
    (void)state;
    int told[2];
    char endpoint[64] = "";
    assert_int_equal(pipe(told), 0);
    pid_t child = fork();
    if (child == 0) {
        struct rig server;
        struct net_router *router;
        struct net_link *link;
        struct answer beat = {0};
        rig_open(&server, NULL, SHOAL__ROLE__SERVER);
        if (listen_on(&server, &router, "tcp://127.0.0.1:0", 0) ||
            net_link_open(&link, server.net, net_router_endpoint(router), NULL, NULL, NULL, &server.err))
            _exit(1);
        snprintf(endpoint, sizeof endpoint, "%s", net_router_endpoint(router));
        if (write(told[1], endpoint, sizeof endpoint) < 0)
            _exit(1);
        ask(link, SHOAL__TYPE__HELLO, &beat, 0);
        for (;;)
            uv_run(&server.loop, UV_RUN_ONCE);
    }
    assert_int_equal(read(told[0], endpoint, sizeof endpoint), sizeof endpoint);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    struct rig again;
    struct net_router *router;
    rig_open(&again, NULL, SHOAL__ROLE__SERVER);
    assert_int_equal(listen_on(&again, &router, endpoint, 0), STATUS_OK);
    assert_string_equal(net_router_endpoint(router), endpoint);
    rig_close(&again);
    close(told[0]);
    close(told[1]);
}

/* --- F05 -------------------------------------------------------------------------------------------- */

static void F05_serves_under(const char *host, int insecure)
{
    char endpoint[300];
    struct rig server, worker;
    struct echo echo;
    struct net_link *link;
    struct answer beat = {0};
    rig_open(&server, NULL, SHOAL__ROLE__SERVER);
    rig_open(&worker, NULL, SHOAL__ROLE__WORKER);
    snprintf(endpoint, sizeof endpoint, "tcp://%s:0", host);
    echo_open(&echo, &server, &(struct net_listen){.endpoint = endpoint, .insecure = insecure});
    snprintf(endpoint, sizeof endpoint, "tcp://%s%s", strcmp(host, "*") && strcmp(host, "0.0.0.0") ? host : "127.0.0.1",
             strrchr(net_router_endpoint(echo.router), ':'));
    assert_int_equal(net_link_open(&link, worker.net, endpoint, NULL, NULL, NULL, &worker.err), STATUS_OK);
    ask(link, SHOAL__TYPE__HEARTBEAT, &beat, 0);
    while (!beat.done) {
        uv_run(&server.loop, UV_RUN_NOWAIT);
        uv_run(&worker.loop, UV_RUN_NOWAIT);
    }
    assert_int_equal(beat.status, STATUS_OK);
    rig_close(&worker);
    rig_close(&server);
}

static void F05_names_work_for_listening_and_connecting(void **state)
{
    (void)state;
    char host[256];
    F05_serves_under("localhost", 0);
    F05_serves_under("127.0.1.1", 0);
    F05_serves_under("*", 1);
    F05_serves_under("0.0.0.0", 1);
    struct addrinfo *found = NULL;
    if (gethostname(host, sizeof host) == 0 && getaddrinfo(host, NULL, NULL, &found) == 0) {
        F05_serves_under(host, 1);
        freeaddrinfo(found);
    }
}

static void F05_a_name_that_does_not_resolve_is_in_the_error(void **state)
{
    (void)state;
    struct rig rig;
    struct net_router *router;
    struct net_link *link;
    rig_open(&rig, NULL, SHOAL__ROLE__SERVER);
    assert_int_equal(listen_on(&rig, &router, "tcp://no-such-host.invalid:0", 0), STATUS_UNKNOWN);
    assert_non_null(strstr(rig.err.text, "no-such-host.invalid"));
    assert_int_equal(net_link_open(&link, rig.net, "tcp://no-such-host.invalid:7070", NULL, NULL, NULL, &rig.err),
                     STATUS_UNKNOWN);
    assert_non_null(strstr(rig.err.text, "no-such-host.invalid"));
    static const char *const bad[] = {"", "tcp://", "tcp://host", "tcp://:7070", "tcp://127.0.0.1:", "udp://a:1",
                                      "tcp://127.0.0.1:65536", "tcp://127.0.0.1:7x", "tcp://127.0.0.1:0", "inproc://",
                                      "tcp://127.0.0.1:-1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(net_link_open(&link, rig.net, bad[i], NULL, NULL, NULL, &rig.err), STATUS_INVALID);
    rig_close(&rig);
}

static void nothing_plain_listens_beyond_loopback_unasked(void **state)
{
    (void)state;
    struct rig rig;
    struct net_router *router;
    rig_open(&rig, NULL, SHOAL__ROLE__SERVER);
    static const char *const open[] = {"tcp://0.0.0.0:0", "tcp://*:*", "tcp://[::]:0"};
    for (size_t i = 0; i < sizeof open / sizeof *open; i++) {
        assert_int_equal(listen_on(&rig, &router, open[i], 0), STATUS_DENIED);
        assert_non_null(strstr(rig.err.text, "--insecure"));
        assert_non_null(strstr(rig.err.text, "keygen"));
    }
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(F04_a_restart_right_after_a_kill_gets_the_port), /* forks: before any thread */
        cmocka_unit_test(F04_a_port_in_use_is_named),
        cmocka_unit_test(F05_names_work_for_listening_and_connecting),
        cmocka_unit_test(F05_a_name_that_does_not_resolve_is_in_the_error),
        cmocka_unit_test(nothing_plain_listens_beyond_loopback_unasked),
        cmocka_unit_test(P05_key_files_are_checked),
        cmocka_unit_test(P05_an_allowed_key_gets_in),
        cmocka_unit_test(P05_a_wrong_server_key_is_named),
        cmocka_unit_test(P05_a_client_without_keys_is_told),
        cmocka_unit_test(P05_a_plain_server_refuses_an_encrypted_client),
        cmocka_unit_test(P05_a_key_outside_the_list_is_a_stranger),
        cmocka_unit_test(P05_a_key_speaks_only_for_its_role),
        cmocka_unit_test(P05_a_key_that_leaves_the_list_is_out_at_once),
    };
    return cmocka_run_group_tests_name("net_cases", tests, NULL, NULL);
}
