/* Threads as the ranks of one group, over real tcp sockets on loopback. A rank's function may use cmocka's asserts
 * only through rank_check, since a failed assert must end in the test's own thread. */
#ifndef SHOAL_TESTS_COLLECTIVE_RANKS_H
#define SHOAL_TESTS_COLLECTIVE_RANKS_H

#include <pthread.h>

#include "base/account.h"
#include "base/errbuf.h"
#include "base/role.h"
#include "worker/collective/collective.h"

enum { RANKS_MAX = 8 };

struct rank {
    int rank, world;
    struct ranks *ranks;
    struct role_host host;
    struct account account;
    struct collective_port *port;
    struct collective *group;
    int open_status;
    struct errbuf err;
    void *context;
    const char *failed; /* what rank_check found first */
    int failed_line;
};
typedef void rank_fn(struct rank *rank);

struct ranks {
    int world;
    struct rank rank[RANKS_MAX];
    struct collective_peer peers[RANKS_MAX];
    pthread_barrier_t barrier; /* for the ranks' functions: `meet` threads */
    int meet;                  /* 0: all ranks */
    /* What a test may change before ranks_run: */
    double timeout_s;
    size_t blob_bytes_max;
    enum collective_transport transport[RANKS_MAX];
    uint64_t cluster_epoch;
    void (*before_open)(struct rank *rank); /* on the rank's thread; NULL ok */
};

void ranks_init(struct ranks *ranks, int world);
void ranks_ports(struct ranks *ranks); /* opens what is not open yet and fills in the peers */
/* Opens a group on each thread, calls fn, closes the group. fn is called also when opening failed (open_status). */
void ranks_run(struct ranks *ranks, rank_fn *fn, void *context);
void ranks_close(struct ranks *ranks); /* ports */
/* The usual: all of it, and no rank has failed. */
void ranks_do(int world, rank_fn *fn, void *context);

#define rank_check(r, condition)                                                                                   \
    do {                                                                                                           \
        if (!(condition) && !(r)->failed) {                                                                        \
            (r)->failed = #condition;                                                                              \
            (r)->failed_line = __LINE__;                                                                           \
        }                                                                                                          \
    } while (0)

/* Segments of at most `most` elements over [0, n), owned as cluster/canonical.h says. Returns how many; the array
 * is the caller's to free. */
int segments_make(struct collective_segment **segments, int64_t n, int world, int32_t most);

#endif
