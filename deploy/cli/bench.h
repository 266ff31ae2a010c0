/* `shoal bench`: what its operations share. An operation is a row: it starts processes on this machine
 * (bench_crew.h), measures each size with them, and says a line of the report a size. First thread only.
 *
 * What is measured, as nccl-tests and the usual MPI benchmarks do: every rank times every iteration, the slowest
 * rank's time counts, the median over the iterations is the result. */
#ifndef SHOAL_CLI_BENCH_H
#define SHOAL_CLI_BENCH_H

#include <stdint.h>

#include "worker/collective/collective.h"

struct errbuf;

enum { BENCH_RANKS_MAX = 64, BENCH_ITERATIONS_MAX = 10000, BENCH_ITERATIONS_MIN = 5 };

struct bench_options {
    int ranks;
    enum collective_transport transport;
    const char *transport_name;   /* "auto", "tcp", "shm" */
    int64_t bytes_min, bytes_max; /* multiples of 4 */
    int factor;                   /* from one size to the next */
    int iterations;               /* 0: as many as fit in time_ms */
    int warmup, time_ms;          /* iterations before, at least 1; a size's time */
};

struct bench_line {
    int64_t bytes;          /* of the whole vector */
    double time_us, max_us; /* median and largest of the iterations */
    double push_us;         /* push_pull: until a push was acknowledged, median */
    double moved;           /* bytes that count for algbw */
    double bus_factor;      /* busbw / algbw */
    int iterations;
    int64_t wrong; /* elements that are not what they should be, on all ranks */
};

struct bench_ops {
    const char *name;
    /* Prints the report; *wrong is the number of wrong elements over all sizes. */
    int (*run)(const struct bench_options *options, int64_t *wrong, struct errbuf *err);
};
extern const struct bench_ops bench_all_reduce, bench_reduce_scatter, bench_all_gather, bench_push_pull;

/* The next size after `bytes`, or 0 when that was the last. */
int64_t bench_size_after(const struct bench_options *options, int64_t bytes);
/* How many iterations of `one_ns` each are measured. */
int bench_iterations(const struct bench_options *options, int64_t one_ns);

#endif
