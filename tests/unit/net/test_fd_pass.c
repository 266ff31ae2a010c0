/* Descriptors between processes of one user on one host. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/errbuf.h"
#include "base/segment.h"
#include "base/status.h"
#include "net/fd_pass.h"

static int64_t soon(void)
{
    return clock_now_ns() + 30000000000;
}

static int open_fds(void)
{
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    int count = 0;
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

struct pair {
    int listener, near, far;
};

static void pair_open(struct pair *pair)
{
    char name[FD_PASS_NAME_BYTES];
    struct errbuf err = {{0}};
    assert_int_equal(fd_pass_listen(&pair->listener, name, &err), STATUS_OK);
    assert_int_equal(fd_pass_connect(&pair->near, name, soon(), &err), STATUS_OK);
    assert_int_equal(fd_pass_accept(&pair->far, pair->listener, soon(), &err), STATUS_OK);
}

static void pair_close(struct pair *pair)
{
    close(pair->listener);
    close(pair->near);
    close(pair->far);
}

static void test_a_segment_arrives_and_is_mapped(void **state)
{
    (void)state;
    struct pair pair;
    struct segment own, seen;
    pair_open(&pair);
    assert_int_equal(segment_create(&own, "shoal-test", 5000, NULL), STATUS_OK);
    memcpy(own.memory, "payload", 8);
    assert_int_equal(fd_pass_send(pair.near, "hi", 3, &own.fd, 1, soon(), NULL), STATUS_OK);
    char text[3];
    int fd = -1;
    assert_int_equal(fd_pass_receive(pair.far, text, sizeof text, &fd, 1, soon(), NULL), STATUS_OK);
    assert_string_equal(text, "hi");
    assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_equal(segment_map(&seen, fd, 5000, NULL), STATUS_OK);
    close(fd);
    segment_close(&own);
    assert_string_equal(seen.memory, "payload");
    segment_close(&seen);
    pair_close(&pair);
}

static void test_another_length_or_number_is_refused_and_nothing_stays_open(void **state)
{
    (void)state;
    struct pair pair;
    struct errbuf err = {{0}};
    char text[8];
    int fds[2], many[FD_PASS_FDS_MAX];
    pair_open(&pair);
    int before = open_fds();
    for (int i = 0; i < FD_PASS_FDS_MAX; i++)
        many[i] = pair.near;
    assert_int_equal(fd_pass_send(pair.near, "12345678", 8, many, 1, soon(), NULL), STATUS_OK);
    assert_int_equal(fd_pass_receive(pair.far, text, 4, fds, 1, soon(), &err), STATUS_FORMAT);
    assert_int_equal(fd_pass_send(pair.near, "1234", 4, many, 1, soon(), NULL), STATUS_OK);
    assert_int_equal(fd_pass_receive(pair.far, text, 8, fds, 1, soon(), &err), STATUS_FORMAT);
    assert_int_equal(fd_pass_send(pair.near, "1234", 4, many, FD_PASS_FDS_MAX, soon(), NULL), STATUS_OK);
    assert_int_equal(fd_pass_receive(pair.far, text, 4, fds, 2, soon(), &err), STATUS_FORMAT);
    assert_non_null(strstr(err.text, "16 descriptors instead of 4 with 2"));
    assert_int_equal(fd_pass_send(pair.near, "1234", 4, NULL, 0, soon(), NULL), STATUS_OK);
    assert_int_equal(fd_pass_receive(pair.far, text, 4, fds, 2, soon(), &err), STATUS_FORMAT);
    assert_int_equal(open_fds(), before);
    assert_int_equal(fd_pass_send(pair.near, "1234", 0, NULL, 0, soon(), NULL), STATUS_INVALID);
    pair_close(&pair);
}

static void test_nothing_waits_longer_than_told(void **state)
{
    (void)state;
    struct pair pair;
    char byte, block[4096] = {0};
    int none, status = STATUS_OK;
    pair_open(&pair);
    assert_int_equal(fd_pass_accept(&none, pair.listener, clock_now_ns() + 1000, NULL), STATUS_TIMEOUT);
    assert_int_equal(none, -1);
    assert_int_equal(fd_pass_receive(pair.far, &byte, 1, NULL, 0, clock_now_ns() + 1000, NULL), STATUS_TIMEOUT);
    for (int i = 0; i < 100000 && status == STATUS_OK; i++)
        status = fd_pass_send(pair.near, block, sizeof block, NULL, 0, clock_now_ns() + 1000, NULL);
    assert_int_equal(status, STATUS_TIMEOUT);
    pair_close(&pair);
}

static void test_a_name_nobody_has_is_unknown(void **state)
{
    (void)state;
    int sock;
    struct errbuf err = {{0}};
    assert_int_equal(fd_pass_connect(&sock, "shoal-nobody-has-this", soon(), &err), STATUS_UNKNOWN);
    assert_int_equal(sock, -1);
    assert_non_null(strstr(err.text, "nobody listens"));
}

static void test_an_end_that_is_killed_is_gone(void **state)
{
    (void)state;
    struct pair pair;
    char byte;
    pair_open(&pair);
    pid_t child = fork();
    if (child == 0) {
        close(pair.near);
        for (;;)
            pause();
    }
    close(pair.far);
    assert_false(fd_pass_gone(pair.near));
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_true(fd_pass_gone(pair.near));
    assert_int_equal(fd_pass_receive(pair.near, &byte, 1, NULL, 0, soon(), NULL), STATUS_CLOSED);
    assert_int_equal(fd_pass_send(pair.near, "x", 1, NULL, 0, soon(), NULL), STATUS_CLOSED);
    close(pair.listener);
    close(pair.near);
}

static void test_another_user_is_refused_at_both_ends(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip(); /* only root can become somebody else */
    char name[FD_PASS_NAME_BYTES];
    int listener, sock;
    struct errbuf err = {{0}};
    assert_int_equal(fd_pass_listen(&listener, name, NULL), STATUS_OK);
    pid_t child = fork();
    if (child == 0) {
        int status = setuid(65534) == 0 ? fd_pass_connect(&sock, name, soon(), NULL) : STATUS_OK;
        _exit(status == STATUS_DENIED ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(fd_pass_accept(&sock, listener, soon(), &err), STATUS_DENIED);
    assert_non_null(strstr(err.text, "65534"));
    assert_int_equal(sock, -1);
    close(listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_segment_arrives_and_is_mapped),
        cmocka_unit_test(test_another_length_or_number_is_refused_and_nothing_stays_open),
        cmocka_unit_test(test_nothing_waits_longer_than_told),
        cmocka_unit_test(test_a_name_nobody_has_is_unknown),
        cmocka_unit_test(test_an_end_that_is_killed_is_gone),
        cmocka_unit_test(test_another_user_is_refused_at_both_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
