/* The vectors of `shoal bench`: what every rank puts in, and what an operation must make of it. Elements are made
 * from their rank and index, so that a rank knows what the others have; they have 24 significant bits and many
 * exponents, so that from three ranks on a sum in another order has other bits. Pure. */
#ifndef SHOAL_CLI_BENCH_VECTOR_H
#define SHOAL_CLI_BENCH_VECTOR_H

#include <stdint.h>

#include "worker/collective/collective.h"

/* Cuts a vector of `count` floats by the canonical parts, none longer than COLLECTIVE_SEGMENT_MAX. Owned, the
 * caller frees; NULL: out of memory. */
struct collective_segment *bench_segments(int64_t count, int ranks, int *segments_count);

void bench_fill(float *out, int rank, int64_t begin, int64_t count); /* what `rank` has at begin + i */
/* How many of a segment's floats are not the sum over ranks in the canonical order of its owner. */
int64_t bench_wrong_sums(const float *found, int ranks, const struct collective_segment *segment);
/* How many are not what the owner has. */
int64_t bench_wrong_copies(const float *found, const struct collective_segment *segment);

#endif
