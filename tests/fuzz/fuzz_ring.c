/* What a ring's socket may be sent: any envelope of any length, with or without a frame. */
#include <stdint.h>
#include <string.h>

#include "worker/collective/ring_wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct ring_header header, again;
    uint8_t packed[RING_ENVELOPE_MAX];
    size_t envelope = bytes > 2 ? (size_t)data[0] | (size_t)data[1] << 8 : 0;
    if (bytes < 3)
        return 0;
    if (envelope > bytes - 3)
        envelope = bytes - 3;
    const struct message_part parts[2] = {{data + 3, envelope}, {data + 3 + envelope, bytes - 3 - envelope}};
    if (ring_wire_read(&header, parts, data[2] % 4, 4096, NULL) != 0)
        return 0;
    const struct message_part part = {packed,
                                      ring_wire_pack(&header, packed)}; /* what was read can be said again */
    if (ring_wire_read(&again, &part, 1, 4096, NULL) != 0 || strcmp(again.text, header.text) != 0 ||
        ring_wire_match(&again, 0, &header, 0) != RING_MATCH)
        __builtin_trap();
    return 0;
}
