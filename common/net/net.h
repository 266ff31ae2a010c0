/* Sockets under libuv. One loop thread owns a struct net and touches every socket in it; nothing here may be called
 * from another thread. zsock_watch.c is the only place that knows how ZMQ_FD and libuv go together (prepare + check +
 * idle handles shared by all sockets of the loop, and a poll handle on each ZMQ_FD that only wakes the loop).
 *
 * Everything is a request and its one reply. A client end (DEALER) numbers requests, resends unanswered ones when the
 * connection comes back and after resend_ms with back-off, and gives up at the deadline; the callback comes exactly
 * once. Repeats are told apart by their meaning at the owner, so every request of Shoal is idempotent. */
#ifndef SHOAL_NET_NET_H
#define SHOAL_NET_NET_H

#include <stdint.h>
#include <uv.h>

#include "wire/message.h"

struct account;
struct errbuf;
struct log;

struct net_curve { /* Z85 texts; NULL pointer to it: plain */
    char public_key[41], secret_key[41];
    char server_key[41]; /* client ends: the server's public key */
};

/* What every envelope that leaves carries; the owner of the net keeps it true. */
struct net_self {
    Shoal__Role role;
    int rank;
    uint64_t incarnation, job, term, cluster_epoch, features;
};

struct net;
/* `zmq` is borrowed (embedded runs share one so that inproc works). The sockets' size limit is limit_bytes. */
struct net *net_create(uv_loop_t *loop, void *zmq, const struct log *log, size_t limit_bytes);
/* Closes what is open (linger at most linger_ms for what was sent); pending calls end with STATUS_CLOSED. Memory goes
 * in libuv's close callbacks: run the loop until it is done afterwards. `zmq` may be terminated at once. */
void net_destroy(struct net *net, int linger_ms);
struct net_self *net_self(struct net *net);
struct net_counters {
    uint64_t refused;   /* bad messages, strangers, other protocols */
    uint64_t received, sent, resent, timeouts;
};
const struct net_counters *net_counters(const struct net *net);

/* --- client end ------------------------------------------------------------------------------------- */

struct net_link;
typedef void net_state_fn(void *context, int connected); /* the transport's view; may be NULL */
/* Never blocks but for resolving a name once. Requests wait until the connection is there and are sent in order then.
 * A refused handshake (keys, another protocol) ends the pending calls with STATUS_DENIED and a reply whose text names
 * it; the link goes on trying, and what is asked later is sent or ends the same way.
 * endpoint tcp://host:port (names resolved; unresolvable: STATUS_UNKNOWN with the name), ipc:// or inproc://. */
int net_link_open(struct net_link **link, struct net *net, const char *endpoint, const struct net_curve *curve,
                  net_state_fn *state, void *context, struct errbuf *err);
void net_link_close(struct net_link *link); /* pending calls end with STATUS_CLOSED; takes NULL */

/* An ACK (or any reply) with a non-zero status arrives as that status with the reply given, so that its text can be
 * read; so do STATUS_DENIED, STATUS_FORMAT and STATUS_PROTOCOL found here, with an ACK made here. Otherwise reply is
 * NULL unless status is 0. The callee may take reply's frames by setting them NULL. */
typedef void net_reply_fn(void *context, int status, struct message *reply);
struct net_call {
    Shoal__Envelope *envelope;   /* borrowed during the call; request, self fields and sent_ns are filled in */
    struct buf *const *frames;   /* shared until answered */
    int frames_count;
    int64_t deadline_ms;         /* 0: none (the asker has another deadline) */
    int64_t resend_ms;           /* first resend; doubles up to 8 x; 0: only when reconnected */
    net_reply_fn *reply;
    void *context;
};
/* Returns the request number (> 0), or 0 when out of memory. */
uint64_t net_request(struct net_link *link, const struct net_call *call);
void net_cancel(struct net_link *link, uint64_t request); /* callback with STATUS_CLOSED now */
/* Bytes of payload sent and received, first sendings only. */
void net_link_bytes(const struct net_link *link, uint64_t *sent, uint64_t *received);

/* Payload between two processes of one host through shared memory. The link goes on using its connection for what came
 * before, for messages that are larger than the memory, and for everything when the other end goes or misbehaves: what is
 * unanswered then is sent again, as after a cut connection. */
struct net_share {
    uint64_t request_bytes, reply_bytes; /* room for what is under way, each direction; 4 KiB to 256 MiB, cut to that */
    struct account *account;             /* requests' room is booked under buffers; NULL: nowhere */
    /* Once: payload goes through shared memory from now on (status 0; over inproc it does anyway), or why it does not. May
     * be NULL. */
    void (*done)(void *context, int status, const char *why);
    void *context;
};
/* Asks the other end for it, now and whenever the connection comes back. Once a link. */
void net_link_share(struct net_link *link, const struct net_share *share);
int net_link_is_shared(const struct net_link *link);
/* After a message through shared memory this loop looks for the next one so long before it sleeps, while at most so many
 * peers share memory with it: as many as have processors beside its own. */
void net_stay_awake(struct net *net, int64_t ns, int peers_max);

/* --- serving end ------------------------------------------------------------------------------------ */

struct net_router;
/* Where to send the answer; may be stored and used later, once. */
struct net_return {
    struct message_identity to;
    uint64_t request;
    int64_t sent_ns, received_ns;
};
/* Well-formed requests only. The callee may take frames by setting them NULL. */
typedef void net_serve_fn(void *context, struct net_router *router, struct message *request,
                          const struct net_return *back);
struct net_listen {
    const char *endpoint;          /* tcp://host:port, port 0 or * picks one; inproc:// */
    const struct net_curve *curve; /* NULL: plain */
    const char *allow_file;        /* CURVE allow-list, reread by net_allow_reload */
    int insecure;                  /* 1: plain beyond loopback is wanted */
    net_serve_fn *serve;
    void *context;
    struct account *account;       /* where room for replies through shared memory is booked; NULL: nowhere */
};
/* Plain beyond loopback without insecure: STATUS_DENIED. Port in use: STATUS_IO with address, port, errno text. */
int net_router_open(struct net_router **router, struct net *net, const struct net_listen *listen,
                    struct errbuf *err);
void net_router_close(struct net_router *router); /* takes NULL */
const char *net_router_endpoint(const struct net_router *router); /* with the port that was bound */
int net_allow_reload(struct net_router *router, struct errbuf *err);
/* Fills request, self fields and time stamps of the envelope and sends. Frames are shared until sent. */
int net_reply(struct net_router *router, const struct net_return *back, Shoal__Envelope *envelope,
              struct buf *const *frames, int frames_count);
/* An ACK with status and text (NULL ok). */
void net_reply_status(struct net_router *router, const struct net_return *back, int status, const char *text);

/* --- keys ------------------------------------------------------------------------------------------- */

/* A keys folder: NAME.public (0644) and NAME.secret (0600, refused when others can read it), allow.list lines
 * "PUBLIC_KEY role [comment]" with roles worker, server, operator, reader. */
int net_keys_generate(const char *folder, const char *name, struct errbuf *err); /* STATUS_EXISTS */
/* Loads NAME's pair and, when server_name is given, that public key into server_key. */
int net_keys_load(struct net_curve *curve, const char *folder, const char *name, const char *server_name,
                  struct errbuf *err);

#endif
