#include "wire/message_check.h"

#include <math.h>
#include <stdlib.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "wire/message_table.h"

/* An envelope may cost this many times its length in memory, and never more than UNPACK_MAX: a list of empty strings
 * or messages is much larger unpacked than packed. */
enum { UNPACK_FACTOR = 32, UNPACK_BASE = 64 << 10, UNPACK_MAX = 128 << 20 };

struct budget {
    size_t left;
};

static void *budget_alloc(void *context, size_t bytes)
{
    struct budget *budget = context;
    size_t cost = bytes + 16;
    if (bytes > budget->left || cost > budget->left)
        return NULL;
    budget->left -= cost;
    return malloc(bytes);
}

static void budget_free(void *context, void *pointer)
{
    (void)context;
    free(pointer);
}

static Shoal__Envelope *unpack(const struct message_part *part)
{
    struct budget budget = {UNPACK_BASE + UNPACK_FACTOR * part->bytes};
    if (budget.left > UNPACK_MAX)
        budget.left = UNPACK_MAX;
    ProtobufCAllocator allocator = {budget_alloc, budget_free, &budget};
    static const uint8_t nothing[1];
    return shoal__envelope__unpack(&allocator, part->bytes, part->data ? part->data : nothing);
}

static int check_protocol(const Shoal__Envelope *envelope, struct errbuf *err)
{
    if (envelope->protocol_high == 0 || envelope->protocol_low > envelope->protocol_high)
        return errbuf_set(err, STATUS_FORMAT, "envelope without a protocol range");
    if (envelope->protocol_low > PROTOCOL_HIGH || envelope->protocol_high < PROTOCOL_LOW)
        return errbuf_set(err, STATUS_PROTOCOL, "peer speaks protocol %u to %u, this one speaks %d to %d",
                          envelope->protocol_low, envelope->protocol_high, PROTOCOL_LOW, PROTOCOL_HIGH);
    return STATUS_OK;
}

static int check_selector(const Shoal__Envelope *envelope, const struct message_row *row, struct errbuf *err)
{
    if (row->ranged && (!envelope->selector || envelope->dtype == SHOAL__DTYPE__DTYPE_NONE))
        return errbuf_set(err, STATUS_FORMAT, "%s without selector or dtype", row->name);
    if (envelope->dtype != SHOAL__DTYPE__DTYPE_NONE && message_dtype_bytes(envelope->dtype) == 0)
        return errbuf_set(err, STATUS_FORMAT, "%s of unknown dtype %d", row->name, (int)envelope->dtype);
    const Shoal__Selector *selector = envelope->selector;
    if (!selector)
        return STATUS_OK;
    if (selector->begin > selector->end || selector->end > INT64_MAX)
        return errbuf_set(err, STATUS_FORMAT, "%s selects keys [%llu, %llu)", row->name,
                          (unsigned long long)selector->begin, (unsigned long long)selector->end);
    for (size_t i = 0; i < selector->n_ids; i++) {
        if (selector->ids[i] > INT64_MAX)
            return errbuf_set(err, STATUS_FORMAT, "%s selects key %llu", row->name,
                              (unsigned long long)selector->ids[i]);
    }
    return STATUS_OK;
}

/* What is nested and every reader relies on. */
static int check_body(const Shoal__Envelope *envelope, const struct message_row *row, struct errbuf *err)
{
    int there = envelope->body_case != SHOAL__ENVELOPE__BODY__NOT_SET;
    if (!there && (row->body == SHOAL__ENVELOPE__BODY__NOT_SET || row->body_optional))
        return STATUS_OK;
    /* All members of the union are pointers to messages, so one stands for all. */
    if (envelope->body_case != row->body || !envelope->join)
        return errbuf_set(err, STATUS_FORMAT, "%s with body %d, not %d", row->name, (int)envelope->body_case,
                          (int)row->body);
    if ((row->type == SHOAL__TYPE__REGISTER && !envelope->register_->table) ||
        (row->type == SHOAL__TYPE__START && !envelope->start->table))
        return errbuf_set(err, STATUS_FORMAT, "%s without a parameter table", row->name);
    return STATUS_OK;
}

static int check_frames(const Shoal__Envelope *envelope, const struct message_row *row,
                        const struct message_part *frames, int count, size_t limit_bytes, struct errbuf *err)
{
    if (count < row->frames_min || count > row->frames_max)
        return errbuf_set(err, STATUS_FORMAT, "%s with %d payload frames, not %d to %d", row->name, count,
                          row->frames_min, row->frames_max);
    size_t limit = limit_bytes;
    if (row->frame_bytes_max > 0 && row->frame_bytes_max < limit)
        limit = (size_t)row->frame_bytes_max;
    for (int i = 0; i < count; i++) {
        if (frames[i].bytes > limit)
            return errbuf_set(err, STATUS_FORMAT, "%s with a frame of %zu bytes, at most %zu", row->name,
                              frames[i].bytes, limit);
    }
    unsigned element = row->element_bytes ? row->element_bytes : message_dtype_bytes(envelope->dtype);
    if (count > 0 && element > 0 && frames[0].bytes % element != 0)
        return errbuf_set(err, STATUS_FORMAT, "%s with %zu bytes of %u-byte elements", row->name, frames[0].bytes,
                          element);
    if (row->type == SHOAL__TYPE__PREPARED) {
        uint64_t runs = 0;
        int fits = count == 2 && envelope->prepared->n_runs_first == envelope->prepared->n_runs;
        for (size_t i = 0; fits && i < envelope->prepared->n_runs; i++) {
            fits = envelope->prepared->runs[i] <= frames[1].bytes - runs;
            runs += envelope->prepared->runs[i];
        }
        if (!fits || frames[0].bytes / 8 != runs || frames[1].bytes != runs)
            return errbuf_set(err, STATUS_FORMAT, "PREPARED with frames for another number of runs");
    }
    return STATUS_OK;
}

int message_check_unpacked(const Shoal__Envelope *envelope, const struct message_part *frames, int frames_count,
                           size_t limit_bytes, struct errbuf *err)
{
    int status = check_protocol(envelope, err);
    if (status)
        return status;
    const struct message_row *row = message_row_of(envelope->type);
    if (!row)
        return errbuf_set(err, STATUS_FORMAT, "unknown message type %d", (int)envelope->type);
    int role = (int)envelope->role;
    if (role <= SHOAL__ROLE__ROLE_NONE || role > SHOAL__ROLE__READER || !(row->senders >> role & 1))
        return errbuf_set(err, STATUS_FORMAT, "%s from role %d, which may not send it", row->name, role);
    if (envelope->rank < -1)
        return errbuf_set(err, STATUS_FORMAT, "%s from rank %d", row->name, (int)envelope->rank);
    if (!isfinite(envelope->weight) || envelope->weight < 0)
        return errbuf_set(err, STATUS_FORMAT, "%s with weight %g", row->name, envelope->weight);
    if (envelope->status > 0)
        return errbuf_set(err, STATUS_FORMAT, "%s with status %d", row->name, (int)envelope->status);
    status = check_body(envelope, row, err);
    if (!status)
        status = check_selector(envelope, row, err);
    if (!status)
        status = check_frames(envelope, row, frames, frames_count, limit_bytes, err);
    return status;
}

int message_check(struct message *message, const struct message_part *parts, int parts_count, size_t limit_bytes,
                  struct errbuf *err)
{
    if (parts_count < 1)
        return errbuf_set(err, STATUS_FORMAT, "message without an envelope");
    if (parts[0].bytes > MESSAGE_ENVELOPE_MAX)
        return errbuf_set(err, STATUS_FORMAT, "envelope of %zu bytes, at most %d", parts[0].bytes,
                          MESSAGE_ENVELOPE_MAX);
    message->envelope = unpack(&parts[0]);
    if (!message->envelope)
        return errbuf_set(err, STATUS_FORMAT, "envelope of %zu bytes cannot be read", parts[0].bytes);
    return message_check_unpacked(message->envelope, parts + 1, parts_count - 1, limit_bytes, err);
}

int message_check_direction(const struct message *message, int routed, struct errbuf *err)
{
    const struct message_row *row = message_row_of(message->envelope->type);
    if (routed && row->reply == MESSAGE_REPLY)
        return errbuf_set(err, STATUS_FORMAT, "%s, an answer, where requests are taken", row->name);
    if (!routed && row->reply == MESSAGE_REQUEST)
        return errbuf_set(err, STATUS_FORMAT, "%s, a request, where answers are taken", row->name);
    if (message->envelope->request == 0)
        return errbuf_set(err, STATUS_FORMAT, "%s without a request number", row->name);
    return STATUS_OK;
}
