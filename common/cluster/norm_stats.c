#include "cluster/norm_stats.h"

#include "tensor/norm.h"

static const double running_momentum = 0.1;

int64_t norm_stats_count(const int64_t *features, int norms)
{
    int64_t count = 0;
    for (int i = 0; i < norms; i++)
        count += 1 + 2 * features[i];
    return count;
}

void norm_stats_merge(const int64_t *features, int norms, double *a, const double *b)
{
    for (int i = 0; i < norms; i++) {
        int64_t f = features[i];
        struct norm_stats to = {.count = a[0], .mean = a + 1, .m2 = a + 1 + f};
        /* merge reads its second argument only; the struct has no const form */
        struct norm_stats from = {.count = b[0], .mean = (double *)(b + 1), .m2 = (double *)(b + 1 + f)};
        batch_norm_merge(&to, &from, f);
        a[0] = to.count;
        a += 1 + 2 * f;
        b += 1 + 2 * f;
    }
}

void norm_stats_commit(const int64_t *features, int norms, const double *merged, float *running)
{
    for (int i = 0; i < norms; i++) {
        int64_t f = features[i];
        struct norm_stats stats = {
            .count = merged[0], .mean = (double *)(merged + 1), .m2 = (double *)(merged + 1 + f)};
        batch_norm_commit(running, running + f, &stats, f, running_momentum);
        merged += 1 + 2 * f;
        running += 2 * f;
    }
}

void norm_stats_combine(int merge, double *into, const double *of_rank, int64_t count)
{
    int64_t features = (count - 1) / 2;
    if (merge) {
        norm_stats_merge(&features, 1, into, of_rank);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        into[i] += of_rank[i];
}
