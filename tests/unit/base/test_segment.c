/* Shared memory and door bells, between threads of one process and between processes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/doorbell.h"
#include "base/errbuf.h"
#include "base/segment.h"
#include "base/status.h"

static void test_what_one_writes_others_read(void **state)
{
    (void)state;
    struct errbuf err = {{0}};
    struct segment own, seen;
    assert_int_equal(segment_create(&own, "shoal-test", 10000, &err), STATUS_OK);
    assert_int_equal(own.mapped, segment_mapped_bytes(10000));
    unsigned char *bytes = own.memory;
    for (int i = 0; i < 10000; i++)
        assert_int_equal(bytes[i], 0);
    assert_int_equal(segment_map(&seen, own.fd, 10000, &err), STATUS_OK);
    memcpy(own.memory, "hello", 6);
    assert_string_equal(seen.memory, "hello");
    segment_close(&own);
    assert_string_equal(seen.memory, "hello");
    segment_close(&seen);
    assert_null(seen.memory);
    segment_close(&seen);
}

static void test_no_bytes_are_a_segment_too(void **state)
{
    (void)state;
    struct segment own, seen;
    assert_int_equal(segment_create(&own, "shoal-test", 0, NULL), STATUS_OK);
    assert_non_null(own.memory);
    assert_int_equal(segment_map(&seen, own.fd, 0, NULL), STATUS_OK);
    segment_close(&seen);
    segment_close(&own);
}

static void test_nobody_else_may_write_or_cut(void **state)
{
    (void)state;
    struct segment own;
    assert_int_equal(segment_create(&own, "shoal-test", 8192, NULL), STATUS_OK);
    assert_ptr_equal(mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, own.fd, 0), MAP_FAILED);
    assert_int_equal(errno, EPERM);
    assert_int_equal(pwrite(own.fd, "x", 1, 0), -1);
    assert_int_equal(ftruncate(own.fd, 4096), -1);
    assert_int_equal(ftruncate(own.fd, 1 << 20), -1);
    assert_int_equal(fcntl(own.fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    assert_int_equal(fcntl(own.fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    segment_close(&own);
}

static void test_what_is_not_sealed_or_has_another_length_is_refused(void **state)
{
    (void)state;
    struct errbuf err = {{0}};
    struct segment own, seen;
    int plain = memfd_create("shoal-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(plain >= 0);
    assert_int_equal(ftruncate(plain, 8192), 0);
    assert_int_equal(segment_map(&seen, plain, 8192, &err), STATUS_FORMAT);
    assert_non_null(strstr(err.text, "not a sealed memfd"));
    assert_int_equal(fcntl(plain, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    assert_int_equal(segment_map(&seen, plain, 8192, &err), STATUS_FORMAT);
    close(plain);

    int file = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    assert_int_equal(segment_map(&seen, file, 8192, &err), STATUS_FORMAT);
    close(file);

    assert_int_equal(segment_create(&own, "shoal-test", 8192, NULL), STATUS_OK);
    assert_int_equal(segment_map(&seen, own.fd, 8193, &err), STATUS_FORMAT);
    assert_non_null(strstr(err.text, "8192"));
    assert_int_equal(segment_map(&seen, own.fd, 4096, &err), STATUS_FORMAT);
    assert_null(seen.memory);
    segment_close(&own);
}

static void test_more_than_there_can_be_is_an_error(void **state)
{
    (void)state;
    struct errbuf err = {{0}};
    struct segment own;
    assert_int_equal(segment_create(&own, "shoal-test", SIZE_MAX - 5, &err), STATUS_NOMEM);
    assert_int_equal(segment_create(&own, "shoal-test", (size_t)1 << 50, &err), STATUS_NOMEM);
    assert_non_null(strstr(err.text, "more than there is"));
    assert_null(own.memory);
    segment_close(&own);
}

enum { TURNS = 2000 };
struct side {
    doorbell bell;
    _Atomic uint32_t turn, waits;
};

/* As doorbell.h says; own is written here only, other is mapped to be read. */
static void post(struct side *own, const struct side *other, uint32_t turn)
{
    atomic_store(&own->turn, turn);
    doorbell_fence();
    if (atomic_load(&other->waits))
        doorbell_ring(&own->bell, 1);
}

static void await(struct side *own, const struct side *other, uint32_t turn)
{
    while (atomic_load(&other->turn) < turn) {
        atomic_store(&own->waits, 1);
        doorbell_fence();
        uint32_t seen = atomic_load(&other->bell);
        if (atomic_load(&other->turn) < turn)
            doorbell_wait(&other->bell, seen, 1, INT64_MAX);
        atomic_store(&own->waits, 0);
    }
}

static void test_processes_wake_each_other_through_memory_they_cannot_write(void **state)
{
    (void)state;
    struct segment a, b, a_seen, b_seen;
    assert_int_equal(segment_create(&a, "shoal-test", sizeof(struct side), NULL), STATUS_OK);
    assert_int_equal(segment_create(&b, "shoal-test", sizeof(struct side), NULL), STATUS_OK);
    assert_int_equal(segment_map(&a_seen, a.fd, sizeof(struct side), NULL), STATUS_OK);
    assert_int_equal(segment_map(&b_seen, b.fd, sizeof(struct side), NULL), STATUS_OK);
    pid_t child = fork();
    if (child == 0) {
        for (uint32_t turn = 1; turn <= TURNS; turn++) {
            await(b.memory, a_seen.memory, turn);
            post(b.memory, a_seen.memory, turn);
        }
        _exit(0);
    }
    assert_true(child > 0);
    for (uint32_t turn = 1; turn <= TURNS; turn++) {
        post(a.memory, b_seen.memory, turn);
        await(a.memory, b_seen.memory, turn);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    segment_close(&a);
    segment_close(&b);
    segment_close(&a_seen);
    segment_close(&b_seen);
}

static void test_a_wait_ends_in_time_and_at_once_when_the_word_has_changed(void **state)
{
    (void)state;
    doorbell bell = 7;
    doorbell_wait(&bell, 6, 1, INT64_MAX);
    doorbell_wait(&bell, 7, 1, clock_now_ns() + 1000);
    doorbell_wait(&bell, 7, 1, -5);
    doorbell_ring(&bell, ~0u);
    assert_int_equal(bell, 8);
}

struct sleeper {
    doorbell bell;
    _Atomic int ready, done;
};

static void *sleep_on(void *context)
{
    struct sleeper *sleeper = context;
    while (!atomic_load(&sleeper->done)) {
        atomic_store(&sleeper->ready, 1);
        doorbell_wait(&sleeper->bell, 0, 4, INT64_MAX);
    }
    return NULL;
}

static void test_only_the_bits_that_are_rung_wake(void **state)
{
    (void)state;
    struct sleeper sleeper = {0};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, sleep_on, &sleeper), 0);
    while (!atomic_load(&sleeper.ready))
        doorbell_pause();
    atomic_store(&sleeper.done, 1);
    doorbell_nudge(&sleeper.bell, 3); /* another's: may wake nobody */
    doorbell_ring(&sleeper.bell, 4);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_one_writes_others_read),
        cmocka_unit_test(test_no_bytes_are_a_segment_too),
        cmocka_unit_test(test_nobody_else_may_write_or_cut),
        cmocka_unit_test(test_what_is_not_sealed_or_has_another_length_is_refused),
        cmocka_unit_test(test_more_than_there_can_be_is_an_error),
        cmocka_unit_test(test_processes_wake_each_other_through_memory_they_cannot_write),
        cmocka_unit_test(test_a_wait_ends_in_time_and_at_once_when_the_word_has_changed),
        cmocka_unit_test(test_only_the_bits_that_are_rung_wake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
