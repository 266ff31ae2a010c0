#include "cluster/canonical.h"

int64_t canonical_part_size(int64_t n, int ranks)
{
    int64_t m = (n + ranks - 1) / ranks;
    m = (m + CANONICAL_PART_ALIGN - 1) / CANONICAL_PART_ALIGN * CANONICAL_PART_ALIGN;
    return m > 0 ? m : CANONICAL_PART_ALIGN;
}

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t canonical_part_begin(int64_t n, int ranks, int owner)
{
    return min_i64(owner * canonical_part_size(n, ranks), n);
}

int64_t canonical_part_end(int64_t n, int ranks, int owner)
{
    return min_i64((owner + 1) * canonical_part_size(n, ranks), n);
}

int canonical_owner(int64_t n, int ranks, int64_t element)
{
    return (int)(element / canonical_part_size(n, ranks));
}

int canonical_layer_owner(int layer, int ranks)
{
    return layer % ranks;
}

int canonical_turn(int ranks, int owner, int rank)
{
    return (rank - owner - 1 + 2 * ranks) % ranks;
}

int canonical_rank_at(int ranks, int owner, int turn)
{
    return (owner + 1 + turn) % ranks;
}
