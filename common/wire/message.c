#include "wire/message.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <zmq.h>

#include "base/clock.h"
#include "base/errbuf.h"
#include "base/status.h"
#include "wire/message_check.h"
#include "wire/message_table.h"

#ifdef __SANITIZE_THREAD__
/* ZeroMQ is not instrumented: without this the sanitizer does not see that what was written before a send happened
 * before what is read after the receive, in the same memory over inproc. */
void __tsan_acquire(void *address);
void __tsan_release(void *address);
#define PART_LEAVES(part) __tsan_release(zmq_msg_data(part))
#define PART_CAME(part) __tsan_acquire(zmq_msg_data(part))
#else
#define PART_LEAVES(part) ((void)0)
#define PART_CAME(part) ((void)0)
#endif

enum { PARTS_MAX = 1 + MESSAGE_FRAMES_MAX };

/* One multipart message as it came: what is beyond PARTS_MAX is counted and dropped. */
struct arrival {
    zmq_msg_t parts[PARTS_MAX];
    int kept, total;
};

static void arrival_close(struct arrival *arrival)
{
    for (int i = 0; i < arrival->kept; i++)
        zmq_msg_close(&arrival->parts[i]);
}

static void message_clear(struct message *message)
{
    message->from.count = 0;
    message->from.channel = 0;
    message->envelope = NULL;
    memset(message->frames, 0, sizeof message->frames);
    message->frames_count = 0;
    message->received_ns = 0;
    message->user[0] = '\0';
    message->address[0] = '\0';
}

void message_close(struct message *message)
{
    if (message->envelope)
        shoal__envelope__free_unpacked(message->envelope, NULL);
    for (int i = 0; i < message->frames_count; i++)
        buf_release(message->frames[i]);
    message_clear(message);
}

/* Reads all parts of the next message; multipart messages are atomic, so what follows the first part is there. */
static int arrival_read(struct arrival *arrival, void *socket)
{
    arrival->kept = arrival->total = 0;
    for (int more = 1; more;) {
        zmq_msg_t extra;
        zmq_msg_t *part = arrival->kept < PARTS_MAX ? &arrival->parts[arrival->kept] : &extra;
        zmq_msg_init(part);
        int rc;
        do
            rc = zmq_msg_recv(part, socket, arrival->total ? 0 : ZMQ_DONTWAIT);
        while (rc < 0 && errno == EINTR);
        if (rc < 0) {
            int status = errno == EAGAIN ? STATUS_BUSY : STATUS_CLOSED;
            zmq_msg_close(part);
            arrival_close(arrival);
            arrival->kept = 0;
            return status;
        }
        PART_CAME(part);
        more = zmq_msg_more(part);
        arrival->total++;
        if (part == &extra)
            zmq_msg_close(part);
        else
            arrival->kept++;
    }
    return STATUS_OK;
}

static void free_received(struct buf *buf, void *context)
{
    (void)buf;
    zmq_msg_t *part = context;
    zmq_msg_close(part);
    free(part);
}

/* The part moves into a heap message that the view's last release closes. */
static struct buf *view_of(zmq_msg_t *part)
{
    zmq_msg_t *kept = malloc(sizeof *kept);
    if (!kept)
        return NULL;
    zmq_msg_init(kept);
    zmq_msg_move(kept, part);
    struct buf *buf = buf_wrap(zmq_msg_data(kept), zmq_msg_size(kept), free_received, kept);
    if (!buf) {
        zmq_msg_close(kept);
        free(kept);
    }
    return buf;
}

static struct buf *copy_of(const void *data, size_t bytes)
{
    struct buf *buf = buf_create(bytes);
    if (buf && bytes > 0)
        memcpy(buf->data, data, bytes);
    return buf;
}

static void read_identity(struct message *message, zmq_msg_t *part)
{
    size_t bytes = zmq_msg_size(part);
    if (bytes > 0 && bytes <= MESSAGE_IDENTITY_MAX) {
        memcpy(message->from.bytes, zmq_msg_data(part), bytes);
        message->from.count = bytes;
    }
}

static void read_property(char text[MESSAGE_USER_MAX], zmq_msg_t *part, const char *name)
{
    const char *value = zmq_msg_gets(part, name);
    if (value && strlen(value) < MESSAGE_USER_MAX)
        memcpy(text, value, strlen(value) + 1);
}

/* Parts from `first` on are the envelope and its frames. */
static int take(struct arrival *arrival, int first, size_t limit_bytes, struct message *message,
                struct errbuf *err)
{
    struct message_part parts[PARTS_MAX];
    int kept = arrival->kept - first;
    for (int i = 0; i < kept; i++) {
        parts[i].data = zmq_msg_data(&arrival->parts[first + i]);
        parts[i].bytes = zmq_msg_size(&arrival->parts[first + i]);
    }
    int status = message_check(message, parts, arrival->total - first, limit_bytes, err);
    if (!status)
        status = message_check_direction(message, first, err);
    if (status)
        return status;
    for (int i = 1; i < kept; i++) {
        struct buf *buf = parts[i].bytes > MESSAGE_ALIGN_COPY ? view_of(&arrival->parts[first + i])
                                                              : copy_of(parts[i].data, parts[i].bytes);
        if (!buf)
            return errbuf_set(err, STATUS_NOMEM, "no memory for a frame of %zu bytes", parts[i].bytes);
        message->frames[message->frames_count++] = buf;
    }
    return STATUS_OK;
}

int message_receive(void *socket, int routed, size_t limit_bytes, struct message *message, struct errbuf *err)
{
    message_clear(message);
    struct arrival arrival;
    int status = arrival_read(&arrival, socket);
    if (status)
        return status;
    message->received_ns = clock_now_ns();
    int first = routed ? 1 : 0;
    if (routed)
        read_identity(message, &arrival.parts[0]);
    if (routed && arrival.kept > 1)
        read_property(message->user, &arrival.parts[1], "User-Id");
    if (routed && message->from.count == 0)
        status = errbuf_set(err, STATUS_FORMAT, "identity of %zu bytes, not 1 to %d",
                            zmq_msg_size(&arrival.parts[0]), MESSAGE_IDENTITY_MAX);
    else
        status = take(&arrival, first, limit_bytes, message, err);
    if (!status && routed && message->envelope->type == SHOAL__TYPE__JOIN)
        read_property(message->address, &arrival.parts[1], "Peer-Address");
    arrival_close(&arrival);
    return status;
}

int message_parse(const struct message_part *parts, int parts_count, size_t limit_bytes, struct message *message,
                  struct errbuf *err)
{
    message_clear(message);
    int status = message_check(message, parts, parts_count, limit_bytes, err);
    for (int i = 1; !status && i < parts_count; i++) {
        struct buf *buf = copy_of(parts[i].data, parts[i].bytes);
        if (!buf)
            return errbuf_set(err, STATUS_NOMEM, "no memory for a frame of %zu bytes", parts[i].bytes);
        message->frames[message->frames_count++] = buf;
    }
    return status;
}

int message_adopt(const struct message_part *envelope, struct buf *const *frames, int frames_count, int routed,
                  size_t limit_bytes, struct message *message, struct errbuf *err)
{
    struct message_part parts[PARTS_MAX];
    message_clear(message);
    message->received_ns = clock_now_ns();
    parts[0] = *envelope;
    for (int i = 0; i < frames_count && i < MESSAGE_FRAMES_MAX; i++)
        parts[1 + i] = (struct message_part){frames[i]->data, frames[i]->bytes};
    int status = message_check(message, parts, 1 + frames_count, limit_bytes, err);
    if (!status)
        status = message_check_direction(message, routed, err);
    for (int i = 0; !status && i < frames_count; i++)
        message->frames[message->frames_count++] = frames[i];
    return status;
}

/* --- sending ---------------------------------------------------------------------------------------- */

static int send_status(void)
{
    switch (errno) {
    case EAGAIN:
        return STATUS_BUSY;
    case EHOSTUNREACH:
        return STATUS_UNKNOWN;
    case ENOMEM:
        return STATUS_NOMEM;
    default:
        return STATUS_CLOSED;
    }
}

/* Takes the part: sent or closed. */
static int send_part(void *socket, zmq_msg_t *part, int more)
{
    int rc;
    PART_LEAVES(part);
    do
        rc = zmq_msg_send(part, socket, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0));
    while (rc < 0 && errno == EINTR);
    if (rc >= 0)
        return STATUS_OK;
    int status = send_status();
    zmq_msg_close(part);
    return status;
}

static void free_sent(void *data, void *hint)
{
    (void)data;
    buf_release(hint); /* on a ZeroMQ thread */
}

static int frame_part(zmq_msg_t *part, struct buf *frame)
{
    if (frame->bytes > MESSAGE_ALIGN_COPY) {
        if (zmq_msg_init_data(part, frame->data, frame->bytes, free_sent, frame))
            return STATUS_NOMEM;
        buf_share(frame);
        return STATUS_OK;
    }
    if (zmq_msg_init_size(part, frame->bytes))
        return STATUS_NOMEM;
    if (frame->bytes > 0)
        memcpy(zmq_msg_data(part), frame->data, frame->bytes);
    return STATUS_OK;
}

/* All parts are made before the first is sent, since a message cannot be taken back half-way. `parts[0]` is made. */
static int send_parts(void *socket, const struct message_identity *to, zmq_msg_t *parts, struct buf *const *frames,
                      int frames_count)
{
    int status = frames_count > MESSAGE_FRAMES_MAX ? STATUS_RANGE : STATUS_OK, count = 1;
    while (!status && count < 1 + frames_count) {
        status = frame_part(&parts[count], frames[count - 1]);
        count += !status;
    }
    if (!status && to) {
        zmq_msg_t identity;
        status = zmq_msg_init_size(&identity, to->count) ? STATUS_NOMEM : STATUS_OK;
        if (!status) {
            memcpy(zmq_msg_data(&identity), to->bytes, to->count);
            status = send_part(socket, &identity, 1);
        }
    }
    for (int i = 0; i < count; i++) {
        if (status)
            zmq_msg_close(&parts[i]);
        else
            status = send_part(socket, &parts[i], i + 1 < count);
    }
    return status;
}

int message_send(void *socket, const struct message_identity *to, const Shoal__Envelope *envelope,
                 struct buf *const *frames, int frames_count)
{
    zmq_msg_t parts[PARTS_MAX];
    if (zmq_msg_init_size(&parts[0], shoal__envelope__get_packed_size(envelope)))
        return STATUS_NOMEM;
    shoal__envelope__pack(envelope, zmq_msg_data(&parts[0]));
    return send_parts(socket, to, parts, frames, frames_count);
}

int message_send_packed(void *socket, const struct message_part *envelope, struct buf *const *frames,
                        int frames_count)
{
    zmq_msg_t parts[PARTS_MAX];
    if (zmq_msg_init_size(&parts[0], envelope->bytes))
        return STATUS_NOMEM;
    memcpy(zmq_msg_data(&parts[0]), envelope->data, envelope->bytes);
    return send_parts(socket, NULL, parts, frames, frames_count);
}
