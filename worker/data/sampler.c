#include "worker/data/sampler.h"

#include <stdlib.h>

#include "base/rng.h"
#include "config/job.h"

struct sampler {
    int64_t rows, batch_size, steps_per_epoch;
    enum job_last_batch last_batch;
    uint64_t seed;
    int64_t *order;      /* NULL: sequential */
    int64_t order_epoch; /* the epoch `order` is of; epochs count from 1, 0: none yet */
};

struct sampler *sampler_create(int64_t rows, int64_t batch_size, int shuffled, int last_batch, uint64_t seed)
{
    if (rows < 0 || batch_size < 1)
        return NULL;
    struct sampler *sampler = calloc(1, sizeof *sampler);
    if (!sampler)
        return NULL;
    sampler->rows = rows;
    sampler->batch_size = batch_size;
    sampler->last_batch = (enum job_last_batch)last_batch;
    sampler->seed = seed;
    sampler->steps_per_epoch = rows / batch_size;
    if (rows % batch_size != 0 && last_batch != JOB_LAST_DROP)
        sampler->steps_per_epoch++;
    if (shuffled && rows > 0) {
        sampler->order = calloc((size_t)rows, sizeof *sampler->order);
        if (!sampler->order) {
            free(sampler);
            return NULL;
        }
    }
    return sampler;
}

void sampler_destroy(struct sampler *sampler)
{
    if (!sampler)
        return;
    free(sampler->order);
    free(sampler);
}

int64_t sampler_steps_per_epoch(const struct sampler *sampler)
{
    return sampler->steps_per_epoch;
}

int64_t sampler_batch(const struct sampler *sampler, int64_t step)
{
    if (sampler->steps_per_epoch == 0 || step < 1)
        return 0;
    int64_t begin = (step - 1) % sampler->steps_per_epoch * sampler->batch_size;
    int64_t left = sampler->rows - begin;
    if (left >= sampler->batch_size || sampler->last_batch == JOB_LAST_WRAP)
        return sampler->batch_size;
    return left;
}

/* [*first, *first + returned) of `count` things is part k of n: contiguous, remainders to the first parts. */
static int64_t part_of(int64_t count, int64_t k, int64_t n, int64_t *first)
{
    int64_t base = count / n, remainder = count % n;
    *first = k * base + (k < remainder ? k : remainder);
    return base + (k < remainder);
}

int64_t sampler_share(struct sampler *sampler, int64_t step, int rank, int world, int micro, int accumulate,
                      int64_t *indices, int64_t *first)
{
    int64_t rank_first, micro_first;
    int64_t count = part_of(sampler_batch(sampler, step), rank, world, &rank_first);
    count = part_of(count, micro, accumulate, &micro_first);
    int64_t position = rank_first + micro_first;
    if (first)
        *first = position;
    if (!indices || count == 0)
        return count;

    int64_t epoch = (step - 1) / sampler->steps_per_epoch + 1;
    if (sampler->order && sampler->order_epoch != epoch) {
        rng_permutation(sampler->seed, RNG_SITE_SHUFFLE, (uint32_t)epoch, sampler->rows, sampler->order);
        sampler->order_epoch = epoch;
    }
    int64_t place = (step - 1) % sampler->steps_per_epoch * sampler->batch_size + position;
    place %= sampler->rows; /* beyond the end only in a wrapped batch */
    for (int64_t i = 0; i < count; i++) {
        indices[i] = sampler->order ? sampler->order[place] : place;
        if (++place == sampler->rows)
            place = 0;
    }
    return count;
}
