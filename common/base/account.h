/* The books of memory: bytes held now and at the peak, by kind. One struct account a role (a process may
 * run several roles in embedded mode), shared by its threads (atomics). account_alloc is the only way
 * model state, buffers and activations are allocated. */
#ifndef SHOAL_BASE_ACCOUNT_H
#define SHOAL_BASE_ACCOUNT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum account_kind {
    ACCOUNT_PARAMETERS,
    ACCOUNT_GRADIENTS,
    ACCOUNT_OPTIMIZER,
    ACCOUNT_BUFFERS,     /* exchange buffers, held arrivals, segments */
    ACCOUNT_ACTIVATIONS,
    ACCOUNT_DATA,
    ACCOUNT_CONTROL,     /* evaluation, BatchNorm statistics, control messages */
    ACCOUNT_KINDS
};

struct account {
    _Atomic int64_t bytes[ACCOUNT_KINDS]; /* requested bytes, without alignment or headers */
    _Atomic int64_t peak[ACCOUNT_KINDS];
    _Atomic int64_t fail_after; /* 0: no allocation is made to fail; else which one, counted down */
};

extern const char *const account_kind_names[ACCOUNT_KINDS];

void account_init(struct account *account);
/* Peaks begin anew from what is held now: each job of a daemon has its own. */
void account_forget_peaks(struct account *account);

/* 64-byte aligned, zeroed; bytes is booked under kind. NULL when out of memory (or when a test's
 * account_fail_after fired). bytes 0 gives a valid pointer. */
void *account_alloc(struct account *account, enum account_kind kind, size_t bytes);
/* Takes NULL. `bytes` and kind are those of the allocation. */
void account_free(struct account *account, enum account_kind kind, void *pointer, size_t bytes);
/* For bytes that live elsewhere (a held message): books only. */
void account_add(struct account *account, enum account_kind kind, int64_t bytes);

/* For tests: the nth account_alloc from now on returns NULL, once (1: the next); 0 takes it back. */
void account_fail_after(struct account *account, int64_t n);

/* Makes the heap keep what is freed instead of giving it back to the kernel: fresh pages cost more than the
 * copy into them. For mains, once, before threads start. */
void memory_keep_heap(void);

#endif
