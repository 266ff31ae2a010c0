#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <zmq.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "lib/message_samples.h"
#include "wire/message_table.h"

enum { LIMIT_BYTES = 1 << 20 };

struct pair {
    void *context, *router, *dealer;
};

static void pair_open(struct pair *pair)
{
    int one = 1;
    pair->context = zmq_ctx_new();
    pair->router = zmq_socket(pair->context, ZMQ_ROUTER);
    pair->dealer = zmq_socket(pair->context, ZMQ_DEALER);
    zmq_setsockopt(pair->router, ZMQ_ROUTER_MANDATORY, &one, sizeof one);
    assert_int_equal(zmq_bind(pair->router, "inproc://wire"), 0);
    assert_int_equal(zmq_connect(pair->dealer, "inproc://wire"), 0);
}

static void pair_close(struct pair *pair)
{
    zmq_close(pair->dealer);
    zmq_close(pair->router);
    zmq_ctx_term(pair->context);
}

static Shoal__Envelope envelope_of(Shoal__Type type, Shoal__Role role)
{
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    envelope.protocol_low = PROTOCOL_LOW;
    envelope.protocol_high = PROTOCOL_HIGH;
    envelope.type = type;
    envelope.role = role;
    envelope.request = 3;
    return envelope;
}

static void every_row_names_its_senders(void **state)
{
    (void)state;
    for (int type = -3; type < 100; type++) {
        const struct message_row *row = message_row_of((Shoal__Type)type);
        if (!row)
            continue;
        assert_int_equal(row->type, type);
        assert_true(row->senders != 0);
        assert_true(row->frames_min <= row->frames_max && row->frames_max <= MESSAGE_FRAMES_MAX);
        const ProtobufCEnumValue *value = protobuf_c_enum_descriptor_get_value(&shoal__type__descriptor, type);
        assert_non_null(value);
        assert_string_equal(value->name, row->name);
    }
    /* And every type of the schema has a row. */
    for (unsigned i = 0; i < shoal__type__descriptor.n_values; i++) {
        int type = shoal__type__descriptor.values[i].value;
        assert_true(type == 0 || message_row_of((Shoal__Type)type) != NULL);
    }
}

static void a_request_and_its_reply_go_through_sockets(void **state)
{
    (void)state;
    struct pair pair;
    struct message message;
    struct errbuf err;
    pair_open(&pair);
    assert_int_equal(message_receive(pair.router, 1, LIMIT_BYTES, &message, &err), STATUS_BUSY);
    Shoal__Envelope push = envelope_of(SHOAL__TYPE__PUSH, SHOAL__ROLE__WORKER);
    Shoal__Selector selector = SHOAL__SELECTOR__INIT;
    selector.end = 4096;
    push.selector = &selector;
    push.dtype = SHOAL__DTYPE__F32;
    struct buf *values = buf_create(16384);
    memset(values->data, 7, values->bytes);
    assert_int_equal(message_send(pair.dealer, NULL, &push, &values, 1), STATUS_OK);
    assert_int_equal(message_receive(pair.router, 1, LIMIT_BYTES, &message, &err), STATUS_OK);
    assert_true(message.from.count > 0);
    assert_int_equal(message.envelope->selector->end, 4096);
    assert_int_equal(message.frames_count, 1);
    assert_ptr_equal(message.frames[0]->data, values->data); /* inproc: the same memory */
    assert_true(message.received_ns > 0);
    Shoal__Envelope ack = envelope_of(SHOAL__TYPE__ACK, SHOAL__ROLE__SERVER);
    assert_int_equal(message_send(pair.router, &message.from, &ack, NULL, 0), STATUS_OK);
    assert_false(buf_is_sole(values));
    message_close(&message);
    assert_true(buf_is_sole(values));
    assert_int_equal(message_receive(pair.dealer, 0, LIMIT_BYTES, &message, &err), STATUS_OK);
    assert_int_equal(message.envelope->type, SHOAL__TYPE__ACK);
    assert_int_equal(message.from.count, 0);
    message_close(&message);
    buf_release(values);
    pair_close(&pair);
}

static void small_frames_come_aligned_and_apart(void **state)
{
    (void)state;
    struct pair pair;
    struct message message;
    struct errbuf err;
    pair_open(&pair);
    Shoal__Envelope gather = envelope_of(SHOAL__TYPE__GATHER, SHOAL__ROLE__WORKER);
    Shoal__Gather body = SHOAL__GATHER__INIT;
    gather.body_case = SHOAL__ENVELOPE__BODY_GATHER;
    gather.gather = &body;
    struct buf *values = buf_create(MESSAGE_ALIGN_COPY);
    memset(values->data, 7, values->bytes);
    assert_int_equal(message_send(pair.dealer, NULL, &gather, &values, 1), STATUS_OK);
    memset(values->data, 9, values->bytes); /* the copy has left already */
    assert_true(buf_is_sole(values));
    assert_int_equal(message_receive(pair.router, 1, LIMIT_BYTES, &message, &err), STATUS_OK);
    assert_int_equal(message.frames[0]->bytes, MESSAGE_ALIGN_COPY);
    assert_int_equal((uintptr_t)message.frames[0]->data % 64, 0);
    assert_int_equal(((uint8_t *)message.frames[0]->data)[100], 7);
    struct buf *taken = message.frames[0];
    message.frames[0] = NULL; /* a taken frame outlives its message */
    message_close(&message);
    assert_int_equal(((uint8_t *)taken->data)[0], 7);
    buf_release(taken);
    buf_release(values);
    pair_close(&pair);
}

static void a_router_says_when_the_peer_is_unknown(void **state)
{
    (void)state;
    struct pair pair;
    pair_open(&pair);
    struct message_identity nobody = {.bytes = {'x'}, .count = 1};
    Shoal__Envelope ack = envelope_of(SHOAL__TYPE__ACK, SHOAL__ROLE__SERVER);
    struct buf *values = buf_create(100000);
    assert_int_equal(message_send(pair.router, &nobody, &ack, &values, 1), STATUS_UNKNOWN);
    assert_true(buf_is_sole(values)); /* nothing is left behind */
    buf_release(values);
    pair_close(&pair);
}

static void requests_and_replies_go_one_way_each(void **state)
{
    (void)state;
    struct pair pair;
    struct message message;
    struct errbuf err;
    pair_open(&pair);
    Shoal__Envelope ack = envelope_of(SHOAL__TYPE__ACK, SHOAL__ROLE__SERVER);
    assert_int_equal(message_send(pair.dealer, NULL, &ack, NULL, 0), STATUS_OK);
    assert_int_equal(message_receive(pair.router, 1, LIMIT_BYTES, &message, &err), STATUS_FORMAT);
    assert_int_equal(message.envelope->request, 3);
    struct message_identity from = message.from;
    message_close(&message);
    Shoal__Envelope beat = envelope_of(SHOAL__TYPE__HEARTBEAT, SHOAL__ROLE__SERVER);
    assert_int_equal(message_send(pair.router, &from, &beat, NULL, 0), STATUS_OK);
    Shoal__Envelope await = envelope_of(SHOAL__TYPE__AWAIT, SHOAL__ROLE__SERVER);
    assert_int_equal(message_send(pair.router, &from, &await, NULL, 0), STATUS_OK);
    beat.request = 0;
    assert_int_equal(message_send(pair.router, &from, &beat, NULL, 0), STATUS_OK);
    assert_int_equal(message_receive(pair.dealer, 0, LIMIT_BYTES, &message, &err), STATUS_OK);
    message_close(&message);
    assert_int_equal(message_receive(pair.dealer, 0, LIMIT_BYTES, &message, &err), STATUS_FORMAT);
    message_close(&message);
    assert_int_equal(message_receive(pair.dealer, 0, LIMIT_BYTES, &message, &err), STATUS_FORMAT);
    assert_non_null(strstr(err.text, "request number"));
    message_close(&message);
    pair_close(&pair);
}

static void bad_parts_do_not_reach_the_next_message(void **state)
{
    (void)state;
    struct pair pair;
    struct message message;
    struct errbuf err;
    pair_open(&pair);
    for (int i = 0; i < 60; i++)
        assert_int_equal(zmq_send(pair.dealer, "part", 4, i < 59 ? ZMQ_SNDMORE : 0), 4);
    Shoal__Envelope beat = envelope_of(SHOAL__TYPE__HEARTBEAT, SHOAL__ROLE__WORKER);
    assert_int_equal(message_send(pair.dealer, NULL, &beat, NULL, 0), STATUS_OK);
    assert_int_equal(message_receive(pair.router, 1, LIMIT_BYTES, &message, &err), STATUS_FORMAT);
    message_close(&message);
    assert_int_equal(message_receive(pair.router, 1, LIMIT_BYTES, &message, &err), STATUS_OK);
    message_close(&message);
    assert_int_equal(message_receive(pair.router, 1, LIMIT_BYTES, &message, &err), STATUS_BUSY);
    pair_close(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_names_its_senders),
        cmocka_unit_test(a_request_and_its_reply_go_through_sockets),
        cmocka_unit_test(small_frames_come_aligned_and_apart),
        cmocka_unit_test(a_router_says_when_the_peer_is_unknown),
        cmocka_unit_test(requests_and_replies_go_one_way_each),
        cmocka_unit_test(bad_parts_do_not_reach_the_next_message),
    };
    return cmocka_run_group_tests_name("wire", tests, NULL, NULL);
}
