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
    double divide; /* 1: none */
    double *mean;  /* `features` of the divided values, or NULL; with deviation NULL it only fills missing cells */
    double *deviation;    /* `features`, or NULL: not standardised; population deviation, 0 -> 1 */
    int classes;          /* 0: regression targets */
    double *class_values; /* the file's label of each class, ascending; NULL: labels are the texts class_names */
    char **class_names;   /* NULL, or `classes` entries */
    int64_t index_base;   /* libsvm */
};
void dataset_transform_close(struct dataset_transform *transform);
/* JSON text (owned by the caller) and back; what `__metadata__` carries. */
char *dataset_transform_to_json(const struct dataset_transform *transform);
int dataset_transform_from_json(struct dataset_transform *transform, const char *json, struct errbuf *err);

struct dataset;

struct dataset_set {
    struct dataset *train, *validation, *test; /* NULL when the job has none */
    struct dataset_transform transform;
};

/* Loads what job->data says (account NULL: not booked). Paths relative to data_dir ("" or NULL: to job_dir). Labels
 * of classification losses become 0..K-1 by the map that is learnt from the training rows (ascending label order;
 * the log line in `note`, cap note_bytes, says it); a label outside `classes` is an error that names file, line and
 * label. STATUS_IO, STATUS_FORMAT, STATUS_RANGE, …: one line in err. */
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
 * labels (classification) or targets (regression, binary: 0/1); the unwanted one may be NULL. Where there is no
 * label, labels get -1 and targets NaN, which the losses take for padding. */
void dataset_read(const struct dataset *dataset, const int64_t *indices, int64_t count, float *x, int32_t *labels,
                  float *targets);

#endif
