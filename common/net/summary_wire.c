#include "net/summary_wire.h"

#include <assert.h>
#include <string.h>

#include "base/trace.h"

void summary_wire_init(struct summary_wire *summary)
{
    shoal__summary__init(&summary->message);
    summary->message.state = summary->pointers[SUMMARY_STATE];
    summary->message.sent = summary->pointers[SUMMARY_SENT];
    summary->message.received = summary->pointers[SUMMARY_RECEIVED];
}

void summary_wire_add(struct summary_wire *summary, enum summary_part part, const char *name, int64_t bytes,
                      int64_t formula)
{
    size_t *counts[SUMMARY_PARTS] = {&summary->message.n_state, &summary->message.n_sent, &summary->message.n_received};
    size_t at = (*counts[part])++;
    assert(at < SUMMARY_ROWS_MAX);
    Shoal__Bytes *row = &summary->rows[part][at];
    shoal__bytes__init(row);
    row->name = (char *)name;
    row->bytes = bytes;
    row->formula = formula;
    summary->pointers[part][at] = row;
}

struct buf *summary_wire_trace(const struct trace *trace)
{
    size_t count = 0;
    const struct trace_event *events = trace ? trace_events(trace, &count) : NULL;
    struct buf *frame = count ? buf_create(count * sizeof(*events)) : NULL;
    if (frame) {
        memcpy(frame->data, events, frame->bytes);
    }
    return frame;
}
