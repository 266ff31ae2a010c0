/* What a kind of data file is to the rest: one row of loader_table.c. A loader reads one file set into rows in the
 * form they came; label map, scaling and splits are dataset.c's. Called by one thread; the rows are owned by the
 * caller until loader_rows_close.
 *
 * Every loader checks a header or a cell before it believes it: nothing is allocated from a number in a file that
 * the file's own size cannot back. */
#ifndef SHOAL_DATA_LOADER_H
#define SHOAL_DATA_LOADER_H

#include <stddef.h>
#include <stdint.h>

#include "config/job.h"

struct errbuf;
struct source;

/* Exactly one of bytes, dense, sparse_values holds the features. */
struct loader_rows {
    int64_t rows, features;
    uint8_t *bytes;         /* (rows, features) */
    double *dense;          /* (rows, features); NaN: an empty cell, allowed by data.missing */
    int64_t *sparse_first;  /* rows + 1: row r is entries [first[r], first[r+1]) */
    int32_t *sparse_column; /* ascending within a row */
    double *sparse_value;
    double *labels;      /* rows, or NULL: no labels; NaN where the text is no number */
    char *label_text;    /* csv: all label cells, NUL-terminated, end to end */
    int64_t *label_at;   /* csv: where row r's text starts */
    int labels_are_text; /* csv: at least one label is no number */
    int64_t *lines;      /* the line of each row, from 1; NULL: messages count rows from 1 */
    int64_t qid_skipped; /* libsvm: ranking groups that were read over */
    char *label_file;    /* path for messages about labels */
};
void loader_rows_close(struct loader_rows *rows); /* frees the arrays; the struct is the caller's */
/* realloc of *array (any T **) to count items; STATUS_NOMEM leaves it as it was. */
int loader_resize(void *array, int64_t count, size_t item_bytes);

/* How to read a file set. */
struct loader_input {
    const struct job *job;
    const struct job_data_files *files;
    const char *folder;  /* paths are relative to it; "": the current one */
    int64_t features;    /* 0: learn the width from the file; else the width it must have or fit in */
    int64_t index_base;  /* libsvm */
    int labels_optional; /* predict: a file set without labels is fine */
    int classification;  /* labels are classes, not regression targets */
};

struct loader_ops {
    const char *name;
    double divide_default;                               /* when data.scale.divide is 0 */
    int (*is_given)(const struct job_data_files *files); /* whether the job names this file set; NULL: there are no
                                                            files, only training rows made from the job */
    int (*load)(const struct loader_input *input, struct loader_rows *rows, struct errbuf *err);
};
extern const struct loader_ops loader_idx, loader_csv, loader_libsvm, loader_npy, loader_synthetic;

/* NULL: no such kind. */
const struct loader_ops *loader_find(enum job_data_kind kind);

/* The parsers, on any source (fuzzing gives memory). */
int idx_parse(struct source *images, struct source *labels, const struct loader_input *input,
              struct loader_rows *rows, struct errbuf *err); /* labels NULL: none */
int csv_parse(struct source *source, const struct loader_input *input, struct loader_rows *rows,
              struct errbuf *err);
int libsvm_parse(struct source *source, const struct loader_input *input, struct loader_rows *rows,
                 struct errbuf *err);

#endif
