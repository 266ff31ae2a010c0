/* Timeline events in memory, written as Chrome trace JSON at the end (chrome://tracing, Perfetto).
 * One struct trace a role; trace_add is thread-safe and cheap (a lock-free slot); when full, later events
 * are dropped and counted. A NULL trace makes every call a no-op. */
#ifndef SHOAL_BASE_TRACE_H
#define SHOAL_BASE_TRACE_H

#include <stddef.h>
#include <stdint.h>

enum trace_kind { TRACE_COMPUTE, TRACE_PUSH, TRACE_PULL, TRACE_WAIT, TRACE_APPLY, TRACE_COLLECTIVE, TRACE_KINDS };

struct trace_event {
    int64_t begin_ns, end_ns; /* clock_now_ns of the role's host */
    int32_t step;
    int16_t layer; /* -1: none */
    uint8_t kind;  /* enum trace_kind */
    uint8_t lane;  /* 0 compute thread, 1 loop or comm thread, 2.. pool threads */
    char name[24]; /* "forward", "backward", "push", "pull", … */
};

struct trace;
struct trace *trace_create(size_t capacity); /* events */
void trace_destroy(struct trace *trace);
void trace_add(struct trace *trace, enum trace_kind kind, int lane, const char *name, int64_t step, int layer,
               int64_t begin_ns, int64_t end_ns);
/* Events that found no room. */
size_t trace_dropped(const struct trace *trace);
/* Flat copy for sending: returns the events (owned by the trace) and their number.
 * Other threads may go on adding; what they have not finished is left out. */
const struct trace_event *trace_events(const struct trace *trace, size_t *count);

struct trace_track {
    const char *role; /* "worker", "server", "coordinator" */
    int rank;
    int64_t offset_ns; /* added to this track's times to align it with the coordinator's clock */
    const struct trace_event *events;
    size_t count;
};
/* Writes one JSON file; pid = track + 1, tid = lane + 1 (0 means the idle process to Perfetto),
 * times relative to the earliest event. STATUS_IO with errno text. */
struct errbuf;
int trace_write(const char *path, const struct trace_track *tracks, size_t tracks_count, struct errbuf *err);

#endif
