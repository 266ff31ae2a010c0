/* The table that `shoal bench` prints, and the statistics of its columns. */
#ifndef SHOAL_CLI_BENCH_REPORT_H
#define SHOAL_CLI_BENCH_REPORT_H

#include <stdint.h>

#include "deploy/cli/bench.h"

/* samples[rank * BENCH_ITERATIONS_MAX + i] in ns -> median and maximum over i of the slowest rank's, in us. */
void bench_summarise(int64_t *samples, int ranks, int iterations, double *median_us, double *max_us);

/* Lines that begin with #: what was run, what the columns mean. `with_push`: the column that push_pull has more. */
void bench_print_head(const char *operation, const struct bench_options *options, const char *transport,
                      int with_push);
void bench_print_line(const struct bench_line *line, int with_push);
void bench_print_end(int64_t wrong);

#endif
