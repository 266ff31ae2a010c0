/* The row `shared` when a group opens: who is let in, and what happens when memory cannot be shared. Threads as ranks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/segment.h"
#include "base/status.h"
#include "net/fd_pass.h"
#include "ranks.h"
#include "worker/collective/shared.h"

static void check_fallback(struct rank *rank)
{
    rank_check(rank, rank->open_status == 0 && collective_transport_of(rank->group) == COLLECTIVE_TCP);
    rank_check(rank, rank->group && collective_barrier(rank->group, &rank->err) == 0);
    rank_check(rank, atomic_load(&rank->account.bytes[ACCOUNT_BUFFERS]) == 0);
}

static void check_refusal(struct rank *rank)
{
    rank_check(rank, rank->open_status == STATUS_PROTOCOL && strstr(rank->err.text, rank->context));
    rank_check(rank, atomic_load(&rank->account.bytes[ACCOUNT_BUFFERS]) == 0);
}

static void another_host(int world, enum collective_transport transport, rank_fn *fn)
{
    struct ranks ranks;
    ranks_init(&ranks, world);
    for (int i = 0; i < world; i++)
        ranks.transport[i] = transport;
    ranks_ports(&ranks);
    ranks.peers[world - 1].host = "elsewhere";
    ranks_run(&ranks, fn, "rank 2 is not on rank 0's host");
    ranks_close(&ranks);
}

static void test_another_host_means_tcp_or_a_refusal_when_memory_is_forced(void **state)
{
    (void)state;
    another_host(3, COLLECTIVE_AUTO, check_fallback);
    another_host(3, COLLECTIVE_SHM, check_refusal);
}

static void nobody_there(enum collective_transport transport, rank_fn *fn)
{
    struct ranks ranks;
    ranks_init(&ranks, 3);
    for (int i = 0; i < 3; i++)
        ranks.transport[i] = transport;
    ranks_ports(&ranks);
    ranks.peers[2].socket = "shoal-test-nobody"; /* as in another network namespace */
    ranks_run(&ranks, fn, "rank 0 cannot reach rank 2");
    ranks_close(&ranks);
}

static void test_a_rank_that_cannot_be_reached_is_named(void **state)
{
    (void)state;
    nobody_there(COLLECTIVE_SHM, check_refusal);
    nobody_there(COLLECTIVE_AUTO, check_fallback);
}

/* --- who connects --- */

/* What somebody hands to rank 1 before rank 0 does, as if it were rank 0. */
struct intruder {
    uint64_t control_bytes; /* of a control segment */
    uint64_t cluster_epoch;
    size_t segment_bytes; /* 0: a memfd without seals */
    size_t hello_bytes;
    const char *words; /* of the refusal */
    int sock, fd;
    struct segment segment;
};

static void check_intruder(struct rank *rank)
{
    const struct intruder *intruder = rank->context;
    rank_check(rank, rank->open_status == STATUS_PROTOCOL && strstr(rank->err.text, intruder->words));
    rank_check(rank, atomic_load(&rank->account.bytes[ACCOUNT_BUFFERS]) == 0);
}

static void learn_size(struct rank *rank)
{
    const struct shared *row = rank->group->row;
    if (rank->rank == 0)
        *(uint64_t *)rank->context = row->control->head.control_bytes;
}

static void intrude(struct rank *rank)
{
    struct intruder *intruder = rank->context;
    const struct collective_peer *peers = rank->ranks->peers;
    struct shared_hello hello = {.magic = SHARED_MAGIC, .job = 7, .cluster_epoch = intruder->cluster_epoch,
                                 .from_incarnation = peers[0].incarnation, .to_incarnation = peers[1].incarnation,
                                 .control_bytes = intruder->control_bytes, .world = 2, .from = 0, .to = 1};
    int64_t until_ns = clock_now_ns() + 10000000000;
    if (rank->rank != 0)
        return;
    rank_check(rank, fd_pass_connect(&intruder->sock, peers[1].socket, until_ns, &rank->err) == 0);
    if (intruder->segment_bytes) {
        rank_check(rank, segment_create(&intruder->segment, "shoal-test", intruder->segment_bytes, &rank->err) == 0);
        intruder->fd = dup(intruder->segment.fd);
    } else {
        intruder->fd = memfd_create("shoal-test", MFD_CLOEXEC);
        rank_check(rank, ftruncate(intruder->fd, (off_t)segment_mapped_bytes(intruder->control_bytes)) == 0);
    }
    rank_check(rank, fd_pass_send(intruder->sock, &hello, intruder->hello_bytes, &intruder->fd, 1, until_ns,
                                  &rank->err) == 0);
}

static void with_intruder(struct intruder intruder, rank_fn *fn, const char *words)
{
    struct ranks ranks;
    ranks_init(&ranks, 2);
    ranks.transport[0] = ranks.transport[1] = COLLECTIVE_SHM;
    ranks_ports(&ranks);
    ranks_run(&ranks, learn_size, &intruder.control_bytes);
    if (intruder.segment_bytes == 1)
        intruder.segment_bytes = intruder.control_bytes;
    intruder.words = words;
    ranks.before_open = intrude;
    ranks_run(&ranks, fn, &intruder);
    close(intruder.sock);
    close(intruder.fd);
    segment_close(&intruder.segment);
    ranks_close(&ranks);
}

static void opens(struct rank *rank)
{
    rank_check(rank, rank->open_status == 0 && collective_transport_of(rank->group) == COLLECTIVE_SHM);
    rank_check(rank, rank->group && collective_barrier(rank->group, &rank->err) == 0);
}

static void test_memory_that_is_not_a_rank_s_is_refused(void **state)
{
    enum { HELLO = sizeof(struct shared_hello), RIGHT_SIZE = 1 };
    (void)state;
    with_intruder((struct intruder){.cluster_epoch = 1, .hello_bytes = HELLO}, check_intruder,
                  "rank 1 cannot map rank 0's memory: shared memory of");
    with_intruder((struct intruder){.cluster_epoch = 1, .hello_bytes = HELLO, .segment_bytes = 4096}, check_intruder,
                  "rank 1 cannot map rank 0's memory: shared memory of");
    with_intruder((struct intruder){.cluster_epoch = 1, .hello_bytes = HELLO, .segment_bytes = RIGHT_SIZE}, check_intruder,
                  "rank 1: what rank 0 shares is not its control segment");
}

static void test_strangers_at_the_local_socket_are_let_go(void **state)
{
    enum { HELLO = sizeof(struct shared_hello), RIGHT_SIZE = 1 };
    (void)state;
    with_intruder((struct intruder){.cluster_epoch = 2, .hello_bytes = HELLO, .segment_bytes = RIGHT_SIZE}, opens, NULL);
    with_intruder((struct intruder){.cluster_epoch = 1, .hello_bytes = HELLO - 1, .segment_bytes = RIGHT_SIZE}, opens, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_another_host_means_tcp_or_a_refusal_when_memory_is_forced),
        cmocka_unit_test(test_a_rank_that_cannot_be_reached_is_named),
        cmocka_unit_test(test_memory_that_is_not_a_rank_s_is_refused),
        cmocka_unit_test(test_strangers_at_the_local_socket_are_let_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
