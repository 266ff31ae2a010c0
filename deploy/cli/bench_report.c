#include "deploy/cli/bench_report.h"

#include <stdio.h>
#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

void bench_summarise(int64_t *samples, int ranks, int iterations, double *median_us, double *max_us)
{
    for (int r = 1; r < ranks; r++) {
        const int64_t *other = samples + (int64_t)r * BENCH_ITERATIONS_MAX;
        for (int i = 0; i < iterations; i++)
            samples[i] = other[i] > samples[i] ? other[i] : samples[i];
    }
    qsort(samples, (size_t)iterations, sizeof *samples, compare);
    *median_us = (double)(samples[(iterations - 1) / 2] + samples[iterations / 2]) / 2e3;
    *max_us = (double)samples[iterations - 1] / 1e3;
}

void bench_print_head(const char *operation, const struct bench_options *options, const char *transport,
                      int with_push)
{
    printf("# shoal bench %s: %d rank%s on this machine, transport %s, float32\n", operation, options->ranks,
           options->ranks == 1 ? "" : "s", transport);
    if (with_push)
        puts("# time: the slowest rank's from its push to the new values, which ends the step on the server; "
             "median and\n"
             "# max over the iterations. push: until a push was acknowledged, median. algbw: bytes that one rank "
             "pushes and\n"
             "# pulls / time; busbw: those of all ranks.");
    else
        puts(
            "# time: the slowest rank's from a barrier to the operation's end; median and max over the "
            "iterations.\n"
            "# algbw: bytes / time, bytes being those of the whole vector; busbw: algbw x 2(p-1)/p in all_reduce,\n"
            "# x (p-1)/p in the others.");
    puts("# check: elements that differ from the sum in canonical order, before and after the iterations, on all "
         "ranks.");
    printf("#%12s %12s %7s %11s %11s", "bytes", "count", "iters", "time(us)", "max(us)");
    if (with_push)
        printf(" %11s", "push(us)");
    printf(" %12s %12s %7s\n", "algbw(GB/s)", "busbw(GB/s)", "check");
    fflush(stdout);
}

void bench_print_line(const struct bench_line *line, int with_push)
{
    double algorithm = line->time_us > 0 ? line->moved / line->time_us / 1e3 : 0;
    printf(" %12lld %12lld %7d %11.2f %11.2f", (long long)line->bytes, (long long)(line->bytes / 4),
           line->iterations, line->time_us, line->max_us);
    if (with_push)
        printf(" %11.2f", line->push_us);
    printf(" %12.3f %12.3f %7lld\n", algorithm, algorithm * line->bus_factor, (long long)line->wrong);
    fflush(stdout);
}

void bench_print_end(int64_t wrong)
{
    printf("# wrong elements: %lld\n", (long long)wrong);
    fflush(stdout);
}
