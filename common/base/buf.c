#include "base/buf.h"

#include <stdint.h>
#include <stdlib.h>

enum { BUF_ALIGNMENT = 64 };
_Static_assert(sizeof(struct buf) <= BUF_ALIGNMENT, "the data of buf_create starts one alignment behind its head");

struct buf *buf_create(size_t bytes)
{
    if (bytes > PTRDIFF_MAX - 2 * BUF_ALIGNMENT)
        return NULL;
    size_t rounded = (bytes + BUF_ALIGNMENT - 1) / BUF_ALIGNMENT * BUF_ALIGNMENT;
    /* One block for head and data. */
    struct buf *buf = aligned_alloc(BUF_ALIGNMENT, BUF_ALIGNMENT + rounded);
    if (!buf)
        return NULL;
    atomic_init(&buf->references, 1);
    buf->bytes = bytes;
    buf->data = (char *)buf + BUF_ALIGNMENT;
    buf->free = NULL;
    buf->context = NULL;
    return buf;
}

struct buf *buf_wrap(void *data, size_t bytes, void (*free_data)(struct buf *, void *), void *context)
{
    struct buf *buf = malloc(sizeof *buf);
    if (!buf)
        return NULL;
    atomic_init(&buf->references, 1);
    buf->bytes = bytes;
    buf->data = data;
    buf->free = free_data;
    buf->context = context;
    return buf;
}

struct buf *buf_share(struct buf *buf)
{
    atomic_fetch_add_explicit(&buf->references, 1, memory_order_relaxed);
    return buf;
}

void buf_release(struct buf *buf)
{
    if (!buf)
        return;
    /* acq_rel: what every holder wrote is seen by the one that frees. */
    if (atomic_fetch_sub_explicit(&buf->references, 1, memory_order_acq_rel) != 1)
        return;
    if (buf->free)
        buf->free(buf, buf->context);
    free(buf);
}

int buf_is_sole(const struct buf *buf)
{
    return atomic_load_explicit(&buf->references, memory_order_acquire) == 1;
}
