/* What a shard tells; loop thread only. */
#include "owner/shard.h"

#include "owner/shard_internal.h"

struct shard_range *shard_find(const struct shard *shard, int range)
{
    if (range < 0 || range >= shard->options.map->ranges_count || shard->of_range[range] < 0) {
        return NULL;
    }
    return &shard->ranges[shard->of_range[range]];
}

int shard_has_values(const struct shard *shard)
{
    return shard->initialised_count == shard->ranges_count;
}

uint64_t shard_clock(const struct shard *shard, int range)
{
    const struct shard_range *r = shard_find(shard, range);
    return !r ? 0 : r->range->frozen ? UINT64_MAX : r->clock;
}

/* Tasks write in place what nobody shares, so nobody may begin to share it under them. */
static int is_being_written(const struct shard_range *range)
{
    if (range->busy && range->updates) { /* every rank has pushed: nobody's push waits for these values */
        return 1;
    }
    /* The sums of the last clock, until those of the next begin. */
    return !range->values && range->phase != RANGE_IDLE && range->unpulled_count == 0;
}

struct buf *shard_share(const struct shard *shard, int range)
{
    const struct shard_range *r = shard_find(shard, range);
    if (!r || !r->initialised || is_being_written(r)) {
        return NULL;
    }
    return buf_share(r->values ? r->values : r->sums);
}

int64_t shard_runs(const struct shard *shard)
{
    return shard->runs_count;
}

void shard_norms(const struct shard *shard, const double **squares, const uint8_t **finite, double *weight)
{
    *squares = shard->squares;
    *finite = shard->finite;
    *weight = shard->weight;
}

int64_t shard_held_bytes(const struct shard *shard)
{
    return shard->held_bytes;
}

const double *shard_trust_norms(const struct shard *shard)
{
    return shard->trust_norms;
}
