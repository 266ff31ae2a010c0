/* Where a rank's left neighbour reaches it: a PULL socket in a ZeroMQ context of its own (so that its CURVE handler
 * and its threads are nobody else's), and a local socket for shared memory. Used by one thread at a time, but for
 * port_loan_returned, which ZeroMQ's threads call, and port_wake. */
#ifndef SHOAL_COLLECTIVE_PORT_H
#define SHOAL_COLLECTIVE_PORT_H

#include <stdatomic.h>
#include <zmq.h>

#include "base/role.h"
#include "net/fd_pass.h"
#include "net/net.h"
#include "worker/collective/collective.h"

struct collective_member;

enum {
    PORT_ADDRESS_MAX = 320,
    PORT_FRAME_MAX = 16 << 20, /* largest frame that is read: a segment or a blob */
    PORT_EARLY_MAX = 16        /* messages that are kept because they came before their time */
};

struct port_early {
    zmq_msg_t parts[2];
    int parts_count;
    uint64_t cluster_epoch;
};

struct collective_port {
    const struct role_host *host; /* borrowed */
    void *zmq, *pull;
    void *zap; /* answers which keys may connect; NULL without CURVE */
    int curved;
    struct net_curve curve;
    char address[PORT_ADDRESS_MAX]; /* as advertised */
    char socket[FD_PASS_NAME_BYTES]; /* abstract name */
    int unix_fd;
    int wake_fd;         /* eventfd: a loan came back while somebody waits for it, or a cancel */
    _Atomic int loans;   /* frames of this rank's memory that ZeroMQ holds */
    _Atomic int awaited; /* 1: the last loan's return is waited for */
    const struct collective_member *members; /* of the open group: whose keys may connect; NULL between groups */
    int world;
    /* What came for the next group before this one ended, or for the next operation over the ring while shared
     * memory was at work: in order of arrival. */
    struct port_early early[PORT_EARLY_MAX];
    int early_count;
};

void port_wake(struct collective_port *port);  /* any thread */
void port_woken(struct collective_port *port); /* takes the wake-ups back */
/* A zmq_free_fn: hint is the port. */
void port_loan_returned(void *data, void *hint);
/* Answers who knocks under CURVE: the members' keys are let in, others are shut out and may knock again (the ring
 * may have changed by then). Between groups questions stay where they are. */
void port_answer_keys(struct collective_port *port);

#endif
