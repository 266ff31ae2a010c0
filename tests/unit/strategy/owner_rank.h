/* What one rank of a ring owns in a shard_world's model, its parts packed as zero3 packs them: only the own part of each
 * layer is there, from w_begin on. One thread. */
#ifndef SHOAL_TESTS_OWNER_RANK_H
#define SHOAL_TESTS_OWNER_RANK_H

#include "config/job.h"
#include "lib/shard_world.h"
#include "worker/strategy/owned.h"

struct owner_rank {
    struct shard_world *world; /* borrowed */
    struct job job;            /* the world's optimizer */
    struct pool *pool;
    struct owned *owned;
    struct owned_piece *pieces;
    struct owned_values values;
    float **w, **g; /* by layer, the own part; NULL where nothing is owned */
    int64_t *begin, *end;
    int rank, count;
};

/* rank -1: everything. Parts of w are the world's reference, g is 0, as are the slots. */
void owner_rank_open(struct owner_rank *rank, struct shard_world *world, int number, int threads);
void owner_rank_close(struct owner_rank *rank);
/* g of the own parts <- the world's sums. */
void owner_rank_take_sums(struct owner_rank *rank);
/* w of the own trainable pieces are those of the flat vector, to the bit. */
void owner_rank_check(const struct owner_rank *rank, const float *w);
/* Where an element of the layer is in the flat vector. */
int64_t owner_rank_flat(const struct owner_rank *rank, int layer, int64_t element);

#endif
