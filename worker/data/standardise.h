/* Column means and population deviations, learnt in double from the training rows. One thread. */
#ifndef SHOAL_DATA_STANDARDISE_H
#define SHOAL_DATA_STANDARDISE_H

#include <stdint.h>

struct dataset_transform;
struct errbuf;
struct loader_rows;

/* From rows chosen[0..count) (NULL: all), whose values are divided already except bytes, which transform->divide
 * divides. A column that is constant has deviation 1. Empty cells (NaN) are left out of the mean and count as the
 * mean in the deviation. with_deviation 0: only the mean, to fill empty cells with. */
int standardise_learn(struct dataset_transform *transform, const struct loader_rows *rows, const int64_t *chosen,
                      int64_t count, int with_deviation, struct errbuf *err);

#endif
