#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "worker/collective/ring.h"

void ring_arrival_close(struct ring_arrival *arrival)
{
    for (int i = 0; i < 2 && i < arrival->parts_count; i++)
        zmq_msg_close(&arrival->parts[i]);
    arrival->parts_count = 0;
}

/* Multipart messages are atomic: what follows the first part is there. */
static int read_socket(void *socket, struct ring_arrival *arrival)
{
    arrival->parts_count = 0;
    for (int more = 1; more;) {
        zmq_msg_t extra, *part = arrival->parts_count < 2 ? &arrival->parts[arrival->parts_count] : &extra;
        zmq_msg_init(part);
        int rc;
        do
            rc = zmq_msg_recv(part, socket, arrival->parts_count ? 0 : ZMQ_DONTWAIT);
        while (rc < 0 && errno == EINTR);
        if (rc < 0) {
            zmq_msg_close(part);
            ring_arrival_close(arrival);
            return STATUS_BUSY;
        }
        more = zmq_msg_more(part);
        arrival->parts_count++;
        if (part == &extra)
            zmq_msg_close(part);
    }
    return STATUS_OK;
}

static void early_to_arrival(struct collective_port *port, int at, struct ring_arrival *arrival)
{
    struct port_early *early = &port->early[at];
    arrival->parts_count = early->parts_count;
    for (int i = 0; i < early->parts_count; i++) {
        zmq_msg_init(&arrival->parts[i]);
        zmq_msg_move(&arrival->parts[i], &early->parts[i]);
        zmq_msg_close(&early->parts[i]);
    }
    for (port->early_count--; at < port->early_count; at++) {
        struct port_early *to = &port->early[at], *from = &port->early[at + 1];
        to->cluster_epoch = from->cluster_epoch;
        to->parts_count = from->parts_count;
        for (int i = 0; i < from->parts_count; i++) {
            zmq_msg_init(&to->parts[i]);
            zmq_msg_move(&to->parts[i], &from->parts[i]);
            zmq_msg_close(&from->parts[i]);
        }
    }
}

/* What was put aside and is not for a later epoch goes first. */
static int read_next(struct ring *ring, struct ring_arrival *arrival)
{
    struct collective_port *port = ring->port;
    for (int i = 0; i < port->early_count; i++) {
        if (port->early[i].cluster_epoch <= ring->group->cluster_epoch) {
            early_to_arrival(port, i, arrival);
            return STATUS_OK;
        }
    }
    return read_socket(port->pull, arrival);
}

void ring_put_aside(struct ring *ring, struct ring_arrival *arrival)
{
    struct collective_port *port = ring->port;
    if (port->early_count == PORT_EARLY_MAX) {
        ring->dropped++;
        ring_arrival_close(arrival);
        return;
    }
    struct port_early *early = &port->early[port->early_count++];
    early->cluster_epoch = arrival->header.cluster_epoch;
    early->parts_count = arrival->parts_count;
    for (int i = 0; i < arrival->parts_count; i++) {
        zmq_msg_init(&early->parts[i]);
        zmq_msg_move(&early->parts[i], &arrival->parts[i]);
    }
    ring_arrival_close(arrival);
}

static int is_of_left(const struct ring *ring, struct ring_arrival *arrival)
{
    const struct collective *group = ring->group;
    const struct collective_member *left = &group->members[ring->left];
    const struct ring_header *header = &arrival->header;
    if (header->job != group->job || header->cluster_epoch != group->cluster_epoch || header->rank != ring->left ||
        header->incarnation != left->incarnation)
        return 0;
    const char *key = ring->port->curved ? zmq_msg_gets(&arrival->parts[0], "User-Id") : NULL;
    return !ring->port->curved || (key && strcmp(key, left->public_key) == 0);
}

typedef int read_fn(struct ring *ring, struct ring_arrival *arrival);

static int receive(struct ring *ring, struct ring_arrival *arrival, read_fn *read)
{
    while (read(ring, arrival) == STATUS_OK) {
        struct message_part parts[2];
        int kept = arrival->parts_count < 2 ? arrival->parts_count : 2;
        for (int i = 0; i < kept; i++)
            parts[i] = (struct message_part){zmq_msg_data(&arrival->parts[i]), zmq_msg_size(&arrival->parts[i])};
        int status = ring_wire_read(&arrival->header, parts, arrival->parts_count, PORT_FRAME_MAX, NULL);
        if (!status && is_of_left(ring, arrival))
            return STATUS_OK;
        if (!status && arrival->header.cluster_epoch > ring->group->cluster_epoch) {
            ring_put_aside(ring, arrival);
        } else {
            ring->dropped++;
            ring_arrival_close(arrival);
        }
    }
    return STATUS_BUSY;
}

static int read_new(struct ring *ring, struct ring_arrival *arrival)
{
    return read_socket(ring->port->pull, arrival);
}

int ring_receive(struct ring *ring, struct ring_arrival *arrival)
{
    return receive(ring, arrival, read_next);
}

int ring_receive_new(struct ring *ring, struct ring_arrival *arrival)
{
    return receive(ring, arrival, read_new);
}
