/* Robust ways to put the shares of one step together (parallel.aggregate). `mean` and `sum` need no row: they are
 * sums in canonical order. A row works on the shares' means; empty shares are left out. The result does not depend
 * on the order of the shares. Pure; any thread; borrows every pointer. */
#ifndef SHOAL_OWNER_AGGREGATOR_H
#define SHOAL_OWNER_AGGREGATOR_H

#include <stdint.h>

struct errbuf;
struct job;

enum { AGGREGATOR_VERSION = 1, AGGREGATOR_SHARES_MAX = 1024 };

struct aggregator_params {
    double trim_fraction; /* trimmed_mean: of the values, rounded down, at each end */
};

struct shoal_aggregator {
    int version; /* AGGREGATOR_VERSION; first member, for plug-ins */
    const char *name, *help;
    /* out[0..count) from shares[0..shares_count)[0..count), each the mean gradient over its share of weights[s]
     * samples; a share of weight 0 is not read and may be NULL; without any other share out is 0. shares_count is
     * 1..AGGREGATOR_SHARES_MAX. An element that is not finite in a share that is read must come out not finite,
     * or `nonfinite` would not see it. out may be one of the shares. */
    void (*combine)(const struct aggregator_params *params, const float *const *shares, const double *weights,
                    int shares_count, float *out, int64_t count);
};

/* The built-in row by name ("median", "trimmed_mean"), or NULL. */
const struct shoal_aggregator *aggregator_find(const char *name);
const struct shoal_aggregator *aggregator_at(int index); /* NULL past the end */

/* Of the job: *row is NULL for mean and sum, else a built-in row or the job's plug-in (loaded; `*handle` for
 * aggregator_unload, NULL otherwise). STATUS_IO, STATUS_PROTOCOL (no such symbol, version), STATUS_RANGE (more
 * workers than AGGREGATOR_SHARES_MAX). */
int aggregator_of_job(const struct job *job, const struct shoal_aggregator **row, struct aggregator_params *params,
                      void **handle, struct errbuf *err);
void aggregator_unload(void *handle); /* takes NULL */

/* A plug-in exports `const struct shoal_aggregator shoal_aggregator`. */

#endif
