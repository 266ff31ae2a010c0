/* How two ends on one host come to share memory: the asking end connects to the serving end's local socket and sends
 * local_hello with its segment, which is answered by local_welcome with the other's. FRAMES.md, "Shared memory". Internal to
 * net; loop thread only. */
#ifndef SHOAL_NET_LOCAL_H
#define SHOAL_NET_LOCAL_H

#include <stdint.h>

#include "base/segment.h"
#include "net/channel.h"
#include "net/net.h"

enum { LOCAL_VERSION = 1, LOCAL_NONCE_BYTES = 16, LOCAL_AREA_MIN = 4096, LOCAL_AREA_MAX = 256 << 20 };
#define LOCAL_MAGIC UINT32_C(0x4c414853)

struct local_hello {
    uint32_t magic, version;
    uint8_t nonce[LOCAL_NONCE_BYTES];
    uint64_t area_bytes;   /* of the segment that comes along */
    uint64_t answer_bytes; /* wanted for the other's */
};
struct local_welcome {
    uint32_t magic, version;
    uint64_t area_bytes;
};

/* --- serving ------------------------------------------------------------------------------------------ */

struct local_port;
typedef void local_message_fn(void *context, struct message *message, int status, struct errbuf *err);
struct local_port_options {
    struct net *net;
    struct account *account; /* NULL: nothing is booked */
    local_message_fn *message;
    void *context;
};
int local_port_open(struct local_port **port, const struct local_port_options *options, struct errbuf *err);
void local_port_close(struct local_port *port); /* and its channels; takes NULL */
/* Lets the sender of this LOCAL request in, once, and fills the answer, which borrows from the port. */
int local_port_invite(struct local_port *port, const struct message *request, Shoal__Local *answer);
/* Sends to the peer behind a channel; *over: the identity to use over ZeroMQ instead, when STATUS_RANGE says that the
 * message is too large. STATUS_UNKNOWN: no such channel any more. */
int local_port_send(struct local_port *port, const struct message_identity *to, const struct message_part *envelope,
                    struct buf *const *frames, int frames_count, struct message_identity *over);

/* --- asking ------------------------------------------------------------------------------------------- */

struct local_call_ops {
    /* Once, after local_call_connect returned 0: the channel is open (status 0), or why not. */
    void (*opened)(void *context, int status, const char *why);
    local_message_fn *message;
    void (*lost)(void *context, const char *why); /* after it was open */
    void *context;
};
struct local_call { /* all zeros at first */
    struct net *net;
    struct local_call_ops ops;
    uint64_t request_bytes, reply_bytes; /* areas */
    struct account *account;
    struct segment mine;
    struct channel *channel;
    int open;
};
int local_call_connect(struct local_call *call, const Shoal__Local *invitation, struct errbuf *err);
void local_call_close(struct local_call *call); /* neither `opened` nor `lost` comes any more */

#endif
