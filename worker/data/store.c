#include "worker/data/store.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/account.h"
#include "base/errbuf.h"
#include "base/status.h"
#include "worker/data/dataset.h"
#include "worker/data/label_map.h"
#include "worker/data/loader.h"

/* The value of column j once divided; NaN is an empty cell. */
static double transformed(const struct dataset_transform *transform, int64_t j, double value)
{
    if (isnan(value) && transform->mean)
        value = transform->mean[j];
    return transform->deviation ? (value - transform->mean[j]) / transform->deviation[j] : value;
}

static int not_finite(const struct loader_rows *rows, int64_t r, int64_t j, double value, struct errbuf *err)
{
    char place[320];
    label_place(rows, r, place, sizeof place);
    if (isnan(value))
        return errbuf_set(err, STATUS_FORMAT, "%s: feature %lld (from 1) is empty and no mean is known for it",
                          place, (long long)j + 1);
    return errbuf_set(err, STATUS_RANGE,
                      "%s: feature %lld (from 1) is %g after scaling, too large for a 32-bit float", place,
                      (long long)j + 1, value);
}

static int copy_doubles(double **out, const double *from, int64_t count)
{
    *out = malloc((size_t)count * sizeof **out);
    if (!*out)
        return STATUS_NOMEM;
    memcpy(*out, from, (size_t)count * sizeof **out);
    return 0;
}

static int take_bytes(struct store *store, struct loader_rows *rows, const struct dataset_transform *transform)
{
    for (int b = 0; b < 256; b++) {
        store->wide[b] = b / transform->divide;
        store->table[b] = (float)store->wide[b];
    }
    if (transform->deviation && (copy_doubles(&store->mean, transform->mean, rows->features) ||
                                 copy_doubles(&store->deviation, transform->deviation, rows->features)))
        return STATUS_NOMEM;
    store->bytes = rows->bytes;
    rows->bytes = NULL;
    store->booked += store->rows * store->features;
    return 0;
}

static int take_dense(struct store *store, struct loader_rows *rows, const struct dataset_transform *transform,
                      struct errbuf *err)
{
    int64_t features = rows->features;
    store->dense = malloc((size_t)(rows->rows * features) * sizeof *store->dense);
    if (!store->dense)
        return STATUS_NOMEM;
    for (int64_t r = 0; r < rows->rows; r++)
        for (int64_t j = 0; j < features; j++) {
            double value = transformed(transform, j, rows->dense[r * features + j]);
            float rounded = (float)value;
            if (!isfinite(rounded))
                return not_finite(rows, r, j, value, err);
            store->dense[r * features + j] = rounded;
        }
    free(rows->dense);
    rows->dense = NULL;
    store->booked += rows->rows * features * (int64_t)sizeof(float);
    return 0;
}

static int take_sparse(struct store *store, struct loader_rows *rows, const struct dataset_transform *transform,
                       struct errbuf *err)
{
    int64_t entries = rows->sparse_first[rows->rows];
    store->sparse_value = malloc((size_t)(entries ? entries : 1) * sizeof *store->sparse_value);
    if (!store->sparse_value)
        return STATUS_NOMEM;
    for (int64_t r = 0; r < rows->rows; r++)
        for (int64_t e = rows->sparse_first[r]; e < rows->sparse_first[r + 1]; e++) {
            double value = transformed(transform, rows->sparse_column[e], rows->sparse_value[e]);
            store->sparse_value[e] = (float)value;
            if (!isfinite(store->sparse_value[e]))
                return not_finite(rows, r, rows->sparse_column[e], value, err);
        }
    if (transform->deviation) {
        store->absent = malloc((size_t)rows->features * sizeof *store->absent);
        if (!store->absent)
            return STATUS_NOMEM;
        for (int64_t j = 0; j < rows->features; j++)
            store->absent[j] = (float)transformed(transform, j, 0);
    }
    store->sparse_first = rows->sparse_first;
    store->sparse_column = rows->sparse_column;
    rows->sparse_first = NULL;
    rows->sparse_column = NULL;
    store->booked += entries * 8 + (rows->rows + 1) * 8 + (store->absent ? rows->features * 4 : 0);
    return 0;
}

static int take_labels(struct store *store, const struct loader_rows *rows,
                       const struct dataset_transform *transform, struct errbuf *err)
{
    size_t count = (size_t)rows->rows;
    if (!rows->labels)
        return 0;
    store->booked += rows->rows * 4;
    if (transform->classes > 0) {
        store->labels = malloc(count * sizeof *store->labels);
        return store->labels ? label_map_apply(transform, rows, store->labels, err) : STATUS_NOMEM;
    }
    store->targets = malloc(count * sizeof *store->targets);
    if (!store->targets)
        return STATUS_NOMEM;
    for (size_t r = 0; r < count; r++)
        store->targets[r] = (float)rows->labels[r];
    return 0;
}

int store_create(struct store **out, struct loader_rows *rows, const struct dataset_transform *transform,
                 struct account *account, struct errbuf *err)
{
    struct store *store = calloc(1, sizeof *store);
    *out = NULL;
    if (!store)
        return errbuf_set(err, STATUS_NOMEM, "out of memory for the data");
    store->references = 1;
    store->rows = rows->rows;
    store->features = rows->features;
    errbuf_set(err, STATUS_NOMEM, "out of memory for %lld rows of %lld features", (long long)rows->rows,
               (long long)rows->features); /* replaced by whatever else goes wrong */
    int rc = take_labels(store, rows, transform, err);
    if (rc == 0 && rows->bytes)
        rc = take_bytes(store, rows, transform);
    else if (rc == 0 && rows->dense)
        rc = take_dense(store, rows, transform, err);
    else if (rc == 0)
        rc = take_sparse(store, rows, transform, err);
    if (rc) {
        store->booked = 0;
        store_release(store);
        return rc;
    }
    errbuf_init(err);
    store->account = account;
    if (account)
        account_add(account, ACCOUNT_DATA, store->booked);
    *out = store;
    return 0;
}

struct store *store_share(struct store *store)
{
    store->references++;
    return store;
}

void store_release(struct store *store)
{
    if (!store || --store->references > 0)
        return;
    if (store->account)
        account_add(store->account, ACCOUNT_DATA, -store->booked);
    free(store->bytes);
    free(store->mean);
    free(store->deviation);
    free(store->dense);
    free(store->sparse_first);
    free(store->sparse_column);
    free(store->sparse_value);
    free(store->absent);
    free(store->labels);
    free(store->targets);
    free(store);
}

static void read_bytes(const struct store *store, const uint8_t *restrict row, float *restrict out)
{
    const float *table = store->table;
    for (int64_t j = 0; j < store->features; j++)
        out[j] = table[row[j]];
}

static void read_standardised_bytes(const struct store *store, const uint8_t *restrict row, float *restrict out)
{
    const double *restrict mean = store->mean, *restrict deviation = store->deviation;
    for (int64_t j = 0; j < store->features; j++)
        out[j] = (float)((store->wide[row[j]] - mean[j]) / deviation[j]);
}

void store_read_row(const struct store *store, int64_t r, float *out)
{
    size_t bytes = (size_t)store->features * sizeof *out;
    if (store->bytes && store->deviation) {
        read_standardised_bytes(store, store->bytes + r * store->features, out);
    } else if (store->bytes) {
        read_bytes(store, store->bytes + r * store->features, out);
    } else if (store->dense) {
        memcpy(out, store->dense + r * store->features, bytes);
    } else {
        if (store->absent)
            memcpy(out, store->absent, bytes);
        else
            memset(out, 0, bytes);
        for (int64_t e = store->sparse_first[r]; e < store->sparse_first[r + 1]; e++)
            out[store->sparse_column[e]] = store->sparse_value[e];
    }
}
