/* A rank's SUMMARY on the wire: rows of its books, and its trace as a frame. */
#ifndef SHOAL_NET_SUMMARY_WIRE_H
#define SHOAL_NET_SUMMARY_WIRE_H

#include <stdint.h>

#include "base/buf.h"
#include "envelope.pb-c.h"

struct trace;

enum summary_part { SUMMARY_STATE, SUMMARY_SENT, SUMMARY_RECEIVED, SUMMARY_PARTS };
enum { SUMMARY_ROWS_MAX = 12 };

/* On the caller's stack; message borrows from it. */
struct summary_wire {
    Shoal__Summary message;
    Shoal__Bytes rows[SUMMARY_PARTS][SUMMARY_ROWS_MAX];
    Shoal__Bytes *pointers[SUMMARY_PARTS][SUMMARY_ROWS_MAX];
};

void summary_wire_init(struct summary_wire *summary);
/* name is borrowed; formula -1: none. At most SUMMARY_ROWS_MAX rows a part. */
void summary_wire_add(struct summary_wire *summary, enum summary_part part, const char *name, int64_t bytes,
                      int64_t formula);
/* Owned copy of the events; NULL without any (or trace NULL). */
struct buf *summary_wire_trace(const struct trace *trace);

#endif
