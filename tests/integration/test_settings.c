/* Cases C01 (missing settings), C02 (print-config) and C03 (batch arithmetic) of the programs themselves: exit code 2, one
 * line, before anything listens. */
#include <fcntl.h>
#include <setjmp.h>
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
#include <sys/stat.h>

#include "tests/integration/cluster.h"

static struct cluster cluster;
static char taken[64]; /* an address that cannot be listened on: whoever tries says so instead */
static int taken_fd;

static int open_all(void **state)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    (void)state;
    cluster_open(&cluster, 2, 1, 5, "");
    taken_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(taken_fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(taken_fd, 1) != 0 ||
        getsockname(taken_fd, (struct sockaddr *)&address, &bytes) != 0)
        return -1;
    snprintf(taken, sizeof taken, "tcp://127.0.0.1:%d", ntohs(address.sin_port));
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    close(taken_fd);
    cluster_close(&cluster);
    return 0;
}

/* One line that begins with the program's name, and 2. */
static void expect_refusal(struct process *process, const char *text)
{
    process_start(process);
    process_expect(process, 2, 30);
    process_expect_said(process, text);
    if (process_lines(process) != 1)
        fail_msg("more than a line: %s", process->said);
    assert_int_equal(strncmp(process->said, "shoal", 5), 0);
    process_forget(process);
}

/* As `shoal run` and as a coordinator on an address that is taken. */
static void expect_job_refused(const char *path, const char *text)
{
    struct process process;
    process_init(&process, "shoal");
    process_add(&process, "run %s", path);
    expect_refusal(&process, text);
    process_init(&process, "shoal-server");
    process_add(&process, "--coordinator --listen %s --job %s", taken, path);
    expect_refusal(&process, text);
}

static void C01_each_required_key_removed_in_turn(void **state)
{
    (void)state;
    static const struct {
        const char *line, *missing;
    } rows[] = {{"steps: 5\n", "missing: epochs (or steps)"},
                {"batch_size: 4\n", "missing: batch_size"},
                {"data: {kind: libsvm, train: {file: s1.libsvm}}\n", "missing: data.kind"},
                {"model: {kind: linear}\n", "missing: model.kind"},
                {"optimizer: {kind: sgd, lr: 0.5}\n", "missing: optimizer.kind"},
                {NULL, "missing: epochs (or steps), batch_size, data.kind, model.kind, optimizer.kind"}};
    enum { ROWS = sizeof rows / sizeof *rows };
    for (int left_out = 0; left_out < ROWS; left_out++) {
        char yaml[1024] = "name: x\n", path[CLUSTER_PATH + 32];
        for (int i = 0; i < ROWS - 1; i++)
            if (i != left_out && left_out < ROWS - 1)
                strcat(yaml, rows[i].line);
        cluster_write(&cluster, "missing.yaml", yaml);
        snprintf(path, sizeof path, "%s/missing.yaml", cluster.folder);
        expect_job_refused(path, rows[left_out].missing);
    }
}

static void C01_a_job_file_that_is_none(void **state)
{
    (void)state;
    char path[CLUSTER_PATH + 32];
    snprintf(path, sizeof path, "%s/not-there.yaml", cluster.folder);
    expect_job_refused(path, "No such file or directory");
    expect_job_refused(cluster.folder, "is a folder, expected a job file");
    cluster_write(&cluster, "empty.yaml", "");
    snprintf(path, sizeof path, "%s/empty.yaml", cluster.folder);
    expect_job_refused(path, "empty.yaml");
    cluster_write(&cluster, "huge.yaml", "name: x\n");
    snprintf(path, sizeof path, "%s/huge.yaml", cluster.folder);
    assert_int_equal(truncate(path, 100 << 20), 0);
    expect_job_refused(path, "huge.yaml");
    if (getuid() == 0)
        return; /* who may read everything */
    cluster_write(&cluster, "secret.yaml", "name: x\n");
    snprintf(path, sizeof path, "%s/secret.yaml", cluster.folder);
    assert_int_equal(chmod(path, 0), 0);
    expect_job_refused(path, "Permission denied");
}

static void C01_settings_of_the_daemons(void **state)
{
    (void)state;
    static const char *const set_but_empty[] = {"SHOAL_CLUSTER=", "DMLC_PS_ROOT_URI=", "DMLC_PS_ROOT_PORT="};
    struct process process;
    for (int i = 0; i < 2; i++) {
        const char *program = i == 0 ? "shoal-server" : "shoal-worker";
        process_init(&process, program);
        expect_refusal(&process, "missing: --cluster tcp://HOST:PORT");
        process_init(&process, program);
        process_set(&process, "%s", "DMLC_PS_ROOT_URI=127.0.0.1");
        expect_refusal(&process, "DMLC_PS_ROOT_PORT");
        process_init(&process, program);
        process_set(&process, "%s", "DMLC_PS_ROOT_PORT=7070");
        expect_refusal(&process, "DMLC_PS_ROOT_URI");
        process_init(&process, program);
        process_add(&process, "--cluster");
        expect_refusal(&process, "--cluster");
        for (int k = 0; k < 3; k++) {
            process_init(&process, program);
            process_set(&process, "%s", set_but_empty[k]);
            expect_refusal(&process, "shoal-");
        }
    }
    process_init(&process, "shoal-server");
    process_add(&process, "--coordinator --listen %s --export x.safetensors", taken);
    expect_refusal(&process, "missing: --coordinator --job JOB.yaml");
    process_init(&process, "shoal");
    process_add(&process, "status");
    expect_refusal(&process, "missing: --cluster tcp://HOST:PORT");
    process_init(&process, "shoal");
    process_add(&process, "keygen");
    expect_refusal(&process, "missing: --keys DIR, --name NAME");
}

/* --- C02 ---------------------------------------------------------------------------------------------------- */

static void expect_config(struct process *process, const char *line)
{
    process_add(process, "run %s --print-config", cluster.job);
    assert_int_equal(process_run(process), 0);
    process_expect_said(process, line);
    process_forget(process);
}

/* The line of a key in what --print-config said. */
static void expect_source(struct process *process, const char *key, const char *value, const char *source)
{
    char line[256] = "";
    assert_int_equal(process_run(process), 0);
    const char *at = strstr(process->said, key);
    if (at)
        snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
    if (!strstr(line, value) || !strstr(line, source))
        fail_msg("%s: \"%s\" does not say %s and %s, in: %s", key, line, value, source, process->said);
    process_forget(process);
}

static void C02_print_config_says_which_source_won(void **state)
{
    (void)state;
    struct process process;
    process_init(&process, "shoal");
    process_add(&process, "run %s --print-config", cluster.job);
    expect_source(&process, "lr: ", "0.5", "job.yaml:");
    process_init(&process, "shoal");
    process_add(&process, "run %s --print-config", cluster.job);
    process_set(&process, "%s", "SHOAL_OPTIMIZER_LR=0.25");
    expect_source(&process, "lr: ", "0.25", "SHOAL_OPTIMIZER_LR");
    process_init(&process, "shoal");
    process_add(&process, "run %s --print-config --set optimizer.lr=0.125", cluster.job);
    process_set(&process, "%s", "SHOAL_OPTIMIZER_LR=0.25");
    expect_source(&process, "lr: ", "0.125", "--set");
    process_init(&process, "shoal");
    expect_config(&process, "default");
}

static void C02_keys_that_nobody_reads(void **state)
{
    (void)state;
    static const struct {
        const char *set, *says;
    } rows[] = {{"optimizer.learning_rat=1", "optimizer.lr"}, {"lr=1", "optimizer.lr"},
                {"optimizer.LR=1", "optimizer.lr"},           {"model.batch_size=4", "batch_size"}};
    struct process process;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        process_init(&process, "shoal");
        process_add(&process, "run %s --set %s", cluster.job, rows[i].set);
        expect_refusal(&process, rows[i].says);
    }
    process_init(&process, "shoal");
    process_add(&process, "run %s --print-config --set data.header_lines=1", cluster.job);
    assert_int_equal(process_run(&process), 0);
    process_expect_said(&process, "warning: ");
    process_expect_said(&process, "data.header_lines");
    process_forget(&process);
    process_init(&process, "shoal");
    process_add(&process, "run %s --wokers 2", cluster.job);
    expect_refusal(&process, "--workers");
}

/* --- C03 ---------------------------------------------------------------------------------------------------- */

static void C03_the_batch_is_said_in_numbers(void **state)
{
    (void)state;
    struct process process;
    process_init(&process, "shoal");
    process_add(&process, "run %s --workers 2 --set accumulate=2", cluster.job);
    assert_int_equal(process_run(&process), 0);
    process_expect_said(&process, "batch 4 = 2 workers x 2");
    process_forget(&process);
    process_init(&process, "shoal");
    process_add(&process, "run %s --workers 5", cluster.job);
    expect_refusal(&process, "batch_size");
    process_init(&process, "shoal");
    process_add(&process, "run %s --workers 2 --set accumulate=3", cluster.job);
    expect_refusal(&process, "batch_size");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_teardown(name, processes_end)
        CASE(C01_each_required_key_removed_in_turn),
        CASE(C01_a_job_file_that_is_none),
        CASE(C01_settings_of_the_daemons),
        CASE(C02_print_config_says_which_source_won),
        CASE(C02_keys_that_nobody_reads),
        CASE(C03_the_batch_is_said_in_numbers),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
