/* Door bells: how processes (or threads) that share memory wait for each other, without a system call where nobody sleeps.
 *
 * Each side writes its own memory only. The poster owns its counters and one bell word; the waiter owns a note that says what
 * it waits for. In this order, with doorbell_fence() where it says so:
 *
 *   poster: counter = new value; FENCE; read the waiters' notes; if one is answered by the new value: doorbell_ring
 *   waiter: note = what for; FENCE; seen = bell; if counter does not do yet: doorbell_wait(bell, seen, …); look again
 *
 * Either the poster sees the note, or the waiter sees the counter. Words may lie in memory that the waiter can only read. Waking
 * costs about 10 us here and spinning 0.4 us, so that who expects an answer soon, and has a processor of its own, spins
 * first (doorbell_pause). */
#ifndef SHOAL_BASE_DOORBELL_H
#define SHOAL_BASE_DOORBELL_H

#include <stdatomic.h>
#include <stdint.h>

typedef _Atomic uint32_t doorbell;

/* Sleeps until a ring whose bits meet `bits`, unless the word is not `seen` any more; returns at clock_now_ns() >= until_ns,
 * on signals and for no reason too: the caller looks again. */
void doorbell_wait(const doorbell *bell, uint32_t seen, uint32_t bits, int64_t until_ns);
/* The bell's owner: changes the word and wakes who waits with one of `bits`. */
void doorbell_ring(doorbell *bell, uint32_t bits);
/* Anybody who maps it: wakes without a change. One that is about to sleep is missed; for ends that are looked at now and then. */
void doorbell_nudge(const doorbell *bell, uint32_t bits);

static inline void doorbell_fence(void)
{
    atomic_thread_fence(memory_order_seq_cst);
}

static inline void doorbell_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
