/* Reference-counted bytes: what travels between loop thread, pool threads and ZeroMQ without a copy.
 * buf_share and buf_release may be called from any thread; the last release runs the free callback. */
#ifndef SHOAL_BASE_BUF_H
#define SHOAL_BASE_BUF_H

#include <stdatomic.h>
#include <stddef.h>

struct buf {
    _Atomic int references;
    size_t bytes;
    void *data;
    void (*free)(struct buf *buf, void *context); /* frees data; buf itself is freed by buf_release */
    void *context;
};

/* Owned, uninitialised, 64-byte aligned. NULL when out of memory. */
struct buf *buf_create(size_t bytes);
/* Wraps data that `free_data(buf, context)` releases (NULL: borrowed data that outlives the buf). */
struct buf *buf_wrap(void *data, size_t bytes, void (*free_data)(struct buf *, void *), void *context);
struct buf *buf_share(struct buf *buf); /* returns buf */
void buf_release(struct buf *buf);      /* takes NULL */
/* 1 when the caller's reference is the only one (safe to write in place). */
int buf_is_sole(const struct buf *buf);

#endif
