/* The ring's end at this rank: a PUSH socket to the right neighbour, the port's PULL socket for the left one, and
 * what is on its way between them. Sockets are used straight from the thread that calls the operation, without an
 * event loop: one operation at a time is a straight line of sends and receives, and a hand-over to a loop thread
 * would cost more than a small operation. Sends and receives never block; when neither moves, one poll waits for
 * both, so that a ring of full queues cannot stand still (ring_pass.h says why it then always moves).
 *
 * When an operation fails, the ranks tell each other: a claim (who found it, status, text) goes round as a poison
 * message. Of several claims one wins on every rank, and an operation ends when the winner is known or after a
 * short grace. */
#ifndef SHOAL_COLLECTIVE_RING_H
#define SHOAL_COLLECTIVE_RING_H

#include <stdint.h>
#include <zmq.h>

#include "worker/collective/collective_internal.h"
#include "worker/collective/port.h"
#include "worker/collective/ring_pass.h"
#include "worker/collective/ring_wire.h"

struct ring_claim {
    int status; /* 0: none */
    int finder; /* rank */
    int final;  /* every rank ends with it */
    char text[RING_TEXT_MAX];
};

struct ring {
    struct collective *group;
    struct collective_port *port;
    int left, right;
    void *push;  /* NULL after a failure */
    void *voice; /* PUSH for poison: opened when there is something to say, so that it does not queue behind payload
                  */
    struct ring_pass pass;
    int apart;                 /* the operation at hand is booked as control */
    struct ring_header header; /* what leaves in the operation at hand; the segment changes */
    struct ring_header due;    /* what comes in it */
    zmq_msg_t *held;           /* a queue of [held_room]: arrivals that are to be sent on */
    int held_room, held_first;
    int64_t still_since_ns; /* nothing has moved since; 0: something moves */
    uint64_t dropped;       /* messages of strangers, of other epochs, of bad shape */
    int settled;            /* the failure is known and told */
    struct ring_claim claim;
    _Alignas(16) uint8_t aligned[MESSAGE_ALIGN_COPY];
};

/* One message as it came. */
struct ring_arrival {
    zmq_msg_t parts[2];
    int parts_count; /* that came; the first two are kept */
    struct ring_header header;
};

/* Connects; no message is awaited. group->ring is set. */
int ring_open(struct collective *group, struct errbuf *err);
void ring_close(struct collective *group); /* takes a group without a ring */
int ring_exchange(struct collective *group, const struct collective_blobs *blobs, struct errbuf *err);
void *ring_connect(struct ring *ring, int linger_ms); /* a PUSH socket to the right neighbour, or NULL */
void ring_drop_held(struct ring *ring);               /* the oldest buffer that is held */

/* --- ring_message.c: what comes --- */

/* The next message of the left neighbour in this epoch, poison included. STATUS_BUSY: none is there. Strangers' are
 * dropped and counted, those of a later epoch kept for its group. The caller closes the arrival. */
int ring_receive(struct ring *ring, struct ring_arrival *arrival);
/* The same, but passes over what was put aside. */
int ring_receive_new(struct ring *ring, struct ring_arrival *arrival);
void ring_arrival_close(struct ring_arrival *arrival);
/* Puts an arrival aside that is not for now; it will be the next to be received, behind those put aside before. */
void ring_put_aside(struct ring *ring, struct ring_arrival *arrival);

/* --- ring_fault.c: what goes wrong --- */

/* A poison came: 0 when it says nothing new, else the claim's status and text. */
int ring_hear(struct ring *ring, const struct ring_header *poison, struct errbuf *err);
/* An operation failed with this status and text: takes back this rank's memory from ZeroMQ, tells the others,
 * listens to them, and returns the status and text that hold for all. Once; later calls return the same. */
int ring_settle(struct ring *ring, int status, struct errbuf *err);
/* Only tells, without listening: a rank that goes away. */
void ring_part(struct ring *ring, int status, const char *text);
/* Why nothing has moved for so long. */
int ring_late(struct ring *ring, struct errbuf *err);
/* Waits until ZeroMQ holds no memory of this rank or `until_ns` has passed; 0 or STATUS_TIMEOUT, or the cancel's.
 */
int ring_take_back(struct ring *ring, int64_t until_ns);

#endif
