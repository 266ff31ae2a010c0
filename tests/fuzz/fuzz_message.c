/* First byte: number of payload frames; then each frame's length in two bytes; the rest is the envelope, and the
 * frames are zeros. An input whose first byte is above 0x80 starts from the sample message of that type instead, in
 * which the following (place, byte) pairs are set. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/errbuf.h"
#include "message_samples.h"

enum { LIMIT_BYTES = 1 << 15 };

static void parse(const struct message_part *parts, int count)
{
    struct message message;
    struct errbuf err;
    message_parse(parts, count, LIMIT_BYTES, &message, &err);
    message_close(&message);
}

static void damage(const uint8_t *data, size_t bytes)
{
    struct message_sample sample;
    if (!message_sample_make(&sample, (Shoal__Type)(data[0] & 0x3F)))
        return;
    for (size_t i = 1; i + 2 < bytes; i += 3)
        sample.envelope[(data[i] << 8 | data[i + 1]) % sample.envelope_bytes] = data[i + 2];
    parse(sample.parts, sample.parts_count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const uint8_t zeros[1 << 16];
    struct message_part parts[1 + 3];
    if (bytes == 0)
        return 0;
    if (data[0] > 0x80) {
        damage(data, bytes);
        return 0;
    }
    int frames = data[0] & 3;
    if (bytes < 1 + 2 * (size_t)frames)
        return 0;
    for (int i = 0; i < frames; i++)
        parts[1 + i] = (struct message_part){zeros, (size_t)data[1 + 2 * i] << 8 | data[2 + 2 * i]};
    parts[0] = (struct message_part){data + 1 + 2 * frames, bytes - 1 - 2 * (size_t)frames};
    parse(parts, 1 + frames);
    return 0;
}
