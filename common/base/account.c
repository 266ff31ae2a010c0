#include "base/account.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

enum { ACCOUNT_ALIGNMENT = 64 };

const char *const account_kind_names[ACCOUNT_KINDS] = {
    "parameters", "gradients", "optimizer", "buffers", "activations", "data", "control",
};

void account_init(struct account *account)
{
    for (int kind = 0; kind < ACCOUNT_KINDS; kind++) {
        atomic_init(&account->bytes[kind], 0);
        atomic_init(&account->peak[kind], 0);
    }
    atomic_init(&account->fail_after, 0);
}

void account_forget_peaks(struct account *account)
{
    for (int kind = 0; kind < ACCOUNT_KINDS; kind++)
        atomic_store(&account->peak[kind], atomic_load(&account->bytes[kind]));
}

void account_add(struct account *account, enum account_kind kind, int64_t bytes)
{
    int64_t now = atomic_fetch_add_explicit(&account->bytes[kind], bytes, memory_order_relaxed) + bytes;
    int64_t peak = atomic_load_explicit(&account->peak[kind], memory_order_relaxed);
    while (now > peak && !atomic_compare_exchange_weak_explicit(&account->peak[kind], &peak, now,
                                                                memory_order_relaxed, memory_order_relaxed)) {
    }
}

void account_fail_after(struct account *account, int64_t n)
{
    atomic_store(&account->fail_after, n);
}

static int account_must_fail(struct account *account)
{
    if (atomic_load_explicit(&account->fail_after, memory_order_relaxed) <= 0)
        return 0;
    return atomic_fetch_sub(&account->fail_after, 1) == 1;
}

void *account_alloc(struct account *account, enum account_kind kind, size_t bytes)
{
    if (account_must_fail(account) || bytes > PTRDIFF_MAX - ACCOUNT_ALIGNMENT)
        return NULL;
    size_t rounded = (bytes + ACCOUNT_ALIGNMENT - 1) / ACCOUNT_ALIGNMENT * ACCOUNT_ALIGNMENT;
    void *pointer = aligned_alloc(ACCOUNT_ALIGNMENT, rounded ? rounded : ACCOUNT_ALIGNMENT);
    if (!pointer)
        return NULL;
    memset(pointer, 0, bytes);
    account_add(account, kind, (int64_t)bytes);
    return pointer;
}

void account_free(struct account *account, enum account_kind kind, void *pointer, size_t bytes)
{
    if (!pointer)
        return;
    free(pointer);
    account_add(account, kind, -(int64_t)bytes);
}

void memory_keep_heap(void)
{
    /* Both must be set: a block above the mmap threshold is unmapped at every free, whatever the trim threshold.
     * glibc takes at most 32 MiB for the mmap threshold, so mmap is switched off by its count as well. */
    mallopt(M_TRIM_THRESHOLD, -1); /* never */
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_MMAP_MAX, 0);
}
