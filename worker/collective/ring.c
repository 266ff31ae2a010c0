#include "worker/collective/ring.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/errbuf.h"
#include "base/status.h"

enum {
    PUSH_QUEUE = 4,    /* messages that wait in ZeroMQ for the right neighbour */
    LINGER_MS = 2000,  /* the last messages of a group that ends well */
    RECONNECT_MS = 20, /* a neighbour may open its port a little later */
    RECONNECT_MAX_MS = 500
};

/* --- one operation -------------------------------------------------------------------------------- */

static zmq_msg_t *oldest_held(struct ring *ring)
{
    return &ring->held[ring->held_first];
}

static void book_held(struct ring *ring, const zmq_msg_t *frame, int sign)
{
    account_add(ring->group->account, ACCOUNT_BUFFERS, sign * (int64_t)zmq_msg_size(frame));
}

/* Takes it off the queue; pass->held is the pass's to change. */
static void pop_held(struct ring *ring)
{
    ring->held_first = (ring->held_first + 1) % ring->held_room;
}

void ring_drop_held(struct ring *ring)
{
    book_held(ring, oldest_held(ring), -1);
    zmq_msg_close(oldest_held(ring));
    pop_held(ring);
    ring->pass.held--;
}

/* A frame of this rank's memory: lent to ZeroMQ, or copied when small. */
static int lend(struct ring *ring, zmq_msg_t *frame, const struct ring_move *move)
{
    if (move->bytes <= MESSAGE_ALIGN_COPY) {
        if (zmq_msg_init_size(frame, move->bytes))
            return STATUS_NOMEM;
        if (move->bytes)
            memcpy(zmq_msg_data(frame), move->data, move->bytes);
        return STATUS_OK;
    }
    atomic_fetch_add(&ring->port->loans, 1);
    if (zmq_msg_init_data(frame, (void *)move->data, move->bytes, port_loan_returned, ring->port) == 0)
        return STATUS_OK;
    atomic_fetch_sub(&ring->port->loans, 1);
    return STATUS_NOMEM;
}

static int send_part(void *socket, zmq_msg_t *part, int flags)
{
    int rc;
    do
        rc = zmq_msg_send(part, socket, ZMQ_DONTWAIT | flags);
    while (rc < 0 && errno == EINTR);
    return rc >= 0 ? STATUS_OK : errno == EAGAIN ? STATUS_BUSY : STATUS_CLOSED;
}

/* Envelope, then frame. When the queue is full nothing was sent, and the frame is still the caller's; the same when
 * a cut connection took the envelope back. */
static int send_message(struct ring *ring, uint32_t segment, zmq_msg_t *frame)
{
    uint8_t packed[RING_ENVELOPE_MAX];
    zmq_msg_t envelope;
    ring->header.segment = segment;
    size_t bytes = ring_wire_pack(&ring->header, packed);
    if (zmq_msg_init_size(&envelope, bytes))
        return STATUS_NOMEM;
    memcpy(zmq_msg_data(&envelope), packed, bytes);
    int status = send_part(ring->push, &envelope, ZMQ_SNDMORE);
    if (status) {
        zmq_msg_close(&envelope);
        return status;
    }
    return send_part(ring->push, frame, 0);
}

static void count_bytes(struct collective_counters *counters, const struct ring *ring, size_t bytes)
{
    enum ring_kind kind = ring->apart ? RING_EXCHANGE : ring->pass.task.kind;
    _Atomic int64_t *counter = kind == RING_REDUCE_SCATTER ? &counters->reduce_scatter
                               : kind == RING_ALL_GATHER   ? &counters->all_gather
                                                           : &counters->control;
    atomic_fetch_add_explicit(counter, (int64_t)bytes, memory_order_relaxed);
}

/* STATUS_BUSY: nothing to send, or no room in the queue. */
static int send_next(struct ring *ring, struct errbuf *err)
{
    struct ring_move move;
    enum ring_next next = ring_pass_next_send(&ring->pass, &move);
    if (next != RING_OWN && next != RING_HELD)
        return STATUS_BUSY;
    zmq_msg_t own, *frame = next == RING_OWN ? &own : oldest_held(ring);
    int status = next == RING_OWN ? lend(ring, &own, &move) : STATUS_OK;
    if (!status) {
        status = send_message(ring, (uint32_t)move.segment, frame);
        if (status && next == RING_OWN)
            zmq_msg_close(&own);
    }
    if (status == STATUS_BUSY)
        return status;
    if (status)
        return errbuf_set(err, status, "%s: message to rank %d: %s", ring->group->call.text, ring->right,
                          status_text(status));
    if (next == RING_HELD) {
        account_add(ring->group->account, ACCOUNT_BUFFERS, -(int64_t)move.bytes);
        pop_held(ring);
    }
    count_bytes(&ring->group->sent, ring, move.bytes);
    ring_pass_sent(&ring->pass);
    return STATUS_OK;
}

/* What came is not what must come. */
static int unexpected(const struct ring *ring, const struct ring_header *header, enum ring_match match,
                      struct errbuf *err)
{
    const char *text = ring->group->call.text;
    int rank = ring->group->rank, left = ring->left;
    if (match == RING_WRONG_SIZE)
        return errbuf_set(err, STATUS_FORMAT, "rank %d sends segment %u to rank %d in another length in %s", left,
                          header->segment, rank, text);
    if (match == RING_LOST)
        return errbuf_set(err, STATUS_IO,
                          "messages from rank %d to rank %d were lost in %s: the connection was cut", left, rank,
                          text);
    return errbuf_set(err, STATUS_SHAPE, "rank %d calls %.190s, rank %d calls %s", left, header->text, rank, text);
}

/* The frame is right. Small frames may lie at any address in ZeroMQ's buffer and go through aligned memory. */
static void use_frame(struct ring *ring, zmq_msg_t *frame)
{
    void *data = zmq_msg_data(frame);
    size_t bytes = zmq_msg_size(frame);
    int small = bytes <= sizeof ring->aligned;
    if (small && bytes)
        memcpy(ring->aligned, data, bytes);
    int queued = ring->pass.held;
    if (!ring_pass_arrived(&ring->pass, small ? ring->aligned : data))
        return;
    if (small && bytes && ring->pass.task.kind == RING_REDUCE_SCATTER)
        memcpy(data, ring->aligned, bytes);
    zmq_msg_t *kept = &ring->held[(ring->held_first + queued) % ring->held_room];
    book_held(ring, frame, 1);
    zmq_msg_init(kept);
    zmq_msg_move(kept, frame);
}

static int take_message(struct ring *ring, struct ring_arrival *arrival, const struct ring_move *move,
                        struct errbuf *err)
{
    size_t bytes = arrival->parts_count > 1 ? zmq_msg_size(&arrival->parts[1]) : 0;
    if (arrival->header.form == COLLECTIVE_FORM_POISON)
        return ring_hear(ring, &arrival->header, err);
    ring->due.segment = (uint32_t)move->segment;
    enum ring_match match = ring_wire_match(&arrival->header, bytes, &ring->due, move->bytes);
    if (match == RING_MATCH && arrival->parts_count != 2)
        match = RING_WRONG_SIZE;
    if (match != RING_MATCH)
        return unexpected(ring, &arrival->header, match, err);
    count_bytes(&ring->group->received, ring, bytes);
    use_frame(ring, &arrival->parts[1]);
    return STATUS_OK;
}

/* STATUS_BUSY: nothing there, or nothing may be taken. */
static int take_next(struct ring *ring, struct errbuf *err)
{
    struct ring_move move;
    struct ring_arrival arrival;
    if (ring_pass_next_arrival(&ring->pass, &move) != RING_TAKE || ring_receive(ring, &arrival))
        return STATUS_BUSY;
    int status = take_message(ring, &arrival, &move, err);
    ring_arrival_close(&arrival);
    return status;
}

/* Nothing moves: sleeps until something can, or says who is late. */
static int wait_for_neighbours(struct ring *ring, struct errbuf *err)
{
    struct ring_move move;
    struct collective_port *port = ring->port;
    int64_t now_ns = clock_now_ns(), timeout_ns = (int64_t)(ring->group->timeout_s * 1e9);
    if (!ring->still_since_ns)
        ring->still_since_ns = now_ns;
    int64_t left_ns = ring->still_since_ns + timeout_ns - now_ns;
    if (left_ns <= 0)
        return ring_late(ring, err);
    zmq_pollitem_t items[4] = {{.fd = port->wake_fd, .events = ZMQ_POLLIN}};
    int count = 1;
    if (ring_pass_next_arrival(&ring->pass, &move) == RING_TAKE)
        items[count++] = (zmq_pollitem_t){.socket = port->pull, .events = ZMQ_POLLIN};
    enum ring_next send = ring_pass_next_send(&ring->pass, &move);
    if (send == RING_OWN || send == RING_HELD)
        items[count++] = (zmq_pollitem_t){.socket = ring->push, .events = ZMQ_POLLOUT};
    if (port->zap)
        items[count++] = (zmq_pollitem_t){.socket = port->zap, .events = ZMQ_POLLIN};
    zmq_poll(items, count, (long)(left_ns / 1000000) + 1);
    if (items[0].revents)
        port_woken(port);
    port_answer_keys(port);
    return STATUS_OK;
}

static int move_all(struct ring *ring, struct errbuf *err)
{
    const struct collective *group = ring->group;
    ring->still_since_ns = 0;
    while (!ring_pass_done(&ring->pass)) {
        if (atomic_load(&group->cancelled))
            return STATUS_ABORTED; /* collective.c has the words */
        int sent = send_next(ring, err), taken = STATUS_BUSY;
        if (!sent || sent == STATUS_BUSY)
            taken = take_next(ring, err);
        if (sent && sent != STATUS_BUSY)
            return sent;
        if (taken && taken != STATUS_BUSY)
            return taken;
        int status = STATUS_OK;
        if (sent && taken)
            status = wait_for_neighbours(ring, err);
        else
            ring->still_since_ns = 0;
        if (status)
            return status;
    }
    return STATUS_OK;
}

/* Until ZeroMQ has let go of this rank's memory. */
static int finish(struct ring *ring, struct errbuf *err)
{
    if (atomic_load(&ring->port->loans) == 0)
        return STATUS_OK;
    ring->still_since_ns = clock_now_ns();
    int status = ring_take_back(ring, ring->still_since_ns + (int64_t)(ring->group->timeout_s * 1e9));
    return status == STATUS_TIMEOUT ? ring_late(ring, err) : status;
}

static int run(struct collective *group, const struct ring_task *task, int apart, struct errbuf *err)
{
    struct ring *ring = group->ring;
    struct ring_pass alone;
    ring_pass_begin(ring ? &ring->pass : &alone, task);
    if (!ring)
        return STATUS_OK;
    ring->apart = apart;
    ring->header.fingerprint = group->call.fingerprint;
    ring->header.sequence = group->call.sequence;
    ring->header.form = group->call.form;
    snprintf(ring->header.text, sizeof ring->header.text, "%s", group->call.text);
    ring->due = ring->header;
    return move_all(ring, err);
}

static int run_to_end(struct collective *group, const struct ring_task *task, int apart, struct errbuf *err)
{
    int status = run(group, task, apart, err);
    return status || !group->ring ? status : finish(group->ring, err);
}

/* --- the row -------------------------------------------------------------------------------------- */

static struct ring_task task_of(struct collective_plan *plan, enum ring_kind kind)
{
    return (struct ring_task){.kind = kind,
                              .rank = plan->group->rank,
                              .world = plan->group->world,
                              .segments = plan->segments,
                              .by_owner = plan->by_owner,
                              .owner_first = plan->owner_first,
                              .whole = plan->whole,
                              .own = plan->own};
}

static void default_sink(void *context, int segment, const float *const *sources, int sources_count)
{
    collective_sum(context, segment, sources, sources_count);
}

static struct ring_task reduce_task(struct collective_plan *plan, collective_sink_fn *sink, void *context)
{
    struct ring_task task = task_of(plan, RING_REDUCE_SCATTER);
    task.sink = sink ? sink : default_sink;
    task.context = sink ? context : plan;
    return task;
}

static int reduce_scatter(struct collective_plan *plan, collective_sink_fn *sink, void *context, struct errbuf *err)
{
    const struct ring_task task = reduce_task(plan, sink, context);
    return run_to_end(plan->group, &task, plan->apart, err);
}

static int all_gather(struct collective_plan *plan, struct errbuf *err)
{
    const struct ring_task task = task_of(plan, RING_ALL_GATHER);
    return run_to_end(plan->group, &task, plan->apart, err);
}

/* The gather does not wait until ZeroMQ has let go of what the reduce-scatter lent: a segment comes back only after
 * its owner has summed it, so every byte of this rank's contribution has left before it is overwritten. */
static int all_reduce(struct collective_plan *plan, struct errbuf *err)
{
    const struct ring_task reduce = reduce_task(plan, NULL, NULL), gather = task_of(plan, RING_ALL_GATHER);
    int status = run(plan->group, &reduce, plan->apart, err);
    if (status)
        return status;
    plan->group->call.sequence++; /* so that a lost message of one half is not taken for one of the other */
    return run_to_end(plan->group, &gather, plan->apart, err);
}

int ring_exchange(struct collective *group, const struct collective_blobs *blobs, struct errbuf *err)
{
    const struct ring_task task = {
        .kind = RING_EXCHANGE, .rank = group->rank, .world = group->world, .blobs = blobs};
    return run_to_end(group, &task, 1, err);
}

/* As many arrivals as a pass may hold and the one at hand, each a segment or a blob. */
static int64_t ring_buffers_max(const struct collective *group)
{
    size_t largest = COLLECTIVE_SEGMENT_MAX * sizeof(float);
    largest = group->blob_bytes_max > largest ? group->blob_bytes_max : largest;
    return ((int64_t)group->ring->held_room + 1) * (int64_t)largest;
}

static void *ring_alloc(struct collective *group, enum account_kind kind, size_t bytes)
{
    return account_alloc(group->account, kind, bytes);
}

static void ring_free(struct collective *group, enum account_kind kind, void *memory, size_t bytes)
{
    account_free(group->account, kind, memory, bytes);
}

static void ring_wake(struct collective *group)
{
    if (group->ring)
        port_wake(group->port);
}

const struct collective_ops collective_ring = {
    .name = "ring",
    .transport = COLLECTIVE_TCP,
    .wake = ring_wake,
    .alloc = ring_alloc,
    .free = ring_free,
    .reduce_scatter = reduce_scatter,
    .all_gather = all_gather,
    .all_reduce = all_reduce,
    .buffers_max = ring_buffers_max,
    .exchange = ring_exchange,
};

/* --- opening and closing -------------------------------------------------------------------------- */

static void set(void *socket, int option, int value)
{
    zmq_setsockopt(socket, option, &value, sizeof value);
}

void *ring_connect(struct ring *ring, int linger_ms)
{
    const struct collective_member *right = &ring->group->members[ring->right];
    const struct net_curve *curve = &ring->port->curve;
    void *socket = zmq_socket(ring->port->zmq, ZMQ_PUSH);
    if (!socket)
        return NULL;
    set(socket, ZMQ_LINGER, linger_ms);
    set(socket, ZMQ_SNDHWM, PUSH_QUEUE);
    set(socket, ZMQ_RECONNECT_IVL, RECONNECT_MS);
    set(socket, ZMQ_RECONNECT_IVL_MAX, RECONNECT_MAX_MS);
    set(socket, ZMQ_IPV6, strchr(right->address, '[') != NULL);
    if ((ring->port->curved && (zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, right->public_key, 40) ||
                                zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, curve->public_key, 40) ||
                                zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, curve->secret_key, 40))) ||
        zmq_connect(socket, right->address)) {
        zmq_close(socket);
        return NULL;
    }
    return socket;
}

static struct ring *ring_create(struct collective *group)
{
    struct ring *ring = calloc(1, sizeof *ring);
    if (!ring)
        return NULL;
    ring->group = group;
    ring->port = group->port;
    ring->left = (group->rank + group->world - 1) % group->world;
    ring->right = (group->rank + 1) % group->world;
    ring->held_room = ring_pass_held_max(group->world);
    ring->held = calloc((size_t)ring->held_room, sizeof *ring->held);
    ring->header = (struct ring_header){.job = group->job,
                                        .cluster_epoch = group->cluster_epoch,
                                        .rank = group->rank,
                                        .incarnation = group->members[group->rank].incarnation};
    if (ring->held)
        return ring;
    free(ring);
    return NULL;
}

static int connect_right(struct ring *ring, struct errbuf *err)
{
    const struct collective_member *right = &ring->group->members[ring->right];
    if (ring->port->curved && strlen(right->public_key) != 40)
        return errbuf_set(err, STATUS_DENIED, "rank %d has no CURVE key, rank %d has", ring->right,
                          ring->group->rank);
    ring->push = ring_connect(ring, LINGER_MS);
    if (!ring->push)
        return errbuf_set(err, STATUS_IO, "rank %d at %s: %s", ring->right, right->address,
                          zmq_strerror(zmq_errno()));
    return STATUS_OK;
}

int ring_open(struct collective *group, struct errbuf *err)
{
    group->ring = ring_create(group);
    if (!group->ring)
        return errbuf_set(err, STATUS_NOMEM, "ring: no memory");
    group->port->members = group->members;
    group->port->world = group->world;
    int status = connect_right(group->ring, err);
    if (status)
        ring_close(group);
    return status;
}

void ring_close(struct collective *group)
{
    struct ring *ring = group->ring;
    if (!ring)
        return;
    while (ring->pass.held > 0)
        ring_drop_held(ring);
    if (ring->push)
        zmq_close(ring->push);
    if (ring->voice)
        zmq_close(ring->voice);
    group->port->members = NULL;
    group->port->world = 0;
    group->ring = NULL;
    free(ring->held);
    free(ring);
}
