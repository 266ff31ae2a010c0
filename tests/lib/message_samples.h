/* One valid message of every type, packed: seeds for tests that damage them. */
#ifndef SHOAL_TESTS_MESSAGE_SAMPLES_H
#define SHOAL_TESTS_MESSAGE_SAMPLES_H

#include "wire/message.h"

enum { SAMPLE_ENVELOPE_MAX = 1024, SAMPLE_FRAME_BYTES = 48 };

struct message_sample {
    uint8_t envelope[SAMPLE_ENVELOPE_MAX];
    size_t envelope_bytes;
    uint8_t frames[2][SAMPLE_FRAME_BYTES];
    struct message_part parts[3];
    int parts_count;
};
/* 0 for a type that does not exist. Values are the same each time. */
int message_sample_make(struct message_sample *sample, Shoal__Type type);

#endif
