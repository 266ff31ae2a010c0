/* What the other end of a shared duct may say, as bytes: its head (descriptors and counters) and its area are the input, and
 * this end reads, releases and writes as long as it may. Between the calls the next bytes overwrite the head. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "net/duct.h"

enum { AREA = 4096, TURNS = 64, LIMIT_BYTES = 1 << 15 };

/* Places of the head that matter, so that few bytes reach them. */
static void overwrite(struct duct_head *head, const uint8_t *bytes)
{
    uint64_t value = (uint64_t)bytes[2] << (bytes[1] & 56);
    struct duct_descriptor *descriptor = &head->ring[bytes[1] % 4];
    switch (bytes[0] % 8) {
    case 0: atomic_store(&head->published, bytes[2]); break;
    case 1: atomic_store(&head->taken, value); break;
    case 2: atomic_store(&head->released[bytes[1]], bytes[2]); break;
    case 3: descriptor->offset = value; break;
    case 4: descriptor->slot = (uint32_t)value; break;
    case 5: descriptor->parts = bytes[2]; break;
    case 6: descriptor->bytes[bytes[1] / 4 % DUCT_PARTS] = value; break;
    default: ((uint8_t *)(head + 1))[bytes[1] * 16 % AREA] = bytes[2]; break;
    }
}

static void read_all(struct duct *duct)
{
    struct duct_message from;
    for (int i = 0; i < 4 && duct_read(duct, &from) == STATUS_OK; i++) {
        struct message message;
        struct errbuf err;
        /* Every byte is read, for the address sanitizer to see. */
        static uint8_t copy[AREA];
        for (int p = 0; p < from.count; p++)
            memcpy(copy, from.parts[p].data, from.parts[p].bytes);
        message_parse(from.parts, from.count, LIMIT_BYTES, &message, &err);
        message_close(&message);
        duct_release(duct, from.slot, from.generation);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct duct *duct = malloc(sizeof *duct);
    void *mine = aligned_alloc(DUCT_ALIGN, duct_segment_bytes(AREA));
    struct duct_head *theirs = aligned_alloc(DUCT_ALIGN, duct_segment_bytes(AREA));
    memset(mine, 0, duct_segment_bytes(AREA));
    memset(theirs, 0, duct_segment_bytes(AREA));
    duct_init(duct, mine, AREA, theirs, AREA);
    struct message_part parts[2] = {{"envelope", 8}, {"payload", 7}};
    for (size_t i = 0; i + 2 < bytes && i < 3 * TURNS; i += 3) {
        overwrite(theirs, data + i);
        read_all(duct);
        duct_write(duct, parts, 2);
    }
    free(theirs);
    free(mine);
    free(duct);
    return 0;
}
