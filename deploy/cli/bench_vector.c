#include "deploy/cli/bench_vector.h"

#include <stdlib.h>

#include "cluster/canonical.h"

enum { BLOCK = 1024 };

static float element(int rank, int64_t index)
{
    uint32_t x = (uint32_t)index * 0x9e3779b1u ^ (uint32_t)(index >> 32) ^ (uint32_t)(rank + 1) * 0x85ebca77u;
    x ^= x >> 15;
    x *= 0x2c1b3c6du;
    x ^= x >> 12;
    return (float)(int32_t)x * 0x1p-31f;
}

void bench_fill(float *out, int rank, int64_t begin, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = element(rank, begin + i);
}

struct collective_segment *bench_segments(int64_t count, int ranks, int *segments_count)
{
    int64_t most = count / COLLECTIVE_SEGMENT_MAX + ranks;
    struct collective_segment *segments = calloc((size_t)most, sizeof *segments);
    int used = 0;
    for (int owner = 0; owner < ranks && segments; owner++) {
        int64_t end = canonical_part_end(count, ranks, owner);
        for (int64_t at = canonical_part_begin(count, ranks, owner); at < end;) {
            int64_t left = end - at;
            int32_t here = left < COLLECTIVE_SEGMENT_MAX ? (int32_t)left : COLLECTIVE_SEGMENT_MAX;
            segments[used++] = (struct collective_segment){at, here, owner};
            at += here;
        }
    }
    *segments_count = used;
    return segments;
}

static int64_t differing(const float *a, const float *b, int count)
{
    int64_t differ = 0;
    for (int i = 0; i < count; i++)
        differ += a[i] != b[i];
    return differ;
}

static void sum_block(float *sums, int ranks, int owner, int64_t begin, int count)
{
    bench_fill(sums, canonical_rank_at(ranks, owner, 0), begin, count);
    for (int turn = 1; turn < ranks; turn++) {
        int rank = canonical_rank_at(ranks, owner, turn);
        for (int i = 0; i < count; i++)
            sums[i] += element(rank, begin + i);
    }
}

int64_t bench_wrong_sums(const float *found, int ranks, const struct collective_segment *segment)
{
    float sums[BLOCK];
    int64_t wrong = 0;
    for (int32_t at = 0; at < segment->count; at += BLOCK) {
        int count = segment->count - at < BLOCK ? segment->count - at : BLOCK;
        sum_block(sums, ranks, segment->owner, segment->begin + at, count);
        wrong += differing(found + at, sums, count);
    }
    return wrong;
}

int64_t bench_wrong_copies(const float *found, const struct collective_segment *segment)
{
    float wanted[BLOCK];
    int64_t wrong = 0;
    for (int32_t at = 0; at < segment->count; at += BLOCK) {
        int count = segment->count - at < BLOCK ? segment->count - at : BLOCK;
        bench_fill(wanted, segment->owner, segment->begin + at, count);
        wrong += differing(found + at, wanted, count);
    }
    return wrong;
}
