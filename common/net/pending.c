#include "net/pending.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

enum { CHUNK = 64, TABLE_FIRST = 64 };

struct pending_chunk {
    struct pending_chunk *next;
    struct pending items[CHUNK];
};

struct pending *pending_take(struct pending_pool *pool)
{
    if (!pool->free) {
        struct pending_chunk *chunk = malloc(sizeof *chunk);
        if (!chunk)
            return NULL;
        chunk->next = pool->chunks;
        pool->chunks = chunk;
        for (int i = 0; i < CHUNK; i++) {
            chunk->items[i].next = pool->free;
            pool->free = &chunk->items[i];
        }
    }
    struct pending *pending = pool->free;
    pool->free = pending->next;
    memset(pending, 0, offsetof(struct pending, packed_inline));
    return pending;
}

void pending_give(struct pending_pool *pool, struct pending *pending)
{
    assert(!pending->due_place);
    for (int i = 0; i < pending->frames_count; i++)
        buf_release(pending->frames[i]);
    if (pending->packed != pending->packed_inline)
        free(pending->packed);
    pending->next = pool->free;
    pool->free = pending;
}

void pending_pool_close(struct pending_pool *pool)
{
    while (pool->chunks) {
        struct pending_chunk *chunk = pool->chunks;
        pool->chunks = chunk->next;
        free(chunk);
    }
    pool->free = NULL;
}

/* --- table ------------------------------------------------------------------------------------------ */

static size_t slot_of(const struct pending_table *table, uint64_t request)
{
    size_t slot = (size_t)request & table->mask;
    while (table->slots[slot] && table->slots[slot]->request != request)
        slot = (slot + 1) & table->mask;
    return slot;
}

static int table_grow(struct pending_table *table)
{
    size_t size = table->mask ? (table->mask + 1) * 2 : TABLE_FIRST;
    struct pending **slots = calloc(size, sizeof *slots);
    if (!slots)
        return STATUS_NOMEM;
    free(table->slots);
    table->slots = slots;
    table->mask = size - 1;
    for (struct pending *p = table->first; p; p = p->next)
        slots[slot_of(table, p->request)] = p;
    return STATUS_OK;
}

int pending_table_add(struct pending_table *table, struct pending *pending)
{
    if ((table->count + 1) * 2 > table->mask && table_grow(table))
        return STATUS_NOMEM;
    table->slots[slot_of(table, pending->request)] = pending;
    table->count++;
    pending->next = NULL;
    pending->previous = table->last;
    if (table->last)
        table->last->next = pending;
    else
        table->first = pending;
    table->last = pending;
    return STATUS_OK;
}

struct pending *pending_table_find(const struct pending_table *table, uint64_t request)
{
    return table->mask ? table->slots[slot_of(table, request)] : NULL;
}

void pending_table_remove(struct pending_table *table, struct pending *pending)
{
    size_t hole = slot_of(table, pending->request);
    assert(table->slots[hole] == pending);
    /* What follows in the cluster moves up when the hole lies between its home and its place. */
    for (size_t i = (hole + 1) & table->mask; table->slots[i]; i = (i + 1) & table->mask) {
        size_t home = (size_t)table->slots[i]->request & table->mask;
        if (((i - home) & table->mask) >= ((i - hole) & table->mask)) {
            table->slots[hole] = table->slots[i];
            hole = i;
        }
    }
    table->slots[hole] = NULL;
    table->count--;
    if (pending->previous)
        pending->previous->next = pending->next;
    else
        table->first = pending->next;
    if (pending->next)
        pending->next->previous = pending->previous;
    else
        table->last = pending->previous;
}

void pending_table_close(struct pending_table *table)
{
    free(table->slots);
    memset(table, 0, sizeof *table);
}

/* --- wheel ------------------------------------------------------------------------------------------ */

static int64_t due_ms(const struct pending *pending)
{
    int64_t deadline = pending->deadline_at, resend = pending->resend_at;
    if (deadline == 0 || resend == 0)
        return deadline + resend;
    return deadline < resend ? deadline : resend;
}

static void place(struct pending **head, struct pending *pending)
{
    pending->due_next = *head;
    if (*head)
        (*head)->due_place = &pending->due_next;
    *head = pending;
    pending->due_place = head;
}

static void unplace(struct pending *pending)
{
    *pending->due_place = pending->due_next;
    if (pending->due_next)
        pending->due_next->due_place = pending->due_place;
    pending->due_place = NULL;
    pending->due_next = NULL;
}

int64_t wheel_add(struct wheel *wheel, struct pending *pending, int64_t now_ms)
{
    int64_t due = due_ms(pending);
    if (due == 0)
        return 0;
    if (wheel->count == 0)
        wheel->done_tick = now_ms / WHEEL_TICK_MS;
    int64_t tick = due / WHEEL_TICK_MS + 1;
    if (tick <= wheel->done_tick)
        tick = wheel->done_tick + 1;
    place(&wheel->slots[tick % WHEEL_SLOTS], pending);
    wheel->count++;
    return tick * WHEEL_TICK_MS;
}

void wheel_remove(struct wheel *wheel, struct pending *pending)
{
    if (!pending->due_place)
        return;
    unplace(pending);
    wheel->count--;
}

void wheel_advance(struct wheel *wheel, int64_t now_ms)
{
    int64_t now_tick = now_ms / WHEEL_TICK_MS, tick = wheel->done_tick + 1;
    if (tick < now_tick - WHEEL_SLOTS + 1)
        tick = now_tick - WHEEL_SLOTS + 1;
    for (; tick <= now_tick; tick++) {
        struct pending *next;
        for (struct pending *p = wheel->slots[tick % WHEEL_SLOTS]; p; p = next) {
            next = p->due_next;
            if (due_ms(p) > now_ms) /* a later round's */
                continue;
            unplace(p);
            place(&wheel->fired, p);
        }
    }
    if (now_tick > wheel->done_tick)
        wheel->done_tick = now_tick;
}

struct pending *wheel_pop(struct wheel *wheel)
{
    struct pending *pending = wheel->fired;
    if (pending)
        wheel_remove(wheel, pending);
    return pending;
}

int64_t wheel_next_ms(const struct wheel *wheel)
{
    if (wheel->count == 0)
        return 0;
    for (int64_t tick = wheel->done_tick + 1; tick <= wheel->done_tick + WHEEL_SLOTS; tick++) {
        if (wheel->slots[tick % WHEEL_SLOTS])
            return tick * WHEEL_TICK_MS;
    }
    return (wheel->done_tick + 1) * WHEEL_TICK_MS;
}
