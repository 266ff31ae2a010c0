/* A way for messages between two processes of one host: a local socket, which tells of the other end's death and rings,
 * and, once it is open, a duct. Loop thread only; the frames of messages that came may be released by any thread, also
 * after the channel is closed.
 *
 *   channel_create --greet: both segments are known--> channel_open --other end gone, or lies: `gone`--> closed
 *        \--------------------------------------------------------------------- channel_close ----------/
 *
 * What finds no room in the area waits in the sender's memory, in order, sharing its frames. */
#ifndef SHOAL_NET_CHANNEL_H
#define SHOAL_NET_CHANNEL_H

#include <stdint.h>

#include "base/segment.h"
#include "wire/message.h"

struct account;
struct channel;
struct channel_watch;
struct errbuf;
struct net;

struct channel_ops {
    /* Something came on the socket, which is not open yet. The callee may open or close the channel. */
    void (*greet)(void *context, struct channel *channel, int sock);
    /* A message, with status 0, or one that breaks the rules, as message_receive leaves it. It is closed afterwards. */
    void (*message)(void *context, struct channel *channel, struct message *message, int status, struct errbuf *err);
    /* The other end is gone or lies: the channel is closed now. */
    void (*gone)(void *context, struct channel *channel, const char *why);
    void *context;
};

/* Takes `sock` when it returns 0. `routed` as in message_receive: 1 at the serving end. */
int channel_create(struct channel **channel, struct net *net, int sock, int routed, const struct channel_ops *ops);
/* Takes both segments when it returns 0 (else STATUS_NOMEM); their areas have these lengths. The own one is booked under
 * buffers until the channel is closed; account NULL: nowhere. */
int channel_open(struct channel *channel, struct segment *mine, uint64_t mine_area_bytes, struct segment *theirs,
                 uint64_t theirs_area_bytes, struct account *account);
void channel_close(struct channel *channel); /* takes NULL; `gone` does not come any more */
uint64_t channel_id(const struct channel *channel); /* never 0, never used again in this net */
/* Frames are shared until they are copied. STATUS_RANGE: larger than the whole area; STATUS_NOMEM, STATUS_CLOSED. */
int channel_send(struct channel *channel, const struct message_part *envelope, struct buf *const *frames,
                 int frames_count);

/* After all channels. Its memory goes in libuv's close callbacks; takes NULL. */
void channel_watch_close(struct channel_watch *watch);

#endif
