#include "worker/data/standardise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "worker/data/dataset.h"
#include "worker/data/loader.h"

struct columns {
    const struct loader_rows *rows;
    double byte_value[256];
    double *row; /* features: the row at hand */
    double *lowest, *highest, *present;
};

static void columns_close(struct columns *columns)
{
    free(columns->row);
    free(columns->lowest);
    free(columns->highest);
    free(columns->present);
}

static int columns_init(struct columns *columns, const struct dataset_transform *transform,
                        const struct loader_rows *rows)
{
    size_t features = (size_t)rows->features;
    memset(columns, 0, sizeof *columns);
    columns->rows = rows;
    for (int b = 0; b < 256; b++)
        columns->byte_value[b] = b / transform->divide;
    columns->row = malloc(features * sizeof(double));
    columns->lowest = malloc(features * sizeof(double));
    columns->highest = malloc(features * sizeof(double));
    columns->present = calloc(features, sizeof(double));
    if (!columns->row || !columns->lowest || !columns->highest || !columns->present)
        return STATUS_NOMEM;
    for (size_t j = 0; j < features; j++) {
        columns->lowest[j] = INFINITY;
        columns->highest[j] = -INFINITY;
    }
    return 0;
}

static const double *expand(struct columns *columns, int64_t r)
{
    const struct loader_rows *rows = columns->rows;
    int64_t features = rows->features;
    if (rows->dense)
        return rows->dense + r * features;
    if (rows->bytes) {
        for (int64_t j = 0; j < features; j++)
            columns->row[j] = columns->byte_value[rows->bytes[r * features + j]];
        return columns->row;
    }
    memset(columns->row, 0, (size_t)features * sizeof(double));
    for (int64_t e = rows->sparse_first[r]; e < rows->sparse_first[r + 1]; e++)
        columns->row[rows->sparse_column[e]] = rows->sparse_value[e];
    return columns->row;
}

static void learn_means(struct columns *columns, const int64_t *chosen, int64_t count, double *mean)
{
    int64_t features = columns->rows->features;
    for (int64_t i = 0; i < count; i++) {
        const double *row = expand(columns, chosen ? chosen[i] : i);
        for (int64_t j = 0; j < features; j++) {
            int there = row[j] == row[j];
            double value = there ? row[j] : 0;
            mean[j] += value;
            columns->present[j] += there;
            columns->lowest[j] = there && value < columns->lowest[j] ? value : columns->lowest[j];
            columns->highest[j] = there && value > columns->highest[j] ? value : columns->highest[j];
        }
    }
    for (int64_t j = 0; j < features; j++) {
        if (columns->lowest[j] == columns->highest[j])
            mean[j] = columns->lowest[j]; /* constant: exactly, so that it becomes exactly 0 */
        else
            mean[j] /= columns->present[j];
    }
}

static void learn_deviations(struct columns *columns, const int64_t *chosen, int64_t count, const double *mean,
                             double *deviation)
{
    int64_t features = columns->rows->features;
    for (int64_t i = 0; i < count; i++) {
        const double *row = expand(columns, chosen ? chosen[i] : i);
        for (int64_t j = 0; j < features; j++) {
            double difference = row[j] == row[j] ? row[j] - mean[j] : 0;
            deviation[j] += difference * difference;
        }
    }
    for (int64_t j = 0; j < features; j++) {
        deviation[j] = sqrt(deviation[j] / (double)count);
        if (columns->lowest[j] == columns->highest[j] || deviation[j] == 0)
            deviation[j] = 1;
    }
}

int standardise_learn(struct dataset_transform *transform, const struct loader_rows *rows, const int64_t *chosen,
                      int64_t count, int with_deviation, struct errbuf *err)
{
    struct columns columns;
    int rc = columns_init(&columns, transform, rows);
    transform->mean = calloc((size_t)rows->features, sizeof(double));
    if (with_deviation)
        transform->deviation = calloc((size_t)rows->features, sizeof(double));
    if (rc || !transform->mean || (with_deviation && !transform->deviation)) {
        rc = errbuf_set(err, STATUS_NOMEM, "out of memory for the column means");
        goto close;
    }
    learn_means(&columns, chosen, count, transform->mean);
    for (int64_t j = 0; j < rows->features; j++)
        if (columns.present[j] == 0) {
            rc = errbuf_set(err, STATUS_FORMAT,
                            "feature %lld (from 1): empty in every training row, it has no mean", (long long)j + 1);
            goto close;
        }
    if (with_deviation)
        learn_deviations(&columns, chosen, count, transform->mean, transform->deviation);
close:
    columns_close(&columns);
    return rc;
}
