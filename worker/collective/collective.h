/* Collectives of a group of P ranks on float32 vectors: reduce-scatter, all-gather, and what is made of them.
 *
 * A vector is cut into segments, each owned by one rank, the same on every rank. A reduce-scatter leaves each segment's sum,
 * in the canonical order of cluster/canonical.h (owner+1, owner+2, …, owner), at its owner; an all-gather copies each
 * segment from its owner to everybody. All-reduce is one after the other; broadcast is an all-gather of segments with one
 * owner. Payload by these forms, exactly: rank r sends Φ - part(r) in a reduce-scatter and Φ - part(r+1) in an all-gather,
 * where part(k) are the bytes that k owns.
 *
 * Two rows do it: `ring` (ZeroMQ between neighbours, r to r+1) and `shared` (all ranks on one host: memory that all map,
 * futexes as door bells). Every rank calls the same operations in the same order; what differs is caught by a fingerprint
 * and named on all ranks. Operations block; one thread at a time uses a group; collective_cancel may come from any thread.
 * After warm-up nothing is allocated. Thakur, Rabenseifner, Gropp 2005 has the ring forms and their cost. */
#ifndef SHOAL_COLLECTIVE_COLLECTIVE_H
#define SHOAL_COLLECTIVE_COLLECTIVE_H

#include <stddef.h>
#include <stdint.h>

#include "base/account.h"
#include "base/role.h"

struct errbuf;

/* --- where peers reach this rank: opened before the ranks know each other --------------------------------------- */

struct collective_port;
struct collective_port_options {
    const struct role_host *host; /* ZeroMQ context, keys, insecure, log; borrowed */
    const char *cluster;          /* coordinator's endpoint: the address that faces it is advertised */
    const char *advertise;        /* tcp://host:port or host of that; "" or NULL: found out */
};
/* Binds a socket for the left neighbour and a local (abstract unix) socket for ranks on this host. STATUS_IO with address
 * and errno text, STATUS_DENIED beyond loopback without keys or insecure. */
int collective_port_open(struct collective_port **port, const struct collective_port_options *options,
                         struct errbuf *err);
void collective_port_close(struct collective_port *port);                   /* takes NULL */
const char *collective_port_address(const struct collective_port *port);    /* tcp://host:port to advertise */
const char *collective_port_socket(const struct collective_port *port);     /* name of the local socket */
const char *collective_port_public_key(const struct collective_port *port); /* "" without CURVE */

/* --- a group ------------------------------------------------------------------------------------------------------ */

enum collective_transport { COLLECTIVE_AUTO, COLLECTIVE_TCP, COLLECTIVE_SHM };

struct collective_peer {
    const char *address, *public_key, *socket, *host; /* as collective_port says them; host: base/host.h's id */
    uint64_t incarnation;
};

struct collective_options {
    struct collective_port *port;       /* borrowed; one group at a time */
    const struct collective_peer *peers; /* [world], this rank included; borrowed during the call */
    int rank, world;
    uint64_t job, cluster_epoch;
    enum collective_transport transport; /* auto: shm when every rank can map every other's memory */
    size_t blob_bytes_max;               /* largest of collective_exchange */
    double timeout_s;                    /* an operation that waits longer fails with STATUS_TIMEOUT and who is late */
    struct account *account;             /* segments and held arrivals are booked under buffers */
};

struct collective;
/* Blocks until all ranks are connected. The first error of any rank ends it on all. STATUS_TIMEOUT names who is missing;
 * STATUS_UNSUPPORTED-like refusals of a forced shm say which rank could not map which. */
int collective_open(struct collective **group, const struct collective_options *options, struct errbuf *err);
void collective_close(struct collective *group); /* plans must be gone; takes NULL */
/* Any thread: every operation, now or later, ends with this status and text. */
void collective_cancel(struct collective *group, int status, const char *text);
int collective_status(const struct collective *group); /* 0, or the failure that ended it; any thread */
/* The most that the group itself ever books under buffers: arrivals that are held, control segments, the rounding of shared
 * memory to pages, plans while they are agreed on. */
int64_t collective_buffers_max(const struct collective *group);
enum collective_transport collective_transport_of(const struct collective *group); /* TCP or SHM */
int collective_rank(const struct collective *group);
int collective_world(const struct collective *group);

/* Memory that operations may read and write on behalf of other ranks: shared where the transport wants that. 64-byte
 * aligned, zeroed, booked under `kind`. Every rank calls it in the same order; sizes may differ (0 is allowed). */
void *collective_alloc(struct collective *group, enum account_kind kind, size_t bytes);
void collective_free(struct collective *group, enum account_kind kind, void *memory, size_t bytes); /* takes NULL */

/* --- plans -------------------------------------------------------------------------------------------------------- */

enum { COLLECTIVE_SEGMENT_MAX = 1 << 18 }; /* elements; 1 MiB: longer vectors are cut by whoever plans */

struct collective_segment {
    int64_t begin; /* elements from `whole` */
    int32_t count; /* 1..COLLECTIVE_SEGMENT_MAX */
    int32_t owner;
};

struct collective_layout {
    const struct collective_segment *segments; /* ascending and disjoint; the same on every rank; copied */
    int segments_count;
    float *whole;       /* this rank's copy, from collective_alloc (an offset into it is fine) */
    float *const *own;  /* [segments_count]: where the own segments live, from collective_alloc; entries of segments that
                           others own are not read; NULL: in `whole`. Copied. */
    const char *name;   /* for messages: "layers 2-4"; borrowed */
    int lean;           /* 1: other ranks' memory does not stay mapped after it was read: it counts as resident, and costs
                           a page fault the next time */
    int apart;          /* 1: its payload is booked as control (first values, evaluation), not by form */
};

struct collective_plan;
/* Blocks: ranks agree on the layout's fingerprint. STATUS_SHAPE names the two ranks that differ. */
int collective_plan_create(struct collective_plan **plan, struct collective *group,
                           const struct collective_layout *layout, struct errbuf *err);
void collective_plan_destroy(struct collective_plan *plan); /* takes NULL; no operation may be under way */

/* What the owner does with an own segment's contributions: sources[0..sources_count) are floats [0, count) whose sum in
 * this order (first copied, others added) is the canonical sum; sources[last] is this rank's own. Called on the operation's
 * thread, once for each own segment, ascending in no promised order. */
typedef void collective_sink_fn(void *context, int segment, const float *const *sources, int sources_count);

/* After it every contribution has been taken: all of `whole` but the own segments is free to write and unspecified. sink NULL:
 * the sums go to the own places. */
int collective_reduce_scatter(struct collective_plan *plan, collective_sink_fn *sink, void *context,
                              struct errbuf *err);
/* `whole` holds every segment; own segments are copied there from their own places. After it this rank's memory is free to
 * write. */
int collective_all_gather(struct collective_plan *plan, struct errbuf *err);
int collective_all_reduce(struct collective_plan *plan, struct errbuf *err);

/* All-gather of small blobs, one a rank, booked as control: all[offsets[k]..] is rank k's, sizes[k] bytes; own one is read
 * from there. Also a barrier: nobody leaves before all have come. */
struct collective_blobs {
    uint8_t *all;
    const size_t *offsets, *sizes; /* [world], the same on every rank */
};
int collective_exchange(struct collective *group, const struct collective_blobs *blobs, struct errbuf *err);
int collective_barrier(struct collective *group, struct errbuf *err);

/* Payload moved so far, by form: what other ranks took from this one, and what it took. */
struct collective_bytes {
    int64_t reduce_scatter, all_gather, control;
};
void collective_sent(const struct collective *group, struct collective_bytes *bytes);
void collective_received(const struct collective *group, struct collective_bytes *bytes);

#endif
