/* `shoal bench` as a person types it: its table, its checks, what it refuses, and that nothing of it is left. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/lib/process.h"

enum { COLUMNS_MAX = 9, SECONDS = 60 };

/* Numbers of the line that measures `bytes`; how many there are. */
static int numbers_of(const struct process *bench, long bytes, double numbers[COLUMNS_MAX])
{
    char *text = strdup(bench->said), *save = NULL;
    int found = 0;
    assert_non_null(text);
    for (char *line = strtok_r(text, "\n", &save); line && found == 0; line = strtok_r(NULL, "\n", &save)) {
        char *at = line, *end = line;
        if (line[0] == '#')
            continue;
        for (int i = 0; i < COLUMNS_MAX; i++, at = end) {
            numbers[i] = strtod(at, &end);
            if (end == at)
                break;
            found++;
        }
        if (found > 0 && numbers[0] != (double)bytes)
            found = 0;
    }
    free(text);
    return found;
}

static void check_line(const struct process *bench, long bytes, int with_push, double moved, double bus)
{
    double n[COLUMNS_MAX];
    int columns = numbers_of(bench, bytes, n);
    if (columns != 8 + with_push)
        fail_msg("%d columns for %ld bytes in:\n%s", columns, bytes, bench->said);
    const double *rates = n + 5 + with_push; /* algbw, busbw */
    assert_true(n[1] == (double)(bytes / 4));
    assert_true(n[2] == 7);
    assert_true(n[3] > 0 && n[4] >= n[3]);
    /* us have two decimals, GB/s three. */
    double least = moved / (n[3] + 0.006) / 1e3, most = n[3] > 0.006 ? moved / (n[3] - 0.006) / 1e3 : 1e9;
    assert_true(rates[0] >= least - 0.001 && rates[0] <= most + 0.001);
    assert_true(rates[1] >= least * bus - 0.001 && rates[1] <= most * bus + 0.001);
    assert_true(rates[2] == 0);
}

static void check_operation(const char *operation, const char *transport, int ranks, double bus)
{
    struct process bench;
    int with_push = strcmp(operation, "push_pull") == 0;
    process_init(&bench, "shoal");
    process_add(&bench, "bench %s --ranks %d --transport %s -b 4 -e 16K -f 64 --iters 7 --warmup 1", operation,
                ranks, transport);
    process_start(&bench);
    process_expect(&bench, 0, SECONDS);
    char head[64];
    snprintf(head, sizeof head, "# shoal bench %s: %d rank", operation, ranks);
    process_expect_said(&bench, head);
    process_expect_said(&bench, "# wrong elements: 0");
    for (long bytes = 4; bytes <= 16384; bytes *= 64)
        check_line(&bench, bytes, with_push, with_push ? 2.0 * (double)bytes : (double)bytes, bus);
    process_forget(&bench);
}

static void collectives_are_measured_and_right(void **state)
{
    static const char *const transports[] = {"tcp", "shm"};
    (void)state;
    for (int t = 0; t < 2; t++) {
        for (int ranks = 1; ranks <= 3; ranks++) {
            double one = (double)(ranks - 1) / ranks;
            check_operation("all_reduce", transports[t], ranks, 2 * one);
            check_operation("reduce_scatter", transports[t], ranks, one);
            check_operation("all_gather", transports[t], ranks, one);
        }
    }
}

static void push_and_pull_are_measured_and_right(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++)
        check_operation("push_pull", "auto", ranks, ranks);
}

static void bad_options_are_refused(void **state)
{
    static const struct {
        const char *arguments, *said;
    } cases[] = {
        {"", "an operation is missing"},
        {"all_reduse", "did you mean all_reduce?"},
        {"nothing", "no operation \"nothing\""},
        {"all_reduce -b 3", "-b: found \"3\""},
        {"all_reduce -b 0", "-b: found \"0\""},
        {"all_reduce -b 4Q", "-b: found \"4Q\""},
        {"all_reduce -b -4", "-b: found \"-4\""},
        {"all_reduce -e 65G", "-e: found \"65G\""},
        {"all_reduce -e 99999999999999999999", "-e: found"},
        {"all_reduce -b 8K -e 4K", "-e 4K is below -b 8K"},
        {"all_reduce -f 1", "-f: found \"1\""},
        {"all_gather --ranks 0", "--ranks: found \"0\""},
        {"all_gather --ranks two", "--ranks: found \"two\""},
        {"push_pull --transport udp", "--transport: found \"udp\", expected tcp, shm or auto"},
        {"push_pull --iters 0", "--iters: found \"0\""},
        {"reduce_scatter --rank 2 --itres 3", "did you mean --iters?"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct process bench;
        process_init(&bench, "shoal");
        process_add(&bench, "bench %s", cases[i].arguments);
        process_start(&bench);
        process_expect(&bench, 2, SECONDS);
        process_expect_said(&bench, cases[i].said);
        process_forget(&bench);
    }
}

/* The pipe of what they say is open as long as one of them is there. */
static void its_processes_end_with_it(void **state)
{
    static const char *const operations[] = {"all_reduce", "push_pull"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct process bench;
        process_init(&bench, "shoal");
        process_add(&bench, "bench %s --ranks 2 -b 4 -e 1M -f 2 --time-ms 600000", operations[i]);
        process_start(&bench);
        process_until_line(&bench, "time(us)");
        process_signal(&bench, SIGKILL);
        assert_int_equal(process_wait(&bench, SECONDS), 128 + SIGKILL);
        process_forget(&bench);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(bad_options_are_refused, processes_end),
        cmocka_unit_test_teardown(collectives_are_measured_and_right, processes_end),
        cmocka_unit_test_teardown(push_and_pull_are_measured_and_right, processes_end),
        cmocka_unit_test_teardown(its_processes_end_with_it, processes_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
