/* A ring's message as bytes: the envelope of type COLLECTIVE and one frame. Reading allocates nothing. Pure; any
 * thread. */
#ifndef SHOAL_COLLECTIVE_RING_WIRE_H
#define SHOAL_COLLECTIVE_RING_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "wire/message.h"

struct errbuf;

enum {
    RING_TEXT_MAX = 400,     /* bytes of a header's text, with its end */
    RING_ENVELOPE_MAX = 1024 /* packed; larger ones are refused unread */
};

struct ring_header {
    uint64_t job, cluster_epoch, incarnation;
    uint64_t fingerprint, sequence;
    uint32_t segment, form;
    int rank, status;
    char text[RING_TEXT_MAX]; /* which operation this is; a poison's: what went wrong */
};

/* Packs into bytes[0..RING_ENVELOPE_MAX); returns how many. */
size_t ring_wire_pack(const struct ring_header *header, uint8_t *bytes);

/* Checks a whole message as message_table says and reads its envelope. parts_count counts all parts that came, of
 * which the first two are in the array. STATUS_FORMAT or STATUS_PROTOCOL and why. */
int ring_wire_read(struct ring_header *header, const struct message_part *parts, int parts_count,
                   size_t limit_bytes, struct errbuf *err);

/* Whether what came is what must come. Messages of one sender come in order, so anything else is an error for good.
 */
enum ring_match {
    RING_MATCH,
    RING_WRONG_SIZE, /* the same operation and segment, another length */
    RING_LOST,       /* what comes later, without what lies between: the connection was cut */
    RING_OTHER_CALL  /* the sender calls another operation */
};
enum ring_match ring_wire_match(const struct ring_header *came, size_t came_bytes, const struct ring_header *due,
                                size_t due_bytes);

#endif
