#include "net/duct.h"

#include <string.h>

#include "base/status.h"

_Static_assert(sizeof(struct duct_descriptor) == 64, "one cache line a descriptor");
_Static_assert(offsetof(struct duct_head, taken) == 128 && sizeof(struct duct_head) % DUCT_ALIGN == 0,
               "what one end polls is apart from what the other does");

/* Who says something and then looks whether the other end waits for it (published and asleep, released and starved), and who
 * says that it waits and then looks again, may not miss each other: these four are sequentially consistent. */

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + DUCT_ALIGN - 1) / DUCT_ALIGN * DUCT_ALIGN;
}

size_t duct_segment_bytes(uint64_t area_bytes)
{
    return sizeof(struct duct_head) + (size_t)round_up(area_bytes);
}

void duct_init(struct duct *duct, void *mine, uint64_t mine_area_bytes, const void *theirs, uint64_t theirs_area_bytes)
{
    memset(duct, 0, sizeof *duct);
    duct->mine = mine;
    duct->theirs = theirs;
    duct->mine_bytes = round_up(mine_area_bytes);
    duct->theirs_bytes = round_up(theirs_area_bytes);
    duct->gaps[0].bytes = duct->mine_bytes;
    duct->gaps_count = 1;
    duct->idle_count = DUCT_SLOTS;
    for (int i = 0; i < DUCT_SLOTS; i++)
        duct->idle[i] = (uint16_t)(DUCT_SLOTS - 1 - i);
}

static uint8_t *area_of(struct duct_head *head)
{
    return (uint8_t *)head + sizeof *head;
}

/* --- the area ----------------------------------------------------------------------------------------- */

/* The first gap that is large enough: what was used last is used again, and stays in the caches. */
static int take_block(struct duct *duct, uint64_t bytes, uint64_t *offset)
{
    for (int i = 0; i < duct->gaps_count; i++) {
        struct duct_block *gap = &duct->gaps[i];
        if (gap->bytes < bytes)
            continue;
        *offset = gap->offset;
        gap->offset += bytes;
        gap->bytes -= bytes;
        if (gap->bytes == 0) {
            duct->gaps_count--;
            memmove(gap, gap + 1, (size_t)(duct->gaps_count - i) * sizeof *gap);
        }
        return STATUS_OK;
    }
    return STATUS_BUSY;
}

static void give_block(struct duct *duct, struct duct_block block)
{
    int at = 0;
    while (at < duct->gaps_count && duct->gaps[at].offset < block.offset)
        at++;
    struct duct_block *gap = &duct->gaps[at];
    int joins_left = at > 0 && gap[-1].offset + gap[-1].bytes == block.offset;
    int joins_right = at < duct->gaps_count && block.offset + block.bytes == gap->offset;
    if (joins_left && joins_right) {
        gap[-1].bytes += block.bytes + gap->bytes;
        duct->gaps_count--;
        memmove(gap, gap + 1, (size_t)(duct->gaps_count - at) * sizeof *gap);
    } else if (joins_left) {
        gap[-1].bytes += block.bytes;
    } else if (joins_right) {
        gap->offset = block.offset;
        gap->bytes += block.bytes;
    } else {
        memmove(gap + 1, gap, (size_t)(duct->gaps_count - at) * sizeof *gap);
        *gap = block;
        duct->gaps_count++;
    }
}

/* Takes back what the other end has released. */
static void reclaim(struct duct *duct)
{
    for (int i = 0; i < duct->used_count;) {
        uint16_t slot = duct->used[i];
        uint32_t released = atomic_load(&duct->theirs->released[slot]);
        if (released != duct->generation[slot]) {
            i++;
            continue;
        }
        give_block(duct, duct->block[slot]);
        duct->used[i] = duct->used[--duct->used_count];
        duct->idle[duct->idle_count++] = slot;
    }
}

/* --- writing ------------------------------------------------------------------------------------------ */

/* STATUS_RANGE when the parts can never fit. */
static int measure(const struct duct *duct, const struct message_part *parts, int count, uint64_t *bytes)
{
    *bytes = 0;
    if (count < 1 || count > DUCT_PARTS)
        return STATUS_RANGE;
    for (int i = 0; i < count; i++) {
        if (parts[i].bytes > duct->mine_bytes)
            return STATUS_RANGE;
        *bytes += round_up(parts[i].bytes);
    }
    *bytes += *bytes == 0 ? DUCT_ALIGN : 0; /* a block is never empty */
    return *bytes > duct->mine_bytes ? STATUS_RANGE : STATUS_OK;
}

int duct_fits(const struct duct *duct, const struct message_part *parts, int count)
{
    uint64_t bytes;
    return measure(duct, parts, count, &bytes) == STATUS_OK;
}

static int has_room(struct duct *duct, uint64_t bytes, uint64_t *offset)
{
    reclaim(duct);
    uint64_t taken = atomic_load_explicit(&duct->theirs->taken, memory_order_acquire);
    uint64_t unread = duct->published - taken;
    if (unread > DUCT_SLOTS) {
        duct->broken = 1;
        return STATUS_FORMAT;
    }
    if (unread == DUCT_SLOTS || duct->idle_count == 0)
        return STATUS_BUSY;
    return take_block(duct, bytes, offset);
}

/* Either this end sees what the other has released since, or the other sees that this one waits. A new want each time, since
 * the other end rings once for each. */
static int find_room(struct duct *duct, uint64_t bytes, uint64_t *offset)
{
    int status = has_room(duct, bytes, offset);
    if (status == STATUS_BUSY) {
        duct->wants += duct->wants == UINT32_MAX ? 2 : 1;
        duct->starving = 1;
        atomic_store(&duct->mine->starved, duct->wants);
        status = has_room(duct, bytes, offset);
    }
    if (status == STATUS_OK && duct->starving) {
        duct->starving = 0;
        atomic_store_explicit(&duct->mine->starved, 0, memory_order_relaxed);
    }
    return status;
}

int duct_write(struct duct *duct, const struct message_part *parts, int count)
{
    uint64_t bytes, offset;
    int status = duct->broken ? STATUS_FORMAT : measure(duct, parts, count, &bytes);
    if (!status)
        status = find_room(duct, bytes, &offset);
    if (status)
        return status;
    uint16_t slot = duct->idle[--duct->idle_count];
    duct->used[duct->used_count++] = slot;
    duct->block[slot] = (struct duct_block){offset, bytes};
    duct->generation[slot]++;
    struct duct_descriptor *descriptor = &duct->mine->ring[duct->published % DUCT_SLOTS];
    *descriptor = (struct duct_descriptor){
        .offset = offset, .slot = slot, .generation = duct->generation[slot], .parts = (uint32_t)count};
    uint8_t *at = area_of(duct->mine) + offset;
    for (int i = 0; i < count; i++) {
        descriptor->bytes[i] = parts[i].bytes;
        if (parts[i].bytes > 0)
            memcpy(at, parts[i].data, parts[i].bytes);
        at += round_up(parts[i].bytes);
    }
    duct->published++;
    atomic_store(&duct->mine->published, duct->published);
    return STATUS_OK;
}

int duct_should_ring(struct duct *duct)
{
    uint32_t asleep = atomic_load(&duct->theirs->asleep);
    if (asleep == 0 || asleep == duct->rung_sleep)
        return 0;
    duct->rung_sleep = asleep;
    return 1;
}

/* --- reading ------------------------------------------------------------------------------------------ */

int duct_has_message(const struct duct *duct)
{
    return !duct->broken && atomic_load(&duct->theirs->published) != duct->taken;
}

/* `descriptor` is this end's own copy. */
static int accept(const struct duct *duct, const struct duct_descriptor *descriptor, struct duct_message *message)
{
    if (descriptor->slot >= DUCT_SLOTS || descriptor->parts < 1 || descriptor->parts > DUCT_PARTS ||
        descriptor->offset % DUCT_ALIGN != 0 || descriptor->offset >= duct->theirs_bytes)
        return STATUS_FORMAT;
    const uint8_t *area = (const uint8_t *)duct->theirs + sizeof *duct->theirs;
    uint64_t at = descriptor->offset;
    message->slot = descriptor->slot;
    message->generation = descriptor->generation;
    message->count = (int)descriptor->parts;
    for (int i = 0; i < message->count; i++) {
        /* at <= theirs_bytes, both multiples of DUCT_ALIGN: the rounded sum cannot wrap */
        if (descriptor->bytes[i] > duct->theirs_bytes - at)
            return STATUS_FORMAT;
        message->parts[i] = (struct message_part){area + at, (size_t)descriptor->bytes[i]};
        at += round_up(descriptor->bytes[i]);
    }
    return STATUS_OK;
}

int duct_read(struct duct *duct, struct duct_message *message)
{
    if (duct->broken)
        return STATUS_FORMAT;
    uint64_t there = atomic_load_explicit(&duct->theirs->published, memory_order_acquire) - duct->taken;
    if (there == 0)
        return STATUS_BUSY;
    struct duct_descriptor copy;
    memcpy(&copy, &duct->theirs->ring[duct->taken % DUCT_SLOTS], sizeof copy);
    atomic_signal_fence(memory_order_seq_cst); /* the copy is made once, and only it is looked at */
    if (there > DUCT_SLOTS || accept(duct, &copy, message)) {
        duct->broken = 1;
        return STATUS_FORMAT;
    }
    duct->taken++;
    atomic_store_explicit(&duct->mine->taken, duct->taken, memory_order_release);
    return STATUS_OK;
}

int duct_release(struct duct *duct, uint32_t slot, uint32_t generation)
{
    atomic_store(&duct->mine->released[slot], generation);
    uint32_t want = atomic_load(&duct->theirs->starved);
    return want != 0 && atomic_exchange_explicit(&duct->rung_want, want, memory_order_relaxed) != want;
}

int duct_sleep(struct duct *duct)
{
    duct->sleeps += duct->sleeps == UINT32_MAX ? 2 : 1;
    atomic_store(&duct->mine->asleep, duct->sleeps);
    return duct_has_message(duct);
}

void duct_wake(struct duct *duct)
{
    atomic_store_explicit(&duct->mine->asleep, 0, memory_order_relaxed);
}
