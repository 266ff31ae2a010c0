#include "deploy/cli/bench.h"

int64_t bench_size_after(const struct bench_options *options, int64_t bytes)
{
    return bytes > options->bytes_max / options->factor ? 0 : bytes * options->factor;
}

int bench_iterations(const struct bench_options *options, int64_t one_ns)
{
    int64_t fit = (int64_t)options->time_ms * 1000000 / (one_ns > 0 ? one_ns : 1);
    if (options->iterations > 0)
        return options->iterations;
    if (fit < BENCH_ITERATIONS_MIN)
        return BENCH_ITERATIONS_MIN;
    return fit < BENCH_ITERATIONS_MAX ? (int)fit : BENCH_ITERATIONS_MAX;
}
