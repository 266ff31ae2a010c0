/* `shoal run` as a user types it: real processes, real signals. */
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

#include <jansson.h>

#include "base/sha256.h"
#include "tests/lib/session.h"

enum { START_MS = 60000, TRAIN_MS = 90000, STOP_MS = 5000, FAIL_MS = 20000, ARGUMENTS_MAX = 24 };

#define SHOAL SHOAL_BINARY_DIR "/bin/shoal"
#define SHOAL_SERVER SHOAL_BINARY_DIR "/bin/shoal-server"
#define SHOAL_WORKER SHOAL_BINARY_DIR "/bin/shoal-worker"

static const char job_text[] = "name: small\n"
                               "seed: 3\n"
                               "steps: 20\n"
                               "batch_size: 32\n"
                               "log_every: 5\n"
                               "data: {kind: csv, train: {file: d.csv}, test: {file: d.csv}, header_lines: 1}\n"
                               "model: {kind: mlp, hidden: [8]}\n"
                               "optimizer: {kind: adam, lr: 0.01}\n";

struct fixture {
    char folder[64];
    struct session process;
};

static void write_text(const struct fixture *fixture, const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", fixture->folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void write_data(const struct fixture *fixture)
{
    char text[8192] = "a,b,kind\n";
    size_t used = strlen(text);
    uint32_t seed = 11;
    for (int i = 0; i < 200; i++) {
        seed = seed * 1664525 + 1013904223;
        double a = (double)(seed >> 20) / 4096;
        seed = seed * 1664525 + 1013904223;
        double b = (double)(seed >> 20) / 4096;
        used += (size_t)snprintf(text + used, sizeof text - used, "%.4f,%.4f,%s\n", a, b, a > b ? "over" : "under");
    }
    write_text(fixture, "d.csv", text);
}

static int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    if (!fixture)
        return -1;
    snprintf(fixture->folder, sizeof fixture->folder, "/tmp/shoal-run-XXXXXX");
    if (!mkdtemp(fixture->folder) || chdir(fixture->folder) != 0)
        return -1;
    setenv("SHOAL_LOG", "error", 1);
    write_text(fixture, "job.yaml", job_text);
    write_data(fixture);
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    static const char *const names[] = {"job.yaml", "d.csv", "a.safetensors", "b.safetensors", "m.jsonl", "t.json"};
    struct fixture *fixture = *state;
    session_close(&fixture->process);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unlink(names[i]);
    int failed = chdir("/") != 0 || rmdir(fixture->folder) != 0;
    free(fixture);
    return failed ? -1 : 0;
}

/* Words of `line` become arguments; the first is a program. */
static void start(struct fixture *fixture, const char *line)
{
    char text[512], *save = NULL;
    const char *argv[ARGUMENTS_MAX + 1] = {NULL};
    int argc = 0;
    session_close(&fixture->process);
    snprintf(text, sizeof text, "%s", line);
    for (char *word = strtok_r(text, " ", &save); word && argc < ARGUMENTS_MAX; word = strtok_r(NULL, " ", &save))
        argv[argc++] = word;
    assert_int_equal(session_start(&fixture->process, argv), 0);
}

static void expect_end(struct fixture *fixture, int code, int deadline_ms)
{
    struct session *process = &fixture->process;
    int found = session_wait(process, deadline_ms);
    if (found != code)
        fail_msg("exit code %d, not %d: %s", found, code, process->text[SESSION_ERR]);
    if (!session_wait_gone(process, 2000))
        fail_msg("something is left running");
}

static void expect_said(struct fixture *fixture, int stream, const char *part)
{
    if (!strstr(fixture->process.text[stream], part))
        fail_msg("\"%s\" is not in: %s", part, fixture->process.text[stream]);
}

static void file_sha256(const char *path, char hex[65])
{
    assert_int_equal(sha256_of_file(path, hex), 0);
}

/* --- a run to its end -------------------------------------------------------------------------------------------
 */

static void expect_metrics(const char *path, int steps, const char *sha256)
{
    char line[65536];
    FILE *file = fopen(path, "r");
    int seen = 0, summaries = 0;
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        json_t *root = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(root);
        const char *event = json_string_value(json_object_get(root, "event"));
        assert_non_null(event);
        if (strcmp(event, "step") == 0) {
            assert_int_equal(json_integer_value(json_object_get(root, "step")), ++seen);
            assert_true(json_is_number(json_object_get(root, "loss")));
            assert_int_equal(json_integer_value(json_object_get(root, "samples")), seen % 7 ? 32 : 8);
        } else if (strcmp(event, "summary") == 0) {
            summaries++;
            assert_string_equal(json_string_value(json_object_get(root, "export_sha256")), sha256);
        }
        json_decref(root);
    }
    fclose(file);
    assert_int_equal(seen, steps);
    assert_int_equal(summaries, 1);
}

/* Processes share memory, use tcp, or are threads. */
static void processes_and_threads_export_the_same_bytes(void **state)
{
    struct fixture *fixture = *state;
    char processes[65], threads[65];
    start(fixture,
          SHOAL " run job.yaml --workers 2 --servers 2 --export a.safetensors --metrics m.jsonl --trace t.json");
    expect_end(fixture, 0, TRAIN_MS);
    file_sha256("a.safetensors", processes);
    expect_said(fixture, SESSION_OUT, processes);
    expect_metrics("m.jsonl", 20, processes);
    json_t *trace = json_load_file("t.json", 0, NULL);
    assert_non_null(trace);
    json_decref(trace);
    start(fixture, SHOAL " run job.yaml --workers 2 --servers same --embedded --export b.safetensors");
    expect_end(fixture, 0, TRAIN_MS);
    file_sha256("b.safetensors", threads);
    assert_string_equal(processes, threads);
    start(fixture, SHOAL " run job.yaml --workers 2 --servers 1 --transport tcp --export b.safetensors");
    expect_end(fixture, 0, TRAIN_MS);
    file_sha256("b.safetensors", threads);
    assert_string_equal(processes, threads);
    start(fixture, SHOAL " run job.yaml --workers 2 --servers 2 --transport shm --export b.safetensors");
    expect_end(fixture, 0, TRAIN_MS);
    file_sha256("b.safetensors", threads);
    assert_string_equal(processes, threads);
}

static void an_exported_model_predicts_evaluates_and_is_inspected(void **state)
{
    struct fixture *fixture = *state;
    start(fixture, SHOAL " run job.yaml --embedded --export a.safetensors --set steps=300");
    expect_end(fixture, 0, TRAIN_MS);
    start(fixture, SHOAL " predict a.safetensors --data kind=csv,file=d.csv,header_lines=1 --format csv");
    expect_end(fixture, 0, START_MS);
    expect_said(fixture, SESSION_OUT, "row,class,probability\n0,");
    expect_said(fixture, SESSION_OUT, "\n199,");
    start(fixture, SHOAL " evaluate a.safetensors --job job.yaml");
    expect_end(fixture, 0, START_MS);
    expect_said(fixture, SESSION_OUT, "rows 200, with a label 200");
    expect_said(fixture, SESSION_OUT, "\nauc ");
    expect_said(fixture, SESSION_OUT, "log loss ");
    start(fixture, SHOAL " inspect a.safetensors d.csv");
    expect_end(fixture, 0, START_MS);
    expect_said(fixture, SESSION_OUT, "layers.0.linear.weight F32 (8,2)");
    expect_said(fixture, SESSION_OUT, "csv: ");
}

/* --- bad usage
 * ------------------------------------------------------------------------------------------------------ */

static void bad_usage_ends_with_2_and_one_line(void **state)
{
    static const struct {
        const char *line, *part;
    } cases[] = {
        {SHOAL " run job.yaml --wrokers 2", "did you mean --workers?"},
        {SHOAL " run job.yaml --set optimizer.lerning=1", "optimizer.lerning"},
        {SHOAL " run job.yaml --workers 64", "batch_size"},
        {SHOAL " run nothing.yaml", "nothing.yaml"},
        {SHOAL " run job.yaml --export /nowhere/x.safetensors", "--export /nowhere/x.safetensors"},
        {SHOAL " ruin", "did you mean run?"},
        {SHOAL_SERVER, "missing: --cluster"},
        {SHOAL_SERVER " --export x", "missing: --coordinator --job"},
        {SHOAL_SERVER " --coordinator --listen tcp://0.0.0.0:0", "insecure"},
        {SHOAL_WORKER, "missing: --cluster"},
        {SHOAL_WORKER " --cluster nonsense", "nonsense"},
        {SHOAL " keygen", "missing: --keys DIR, --name NAME"},
    };
    struct fixture *fixture = *state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        start(fixture, cases[i].line);
        expect_end(fixture, 2, START_MS);
        expect_said(fixture, SESSION_ERR, cases[i].part);
        const char *first = strchr(fixture->process.text[SESSION_ERR], '\n');
        assert_true(first && first[1] == '\0');
    }
}

static void print_config_says_where_values_are_from(void **state)
{
    struct fixture *fixture = *state;
    start(fixture, SHOAL " run job.yaml --workers 3 --set optimizer.lr=0.5 --print-config");
    expect_end(fixture, 0, START_MS);
    expect_said(fixture, SESSION_OUT, "cluster.workers: 3");
    expect_said(fixture, SESSION_OUT, "--workers");
    expect_said(fixture, SESSION_OUT, "--set");
    expect_said(fixture, SESSION_OUT, "job.yaml:3");
}

/* --- stops and deaths
 * ---------------------------------------------------------------------------------------------- */

static void start_endless(struct fixture *fixture, const char *more)
{
    char line[512];
    snprintf(line, sizeof line, SHOAL " run job.yaml --workers 2 --servers 2 --set steps=100000000 %s", more);
    start(fixture, line);
    if (!session_wait_text(&fixture->process, SESSION_OUT, "step 5/", START_MS))
        fail_msg("no step: %s", fixture->process.text[SESSION_ERR]);
}

static void a_signal_ends_everything_in_order(void **state)
{
    static const int signals[] = {SIGTERM, SIGINT};
    struct fixture *fixture = *state;
    for (int embedded = 0; embedded < 2; embedded++) {
        for (int i = 0; i < 2; i++) {
            start_endless(fixture, embedded ? "--embedded" : "");
            assert_int_equal(kill(fixture->process.pid, signals[i]), 0);
            expect_end(fixture, 128 + signals[i], STOP_MS);
        }
    }
}

static void kill_one(struct fixture *fixture, const char *program, const char *word, const char *value,
                     const char *who)
{
    start_endless(fixture, "");
    pid_t pid = session_find(&fixture->process, program, word, value);
    assert_true(pid > 0);
    assert_int_equal(kill(pid, SIGKILL), 0);
    expect_end(fixture, 1, FAIL_MS);
    expect_said(fixture, SESSION_ERR, who);
    expect_said(fixture, SESSION_ERR, "was killed by signal 9");
}

static void a_killed_worker_ends_the_run_with_a_clear_line(void **state)
{
    kill_one(*state, "shoal-worker", "--rank", "1", "worker 1 (pid ");
}

static void a_killed_server_ends_the_run_with_a_clear_line(void **state)
{
    kill_one(*state, "shoal-server", "--rank", "0", "server 0 (pid ");
}

static void a_killed_coordinator_ends_the_run_with_a_clear_line(void **state)
{
    kill_one(*state, "shoal-server", "--coordinator", NULL, "coordinator (pid ");
}

static void nothing_outlives_a_killed_launcher(void **state)
{
    struct fixture *fixture = *state;
    start_endless(fixture, "");
    assert_int_equal(kill(fixture->process.pid, SIGKILL), 0);
    assert_true(session_wait_gone(&fixture->process, STOP_MS + 1000));
}

/* O01: as process 1 of a PID namespace. */
static void o01_daemons_as_process_1_stop_on_signals(void **state)
{
    static const int signals[] = {SIGTERM, SIGINT};
    struct fixture *fixture = *state;
    if (geteuid() != 0)
        skip();
    for (int i = 0; i < 2; i++) {
        start(fixture, "unshare --pid --fork --kill-child " SHOAL_SERVER
                       " --coordinator --listen tcp://127.0.0.1:0 --ready-fd 1");
        if (!session_wait_text(&fixture->process, SESSION_OUT, "tcp://127.0.0.1:", START_MS)) {
            if (strstr(fixture->process.text[SESSION_ERR], "unshare"))
                skip(); /* not allowed here */
            fail_msg("not ready: %s", fixture->process.text[SESSION_ERR]);
        }
        pid_t pid = session_find(&fixture->process, "shoal-server", "--coordinator", NULL);
        assert_true(pid > 0);
        assert_int_equal(kill(pid, signals[i]), 0);
        expect_end(fixture, 128 + signals[i], STOP_MS);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(processes_and_threads_export_the_same_bytes, setup, teardown),
        cmocka_unit_test_setup_teardown(an_exported_model_predicts_evaluates_and_is_inspected, setup, teardown),
        cmocka_unit_test_setup_teardown(bad_usage_ends_with_2_and_one_line, setup, teardown),
        cmocka_unit_test_setup_teardown(print_config_says_where_values_are_from, setup, teardown),
        cmocka_unit_test_setup_teardown(a_signal_ends_everything_in_order, setup, teardown),
        cmocka_unit_test_setup_teardown(a_killed_worker_ends_the_run_with_a_clear_line, setup, teardown),
        cmocka_unit_test_setup_teardown(a_killed_server_ends_the_run_with_a_clear_line, setup, teardown),
        cmocka_unit_test_setup_teardown(a_killed_coordinator_ends_the_run_with_a_clear_line, setup, teardown),
        cmocka_unit_test_setup_teardown(nothing_outlives_a_killed_launcher, setup, teardown),
        cmocka_unit_test_setup_teardown(o01_daemons_as_process_1_stop_on_signals, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
