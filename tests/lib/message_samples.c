#include "message_samples.h"

#include <string.h>

#include "wire/message_table.h"

static Shoal__Role role_of(const struct message_row *row)
{
    int role = SHOAL__ROLE__COORDINATOR;
    while (!(row->senders >> role & 1))
        role++;
    return (Shoal__Role)role;
}

static size_t pack(struct message_sample *sample, const struct message_row *row, const void *body)
{
    int64_t shape[2] = {3, 4};
    uint64_t ids[2] = {5, 9};
    Shoal__Tensor tensor = SHOAL__TENSOR__INIT, *tensors[1] = {&tensor};
    tensor.name = "head.weight";
    tensor.shape = shape;
    tensor.n_shape = 2;
    Shoal__ParamTable table = SHOAL__PARAM_TABLE__INIT;
    table.tensors = tensors;
    table.n_tensors = 1;
    table.layers = 1;
    Shoal__Register registration = SHOAL__REGISTER__INIT;
    registration.table = &table;
    Shoal__Start start = SHOAL__START__INIT;
    char *servers[2] = {"tcp://127.0.0.1:7071", "tcp://127.0.0.1:7072"};
    start.table = &table;
    start.servers = servers;
    start.n_servers = 2;
    Shoal__Selector selector = SHOAL__SELECTOR__INIT;
    selector.end = 12;
    selector.ids = ids;
    selector.n_ids = 2;
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    envelope.protocol_low = PROTOCOL_LOW;
    envelope.protocol_high = PROTOCOL_HIGH;
    envelope.type = row->type;
    envelope.role = role_of(row);
    envelope.rank = 1;
    envelope.request = 77;
    envelope.selector = &selector;
    envelope.dtype = SHOAL__DTYPE__F32;
    envelope.weight = 32;
    envelope.text = "text";
    envelope.body_case = row->body;
    envelope.join = (Shoal__Join *)body;
    if (row->type == SHOAL__TYPE__REGISTER)
        envelope.register_ = &registration;
    if (row->type == SHOAL__TYPE__START)
        envelope.start = &start;
    return shoal__envelope__pack(&envelope, sample->envelope);
}

/* The body with a few fields filled in, by the number of its case. */
union body {
    Shoal__Join join;
    Shoal__Joined joined;
    Shoal__JobBegin job_begin;
    Shoal__Prepared prepared;
    Shoal__Report report;
    Shoal__Verdict verdict;
    Shoal__Gather gather;
    Shoal__Evaluated evaluated;
    Shoal__Evaluation evaluation;
    Shoal__Snapshot snapshot;
    Shoal__Summary summary;
    Shoal__Push push;
    Shoal__Fetch fetch;
    Shoal__Submit submit;
    Shoal__Status status;
    Shoal__Death death;
    Shoal__Collective collective;
    Shoal__Local local;
};

static void body_init(union body *body, Shoal__Envelope__BodyCase which)
{
    static const ProtobufCMessageDescriptor *const descriptors[] = {
        &shoal__join__descriptor,      &shoal__joined__descriptor,   &shoal__job_begin__descriptor,
        &shoal__register__descriptor,  &shoal__start__descriptor,    &shoal__prepared__descriptor,
        &shoal__report__descriptor,    &shoal__verdict__descriptor,  &shoal__gather__descriptor,
        &shoal__evaluated__descriptor, &shoal__evaluation__descriptor, &shoal__snapshot__descriptor,
        &shoal__summary__descriptor,   &shoal__push__descriptor,     &shoal__fetch__descriptor,
        &shoal__submit__descriptor,    &shoal__status__descriptor,   &shoal__death__descriptor,
        &shoal__collective__descriptor, &shoal__local__descriptor};
    if (which == SHOAL__ENVELOPE__BODY__NOT_SET || which == SHOAL__ENVELOPE__BODY_REGISTER_ ||
        which == SHOAL__ENVELOPE__BODY_START)
        return;
    protobuf_c_message_init(descriptors[which - SHOAL__ENVELOPE__BODY_JOIN], body);
    if (which == SHOAL__ENVELOPE__BODY_JOIN)
        body->join.address = "tcp://127.0.0.1:7070";
    if (which == SHOAL__ENVELOPE__BODY_PREPARED) {
        static uint64_t first = 0, runs = SAMPLE_FRAME_BYTES / 8;
        body->prepared.n_runs_first = body->prepared.n_runs = 1;
        body->prepared.runs_first = &first;
        body->prepared.runs = &runs;
    }
    if (which == SHOAL__ENVELOPE__BODY_EVALUATED)
        body->evaluated.set = "test";
    if (which == SHOAL__ENVELOPE__BODY_REPORT)
        body->report.digest = (ProtobufCBinaryData){8, (uint8_t *)"12345678"};
    if (which == SHOAL__ENVELOPE__BODY_FETCH)
        body->fetch.name = "owner-0.shard";
}

int message_sample_make(struct message_sample *sample, Shoal__Type type)
{
    const struct message_row *row = message_row_of(type);
    if (!row)
        return 0;
    memset(sample, 0, sizeof *sample);
    union body body;
    body_init(&body, row->body);
    sample->envelope_bytes = pack(sample, row, &body);
    sample->parts[0] = (struct message_part){sample->envelope, sample->envelope_bytes};
    sample->parts_count = 1 + row->frames_max;
    sample->parts[1] = (struct message_part){sample->frames[0], SAMPLE_FRAME_BYTES};
    sample->parts[2] = (struct message_part){
        sample->frames[1], row->type == SHOAL__TYPE__PREPARED ? SAMPLE_FRAME_BYTES / 8 : SAMPLE_FRAME_BYTES};
    return 1;
}
