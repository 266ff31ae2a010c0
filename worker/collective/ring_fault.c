#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/errbuf.h"
#include "base/status.h"
#include "worker/collective/ring.h"

enum {
    GRACE_MIN_MS = 200, /* how long ranks wait for each other's claims: as long as an operation may, within these */
    GRACE_MAX_MS = 2000,
    VOICE_LINGER_MS = 1000,
    POLL_MS = 50
};
/* A poison's `sequence`: a claim on its first way round, or the winner on its second. */
enum { CLAIM = 0, WINNER = 1 };

int ring_late(struct ring *ring, struct errbuf *err)
{
    const struct collective *group = ring->group;
    struct ring_move move;
    double waited_s = (double)(clock_now_ns() - ring->still_since_ns) * 1e-9;
    if (ring_pass_next_arrival(&ring->pass, &move) == RING_TAKE) {
        if (group->call.form == COLLECTIVE_FORM_OPEN)
            return errbuf_set(err, STATUS_TIMEOUT, "rank %d at %s has not joined the ring for %.1f s", ring->left,
                              group->members[ring->left].address, waited_s);
        return errbuf_set(err, STATUS_TIMEOUT, "rank %d is late: nothing came for %.1f s, rank %d waits in %s",
                          ring->left, waited_s, group->rank, group->call.text);
    }
    return errbuf_set(err, STATUS_TIMEOUT, "rank %d is late: it took nothing for %.1f s, rank %d waits in %s",
                      ring->right, waited_s, group->rank, group->call.text);
}

int ring_take_back(struct ring *ring, int64_t until_ns)
{
    struct collective_port *port = ring->port;
    int status = STATUS_OK;
    atomic_store(&port->awaited, 1);
    while (!status && atomic_load(&port->loans) > 0) {
        struct pollfd event = {.fd = port->wake_fd, .events = POLLIN};
        poll(&event, 1, POLL_MS);
        port_woken(port);
        if (until_ns && atomic_load(&ring->group->cancelled))
            status = atomic_load(&ring->group->cancelled);
        else if (until_ns && clock_now_ns() > until_ns)
            status = STATUS_TIMEOUT;
    }
    atomic_store(&port->awaited, 0);
    return status;
}

/* --- claims --------------------------------------------------------------------------------------- */

/* Says the claim to the right neighbour. The socket is a new one: the old one's queue may be full of payload. */
static void tell(struct ring *ring)
{
    const struct collective *group = ring->group;
    if (!ring->voice) {
        ring->voice = ring_connect(ring, VOICE_LINGER_MS);
        if (!ring->voice)
            return; /* the others' time-outs are what is left */
    }
    struct ring_header poison = ring->header;
    poison.job = group->job;
    poison.form = COLLECTIVE_FORM_POISON;
    poison.sequence = ring->claim.final ? WINNER : CLAIM;
    poison.segment = (uint32_t)ring->claim.finder;
    poison.status = ring->claim.status;
    memcpy(poison.text, ring->claim.text, sizeof poison.text);
    uint8_t bytes[RING_ENVELOPE_MAX];
    zmq_send(ring->voice, bytes, ring_wire_pack(&poison, bytes), ZMQ_DONTWAIT);
}

/* Whether `other` wins over the claim at hand. Something that was found wins over a time-out, the lowest finder
 * over others. Of time-outs the left neighbour's word wins: who could say it is not the one that everybody waits
 * for. */
static int wins(const struct ring *ring, const struct ring_claim *other)
{
    const struct ring_claim *claim = &ring->claim;
    if (!claim->status || claim->final != other->final)
        return !claim->final;
    int late = claim->status == STATUS_TIMEOUT, other_late = other->status == STATUS_TIMEOUT;
    if (late != other_late)
        return late;
    return late ? other->finder != ring->group->rank && other->finder != claim->finder
                : other->finder < claim->finder;
}

int ring_hear(struct ring *ring, const struct ring_header *poison, struct errbuf *err)
{
    struct ring_claim other = {
        .status = poison->status, .finder = (int)poison->segment, .final = poison->sequence == WINNER};
    if (other.status == 0 || other.finder < 0 || other.finder >= ring->group->world)
        return STATUS_OK;
    memcpy(other.text, poison->text, sizeof other.text);
    if (!wins(ring, &other))
        return STATUS_OK;
    ring->claim = other;
    return errbuf_set(err, other.status, "%s", other.text);
}

/* One message during the grace; what is payload nobody will add any more. */
static void listen_once(struct ring *ring, const struct ring_header *poison)
{
    if (poison->form != COLLECTIVE_FORM_POISON)
        return;
    int came_home = (int)poison->segment == ring->group->rank && ring->claim.finder == ring->group->rank;
    if (came_home) /* all the way round, and nobody knew better */
        ring->claim.final = 1;
    if (ring_hear(ring, poison, NULL) || came_home)
        tell(ring);
}

static void listen_to_others(struct ring *ring)
{
    double grace_ms = ring->group->timeout_s * 1e3;
    grace_ms = grace_ms < GRACE_MIN_MS ? GRACE_MIN_MS : grace_ms > GRACE_MAX_MS ? GRACE_MAX_MS : grace_ms;
    int64_t until_ns = clock_now_ns() + (int64_t)(grace_ms * 1e6);
    while (!ring->claim.final && clock_now_ns() < until_ns && !atomic_load(&ring->group->cancelled)) {
        struct ring_arrival arrival;
        port_answer_keys(ring->port);
        if (ring_receive(ring, &arrival) == STATUS_OK) {
            listen_once(ring, &arrival.header);
            ring_arrival_close(&arrival);
            continue;
        }
        zmq_pollitem_t items[3] = {{.socket = ring->port->pull, .events = ZMQ_POLLIN},
                                   {.fd = ring->port->wake_fd, .events = ZMQ_POLLIN},
                                   {.socket = ring->port->zap, .events = ZMQ_POLLIN}};
        zmq_poll(items, ring->port->zap ? 3 : 2, POLL_MS);
        port_woken(ring->port);
    }
}

static void drop_payload(struct ring *ring)
{
    if (ring->push) {
        int none = 0;
        zmq_setsockopt(ring->push, ZMQ_LINGER, &none, sizeof none);
        zmq_close(ring->push);
        ring->push = NULL;
    }
    ring_take_back(ring, 0); /* a socket closed without linger lets go of everything at once */
    while (ring->pass.held > 0)
        ring_drop_held(ring);
}

int ring_settle(struct ring *ring, int status, struct errbuf *err)
{
    if (!ring->settled) {
        ring->settled = 1;
        if (!ring->claim.status) {
            ring->claim.status = status;
            ring->claim.finder = ring->group->rank;
            snprintf(ring->claim.text, sizeof ring->claim.text, "%.*s", RING_TEXT_MAX - 1,
                     err && err->text[0] ? err->text : status_text(status));
        }
        drop_payload(ring);
        tell(ring);
        listen_to_others(ring);
    }
    return errbuf_set(err, ring->claim.status, "%s", ring->claim.text);
}

void ring_part(struct ring *ring, int status, const char *text)
{
    if (ring->settled)
        return;
    ring->settled = 1;
    ring->claim.status = status;
    ring->claim.finder = ring->group->rank;
    snprintf(ring->claim.text, sizeof ring->claim.text, "rank %d left: %s", ring->group->rank, text);
    ring->claim.final = 1; /* it listens no more */
    drop_payload(ring);
    tell(ring);
}
