#include "tests/lib/timeline.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

enum { PIDS = 64 };

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (text == NULL)
        fail_msg("timeline: an event has no %s", key);
    return text;
}

static double number_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value))
        fail_msg("timeline: an event has no number %s", key);
    return json_number_value(value);
}

/* Ranks of workers by pid, -1 for everybody else. */
static void take_names(const json_t *all, int ranks[PIDS])
{
    const json_t *event;
    size_t i;
    for (int pid = 0; pid < PIDS; pid++)
        ranks[pid] = -1;
    json_array_foreach(all, i, event) {
        if (strcmp(text_of(event, "ph"), "M") != 0 || strcmp(text_of(event, "name"), "process_name") != 0)
            continue;
        int pid = (int)number_of(event, "pid");
        const char *name = text_of(json_object_get(event, "args"), "name");
        assert_true(pid > 0 && pid < PIDS);
        if (sscanf(name, "worker %d", &ranks[pid]) != 1)
            ranks[pid] = -1;
    }
}

static void take_event(struct timeline *timeline, const json_t *event, int rank)
{
    struct timeline_event *taken = &timeline->events[timeline->count++];
    const json_t *arguments = json_object_get(event, "args");
    *taken = (struct timeline_event){.rank = rank, .step = (int)number_of(arguments, "step"),
                                     .layer = (int)number_of(arguments, "layer"),
                                     .begin_us = number_of(event, "ts")};
    snprintf(taken->name, sizeof taken->name, "%s", text_of(event, "name"));
}

static int by_begin(const void *a, const void *b)
{
    const struct timeline_event *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank - y->rank;
    return x->begin_us < y->begin_us ? -1 : x->begin_us > y->begin_us;
}

/* Pairs of what runs beside compute follow each other in the file: begin, then end, with one id. */
static void take_all(struct timeline *timeline, const json_t *all, const int ranks[PIDS])
{
    const json_t *event;
    size_t i;
    json_array_foreach(all, i, event) {
        const char *phase = text_of(event, "ph");
        int pid = (int)number_of(event, "pid");
        if (*phase == 'M' || ranks[pid] < 0)
            continue;
        if (*phase == 'X') {
            take_event(timeline, event, ranks[pid]);
            struct timeline_event *taken = &timeline->events[timeline->count - 1];
            taken->end_us = taken->begin_us + number_of(event, "dur");
        } else if (*phase == 'b') {
            const json_t *end = json_array_get(all, i + 1);
            assert_string_equal(text_of(end, "ph"), "e");
            assert_string_equal(text_of(end, "id"), text_of(event, "id"));
            take_event(timeline, event, ranks[pid]);
            timeline->events[timeline->count - 1].beside = 1;
            timeline->events[timeline->count - 1].end_us = number_of(end, "ts");
        }
    }
}

void timeline_read(struct timeline *timeline, const char *path)
{
    int ranks[PIDS];
    json_error_t error;
    json_t *root = json_load_file(path, 0, &error);
    if (root == NULL)
        fail_msg("%s: %s", path, error.text);
    const json_t *all = json_object_get(root, "traceEvents");
    timeline->count = 0;
    timeline->events = calloc(json_array_size(all) + 1, sizeof *timeline->events);
    assert_non_null(timeline->events);
    take_names(all, ranks);
    take_all(timeline, all, ranks);
    json_decref(root);
    qsort(timeline->events, (size_t)timeline->count, sizeof *timeline->events, by_begin);
}

void timeline_close(struct timeline *timeline)
{
    free(timeline->events);
    timeline->events = NULL;
}

const struct timeline_event *timeline_find(const struct timeline *timeline, const struct timeline_event *like, int nth)
{
    for (int i = 0; i < timeline->count; i++) {
        const struct timeline_event *event = &timeline->events[i];
        if (event->rank == like->rank && event->step == like->step && event->layer == like->layer &&
            strcmp(event->name, like->name) == 0 && nth-- == 0)
            return event;
    }
    return NULL;
}
