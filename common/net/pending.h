/* Requests that wait for their reply: a pool of them, a table by request number that remembers their order, and a
 * timer wheel for deadlines and resends. All O(1); no allocation once the pool is warm. Loop thread only. */
#ifndef SHOAL_NET_PENDING_H
#define SHOAL_NET_PENDING_H

#include <stddef.h>
#include <stdint.h>

#include "net/net.h"

enum { PENDING_INLINE = 256, WHEEL_SLOTS = 512, WHEEL_TICK_MS = 20 };

struct pending {
    struct pending *next, *previous;       /* by request number */
    struct pending *due_next, **due_place; /* in a slot of the wheel; due_place NULL: in none */
    struct net_link *link;
    uint64_t request;
    int64_t deadline_at, resend_at; /* ms, 0: never */
    int64_t resend_ms, resend_max_ms;
    net_reply_fn *reply;
    void *context;
    struct buf *frames[MESSAGE_FRAMES_MAX]; /* shared */
    int frames_count;
    int sent;
    uint8_t *packed; /* the envelope as it was sent */
    size_t packed_bytes;
    uint8_t packed_inline[PENDING_INLINE];
};

struct pending_pool {
    struct pending *free;
    struct pending_chunk *chunks;
};
struct pending *pending_take(struct pending_pool *pool); /* NULL: out of memory */
/* Releases frames and envelope; the pending must be in no table and no wheel. */
void pending_give(struct pending_pool *pool, struct pending *pending);
void pending_pool_close(struct pending_pool *pool);

/* Open addressing by the low bits of the request number, which are dense. */
struct pending_table {
    struct pending **slots;
    size_t mask, count; /* mask 0: no slots yet */
    struct pending *first, *last;
};
int pending_table_add(struct pending_table *table, struct pending *pending); /* numbers grow; STATUS_NOMEM */
struct pending *pending_table_find(const struct pending_table *table, uint64_t request);
void pending_table_remove(struct pending_table *table, struct pending *pending);
void pending_table_close(struct pending_table *table);

struct wheel {
    struct pending *slots[WHEEL_SLOTS];
    struct pending *fired;
    int64_t done_tick;
    size_t count;
};
/* Puts it where its earlier moment falls; returns that tick's ms, 0 when it has no moment. */
int64_t wheel_add(struct wheel *wheel, struct pending *pending, int64_t now_ms);
void wheel_remove(struct wheel *wheel, struct pending *pending);
/* Moves what is due to wheel->fired, from where wheel_pop takes it. */
void wheel_advance(struct wheel *wheel, int64_t now_ms);
struct pending *wheel_pop(struct wheel *wheel);
int64_t wheel_next_ms(const struct wheel *wheel); /* when to look again; 0: nothing waits */

#endif
