/* The canonical order of summation. By placement, in a layer of n elements rank k of P owns
 *   part:  [min(k·m, n), min((k+1)·m, n)), m = ceil(n/P) rounded up to 16;
 *   layer: all of layer l when k = l mod P, nothing else.
 * Contributions to an element owned by k are taken in the order k+1, k+2, …, k (mod P): the first copied, the others
 * added in float32, wherever the sum happens. A run is key ∩ part: the unit of norms and of turns. The functions on n
 * are those of placement part; keymap_part and keymap_owner know a job's placement. Pure; any thread. */
#ifndef SHOAL_CLUSTER_CANONICAL_H
#define SHOAL_CLUSTER_CANONICAL_H

#include <stdint.h>

enum { CANONICAL_PART_ALIGN = 16, KEY_ELEMENTS = 16384 /* 64 KiB of float32 */ };

enum canonical_placement { CANONICAL_PART, CANONICAL_LAYER };

int64_t canonical_part_size(int64_t n, int ranks);                /* m; at least 1 */
int64_t canonical_part_begin(int64_t n, int ranks, int owner);    /* elements from the layer's start */
int64_t canonical_part_end(int64_t n, int ranks, int owner);
int canonical_owner(int64_t n, int ranks, int64_t element);
int canonical_layer_owner(int layer, int ranks); /* placement layer */
/* Turn of `rank` in the sums of parts owned by `owner`: 0 (first, copied) .. ranks-1. */
int canonical_turn(int ranks, int owner, int rank);
/* The rank whose turn it is; inverse of the above. */
int canonical_rank_at(int ranks, int owner, int turn);

#endif
