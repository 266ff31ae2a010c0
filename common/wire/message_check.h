/* What makes a message acceptable, read from its raw parts before anything is allocated for the payload.
 * Internal to wire. Pure but for the envelope that it allocates; any thread. */
#ifndef SHOAL_WIRE_MESSAGE_CHECK_H
#define SHOAL_WIRE_MESSAGE_CHECK_H

#include "wire/message.h"

/* Unpacks parts[0] into message->envelope and checks everything the table says. parts_count counts all parts that
 * came, of which the first min(parts_count, 1 + MESSAGE_FRAMES_MAX) are in the array. On STATUS_FORMAT and
 * STATUS_PROTOCOL the envelope is kept when it could be read, so that its sender can be answered. */
int message_check(struct message *message, const struct message_part *parts, int parts_count, size_t limit_bytes,
                  struct errbuf *err);
/* Whether a type may go to a serving socket (routed) or to a client's. */
int message_check_direction(const struct message *message, int routed, struct errbuf *err);

/* The same checks for whoever unpacks an envelope itself; frames are the parts behind it. */
int message_check_unpacked(const Shoal__Envelope *envelope, const struct message_part *frames, int frames_count,
                           size_t limit_bytes, struct errbuf *err);

#endif
