/* Sums: of several vectors into one (what owners do with contributions), and of one vector to a number.
 * Any thread; see tensor.h. */
#ifndef SHOAL_TENSOR_REDUCE_H
#define SHOAL_TENSOR_REDUCE_H

#include <stdint.h>

/* acc = x (copy) or acc += x, for owners. */
void reduce_copy(float *acc, const float *x, int64_t count);
void reduce_add(float *acc, const float *x, int64_t count);
/* acc (+)= x[0] + … in the order of the sources, each addition rounded to float32 as if one after the other:
 * first != 0: acc = x[0], then acc += x[1], … ; first == 0: acc += x[0], … One pass over acc. */
void reduce_add_many(float *acc, const float *const *sources, int sources_count, int first, int64_t count);
/* out = x[0] + x[1] + …, each addition rounded to float32 as if one after the other. out may be one of the sources. */
void reduce_sum_to(float *out, const float *const *sources, int sources_count, int64_t count);
/* acc[i] *= factor */
void reduce_scale(float *acc, float factor, int64_t count);
/* Sum of squares in 16 fixed double lanes; *finite is set to 0 when any element is not finite, else left. */
double reduce_norm_squared(const float *x, int64_t count, int *finite);
double reduce_sum(const float *x, int64_t count); /* 16 double lanes */

#endif
