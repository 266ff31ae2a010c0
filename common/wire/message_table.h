/* One row a message type: who may send it, which body it carries, how many payload frames and how large. */
#ifndef SHOAL_WIRE_MESSAGE_TABLE_H
#define SHOAL_WIRE_MESSAGE_TABLE_H

#include <stdint.h>

#include "envelope.pb-c.h"

struct message_row {
    Shoal__Type type;
    const char *name;
    unsigned senders;   /* bit 1 << role */
    int reply;          /* 1: an answer, only valid with a request number we asked */
    Shoal__Envelope__BodyCase body; /* SHOAL__ENVELOPE__BODY__NOT_SET: none allowed */
    int frames_min, frames_max;
    uint64_t frame_bytes_max; /* 0: the socket's limit */
};
/* NULL for an unknown type. */
const struct message_row *message_row_of(Shoal__Type type);

#endif
