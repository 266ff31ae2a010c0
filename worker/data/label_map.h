/* The map from a file's labels to classes 0..K-1, kept in struct dataset_transform. One thread. */
#ifndef SHOAL_DATA_LABEL_MAP_H
#define SHOAL_DATA_LABEL_MAP_H

#include <stdint.h>

struct dataset_transform;
struct errbuf;
struct job;
struct loader_rows;

enum { LABEL_CLASSES_MAX = 65536 };

/* Fills classes, class_values, class_names from all rows of the training file (also those that a split will take
 * for validation: a rare class must not be unknown there). note (cap note_bytes) gets the map when it is not the
 * identity, else "". */
int label_map_learn(struct dataset_transform *transform, const struct job *job, const struct loader_rows *rows,
                    char *note, int note_bytes, struct errbuf *err);
/* labels[r] = class of row r. An unknown label is an error with file, line, label and what is allowed. */
int label_map_apply(const struct dataset_transform *transform, const struct loader_rows *rows, int32_t *labels,
                    struct errbuf *err);
/* "file: line 7" or "file: row 7" of row r. */
void label_place(const struct loader_rows *rows, int64_t r, char *out, int out_bytes);

#endif
