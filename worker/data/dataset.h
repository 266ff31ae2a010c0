/* A loaded data set: rows of features with a label or targets. Immutable once loaded; any thread may read.
 * Rows are kept in the form they came (bytes for idx, sparse for libsvm) and expanded to float32 on reading. */
#ifndef SHOAL_DATA_DATASET_H
#define SHOAL_DATA_DATASET_H

#include <stdint.h>

struct errbuf;
struct job;
struct job_data_files;
struct account;

/* Standardisation and label map, learnt from the training rows, stored in the export's __metadata__ and used
 * again by predict. */
struct dataset_transform {
    int64_t features;
    double divide;          /* 1: none */
    double *mean, *deviation; /* `features` each, or NULL; population deviation, 0 -> 1 */
    int classes;            /* 0: regression targets */
    double *class_values;   /* the file's label of each class, ascending; `classes` entries */
    char **class_names;     /* NULL, or `classes` entries */
    int64_t index_base;     /* libsvm */
};
void dataset_transform_close(struct dataset_transform *transform);
/* JSON text (owned by the caller) and back; what `__metadata__` carries. */
char *dataset_transform_to_json(const struct dataset_transform *transform);
int dataset_transform_from_json(struct dataset_transform *transform, const char *json, struct errbuf *err);

struct dataset;
struct dataset_ops; /* loader.h: one row a kind */

struct dataset_set {
    struct dataset *train, *validation, *test; /* NULL when the job has none */
    struct dataset_transform transform;
};

/* Loads what job->data says. Paths relative to data_dir ("" or NULL: to job_dir). Labels of classification losses
 * become 0..K-1 by the map that is learnt from the training rows (ascending label order; the log line in `note`,
 * cap note_bytes, says it); a label outside `classes` is an error that names file, line and label.
 * STATUS_IO, STATUS_FORMAT, STATUS_RANGE, …: one line in err. */
int dataset_load(struct dataset_set *set, const struct job *job, const char *job_dir, const char *data_dir,
                 struct account *account, char *note, int note_bytes, struct errbuf *err);
/* One file set under a known transform (predict, evaluate). labels may be absent. */
int dataset_load_with(struct dataset **dataset, const struct job *job, const struct job_data_files *files,
                      const char *job_dir, const char *data_dir, const struct dataset_transform *transform,
                      struct account *account, struct errbuf *err);
void dataset_set_close(struct dataset_set *set);
void dataset_destroy(struct dataset *dataset);

int64_t dataset_rows(const struct dataset *dataset);
int64_t dataset_features(const struct dataset *dataset);
int dataset_has_labels(const struct dataset *dataset);
/* Gathers rows indices[0..count) into x (count, features), scaled and standardised, and their class numbers into
 * labels (classification) or targets (regression, binary: 0/1); the unwanted one may be NULL. */
void dataset_read(const struct dataset *dataset, const int64_t *indices, int64_t count, float *x, int32_t *labels,
                  float *targets);

/* --- sampler.h -------------------------------------------------------------------------------------- */

/* Which samples a step takes. Pure arithmetic on (seed, step); restarting at any step needs no state but the
 * step. The permutation of the current epoch is cached (8 bytes a sample). One thread. */
struct sampler;
struct sampler *sampler_create(int64_t rows, int64_t batch_size, int shuffled, int last_batch /* enum job_last_batch */,
                               uint64_t seed);
void sampler_destroy(struct sampler *sampler);
int64_t sampler_steps_per_epoch(const struct sampler *sampler);
/* Samples of the global batch of step (from 1). */
int64_t sampler_batch(const struct sampler *sampler, int64_t step);
/* The share of (rank of world, micro of accumulate): contiguous, remainders to the first ranks, then within the rank
 * the same rule over its micro-steps. Writes indices (NULL: count only), *first = position of the share's first
 * sample in the global batch; returns the count (may be 0). */
int64_t sampler_share(struct sampler *sampler, int64_t step, int rank, int world, int micro, int accumulate,
                      int64_t *indices, int64_t *first);

#endif
