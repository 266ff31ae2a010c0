#include "net/channel.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/account.h"
#include "base/clock.h"
#include "base/errbuf.h"
#include "base/status.h"
#include "net/duct.h"
#include "net/net_internal.h"

enum { CHANNEL_BATCH = 64, ENVELOPE_INLINE = 512 };

/* What messages that came need for as long as they live. */
struct channel_memory {
    _Atomic int references;
    int sock;
    struct segment mine, theirs;
    struct duct duct;
};

/* A message that found no room yet. */
struct parcel {
    struct parcel *next;
    struct buf *frames[MESSAGE_FRAMES_MAX];
    int frames_count;
    size_t bytes;
    uint8_t envelope[];
};

struct channel {
    struct net *net;
    struct channel_watch *watch;
    struct channel *next, *previous;
    struct channel_ops ops;
    struct channel_memory *memory; /* NULL: not open yet, and the socket is ours */
    struct account *account;
    int64_t booked_bytes;
    struct parcel *waiting, **waiting_tail;
    uv_poll_t poll;
    uint64_t id;
    int sock, routed, asleep, closed;
};

struct channel_watch {
    struct net *net;
    uv_prepare_t prepare;
    uv_check_t check;
    uv_idle_t idle;
    struct channel *channels;
    uint64_t last_id;
    int64_t awake_until_ns;
    int handles; /* open, of the three */
};

/* --- memory ------------------------------------------------------------------------------------------- */

static void memory_release(struct channel_memory *memory)
{
    if (atomic_fetch_sub_explicit(&memory->references, 1, memory_order_acq_rel) != 1)
        return;
    segment_close(&memory->mine);
    segment_close(&memory->theirs);
    close(memory->sock);
    free(memory);
}

/* One byte is enough, and when there is no room for it, enough of them wait there. */
static void ring(const struct channel_memory *memory)
{
    ssize_t sent;
    do
        sent = send(memory->sock, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
}

/* A message's hold on its place in the other end's area. */
struct hold {
    _Atomic int frames;
    struct channel_memory *memory;
    uint32_t slot, generation;
};

static void let_go(struct channel_memory *memory, uint32_t slot, uint32_t generation)
{
    if (duct_release(&memory->duct, slot, generation))
        ring(memory);
}

static void hold_release(struct buf *buf, void *context)
{
    (void)buf;
    struct hold *hold = context;
    if (atomic_fetch_sub_explicit(&hold->frames, 1, memory_order_acq_rel) != 1)
        return;
    let_go(hold->memory, hold->slot, hold->generation);
    memory_release(hold->memory);
    free(hold);
}

/* --- closing ------------------------------------------------------------------------------------------ */

static void parcel_free(struct parcel *parcel)
{
    for (int i = 0; i < parcel->frames_count; i++)
        buf_release(parcel->frames[i]);
    free(parcel);
}

static void on_closed(uv_handle_t *handle)
{
    free(handle->data);
}

void channel_close(struct channel *channel)
{
    if (!channel || channel->closed)
        return;
    channel->closed = 1;
    if (channel->previous)
        channel->previous->next = channel->next;
    else
        channel->watch->channels = channel->next;
    if (channel->next)
        channel->next->previous = channel->previous;
    uv_poll_stop(&channel->poll);
    uv_close((uv_handle_t *)&channel->poll, on_closed);
    while (channel->waiting) {
        struct parcel *parcel = channel->waiting;
        channel->waiting = parcel->next;
        parcel_free(parcel);
    }
    if (!channel->memory) {
        close(channel->sock);
        return;
    }
    /* Messages that live on keep the descriptor; the other end is to know now. */
    shutdown(channel->sock, SHUT_RDWR);
    if (channel->account)
        account_add(channel->account, ACCOUNT_BUFFERS, -channel->booked_bytes);
    memory_release(channel->memory);
}

static void lose(struct channel *channel, const char *why)
{
    struct channel_ops ops = channel->ops;
    channel_close(channel);
    ops.gone(ops.context, channel, why); /* the memory stays until libuv's turn ends */
}

/* --- sending ------------------------------------------------------------------------------------------ */

static int write_now(struct channel *channel, const struct message_part *envelope, struct buf *const *frames, int count)
{
    struct message_part parts[DUCT_PARTS];
    parts[0] = *envelope;
    for (int i = 0; i < count; i++)
        parts[1 + i] = (struct message_part){frames[i]->data, frames[i]->bytes};
    int status = duct_write(&channel->memory->duct, parts, 1 + count);
    if (!status && duct_should_ring(&channel->memory->duct))
        ring(channel->memory);
    return status;
}

static int wait_for_room(struct channel *channel, const struct message_part *envelope, struct buf *const *frames,
                         int count)
{
    struct parcel *parcel = malloc(sizeof *parcel + envelope->bytes);
    if (!parcel)
        return STATUS_NOMEM;
    parcel->next = NULL;
    parcel->frames_count = count;
    for (int i = 0; i < count; i++)
        parcel->frames[i] = buf_share(frames[i]);
    parcel->bytes = envelope->bytes;
    memcpy(parcel->envelope, envelope->data, envelope->bytes);
    *channel->waiting_tail = parcel;
    channel->waiting_tail = &parcel->next;
    return STATUS_OK;
}

int channel_send(struct channel *channel, const struct message_part *envelope, struct buf *const *frames,
                 int frames_count)
{
    if (channel->closed || !channel->memory)
        return STATUS_CLOSED;
    if (frames_count > MESSAGE_FRAMES_MAX)
        return STATUS_RANGE;
    int status = STATUS_BUSY;
    if (channel->waiting) {
        struct message_part parts[DUCT_PARTS] = {*envelope};
        for (int i = 0; i < frames_count; i++)
            parts[1 + i].bytes = frames[i]->bytes;
        status = duct_fits(&channel->memory->duct, parts, 1 + frames_count) ? STATUS_BUSY : STATUS_RANGE;
    } else {
        status = write_now(channel, envelope, frames, frames_count);
    }
    if (status == STATUS_BUSY)
        status = wait_for_room(channel, envelope, frames, frames_count);
    return status == STATUS_FORMAT ? STATUS_CLOSED : status; /* the check phase finds the duct broken, too */
}

static void send_waiting(struct channel *channel)
{
    while (channel->waiting) {
        struct parcel *parcel = channel->waiting;
        struct message_part envelope = {parcel->envelope, parcel->bytes};
        if (write_now(channel, &envelope, parcel->frames, parcel->frames_count))
            return;
        channel->waiting = parcel->next;
        if (!channel->waiting)
            channel->waiting_tail = &channel->waiting;
        parcel_free(parcel);
    }
}

/* --- receiving ---------------------------------------------------------------------------------------- */

/* Small frames are copied to memory of their own; the others stay where they are and hold the place. */
static struct buf *frame_of(const struct message_part *part, struct hold *hold)
{
    if (part->bytes > MESSAGE_ALIGN_COPY)
        return buf_wrap((void *)(uintptr_t)part->data, part->bytes, hold_release, hold);
    struct buf *buf = buf_create(part->bytes);
    if (buf && part->bytes > 0)
        memcpy(buf->data, part->data, part->bytes);
    return buf;
}

/* Frames of a message that was read; their number, or STATUS_NOMEM with none made. The place is let go when no frame
 * holds it. */
static int make_frames(struct channel_memory *memory, const struct duct_message *from, struct buf **frames)
{
    int count = from->count - 1;
    int made = 0;
    struct hold *hold = malloc(sizeof *hold);
    if (!hold) {
        let_go(memory, from->slot, from->generation);
        return STATUS_NOMEM;
    }
    /* One of ours, so that it lives until all are made. */
    *hold = (struct hold){.frames = 1, .memory = memory, .slot = from->slot, .generation = from->generation};
    atomic_fetch_add_explicit(&memory->references, 1, memory_order_relaxed);
    while (made < count) {
        atomic_fetch_add_explicit(&hold->frames, from->parts[1 + made].bytes > MESSAGE_ALIGN_COPY, memory_order_relaxed);
        frames[made] = frame_of(&from->parts[1 + made], hold);
        if (!frames[made]) {
            atomic_fetch_sub_explicit(&hold->frames, from->parts[1 + made].bytes > MESSAGE_ALIGN_COPY, memory_order_relaxed);
            break;
        }
        made++;
    }
    for (int i = 0; made < count && i < made; i++)
        buf_release(frames[i]);
    hold_release(NULL, hold);
    return made < count ? STATUS_NOMEM : count;
}

/* One message; a request for which there is no memory comes again. */
static void take(struct channel *channel, const struct duct_message *from)
{
    struct message message;
    struct errbuf err;
    struct buf *frames[MESSAGE_FRAMES_MAX];
    uint8_t small[ENVELOPE_INLINE];
    struct message_part envelope = {small, from->parts[0].bytes};
    errbuf_init(&err);
    uint8_t *copy = envelope.bytes <= sizeof small ? small : malloc(envelope.bytes);
    if (!copy) {
        let_go(channel->memory, from->slot, from->generation);
        return;
    }
    if (envelope.bytes > 0)
        memcpy(copy, from->parts[0].data, envelope.bytes);
    envelope.data = copy;
    int count = make_frames(channel->memory, from, frames);
    if (count >= 0) {
        int status = message_adopt(&envelope, frames, count, channel->routed, channel->net->limit_bytes, &message, &err);
        message.from.channel = channel->id;
        for (int i = 0; status && i < count; i++)
            buf_release(frames[i]);
        channel->ops.message(channel->ops.context, channel, &message, status, &err);
        message_close(&message);
    }
    if (copy != small)
        free(copy);
}

static void drain(struct channel *channel)
{
    for (int i = 0; i < CHANNEL_BATCH && !channel->closed; i++) {
        struct duct_message message;
        int status = duct_read(&channel->memory->duct, &message);
        if (status == STATUS_BUSY)
            return;
        if (status || message.parts[0].bytes > MESSAGE_ENVELOPE_MAX) {
            lose(channel, "its descriptors do not fit its memory");
            return;
        }
        take(channel, &message);
    }
}

/* Bells, or the end. */
static void on_socket(uv_poll_t *poll, int status, int events)
{
    struct channel *channel = poll->data;
    (void)status; /* an error shows when the socket is read */
    (void)events;
    if (channel->closed)
        return;
    if (!channel->memory) {
        channel->ops.greet(channel->ops.context, channel, channel->sock);
        return;
    }
    char bells[16];
    ssize_t got;
    do
        got = recv(channel->sock, bells, sizeof bells, MSG_DONTWAIT);
    while (got > 0 || (got < 0 && errno == EINTR));
    if (got == 0 || errno != EAGAIN)
        lose(channel, "the other end is gone");
}

/* --- the loop ----------------------------------------------------------------------------------------- */

static void no_sleep(uv_idle_t *idle)
{
    (void)idle;
}

static void on_prepare(uv_prepare_t *prepare)
{
    struct channel_watch *watch = prepare->data;
    int any = watch->awake_until_ns != 0 && clock_now_ns() < watch->awake_until_ns;
    for (struct channel *channel = watch->channels; channel && !any; channel = channel->next)
        any = channel->memory && duct_has_message(&channel->memory->duct);
    for (struct channel *channel = watch->channels; channel && !any; channel = channel->next) {
        channel->asleep = channel->memory != NULL;
        any = channel->asleep && duct_sleep(&channel->memory->duct);
    }
    if (any)
        uv_idle_start(&watch->idle, no_sleep);
}

/* A message may close channels: a closed one keeps its `next` until its memory goes, later in this turn. */
static void on_check(uv_check_t *check)
{
    struct channel_watch *watch = check->data;
    int any = 0, peers = 0;
    uv_idle_stop(&watch->idle);
    for (struct channel *channel = watch->channels; channel; channel = channel->next) {
        if (channel->closed || !channel->memory)
            continue;
        peers++;
        if (channel->asleep)
            duct_wake(&channel->memory->duct);
        channel->asleep = 0;
        if (channel->waiting)
            send_waiting(channel);
        any |= duct_has_message(&channel->memory->duct);
        drain(channel);
    }
    if (any && watch->net->awake_ns > 0 && peers <= watch->net->awake_peers_max)
        watch->awake_until_ns = clock_now_ns() + watch->net->awake_ns;
}

static struct channel_watch *watch_of(struct net *net)
{
    if (net->channels)
        return net->channels;
    struct channel_watch *watch = calloc(1, sizeof *watch);
    if (!watch)
        return NULL;
    uv_prepare_init(net->loop, &watch->prepare);
    uv_check_init(net->loop, &watch->check);
    uv_idle_init(net->loop, &watch->idle);
    watch->prepare.data = watch->check.data = watch->idle.data = watch;
    watch->net = net;
    watch->handles = 3;
    uv_prepare_start(&watch->prepare, on_prepare);
    uv_check_start(&watch->check, on_check);
    net->channels = watch;
    return watch;
}

static void watch_handle_gone(uv_handle_t *handle)
{
    struct channel_watch *watch = handle->data;
    if (--watch->handles == 0)
        free(watch);
}

void channel_watch_close(struct channel_watch *watch)
{
    if (!watch)
        return;
    assert(!watch->channels);
    uv_close((uv_handle_t *)&watch->prepare, watch_handle_gone);
    uv_close((uv_handle_t *)&watch->check, watch_handle_gone);
    uv_close((uv_handle_t *)&watch->idle, watch_handle_gone);
}

void net_stay_awake(struct net *net, int64_t ns, int peers_max)
{
    net->awake_ns = ns;
    net->awake_peers_max = peers_max;
}

/* --- opening ------------------------------------------------------------------------------------------ */

int channel_create(struct channel **out, struct net *net, int sock, int routed, const struct channel_ops *ops)
{
    struct channel_watch *watch = watch_of(net);
    struct channel *channel = watch ? calloc(1, sizeof *channel) : NULL;
    if (!channel || uv_poll_init(net->loop, &channel->poll, sock)) {
        free(channel);
        return STATUS_NOMEM;
    }
    channel->net = net;
    channel->watch = watch;
    channel->ops = *ops;
    channel->sock = sock;
    channel->routed = routed;
    channel->id = ++watch->last_id;
    channel->waiting_tail = &channel->waiting;
    channel->poll.data = channel;
    uv_poll_start(&channel->poll, UV_READABLE, on_socket);
    channel->next = watch->channels;
    if (channel->next)
        channel->next->previous = channel;
    watch->channels = channel;
    *out = channel;
    return STATUS_OK;
}

int channel_open(struct channel *channel, struct segment *mine, uint64_t mine_area_bytes, struct segment *theirs,
                 uint64_t theirs_area_bytes, struct account *account)
{
    struct channel_memory *memory = malloc(sizeof *memory);
    if (!memory)
        return STATUS_NOMEM;
    atomic_init(&memory->references, 1);
    memory->sock = channel->sock;
    memory->mine = *mine;
    memory->theirs = *theirs;
    *mine = *theirs = (struct segment){.fd = -1};
    segment_close_fd(&memory->mine);
    duct_init(&memory->duct, memory->mine.memory, mine_area_bytes, memory->theirs.memory, theirs_area_bytes);
    channel->memory = memory;
    channel->account = account;
    channel->booked_bytes = account ? (int64_t)memory->mine.mapped : 0;
    if (account)
        account_add(account, ACCOUNT_BUFFERS, channel->booked_bytes);
    return STATUS_OK;
}

uint64_t channel_id(const struct channel *channel)
{
    return channel->id;
}
