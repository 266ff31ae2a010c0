#include "base/doorbell.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Not the private kind: the waiter may be in another process. */
void doorbell_wait(const doorbell *bell, uint32_t seen, uint32_t bits, int64_t until_ns)
{
    if (until_ns < 0)
        until_ns = 0;
    struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
    syscall(SYS_futex, bell, FUTEX_WAIT_BITSET, seen, &until, NULL, bits);
}

void doorbell_ring(doorbell *bell, uint32_t bits)
{
    atomic_fetch_add_explicit(bell, 1, memory_order_release);
    doorbell_nudge(bell, bits);
}

void doorbell_nudge(const doorbell *bell, uint32_t bits)
{
    syscall(SYS_futex, bell, FUTEX_WAKE_BITSET, INT_MAX, NULL, NULL, bits);
}
