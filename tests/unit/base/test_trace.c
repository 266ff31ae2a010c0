#include "base/errbuf.h"
#include "base/status.h"
#include "base/trace.h"

#include <jansson.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static void full_trace_drops_and_counts(void **state)
{
    (void)state;
    struct trace *trace = trace_create(2);
    size_t count;
    for (int i = 0; i < 5; i++)
        trace_add(trace, TRACE_PUSH, 1, "a name longer than twenty-four bytes", i, -1, 10, 20);
    const struct trace_event *events = trace_events(trace, &count);
    assert_int_equal(count, 2);
    assert_int_equal(trace_dropped(trace), 3);
    assert_int_equal(events[1].step, 1);
    assert_string_equal(events[1].name, "a name longer than twen");
    trace_destroy(trace);
}

static void null_trace_is_no_trace(void **state)
{
    (void)state;
    size_t count = 1;
    trace_add(NULL, TRACE_PUSH, 1, "x", 0, -1, 10, 20);
    assert_null(trace_events(NULL, &count));
    assert_int_equal(count, 0);
    assert_int_equal(trace_dropped(NULL), 0);
    trace_destroy(NULL);
}

static void *add_events(void *argument)
{
    for (int i = 0; i < 500; i++)
        trace_add(argument, TRACE_COMPUTE, 2, "apply", i, 0, i, i + 1);
    return NULL;
}

static void threads_add_at_once(void **state)
{
    (void)state;
    struct trace *trace = trace_create(1600);
    pthread_t threads[3];
    size_t count;
    for (int t = 0; t < 3; t++)
        assert_int_equal(pthread_create(&threads[t], NULL, add_events, trace), 0);
    const struct trace_event *events = trace_events(trace, &count);
    for (size_t i = 0; i < count; i++)
        assert_string_equal(events[i].name, "apply");
    for (int t = 0; t < 3; t++)
        pthread_join(threads[t], NULL);
    trace_events(trace, &count);
    assert_int_equal(count, 1500);
    trace_destroy(trace);
}

static json_t *find_event(json_t *events, const char *phase, const char *name, int pid)
{
    size_t i;
    json_t *event;
    json_array_foreach(events, i, event)
    {
        if (strcmp(json_string_value(json_object_get(event, "ph")), phase) == 0 &&
            strcmp(json_string_value(json_object_get(event, "name")), name) == 0 &&
            json_integer_value(json_object_get(event, "pid")) == pid)
            return event;
    }
    return NULL;
}

static void file_is_json_with_aligned_tracks(void **state)
{
    (void)state;
    struct trace *worker = trace_create(8), *server = trace_create(8);
    trace_add(worker, TRACE_COMPUTE, 0, "for\"ward\n", 3, 2, 5000000000001500, 5000000000004750);
    trace_add(server, TRACE_APPLY, 2, "apply", 3, -1, 1000, 900);
    struct trace_track tracks[3] = {
        {.role = "worker", .rank = 1}, {.role = "server", .rank = 0}, {.role = "coordinator", .rank = 0}};
    tracks[0].events = trace_events(worker, &tracks[0].count);
    tracks[1].events = trace_events(server, &tracks[1].count);
    tracks[1].offset_ns = 5000000000000000;
    char path[] = "/tmp/shoal-trace-XXXXXX";
    close(mkstemp(path));
    struct errbuf err;
    assert_int_equal(trace_write(path, tracks, 3, &err), STATUS_OK);
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    json_t *events = json_object_get(root, "traceEvents");
    json_t *forward = find_event(events, "X", "for\"ward?", 1);
    assert_non_null(forward);
    assert_true(json_number_value(json_object_get(forward, "ts")) == 0.5);
    assert_true(json_number_value(json_object_get(forward, "dur")) == 3.25);
    assert_int_equal(json_integer_value(json_object_get(forward, "tid")), 1);
    json_t *arguments = json_object_get(forward, "args");
    assert_int_equal(json_integer_value(json_object_get(arguments, "step")), 3);
    assert_int_equal(json_integer_value(json_object_get(arguments, "layer")), 2);
    json_t *apply = find_event(events, "b", "apply", 2);
    json_t *over = find_event(events, "e", "apply", 2);
    assert_true(json_number_value(json_object_get(apply, "ts")) == 0);
    assert_true(json_number_value(json_object_get(over, "ts")) == 0);
    assert_string_equal(json_string_value(json_object_get(apply, "id")), json_string_value(json_object_get(over, "id")));
    json_t *name = json_object_get(find_event(events, "M", "process_name", 1), "args");
    assert_string_equal(json_string_value(json_object_get(name, "name")), "worker 1");
    name = json_object_get(find_event(events, "M", "thread_name", 2), "args");
    assert_string_equal(json_string_value(json_object_get(name, "name")), "pool 0");
    assert_non_null(find_event(events, "M", "process_name", 3));
    json_decref(root);
    unlink(path);
    trace_destroy(worker);
    trace_destroy(server);
}

static void write_failure_names_path_and_reason(void **state)
{
    (void)state;
    struct errbuf err;
    assert_int_equal(trace_write("/nonexistent/t.json", NULL, 0, &err), STATUS_IO);
    assert_string_equal(err.text, "trace: open /nonexistent/t.json: No such file or directory");
    assert_int_equal(trace_write("/dev/full", NULL, 0, &err), STATUS_IO);
    assert_string_equal(err.text, "trace: write /dev/full: No space left on device");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_trace_drops_and_counts),
        cmocka_unit_test(null_trace_is_no_trace),
        cmocka_unit_test(threads_add_at_once),
        cmocka_unit_test(file_is_json_with_aligned_tracks),
        cmocka_unit_test(write_failure_names_path_and_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
