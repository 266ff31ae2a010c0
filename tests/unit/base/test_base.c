#include "base/account.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/errbuf.h"
#include "base/host.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static void every_status_has_a_text_of_its_own(void **state)
{
    (void)state;
    for (int a = STATUS_ROLLED_BACK; a <= 0; a++) {
        assert_string_not_equal(status_text(a), "unknown status");
        for (int b = STATUS_ROLLED_BACK; b < a; b++)
            assert_string_not_equal(status_text(a), status_text(b));
    }
    assert_string_equal(status_text(12345), "unknown status");
}

static void errbuf_prefixes_and_returns_the_status(void **state)
{
    (void)state;
    struct errbuf err;
    errbuf_init(&err);
    assert_string_equal(err.text, "");
    assert_int_equal(errbuf_set(&err, STATUS_IO, "fsync segment %d", 12), STATUS_IO);
    assert_int_equal(errbuf_prefix(&err, STATUS_IO, "wal%c", '1'), STATUS_IO);
    assert_string_equal(err.text, "wal1: fsync segment 12");
    errbuf_set(&err, STATUS_IO, "again %s", err.text);
    assert_string_equal(err.text, "again wal1: fsync segment 12");
    errbuf_init(NULL);
    assert_int_equal(errbuf_set(NULL, STATUS_NOMEM, "x"), STATUS_NOMEM);
    assert_int_equal(errbuf_prefix(NULL, STATUS_NOMEM, "x"), STATUS_NOMEM);
}

static void errbuf_cuts_long_texts(void **state)
{
    (void)state;
    struct errbuf err;
    char text[2000];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    errbuf_set(&err, STATUS_IO, "%s", text);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    errbuf_prefix(&err, STATUS_IO, "front");
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    assert_memory_equal(err.text, "front: aaa", 10);
    errbuf_prefix(&err, STATUS_IO, "%s", text);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
}

static void account_books_bytes_and_peak_by_kind(void **state)
{
    (void)state;
    struct account account;
    account_init(&account);
    unsigned char *a = account_alloc(&account, ACCOUNT_GRADIENTS, 1001);
    assert_non_null(a);
    assert_int_equal((uintptr_t)a % 64, 0);
    for (int i = 0; i < 1001; i++)
        assert_int_equal(a[i], 0);
    void *b = account_alloc(&account, ACCOUNT_GRADIENTS, 9);
    account_free(&account, ACCOUNT_GRADIENTS, a, 1001);
    assert_int_equal(account.bytes[ACCOUNT_GRADIENTS], 9);
    assert_int_equal(account.peak[ACCOUNT_GRADIENTS], 1010);
    account_add(&account, ACCOUNT_BUFFERS, 70);
    account_add(&account, ACCOUNT_BUFFERS, -70);
    assert_int_equal(account.bytes[ACCOUNT_BUFFERS], 0);
    assert_int_equal(account.peak[ACCOUNT_BUFFERS], 70);
    assert_int_equal(account.peak[ACCOUNT_PARAMETERS], 0);
    account_forget_peaks(&account);
    assert_int_equal(account.peak[ACCOUNT_GRADIENTS], 9);
    assert_int_equal(account.peak[ACCOUNT_BUFFERS], 0);
    account_free(&account, ACCOUNT_GRADIENTS, b, 9);
    account_free(&account, ACCOUNT_GRADIENTS, NULL, 5);
    assert_int_equal(account.bytes[ACCOUNT_GRADIENTS], 0);
    void *empty = account_alloc(&account, ACCOUNT_DATA, 0);
    assert_non_null(empty);
    account_free(&account, ACCOUNT_DATA, empty, 0);
    for (int kind = 0; kind < ACCOUNT_KINDS; kind++)
        assert_non_null(account_kind_names[kind]);
}

static void account_fails_the_allocation_that_a_test_names(void **state)
{
    (void)state;
    struct account account;
    account_init(&account);
    account_fail_after(&account, 2);
    void *first = account_alloc(&account, ACCOUNT_DATA, 8);
    assert_non_null(first);
    assert_null(account_alloc(&account, ACCOUNT_DATA, 8));
    assert_int_equal(account.bytes[ACCOUNT_DATA], 8);
    void *third = account_alloc(&account, ACCOUNT_DATA, 8);
    assert_non_null(third);
    account_free(&account, ACCOUNT_DATA, first, 8);
    account_free(&account, ACCOUNT_DATA, third, 8);
    assert_null(account_alloc(&account, ACCOUNT_DATA, SIZE_MAX));
    assert_int_equal(account.bytes[ACCOUNT_DATA], 0);
}

static void heap_is_kept_when_asked(void **state)
{
    (void)state;
    memory_keep_heap();
    struct account account;
    account_init(&account);
    void *pointer = account_alloc(&account, ACCOUNT_DATA, 100 << 20);
    assert_non_null(pointer);
    account_free(&account, ACCOUNT_DATA, pointer, 100 << 20);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(host_rss_bytes() > 100 << 20);
#endif
}

static void free_and_count(struct buf *buf, void *context)
{
    free(buf->data);
    ++*(int *)context;
}

static void buf_frees_with_its_last_reference(void **state)
{
    (void)state;
    int freed = 0;
    struct buf *buf = buf_wrap(malloc(10), 10, free_and_count, &freed);
    assert_int_equal(buf_is_sole(buf), 1);
    struct buf *shared = buf_share(buf);
    assert_ptr_equal(shared, buf);
    assert_int_equal(buf_is_sole(buf), 0);
    buf_release(buf);
    assert_int_equal(freed, 0);
    assert_int_equal(buf_is_sole(shared), 1);
    buf_release(shared);
    assert_int_equal(freed, 1);
    buf_release(NULL);
}

static void buf_data_is_aligned_and_whole(void **state)
{
    (void)state;
    for (size_t bytes = 0; bytes < 200; bytes++) {
        struct buf *buf = buf_create(bytes);
        assert_non_null(buf);
        assert_int_equal((uintptr_t)buf->data % 64, 0);
        assert_int_equal(buf->bytes, bytes);
        memset(buf->data, 1, bytes);
        buf_release(buf);
    }
    char borrowed[4] = "abc";
    struct buf *buf = buf_wrap(borrowed, 4, NULL, NULL);
    buf_release(buf);
    assert_null(buf_create(SIZE_MAX));
}

static void sha256_gives_the_standards_vectors(void **state)
{
    (void)state;
    const char *empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    const char *abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    char hex[65];
    assert_int_equal(sha256_of_bytes("", 0, hex), 0);
    assert_string_equal(hex, empty);
    struct sha256 *sha = sha256_create();
    for (int round = 0; round < 2; round++) {
        sha256_update(sha, "a", 1);
        sha256_update(sha, NULL, 0);
        sha256_update(sha, "bc", 2);
        sha256_finish(sha, hex);
        assert_string_equal(hex, abc);
    }
    sha256_finish(sha, hex);
    assert_string_equal(hex, empty);
    const uint8_t begin[4] = {0xba, 0x78, 0x16, 0xbf}, end[4] = {0xf2, 0x00, 0x15, 0xad};
    uint8_t raw[32];
    sha256_update(sha, "abc", 3);
    assert_int_equal(sha256_finish_raw(sha, raw), 0);
    assert_memory_equal(raw, begin, sizeof begin);
    assert_memory_equal(raw + 28, end, sizeof end);
    sha256_destroy(sha);
    sha256_destroy(NULL);
}

static void sha256_of_a_file_is_that_of_its_bytes(void **state)
{
    (void)state;
    enum { BYTES = 700001 };
    char path[] = "/tmp/shoal-sha-XXXXXX", of_file[65], of_bytes[65];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    char *data = malloc(BYTES);
    for (int i = 0; i < BYTES; i++)
        data[i] = (char)(i * 7 + i / 251);
    assert_int_equal(write(fd, data, BYTES), BYTES);
    close(fd);
    assert_int_equal(sha256_of_file(path, of_file), 0);
    assert_int_equal(sha256_of_bytes(data, BYTES, of_bytes), 0);
    assert_string_equal(of_file, of_bytes);
    free(data);
    unlink(path);
    assert_int_equal(sha256_of_file(path, of_file), STATUS_IO);
    assert_string_equal(of_file, "");
    assert_int_equal(sha256_of_file("/", of_file), STATUS_IO);
}

static void clocks_run_forward(void **state)
{
    (void)state;
    int64_t before = clock_now_ns();
    assert_true(clock_now_ns() >= before);
    assert_true(clock_realtime_ns() > 1500000000ll * 1000000000);
}

/* What one log call writes to a pipe. */
static void read_line(struct log *log, int read_end, char *line, size_t bytes)
{
    (void)log;
    ssize_t got = read(read_end, line, bytes - 1);
    assert_true(got > 0);
    line[got] = '\0';
}

static void log_writes_one_line_an_event(void **state)
{
    (void)state;
    int ends[2];
    char line[4096];
    assert_int_equal(pipe(ends), 0);
    struct log log;
    setenv("SHOAL_LOG", "warning", 1);
    unsetenv("JOURNAL_STREAM");
    log_init(&log, "worker");
    assert_int_equal(log.level, LOG_WARNING);
    log.fd = ends[1];
    log_info(&log, "dropped");
    log_warning(&log, "joined address=%s", "tcp://x");
    read_line(&log, ends[0], line, sizeof line);
    assert_memory_equal(line + 10, "T", 1);
    assert_string_equal(line + 24, " warning worker joined address=tcp://x\n");
    setenv("JOURNAL_STREAM", "1:2", 1);
    setenv("SHOAL_LOG", "debug", 1);
    log_init(&log, "server");
    log.fd = ends[1];
    log.rank = 2;
    log.cluster_epoch = 7;
    log_debug(&log, "forged=\"a\nerror b\"");
    read_line(&log, ends[0], line, sizeof line);
    assert_string_equal(line, "<7>debug server=2 epoch=7 forged=\"a error b\"\n");
    memset(line, 'x', sizeof line - 1);
    line[sizeof line - 1] = '\0';
    log_error(&log, "%s", line);
    read_line(&log, ends[0], line, sizeof line);
    assert_int_equal(line[strlen(line) - 1], '\n');
    assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
    unsetenv("JOURNAL_STREAM");
    unsetenv("SHOAL_LOG");
    log_init(&log, "shoal");
    assert_int_equal(log.level, LOG_INFO);
    close(ends[0]);
    close(ends[1]);
}

static void host_says_who_and_how_large_it_is(void **state)
{
    (void)state;
    char id[64], again[64], name[64], cut[5];
    host_id(id, sizeof id);
    host_id(again, sizeof again);
    assert_true(strlen(id) > 0);
    assert_string_equal(id, again);
    host_name(name, sizeof name);
    assert_true(strlen(name) > 0);
    host_id(cut, sizeof cut);
    assert_true(strlen(cut) <= 4);
    assert_true(host_rss_bytes() > 0);
    assert_true(host_peak_rss_bytes() > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_a_text_of_its_own),
        cmocka_unit_test(errbuf_prefixes_and_returns_the_status),
        cmocka_unit_test(errbuf_cuts_long_texts),
        cmocka_unit_test(account_books_bytes_and_peak_by_kind),
        cmocka_unit_test(account_fails_the_allocation_that_a_test_names),
        cmocka_unit_test(heap_is_kept_when_asked),
        cmocka_unit_test(buf_frees_with_its_last_reference),
        cmocka_unit_test(buf_data_is_aligned_and_whole),
        cmocka_unit_test(sha256_gives_the_standards_vectors),
        cmocka_unit_test(sha256_of_a_file_is_that_of_its_bytes),
        cmocka_unit_test(clocks_run_forward),
        cmocka_unit_test(log_writes_one_line_an_event),
        cmocka_unit_test(host_says_who_and_how_large_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
