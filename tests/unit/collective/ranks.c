#include "ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "cluster/canonical.h"

void ranks_init(struct ranks *ranks, int world)
{
    memset(ranks, 0, sizeof *ranks);
    ranks->world = world;
    ranks->timeout_s = 20;
    ranks->blob_bytes_max = 1 << 20;
    ranks->cluster_epoch = 1;
    for (int i = 0; i < world; i++) {
        struct rank *rank = &ranks->rank[i];
        rank->rank = i;
        rank->world = world;
        rank->ranks = ranks;
        ranks->transport[i] = COLLECTIVE_TCP;
        account_init(&rank->account);
        errbuf_init(&rank->err);
        log_init(&rank->host.log, "worker");
    }
}

void ranks_ports(struct ranks *ranks)
{
    for (int i = 0; i < ranks->world; i++) {
        struct rank *rank = &ranks->rank[i];
        const struct collective_port_options options = {&rank->host, "tcp://127.0.0.1:1", NULL};
        if (!rank->port)
            assert_int_equal(collective_port_open(&rank->port, &options, &rank->err), 0);
        ranks->peers[i] = (struct collective_peer){.address = collective_port_address(rank->port),
                                                   .public_key = collective_port_public_key(rank->port),
                                                   .socket = collective_port_socket(rank->port),
                                                   .host = "here",
                                                   .incarnation = 100 + (uint64_t)i};
    }
}

struct start {
    struct rank *rank;
    rank_fn *fn;
};

static void *rank_main(void *argument)
{
    const struct start *start = argument;
    struct rank *rank = start->rank;
    struct ranks *ranks = rank->ranks;
    const struct collective_options options = {.port = rank->port,
                                               .peers = ranks->peers,
                                               .rank = rank->rank,
                                               .world = rank->world,
                                               .job = 7,
                                               .cluster_epoch = ranks->cluster_epoch,
                                               .transport = ranks->transport[rank->rank],
                                               .blob_bytes_max = ranks->blob_bytes_max,
                                               .timeout_s = ranks->timeout_s,
                                               .account = &rank->account};
    rank->group = NULL;
    if (ranks->before_open)
        ranks->before_open(rank);
    rank->open_status = collective_open(&rank->group, &options, &rank->err);
    start->fn(rank);
    collective_close(rank->group);
    return NULL;
}

void ranks_run(struct ranks *ranks, rank_fn *fn, void *context)
{
    pthread_t threads[RANKS_MAX];
    struct start starts[RANKS_MAX];
    assert_int_equal(
        pthread_barrier_init(&ranks->barrier, NULL, (unsigned)(ranks->meet ? ranks->meet : ranks->world)), 0);
    for (int i = 0; i < ranks->world; i++) {
        starts[i] = (struct start){&ranks->rank[i], fn};
        ranks->rank[i].context = context;
        assert_int_equal(pthread_create(&threads[i], NULL, rank_main, &starts[i]), 0);
    }
    for (int i = 0; i < ranks->world; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&ranks->barrier);
    for (int i = 0; i < ranks->world; i++) {
        const struct rank *rank = &ranks->rank[i];
        if (rank->failed)
            fail_msg("rank %d of %d, line %d: %s (%s)", i, ranks->world, rank->failed_line, rank->failed,
                     rank->err.text);
    }
}

void ranks_close(struct ranks *ranks)
{
    for (int i = 0; i < ranks->world; i++) {
        collective_port_close(ranks->rank[i].port);
        ranks->rank[i].port = NULL;
    }
}

void ranks_do(int world, rank_fn *fn, void *context)
{
    struct ranks ranks;
    ranks_init(&ranks, world);
    ranks_ports(&ranks);
    ranks_run(&ranks, fn, context);
    ranks_close(&ranks);
}

int segments_make(struct collective_segment **segments, int64_t n, int world, int32_t most)
{
    int count = 0;
    *segments = malloc(((size_t)(n / most) + (size_t)world + 1) * sizeof **segments);
    assert_non_null(*segments);
    for (int owner = 0; owner < world; owner++) {
        int64_t end = canonical_part_end(n, world, owner);
        for (int64_t at = canonical_part_begin(n, world, owner); at < end; at += most)
            (*segments)[count++] =
                (struct collective_segment){at, (int32_t)(end - at < most ? end - at : most), owner};
    }
    return count;
}
