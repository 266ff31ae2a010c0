/* Cases P02 and P03 at the place where every message is read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <zmq.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "lib/message_samples.h"
#include "wire/message_table.h"

enum { LIMIT_BYTES = 1 << 20, TYPES = 64 };

static struct errbuf err;

/* Parses a copy of exactly that size, so that a read beyond it is seen by ASan, and lets it go. */
static int parse_bytes(const struct message_sample *sample, const uint8_t *envelope, size_t bytes)
{
    struct message_part parts[3];
    struct message message;
    memcpy(parts, sample->parts, sizeof parts);
    uint8_t *copy = malloc(bytes ? bytes : 1);
    memcpy(copy, envelope, bytes);
    parts[0] = (struct message_part){copy, bytes};
    errbuf_init(&err);
    int status = message_parse(parts, sample->parts_count, LIMIT_BYTES, &message, &err);
    if (status)
        assert_true(err.text[0] != '\0');
    message_close(&message);
    free(copy);
    return status;
}

static void every_sample_is_accepted(void **state)
{
    (void)state;
    struct message_sample sample;
    int count = 0;
    for (int type = 0; type < TYPES; type++) {
        if (!message_sample_make(&sample, (Shoal__Type)type))
            continue;
        count++;
        int status = parse_bytes(&sample, sample.envelope, sample.envelope_bytes);
        if (status)
            print_error("type %d: %s\n", type, err.text);
        assert_int_equal(status, STATUS_OK);
    }
    assert_int_equal(count, 37);
}

static void P02_messages_cut_at_every_byte_end_in_a_status(void **state)
{
    (void)state;
    struct message_sample sample;
    for (int type = 0; type < TYPES; type++) {
        if (!message_sample_make(&sample, (Shoal__Type)type))
            continue;
        for (size_t bytes = 0; bytes < sample.envelope_bytes; bytes++) {
            int status = parse_bytes(&sample, sample.envelope, bytes);
            assert_true(status == STATUS_OK || status == STATUS_FORMAT || status == STATUS_PROTOCOL);
            if (bytes < 4) /* without its protocol range nothing is right */
                assert_int_equal(status, STATUS_FORMAT);
        }
    }
}

static void P02_damaged_bytes_end_in_a_status(void **state)
{
    (void)state;
    static const uint8_t values[] = {0, 0x7F, 0x80, 0xFF};
    struct message_sample sample;
    for (int type = 0; type < TYPES; type++) {
        if (!message_sample_make(&sample, (Shoal__Type)type))
            continue;
        for (size_t i = 0; i < 4 * sample.envelope_bytes; i++) {
            uint8_t before = sample.envelope[i / 4];
            sample.envelope[i / 4] = values[i % 4];
            int status = parse_bytes(&sample, sample.envelope, sample.envelope_bytes);
            assert_true(status == STATUS_OK || status == STATUS_FORMAT || status == STATUS_PROTOCOL);
            sample.envelope[i / 4] = before;
        }
    }
}

/* Unpacks a sample, lets `change` lie, and gives what the reader says to the packed lie. */
typedef void change_fn(Shoal__Envelope *envelope);

static int parse_changed(Shoal__Type type, change_fn *change)
{
    struct message_sample sample;
    assert_true(message_sample_make(&sample, type));
    Shoal__Envelope *envelope = shoal__envelope__unpack(NULL, sample.envelope_bytes, sample.envelope);
    change(envelope);
    uint8_t packed[SAMPLE_ENVELOPE_MAX];
    size_t bytes = shoal__envelope__pack(envelope, packed);
    shoal__envelope__free_unpacked(envelope, NULL);
    return parse_bytes(&sample, packed, bytes);
}

static void key_beyond_int64(Shoal__Envelope *envelope)
{
    envelope->selector->end = UINT64_C(1) << 63;
}
static void id_beyond_int64(Shoal__Envelope *envelope)
{
    envelope->selector->ids[1] = UINT64_C(1) << 63;
}
static void backward_range(Shoal__Envelope *envelope)
{
    envelope->selector->begin = 13;
}
static void no_dtype(Shoal__Envelope *envelope)
{
    envelope->dtype = SHOAL__DTYPE__DTYPE_NONE;
}
static void unknown_dtype(Shoal__Envelope *envelope)
{
    envelope->dtype = (Shoal__Dtype)99;
}
static void unknown_type(Shoal__Envelope *envelope)
{
    envelope->type = (Shoal__Type)1000;
}
static void negative_type(Shoal__Envelope *envelope)
{
    envelope->type = (Shoal__Type)-1;
}
static void unknown_role(Shoal__Envelope *envelope)
{
    envelope->role = (Shoal__Role)40;
}
static void reader_role(Shoal__Envelope *envelope)
{
    envelope->role = SHOAL__ROLE__READER;
}
static void not_a_number(Shoal__Envelope *envelope)
{
    envelope->weight = 0.0 / 0.0;
}
static void minus_samples(Shoal__Envelope *envelope)
{
    envelope->weight = -1;
}
static void far_rank(Shoal__Envelope *envelope)
{
    envelope->rank = -2;
}
static void other_runs(Shoal__Envelope *envelope)
{
    envelope->prepared->runs[0] = UINT64_MAX;
}
static void spans_without_a_length(Shoal__Envelope *envelope)
{
    free(envelope->prepared->runs_first);
    envelope->prepared->runs_first = NULL;
    envelope->prepared->n_runs_first = 0;
}
static void no_table(Shoal__Envelope *envelope)
{
    shoal__param_table__free_unpacked(envelope->register_->table, NULL);
    envelope->register_->table = NULL;
}
static void other_type_for_the_body(Shoal__Envelope *envelope)
{
    envelope->type = SHOAL__TYPE__VERDICT;
    envelope->role = SHOAL__ROLE__COORDINATOR;
}

static void P02_lying_fields_are_refused_by_name(void **state)
{
    (void)state;
    assert_int_equal(parse_changed(SHOAL__TYPE__PUSH, key_beyond_int64), STATUS_FORMAT);
    assert_int_equal(parse_changed(SHOAL__TYPE__PUSH, id_beyond_int64), STATUS_FORMAT);
    assert_int_equal(parse_changed(SHOAL__TYPE__PULL, backward_range), STATUS_FORMAT);
    assert_non_null(strstr(err.text, "PULL selects keys [13, 12)"));
    assert_int_equal(parse_changed(SHOAL__TYPE__PUSH, no_dtype), STATUS_FORMAT);
    assert_int_equal(parse_changed(SHOAL__TYPE__PUSH, unknown_dtype), STATUS_FORMAT);
    assert_int_equal(parse_changed(SHOAL__TYPE__PUSH, unknown_type), STATUS_FORMAT);
    assert_non_null(strstr(err.text, "1000"));
    assert_int_equal(parse_changed(SHOAL__TYPE__PUSH, negative_type), STATUS_FORMAT);
    assert_int_equal(parse_changed(SHOAL__TYPE__PUSH, unknown_role), STATUS_FORMAT);
    assert_int_equal(parse_changed(SHOAL__TYPE__PUSH, reader_role), STATUS_FORMAT);
    assert_int_equal(parse_changed(SHOAL__TYPE__PUSH, not_a_number), STATUS_FORMAT);
    assert_int_equal(parse_changed(SHOAL__TYPE__PUSH, minus_samples), STATUS_FORMAT);
    assert_int_equal(parse_changed(SHOAL__TYPE__JOIN, far_rank), STATUS_FORMAT);
    assert_int_equal(parse_changed(SHOAL__TYPE__PREPARED, other_runs), STATUS_FORMAT);
    assert_int_equal(parse_changed(SHOAL__TYPE__PREPARED, spans_without_a_length), STATUS_FORMAT);
    assert_int_equal(parse_changed(SHOAL__TYPE__REGISTER, no_table), STATUS_FORMAT);
    assert_int_equal(parse_changed(SHOAL__TYPE__PREPARED, other_type_for_the_body), STATUS_FORMAT);
}

static void newer_protocol(Shoal__Envelope *envelope)
{
    envelope->protocol_low = 7;
    envelope->protocol_high = 9;
    envelope->type = (Shoal__Type)500;
}
static void wider_protocol(Shoal__Envelope *envelope)
{
    envelope->protocol_high = 9;
}

static void P01_another_protocol_is_named_with_ours(void **state)
{
    (void)state;
    assert_int_equal(parse_changed(SHOAL__TYPE__JOIN, newer_protocol), STATUS_PROTOCOL);
    assert_string_equal(err.text, "peer speaks protocol 7 to 9, this one speaks 1 to 1");
    assert_int_equal(parse_changed(SHOAL__TYPE__JOIN, wider_protocol), STATUS_OK);
}

static void P02_nested_levels_and_counts_cost_no_more_than_their_bytes(void **state)
{
    (void)state;
    struct message_sample sample;
    message_sample_make(&sample, SHOAL__TYPE__STATUS);
    enum { LEVELS = 10000, LISTED = 2 << 20 };
    /* Field 15, length-delimited, in itself: 10,000 times, each with its rest as length. */
    uint8_t *nested = malloc(LEVELS * 4);
    for (size_t i = 0; i < LEVELS; i++) {
        size_t rest = (LEVELS - 1 - i) * 4;
        uint8_t level[4] = {0x7A, (uint8_t)(0x80 | (rest & 0x7F)), (uint8_t)(0x80 | (rest >> 7 & 0x7F)),
                            (uint8_t)(rest >> 14)};
        memcpy(nested + i * 4, level, sizeof level);
    }
    assert_int_equal(parse_bytes(&sample, nested, LEVELS * 4), STATUS_FORMAT);
    free(nested);
    /* status_report { members {} members {} ... }: two bytes each that unpack to a struct of 80. */
    uint8_t *listed = malloc(LISTED + 16);
    uint8_t *end = listed;
    *end++ = 0x82, *end++ = 0x03; /* field 48, length-delimited */
    for (uint32_t rest = LISTED; ; rest >>= 7) {
        *end++ = (uint8_t)(rest > 0x7F ? 0x80 | (rest & 0x7F) : rest);
        if (rest <= 0x7F)
            break;
    }
    for (size_t i = 0; i < LISTED; i += 2)
        *end++ = 0x32, *end++ = 0; /* field 6 */
    assert_int_equal(parse_bytes(&sample, listed, (size_t)(end - listed)), STATUS_FORMAT);
    free(listed);
    /* A list of ids that claims 2^60 bytes. */
    static const uint8_t claims[] = {0x72, 0x0D, 0x1A, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10, 1, 2, 3};
    assert_int_equal(parse_bytes(&sample, claims, sizeof claims), STATUS_FORMAT);
}

static int parse_frames(Shoal__Type type, int frames, const size_t *bytes)
{
    static const uint8_t zeros[2 * LIMIT_BYTES];
    struct message_sample sample;
    struct message message;
    struct message_part parts[64];
    message_sample_make(&sample, type);
    parts[0] = sample.parts[0];
    for (int i = 0; i < frames; i++)
        parts[1 + i] = (struct message_part){zeros, bytes ? bytes[i] : 8};
    int status = message_parse(parts, 1 + frames, LIMIT_BYTES, &message, &err);
    if (!status && frames > 0)
        assert_int_equal((uintptr_t)message.frames[0]->data % 16, 0);
    message_close(&message);
    return status;
}

static void P03_frames_that_are_missing_too_many_or_of_odd_size(void **state)
{
    (void)state;
    assert_int_equal(parse_frames(SHOAL__TYPE__PUSH, 0, NULL), STATUS_FORMAT);
    assert_int_equal(parse_frames(SHOAL__TYPE__PUSH, 1, NULL), STATUS_OK);
    assert_int_equal(parse_frames(SHOAL__TYPE__PUSH, 2, NULL), STATUS_FORMAT);
    assert_int_equal(parse_frames(SHOAL__TYPE__PUSH, 51, NULL), STATUS_FORMAT);
    assert_int_equal(parse_frames(SHOAL__TYPE__PULL, 1, NULL), STATUS_FORMAT);
    assert_int_equal(parse_frames(SHOAL__TYPE__PUSH, 1, (size_t[]){0}), STATUS_OK); /* the owner's to judge */
    assert_int_equal(parse_frames(SHOAL__TYPE__PUSH, 1, (size_t[]){15}), STATUS_FORMAT);
    assert_int_equal(parse_frames(SHOAL__TYPE__PUSH, 1, (size_t[]){LIMIT_BYTES}), STATUS_OK);
    assert_int_equal(parse_frames(SHOAL__TYPE__PUSH, 1, (size_t[]){LIMIT_BYTES + 4}), STATUS_FORMAT);
    assert_int_equal(parse_frames(SHOAL__TYPE__GATHER, 1, (size_t[]){12}), STATUS_FORMAT);
    assert_int_equal(parse_frames(SHOAL__TYPE__PREPARED, 1, (size_t[]){48}), STATUS_FORMAT);
    assert_int_equal(parse_frames(SHOAL__TYPE__PREPARED, 2, (size_t[]){48, 5}), STATUS_FORMAT);
    assert_int_equal(parse_frames(SHOAL__TYPE__PREPARED, 2, (size_t[]){52, 6}), STATUS_FORMAT);
    assert_int_equal(parse_frames(SHOAL__TYPE__PREPARED, 2, (size_t[]){48, 6}), STATUS_OK);
    struct message message;
    assert_int_equal(message_parse(NULL, 0, LIMIT_BYTES, &message, &err), STATUS_FORMAT);
    message_close(&message);
}

static void no_body(Shoal__Envelope *envelope)
{
    shoal__join__free_unpacked(envelope->join, NULL);
    envelope->join = NULL;
    envelope->body_case = SHOAL__ENVELOPE__BODY__NOT_SET;
}

static void P03_a_missing_body_is_refused(void **state)
{
    (void)state;
    assert_int_equal(parse_changed(SHOAL__TYPE__JOIN, no_body), STATUS_FORMAT);
    assert_non_null(strstr(err.text, "JOIN"));
}

/* A message that is refused keeps what its sender needs for an answer. */
static void a_refused_message_keeps_its_request_number(void **state)
{
    (void)state;
    struct message_sample sample;
    struct message message;
    message_sample_make(&sample, SHOAL__TYPE__PUSH);
    assert_int_equal(message_parse(sample.parts, 1, LIMIT_BYTES, &message, &err), STATUS_FORMAT);
    assert_non_null(message.envelope);
    assert_int_equal(message.envelope->request, 77);
    assert_int_equal(message.frames_count, 0);
    message_close(&message);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_sample_is_accepted),
        cmocka_unit_test(P01_another_protocol_is_named_with_ours),
        cmocka_unit_test(P02_messages_cut_at_every_byte_end_in_a_status),
        cmocka_unit_test(P02_damaged_bytes_end_in_a_status),
        cmocka_unit_test(P02_lying_fields_are_refused_by_name),
        cmocka_unit_test(P02_nested_levels_and_counts_cost_no_more_than_their_bytes),
        cmocka_unit_test(P03_frames_that_are_missing_too_many_or_of_odd_size),
        cmocka_unit_test(P03_a_missing_body_is_refused),
        cmocka_unit_test(a_refused_message_keeps_its_request_number),
    };
    return cmocka_run_group_tests_name("wire_cases", tests, NULL, NULL);
}
