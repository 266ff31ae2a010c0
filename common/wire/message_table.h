/* One row a message type: who may send it, which body it carries, how many payload frames and how large. */
#ifndef SHOAL_WIRE_MESSAGE_TABLE_H
#define SHOAL_WIRE_MESSAGE_TABLE_H

#include <stdint.h>

#include "envelope.pb-c.h"

struct message_row {
    Shoal__Type type;
    const char *name;
    unsigned senders;   /* bit 1 << role */
    int reply;          /* enum message_direction */
    Shoal__Envelope__BodyCase body; /* SHOAL__ENVELOPE__BODY__NOT_SET: none allowed */
    int body_optional;  /* 1: may be absent */
    int frames_min, frames_max;
    uint64_t frame_bytes_max; /* 0: the socket's limit */
    unsigned element_bytes;   /* the first frame is a whole number of these; 0: by the envelope's dtype, if any */
    int ranged;               /* 1: selector and dtype must be there */
};
enum message_direction {
    MESSAGE_REQUEST = 0,
    MESSAGE_REPLY = 1, /* an answer, only valid with a request number we asked */
    MESSAGE_EITHER = 2 /* a request that is answered by its own type */
};
/* NULL for an unknown type. */
const struct message_row *message_row_of(Shoal__Type type);
/* Bytes of one element, 0 for an unknown dtype. */
unsigned message_dtype_bytes(Shoal__Dtype dtype);

#endif
