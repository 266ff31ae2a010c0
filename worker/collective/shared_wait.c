/* Positions: posting them, and waiting for others'. */
#include "worker/collective/shared.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "net/fd_pass.h"

enum {
    NOTE_COUNT_SHIFT = 0,
    NOTE_SEQUENCE_SHIFT = SHARED_COUNT_BITS,
    NOTE_SEQUENCE_BITS = 16,
    NOTE_INDEX_SHIFT = NOTE_SEQUENCE_SHIFT + NOTE_SEQUENCE_BITS,
    NOTE_INDEX_BITS = 11, /* a rank, or world for `posted` */
    NOTE_PEER_SHIFT = NOTE_INDEX_SHIFT + NOTE_INDEX_BITS,
    NOTE_PEER_BITS = 11,
    NOTE_VALID_SHIFT = NOTE_PEER_SHIFT + NOTE_PEER_BITS,
};
#define SHARED_LOOK_NS 100000000ll /* a sleeping rank looks for the dead and the told this often */

static uint64_t note_field(uint64_t note, int shift, int bits)
{
    return note >> shift & ((1ull << bits) - 1);
}

static uint64_t note_make(int peer, int index, uint64_t position)
{
    return 1ull << NOTE_VALID_SHIFT | (uint64_t)peer << NOTE_PEER_SHIFT | (uint64_t)index << NOTE_INDEX_SHIFT |
           (position & ((1ull << NOTE_INDEX_SHIFT) - 1));
}

/* Whether a rank with this note waits for have[index] of `peer` and `position` is what it waits for, or beyond. Of the
 * sequence the note has the last bits: a wait is never that far behind. */
static int note_met(uint64_t note, int peer, int index, uint64_t position)
{
    if (!note_field(note, NOTE_VALID_SHIFT, 1) || (int)note_field(note, NOTE_PEER_SHIFT, NOTE_PEER_BITS) != peer ||
        (int)note_field(note, NOTE_INDEX_SHIFT, NOTE_INDEX_BITS) != index)
        return 0;
    uint64_t sequence = position >> SHARED_COUNT_BITS;
    uint16_t behind = (uint16_t)(sequence - note_field(note, NOTE_SEQUENCE_SHIFT, NOTE_SEQUENCE_BITS));
    uint64_t count = note_field(note, NOTE_COUNT_SHIFT, SHARED_COUNT_BITS);
    return behind == 0 ? note_field(position, 0, SHARED_COUNT_BITS) >= count : behind < 1u << 15;
}

static uint32_t shared_bit(int rank)
{
    return 1u << (rank % 32);
}

static const _Atomic uint64_t *shared_word(const struct shared *row, int peer, int index)
{
    return index == row->world ? &row->members[peer].seen->posted : row->members[peer].have + index;
}

static void shared_wake(struct shared *row, int index, uint64_t position)
{
    uint32_t bits = 0;
    doorbell_fence();
    for (int k = 0; k < row->world; k++) {
        uint64_t note = atomic_load_explicit(&row->members[k].seen->note, memory_order_relaxed);
        if (note && k != row->rank && note_met(note, row->rank, index, position))
            bits |= shared_bit(k);
    }
    if (bits)
        doorbell_ring(&row->control->bell, bits);
}

void shared_begin(struct shared *row)
{
    struct shared_control *control = row->control;
    const struct collective_call *call = &row->group->call;
    row->sequence++;
    struct shared_slot *slot = &control->slots[row->sequence & 1];
    slot->fingerprint = call->fingerprint;
    memcpy(slot->text, call->text, sizeof slot->text);
    atomic_store_explicit(&control->fingerprint[row->sequence & 1], call->fingerprint, memory_order_relaxed);
    uint64_t position = shared_position(row->sequence, 0);
    atomic_store_explicit(&control->posted, position, memory_order_release);
    shared_wake(row, row->world, position);
}

void shared_post(struct shared *row, int index, int64_t count)
{
    uint64_t position = shared_position(row->sequence, count);
    atomic_store_explicit(row->have + index, position, memory_order_release);
    shared_wake(row, index, position);
}

/* A rank that left in order has finished what it posted; it is missed only by who waits for it. */
static int shared_look_for_dead(struct shared *row, int waited, struct errbuf *err)
{
    for (int i = 0; i < row->world; i++) {
        int k = (waited + i) % row->world;
        const struct shared_member *member = &row->members[k];
        if (k == row->rank || !fd_pass_gone(member->sock))
            continue;
        if (k != waited && atomic_load(&member->seen->closed) &&
            atomic_load(&member->seen->posted) >= shared_position(row->sequence, 0))
            continue;
        return errbuf_set(err, STATUS_CLOSED, "rank %d is gone", k);
    }
    return STATUS_OK;
}

/* Who keeps everybody waiting: from the rank that is waited for on to the one that it waits for itself. */
static int shared_find_late(const struct shared *row, int peer)
{
    for (int hops = 0; hops < row->world; hops++) {
        uint64_t note = atomic_load(&row->members[peer].seen->note);
        int next = (int)note_field(note, NOTE_PEER_SHIFT, NOTE_PEER_BITS);
        int index = (int)note_field(note, NOTE_INDEX_SHIFT, NOTE_INDEX_BITS);
        if (!note || next >= row->world || index > row->world || next == row->rank)
            return peer;
        if (note_met(note, next, index, atomic_load(shared_word(row, next, index))))
            return peer; /* it has what it waits for and does not go on */
        peer = next;
    }
    return peer;
}

static int shared_late(struct shared *row, int peer, struct errbuf *err)
{
    int late = shared_find_late(row, peer);
    return errbuf_set(err, STATUS_TIMEOUT, "rank %d is late: rank %d has waited %.1f s for it in %s", late, row->rank,
                      (double)row->timeout_ns / 1e9, row->group->call.text);
}

static int shared_sleep(struct shared *row, int peer, int index, uint64_t position, struct errbuf *err)
{
    const _Atomic uint64_t *word = shared_word(row, peer, index);
    const doorbell *bell = &row->members[peer].seen->bell;
    int64_t now = clock_now_ns(), look = now + SHARED_LOOK_NS, late = now + row->timeout_ns;
    int status = STATUS_OK;
    atomic_store_explicit(&row->control->note, note_make(peer, index, position), memory_order_relaxed);
    doorbell_fence();
    for (;;) {
        uint32_t seen = atomic_load(bell);
        if (atomic_load_explicit(word, memory_order_acquire) >= position)
            break;
        status = atomic_load(&row->group->cancelled); /* the words are collective.c's */
        if (status)
            break;
        doorbell_wait(bell, seen, shared_bit(row->rank), look < late ? look : late);
        now = clock_now_ns();
        if (now < look && now < late)
            continue;
        look = now + SHARED_LOOK_NS;
        if (atomic_load_explicit(word, memory_order_acquire) >= position)
            break;
        status = collective_told(row->group, err);
        if (!status)
            status = shared_look_for_dead(row, peer, err);
        if (status == STATUS_CLOSED && atomic_load_explicit(word, memory_order_acquire) >= position)
            status = STATUS_OK; /* its last word came since, and then it left; the next wait misses whoever else is gone */
        if (!status && now >= late)
            status = shared_late(row, peer, err);
        if (status)
            break;
    }
    atomic_store_explicit(&row->control->note, 0, memory_order_relaxed);
    return status;
}

static int shared_await_position(struct shared *row, int peer, int index, uint64_t position, struct errbuf *err)
{
    const _Atomic uint64_t *word = shared_word(row, peer, index);
    uint64_t found = atomic_load_explicit(word, memory_order_acquire);
    for (int look = 0; found < position && look < row->looks; look++) {
        if (look > 0)
            sched_yield(); /* to the rank that is waited for, if it has this processor */
        found = atomic_load_explicit(word, memory_order_acquire);
        for (int i = 0; found < position && i < row->spins; i++) {
            doorbell_pause();
            found = atomic_load_explicit(word, memory_order_acquire);
        }
    }
    if (found < position) {
        int status = shared_sleep(row, peer, index, position, err);
        if (status)
            return status;
        found = atomic_load_explicit(word, memory_order_acquire);
    }
    /* Nobody gets more than one operation ahead of this rank. */
    if (found < position || found >> SHARED_COUNT_BITS > row->sequence + 1)
        return errbuf_set(err, STATUS_PROTOCOL, "rank %d says in shared memory that it is at operation %llu, not %llu", peer,
                          (unsigned long long)(found >> SHARED_COUNT_BITS), (unsigned long long)row->sequence);
    return STATUS_OK;
}

int shared_has(const struct shared *row, int peer, int index, int64_t count)
{
    return atomic_load_explicit(shared_word(row, peer, index), memory_order_acquire) >=
           shared_position(row->sequence, count);
}

int shared_await(struct shared *row, int peer, int index, int64_t count, struct errbuf *err)
{
    return shared_await_position(row, peer, index, shared_position(row->sequence, count), err);
}

/* The peer's text is copied and made printable before it is shown. */
static int shared_differs(struct shared *row, int peer, struct errbuf *err)
{
    struct shared_slot slot;
    memcpy(&slot, &row->members[peer].seen->slots[row->sequence & 1], sizeof slot);
    slot.text[sizeof slot.text - 1] = '\0';
    for (char *at = slot.text; *at; at++) {
        if ((unsigned char)*at < ' ')
            *at = '?';
    }
    return errbuf_set(err, STATUS_SHAPE, "rank %d calls %s, rank %d %s", row->rank, row->group->call.text, peer,
                      slot.text);
}

int shared_await_begin(struct shared *row, int peer, struct errbuf *err)
{
    int status = shared_await_position(row, peer, row->world, shared_position(row->sequence, 0), err);
    if (status)
        return status;
    uint64_t theirs =
        atomic_load_explicit(&row->members[peer].seen->fingerprint[row->sequence & 1], memory_order_relaxed);
    return theirs == row->group->call.fingerprint ? STATUS_OK : shared_differs(row, peer, err);
}

int shared_await_all(struct shared *row, struct errbuf *err)
{
    for (int i = 1; i < row->world; i++) {
        int status = shared_await_begin(row, (row->rank + i) % row->world, err);
        if (status)
            return status;
    }
    return STATUS_OK;
}
