/* Rows in the form they are read from for good: bytes with a table, float32, or sparse float32, scaled and
 * standardised already where the form allows. Shared by the data sets that a split makes; the count is not atomic,
 * since data sets are made and destroyed by one thread. Reading is for any thread. */
#ifndef SHOAL_DATA_STORE_H
#define SHOAL_DATA_STORE_H

#include <stdint.h>

struct account;
struct dataset_transform;
struct errbuf;
struct loader_rows;

struct store {
    int references;
    struct account *account; /* NULL ok */
    int64_t booked;          /* bytes, ACCOUNT_DATA */
    int64_t rows, features;
    uint8_t *bytes; /* (rows, features); value = table[byte], or (double)(wide[byte] - mean) / deviation */
    float table[256];
    double wide[256];
    double *mean, *deviation; /* NULL: not standardised */
    float *dense;             /* (rows, features) */
    int64_t *sparse_first;
    int32_t *sparse_column;
    float *sparse_value;
    float *absent;   /* features: what a column without an entry is; NULL: 0 */
    int32_t *labels; /* classification */
    float *targets;  /* regression */
};

/* Takes the feature arrays out of rows (they are empty afterwards, also on failure only to be closed) and the
 * labels through the transform. STATUS_FORMAT when a value is not finite as a float32. */
int store_create(struct store **store, struct loader_rows *rows, const struct dataset_transform *transform,
                 struct account *account, struct errbuf *err);
struct store *store_share(struct store *store);
void store_release(struct store *store); /* takes NULL */
/* out (features) = row r. */
void store_read_row(const struct store *store, int64_t r, float *out);

#endif
