/* ZeroMQ sockets under a libuv loop: the only place that knows how the two go together.
 *
 * ZMQ_FD becomes readable when ZeroMQ has commands for the socket, not when it has messages, and any call on the
 * socket may consume that sign. So the poll handle on it does nothing but wake the loop, messages are taken in the
 * check phase, and a prepare handle looks at every socket that was used since it was last found empty; where
 * something lies, an idle handle keeps the loop from sleeping. A turn takes a bounded batch of each socket.
 *
 * Loop thread only. Prepare handles of others must not use the sockets. The watch and its sockets are freed by their
 * libuv close callbacks: run the loop once more after zsock_watch_close. */
#ifndef SHOAL_NET_ZSOCK_WATCH_H
#define SHOAL_NET_ZSOCK_WATCH_H

#include <uv.h>

enum { ZSOCK_BATCH = 64 };

struct zsock;
struct zsock_watch;

/* Takes at most ZSOCK_BATCH messages; 1: there may be more, 0: the last receive found nothing. It may close this
 * and other sockets. */
typedef int zsock_drain_fn(void *context);
/* The socket is closed and its handles are gone: context may be freed. May be NULL. */
typedef void zsock_gone_fn(void *context);

struct zsock_watch *zsock_watch_create(uv_loop_t *loop);
void zsock_watch_close(struct zsock_watch *watch); /* after its sockets; takes NULL */

/* Takes `socket`. NULL: out of memory or descriptors, and the socket stays the caller's. */
struct zsock *zsock_add(struct zsock_watch *watch, void *socket, zsock_drain_fn *drain, zsock_gone_fn *gone,
                        void *context);
void *zsock_socket(const struct zsock *zsock);
/* To be called after any use of the socket outside `drain`, sends above all. */
void zsock_used(struct zsock *zsock);
/* Closes the ZeroMQ socket now, with that linger. */
void zsock_close(struct zsock *zsock, int linger_ms);

#endif
