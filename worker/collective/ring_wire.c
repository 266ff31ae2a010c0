#include "worker/collective/ring_wire.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "wire/message_check.h"

size_t ring_wire_pack(const struct ring_header *header, uint8_t *bytes)
{
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    Shoal__Collective body = SHOAL__COLLECTIVE__INIT;
    body.fingerprint = header->fingerprint;
    body.sequence = header->sequence;
    body.segment = header->segment;
    body.form = header->form;
    envelope.protocol_low = PROTOCOL_LOW;
    envelope.protocol_high = PROTOCOL_HIGH;
    envelope.type = SHOAL__TYPE__COLLECTIVE;
    envelope.job = header->job;
    envelope.cluster_epoch = header->cluster_epoch;
    envelope.role = SHOAL__ROLE__WORKER;
    envelope.rank = header->rank;
    envelope.incarnation = header->incarnation;
    envelope.status = header->status;
    envelope.text = (char *)header->text;
    envelope.body_case = SHOAL__ENVELOPE__BODY_COLLECTIVE;
    envelope.collective = &body;
    size_t packed = shoal__envelope__pack(&envelope, bytes);
    assert(packed <= RING_ENVELOPE_MAX);
    return packed;
}

/* Memory of one unpacked envelope: given out end to end, gone with the call. */
struct scratch {
    _Alignas(16) uint8_t bytes[8192];
    size_t used;
};

static void *scratch_alloc(void *context, size_t bytes)
{
    struct scratch *scratch = context;
    size_t rounded = (bytes + 15) / 16 * 16;
    if (rounded < bytes || rounded > sizeof scratch->bytes - scratch->used)
        return NULL;
    void *pointer = scratch->bytes + scratch->used;
    scratch->used += rounded;
    return pointer;
}

static void scratch_free(void *context, void *pointer)
{
    (void)context;
    (void)pointer;
}

static void header_of(struct ring_header *header, const Shoal__Envelope *envelope)
{
    const Shoal__Collective *body = envelope->collective;
    header->job = envelope->job;
    header->cluster_epoch = envelope->cluster_epoch;
    header->incarnation = envelope->incarnation;
    header->fingerprint = body->fingerprint;
    header->sequence = body->sequence;
    header->segment = body->segment;
    header->form = body->form;
    header->rank = envelope->rank;
    header->status = envelope->status;
    snprintf(header->text, sizeof header->text, "%s", envelope->text);
}

int ring_wire_read(struct ring_header *header, const struct message_part *parts, int parts_count,
                   size_t limit_bytes, struct errbuf *err)
{
    if (parts_count < 1 || parts_count > 2)
        return errbuf_set(err, STATUS_FORMAT, "message of %d parts", parts_count);
    if (parts[0].bytes > RING_ENVELOPE_MAX)
        return errbuf_set(err, STATUS_FORMAT, "envelope of %zu bytes, at most %d", parts[0].bytes,
                          RING_ENVELOPE_MAX);
    static const uint8_t nothing[1];
    struct scratch scratch;
    scratch.used = 0;
    ProtobufCAllocator allocator = {scratch_alloc, scratch_free, &scratch};
    const Shoal__Envelope *envelope =
        shoal__envelope__unpack(&allocator, parts[0].bytes, parts[0].data ? parts[0].data : nothing);
    if (!envelope)
        return errbuf_set(err, STATUS_FORMAT, "envelope of %zu bytes cannot be read", parts[0].bytes);
    int status = message_check_unpacked(envelope, parts + 1, parts_count - 1, limit_bytes, err);
    if (!status && envelope->type != SHOAL__TYPE__COLLECTIVE)
        status = errbuf_set(err, STATUS_FORMAT, "message of type %d in a ring", (int)envelope->type);
    if (!status)
        header_of(header, envelope);
    return status;
}

enum ring_match ring_wire_match(const struct ring_header *came, size_t came_bytes, const struct ring_header *due,
                                size_t due_bytes)
{
    int same_call = came->fingerprint == due->fingerprint && came->form == due->form;
    if (came->sequence > due->sequence ||
        (came->sequence == due->sequence && same_call && came->segment != due->segment))
        return RING_LOST;
    if (came->sequence < due->sequence || !same_call)
        return RING_OTHER_CALL;
    return came_bytes == due_bytes ? RING_MATCH : RING_WRONG_SIZE;
}
