#include "owner/aggregator.h"

#include "base/errbuf.h"
#include "base/status.h"
#include "config/job.h"
#include "optim/plugin.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

/* Values of one tile, one row for each share that counts: 16 to 1024 elements wide, at most 64 KiB. */
enum { TILE_FLOATS = 16384, TILE_WIDTH_MAX = 1024, TILE_WIDTH_MIN = TILE_FLOATS / AGGREGATOR_SHARES_MAX };

struct tile {
    float values[TILE_FLOATS];    /* rows x width */
    float poison[TILE_WIDTH_MAX]; /* 0, or NaN where a share is not finite */
    int64_t width;
    int rows;
};

static int tile_used_shares(const double *weights, int shares_count, int *used)
{
    int rows = 0;

    for (int s = 0; s < shares_count; s++)
        if (weights[s] > 0.0)
            used[rows++] = s;
    return rows;
}

static void tile_poison(struct tile *tile)
{
    float *restrict poison = tile->poison;

    memset(poison, 0, sizeof(float) * (size_t)tile->width);
    for (int r = 0; r < tile->rows; r++) {
        const float *restrict x = tile->values + r * tile->width;
        for (int64_t i = 0; i < tile->width; i++)
            poison[i] += x[i] - x[i]; /* inf - inf and NaN - NaN are NaN, everything else 0 */
    }
}

static void sort_pair(float *restrict low, float *restrict high, int64_t width)
{
    for (int64_t i = 0; i < width; i++) {
        float a = low[i], b = high[i];
        low[i] = b < a ? b : a;
        high[i] = b < a ? a : b;
    }
}

/* Sorts every column by odd-even transposition: the rows' pairs are whole-row minimum and maximum. */
static void tile_sort(struct tile *tile)
{
    for (int round = 0; round < tile->rows; round++)
        for (int r = round % 2; r + 1 < tile->rows; r += 2)
            sort_pair(tile->values + r * tile->width, tile->values + (r + 1) * tile->width, tile->width);
}

/* out = mean of the sorted rows first..last-1, taken in that order in double and rounded once. */
static void tile_mean(const struct tile *tile, int first, int last, float *out)
{
    for (int64_t i = 0; i < tile->width; i++) {
        double sum = 0.0;
        for (int r = first; r < last; r++)
            sum += (double)tile->values[r * tile->width + i];
        out[i] = (float)(sum / (last - first)) + tile->poison[i];
    }
}

/* Leaves `trim` rows out at each end of every sorted column. */
static void combine_sorted(const float *const *shares, const int *used, int rows, int trim, float *out,
                           int64_t count)
{
    struct tile tile;
    int64_t width_max = TILE_FLOATS / rows < TILE_WIDTH_MAX ? TILE_FLOATS / rows : TILE_WIDTH_MAX;

    tile.rows = rows;
    for (int64_t first = 0; first < count; first += width_max) {
        tile.width = count - first < width_max ? count - first : width_max;
        for (int r = 0; r < rows; r++)
            memcpy(tile.values + r * tile.width, shares[used[r]] + first, sizeof(float) * (size_t)tile.width);
        tile_poison(&tile);
        tile_sort(&tile);
        tile_mean(&tile, trim, rows - trim, out + first);
    }
}

static void combine(double trim_fraction, const float *const *shares, const double *weights, int shares_count,
                    float *out, int64_t count)
{
    int used[AGGREGATOR_SHARES_MAX];

    assert(shares_count >= 1 && shares_count <= AGGREGATOR_SHARES_MAX);
    int rows = tile_used_shares(weights, shares_count, used);
    if (rows == 0) {
        memset(out, 0, sizeof(float) * (size_t)count);
        return;
    }
    int most = (rows - 1) / 2; /* leaves one value, or the middle two */
    /* The margin keeps 0.29 of 100 values at 29, though the product is a little less. */
    double wanted = floor(trim_fraction * rows + 1e-9);
    combine_sorted(shares, used, rows, wanted < most ? (int)wanted : most, out, count);
}

static void median_combine(const struct aggregator_params *params, const float *const *shares,
                           const double *weights, int shares_count, float *out, int64_t count)
{
    (void)params;
    combine(0.5, shares, weights, shares_count, out, count);
}

static void trimmed_mean_combine(const struct aggregator_params *params, const float *const *shares,
                                 const double *weights, int shares_count, float *out, int64_t count)
{
    combine(params->trim_fraction, shares, weights, shares_count, out, count);
}

static const struct shoal_aggregator aggregator_rows[] = {
    {AGGREGATOR_VERSION, "median",
     "of each element the median of the share means; of an even number the mean of "
     "the middle two",
     median_combine},
    {AGGREGATOR_VERSION, "trimmed_mean",
     "of each element the mean of the share means without trim_fraction of them "
     "at each end",
     trimmed_mean_combine},
};

enum { ROWS = sizeof aggregator_rows / sizeof aggregator_rows[0] };

const struct shoal_aggregator *aggregator_at(int index)
{
    return index >= 0 && index < ROWS ? &aggregator_rows[index] : NULL;
}

const struct shoal_aggregator *aggregator_find(const char *name)
{
    for (int i = 0; i < ROWS; i++)
        if (strcmp(aggregator_rows[i].name, name) == 0)
            return &aggregator_rows[i];
    return NULL;
}

static int aggregator_load(const char *path, const struct shoal_aggregator **row, void **handle, struct errbuf *err)
{
    const struct plugin_want want = {"shoal_aggregator", AGGREGATOR_VERSION};
    const void *found;
    void *library;

    int status = plugin_open(path, &want, &found, &library, err);
    if (status)
        return status;
    const struct shoal_aggregator *candidate = found;
    if (!candidate->name || !candidate->combine) {
        plugin_close(library);
        return errbuf_set(err, STATUS_PROTOCOL, "plug-in %s: `shoal_aggregator` needs name and combine", path);
    }
    *row = candidate;
    *handle = library;
    return STATUS_OK;
}

int aggregator_of_job(const struct job *job, const struct shoal_aggregator **row, struct aggregator_params *params,
                      void **handle, struct errbuf *err)
{
    params->trim_fraction = job->parallel.trim_fraction;
    *row = NULL;
    *handle = NULL;
    if (job->parallel.aggregate == JOB_MEAN || job->parallel.aggregate == JOB_SUM)
        return STATUS_OK;
    if (job->cluster.workers > AGGREGATOR_SHARES_MAX)
        return errbuf_set(err, STATUS_RANGE,
                          "parallel.aggregate: only mean and sum work with %lld workers, others with at most %d",
                          (long long)job->cluster.workers, AGGREGATOR_SHARES_MAX);
    if (job->parallel.aggregate == JOB_AGGREGATE_PLUGIN)
        return aggregator_load(job->parallel.aggregate_plugin, row, handle, err);
    *row = aggregator_find(job->parallel.aggregate == JOB_MEDIAN ? "median" : "trimmed_mean");
    return STATUS_OK;
}

void aggregator_unload(void *handle)
{
    plugin_close(handle);
}
