#include "base/trace.h"

#include "base/errbuf.h"
#include "base/status.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct trace {
    size_t capacity;
    struct trace_event *events;
    atomic_uchar *written; /* one an event: its fields are there */
    atomic_size_t next;    /* goes on past capacity: the rest is what was dropped */
};

struct trace *trace_create(size_t capacity)
{
    struct trace *trace = calloc(1, sizeof *trace);
    if (!trace)
        return NULL;
    trace->capacity = capacity;
    trace->events = calloc(capacity ? capacity : 1, sizeof *trace->events);
    trace->written = calloc(capacity ? capacity : 1, sizeof *trace->written);
    if (!trace->events || !trace->written) {
        trace_destroy(trace);
        return NULL;
    }
    return trace;
}

void trace_destroy(struct trace *trace)
{
    if (!trace)
        return;
    free(trace->written);
    free(trace->events);
    free(trace);
}

void trace_add(struct trace *trace, enum trace_kind kind, int lane, const char *name, int64_t step, int layer,
               int64_t begin_ns, int64_t end_ns)
{
    if (!trace)
        return;
    size_t slot = atomic_fetch_add_explicit(&trace->next, 1, memory_order_relaxed);
    if (slot >= trace->capacity)
        return;
    struct trace_event *event = &trace->events[slot];
    event->begin_ns = begin_ns;
    event->end_ns = end_ns < begin_ns ? begin_ns : end_ns;
    event->step = (int32_t)step;
    event->layer = (int16_t)layer;
    event->kind = (uint8_t)kind;
    event->lane = (uint8_t)lane;
    snprintf(event->name, sizeof event->name, "%s", name);
    atomic_store_explicit(&trace->written[slot], 1, memory_order_release);
}

size_t trace_dropped(const struct trace *trace)
{
    if (!trace)
        return 0;
    size_t next = atomic_load_explicit(&trace->next, memory_order_relaxed);
    return next > trace->capacity ? next - trace->capacity : 0;
}

const struct trace_event *trace_events(const struct trace *trace, size_t *count)
{
    *count = 0;
    if (!trace)
        return NULL;
    size_t next = atomic_load_explicit(&trace->next, memory_order_relaxed);
    size_t end = next < trace->capacity ? next : trace->capacity;
    while (*count < end && atomic_load_explicit(&trace->written[*count], memory_order_acquire))
        ++*count;
    return trace->events;
}

/* Names may have come from a peer: at most 24 bytes, maybe without a NUL, maybe not JSON-safe. */
static void trace_print_text(FILE *file, const char *text, size_t bytes)
{
    fputc('"', file);
    for (size_t i = 0; i < bytes && text[i]; i++) {
        unsigned char byte = (unsigned char)text[i];
        if (byte < 0x20 || byte > 0x7e)
            fputc('?', file);
        else if (byte == '"' || byte == '\\')
            fprintf(file, "\\%c", byte);
        else
            fputc(byte, file);
    }
    fputc('"', file);
}

static const char *trace_kind_name(int kind)
{
    static const char *const names[TRACE_KINDS] = {"compute", "push", "pull", "wait", "apply", "collective"};
    return kind < TRACE_KINDS ? names[kind] : "other";
}

/* Nanoseconds as microseconds with three decimals, exactly. */
static void trace_print_us(FILE *file, const char *key, int64_t ns)
{
    fprintf(file, ",\"%s\":%" PRId64 ".%03d", key, ns / 1000, (int)(ns % 1000));
}

static void trace_write_names(FILE *file, const struct trace_track *track, int pid)
{
    fprintf(file, "%s{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"%s %d\"}}",
            pid > 1 ? ",\n" : "", pid, track->role, track->rank);
    fprintf(file, ",\n{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%d,\"args\":{\"sort_index\":%d}}", pid,
            pid);
    unsigned char seen[256] = {0};
    for (size_t i = 0; i < track->count; i++)
        seen[track->events[i].lane] = 1;
    for (int lane = 0; lane < 256; lane++) {
        if (!seen[lane])
            continue;
        fprintf(file, ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":", pid,
                lane + 1);
        if (lane < 2)
            fprintf(file, "\"%s\"}}", lane ? "loop" : "compute");
        else
            fprintf(file, "\"pool %d\"}}", lane - 2);
    }
}

static void trace_write_head(FILE *file, const struct trace_event *event, const char *phase, int pid, int64_t at_ns)
{
    fprintf(file, ",\n{\"ph\":\"%s\",\"pid\":%d,\"tid\":%d,\"cat\":\"%s\",\"name\":", phase, pid, event->lane + 1,
            trace_kind_name(event->kind));
    trace_print_text(file, event->name, sizeof event->name);
    trace_print_us(file, "ts", at_ns);
}

/* The compute thread does one thing at a time: complete events. What is under way elsewhere overlaps, which a viewer
 * shows only for asynchronous pairs. */
static void trace_write_events(FILE *file, const struct trace_track *track, int pid, int64_t origin_ns)
{
    for (size_t i = 0; i < track->count; i++) {
        const struct trace_event *event = &track->events[i];
        int64_t begin_ns = event->begin_ns + track->offset_ns - origin_ns;
        int64_t length_ns = event->end_ns > event->begin_ns ? event->end_ns - event->begin_ns : 0;
        trace_write_head(file, event, event->lane == 0 ? "X" : "b", pid, begin_ns);
        if (event->lane == 0)
            trace_print_us(file, "dur", length_ns);
        else
            fprintf(file, ",\"id\":\"%d.%zu\"", pid, i);
        fprintf(file, ",\"args\":{\"step\":%d,\"layer\":%d}}", event->step, event->layer);
        if (event->lane != 0) {
            trace_write_head(file, event, "e", pid, begin_ns + length_ns);
            fprintf(file, ",\"id\":\"%d.%zu\"}", pid, i);
        }
    }
}

static int64_t trace_origin(const struct trace_track *tracks, size_t tracks_count)
{
    int64_t origin_ns = INT64_MAX;
    for (size_t t = 0; t < tracks_count; t++) {
        for (size_t i = 0; i < tracks[t].count; i++) {
            int64_t begin_ns = tracks[t].events[i].begin_ns + tracks[t].offset_ns;
            if (begin_ns < origin_ns)
                origin_ns = begin_ns;
        }
    }
    return origin_ns;
}

int trace_write(const char *path, const struct trace_track *tracks, size_t tracks_count, struct errbuf *err)
{
    FILE *file = fopen(path, "we");
    if (!file)
        return errbuf_set(err, STATUS_IO, "trace: open %s: %s", path, strerror(errno));
    int64_t origin_ns = trace_origin(tracks, tracks_count);
    fprintf(file, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    for (size_t t = 0; t < tracks_count; t++) {
        trace_write_names(file, &tracks[t], (int)t + 1);
        trace_write_events(file, &tracks[t], (int)t + 1, origin_ns);
    }
    fprintf(file, "\n]}\n");
    errno = 0;
    int failed = ferror(file);
    int code = errno;
    if (fclose(file) != 0) {
        failed = 1;
        code = errno;
    }
    if (!failed)
        return STATUS_OK;
    return errbuf_set(err, STATUS_IO, "trace: write %s: %s", path, strerror(code ? code : EIO));
}
