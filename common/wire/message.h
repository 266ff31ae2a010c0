/* A message in memory: the unpacked envelope and its payload frames. Everything Shoal sends is a request over a
 * DEALER or a reply over a ROUTER; FRAMES.md has the frame order. A struct message is owned by one thread. */
#ifndef SHOAL_WIRE_MESSAGE_H
#define SHOAL_WIRE_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "envelope.pb-c.h"

enum {
    MESSAGE_FRAMES_MAX = 4,       /* payload frames */
    MESSAGE_IDENTITY_MAX = 64,
    MESSAGE_ENVELOPE_MAX = 8 << 20,
    MESSAGE_ALIGN_COPY = 8192,    /* payload frames up to this are copied to aligned memory */
    MESSAGE_USER_MAX = 64
};
enum { PROTOCOL_LOW = 1, PROTOCOL_HIGH = 1 };

struct message_identity {
    uint8_t bytes[MESSAGE_IDENTITY_MAX];
    size_t count; /* 0 on a DEALER */
    uint64_t channel; /* it came through shared memory, and the answer goes the same way; 0: ZeroMQ */
};

struct message {
    struct message_identity from;
    Shoal__Envelope *envelope; /* owned */
    struct buf *frames[MESSAGE_FRAMES_MAX]; /* owned references; views on the received ZeroMQ messages */
    int frames_count;
    int64_t received_ns;
    char user[MESSAGE_USER_MAX]; /* who the CURVE handshake says this is, "role key"; empty where there was none */
    char address[MESSAGE_USER_MAX]; /* the host a JOIN came from, empty over inproc and for other types */
};
/* Frames above MESSAGE_ALIGN_COPY are read-only: over inproc they are the sender's own memory, and a buf_is_sole of
 * the view says nothing about that. */
void message_close(struct message *message);

/* Takes one whole multipart message from the socket. STATUS_BUSY: nothing there. STATUS_FORMAT or
 * STATUS_PROTOCOL: a complete bad message was read and dropped; message->from and, where it could be read,
 * message->envelope->request and protocol fields are set so that the sender can be answered; err says why.
 * All checks of message_table (type, direction, body, frame count and sizes, dtype, selector) are done here, before
 * anything is allocated for the payload. limit_bytes: largest payload frame. */
struct errbuf;
int message_receive(void *socket, int routed, size_t limit_bytes, struct message *message, struct errbuf *err);
/* The same from memory, for tests and fuzzing: parts[0] is the envelope frame. */
struct message_part {
    const void *data;
    size_t bytes;
};
int message_parse(const struct message_part *parts, int parts_count, size_t limit_bytes, struct message *message,
                  struct errbuf *err);

/* The same for frames that lie in memory shared with the sender: on success the references are the message's. The
 * envelope must be memory of the caller's own. `routed` as above; `from`, `user` are the caller's to set. */
int message_adopt(const struct message_part *envelope, struct buf *const *frames, int frames_count, int routed,
                  size_t limit_bytes, struct message *message, struct errbuf *err);

/* Sends envelope and frames without copying payloads above MESSAGE_ALIGN_COPY (each frame's buf is shared until
 * ZeroMQ is done with it). `to` NULL on a DEALER. STATUS_BUSY when the socket would block, STATUS_UNKNOWN when the
 * ROUTER has no such peer (any more). */
int message_send(void *socket, const struct message_identity *to, const Shoal__Envelope *envelope,
                 struct buf *const *frames, int frames_count);
/* The same for an envelope that is packed already: one that may have to be sent again. */
int message_send_packed(void *socket, const struct message_part *envelope, struct buf *const *frames,
                        int frames_count);

#endif
