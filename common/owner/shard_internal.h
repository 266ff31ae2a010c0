/* The inside of a shard, shared by shard.c and shard_read.c (loop thread), shard_work.c (pool threads) and
 * shard_files.c. */
#ifndef SHOAL_OWNER_SHARD_INTERNAL_H
#define SHOAL_OWNER_SHARD_INTERNAL_H

#include <pthread.h>

#include "base/pool.h"
#include "owner/shard.h"

struct contribution {
    struct buf *message; /* NULL: not here */
    const float *data;
    double weight;
    void *token;
    int runs_taken;
    int arrived; /* this clock, also after it was given back */
};

enum range_phase { RANGE_IDLE, RANGE_SUMMING, RANGE_COMPLETE, RANGE_PREPARED, RANGE_APPLYING };
enum range_work { WORK_SUM, WORK_PREPARE, WORK_APPLY };

/* One range. Loop thread's, but for what a task under way uses: sums, values, slots, turn, taken, norms, and the
 * contributions that were there when it was submitted (`visible`). */
struct shard_range {
    struct pool_task task; /* first member */
    struct shard *shard;
    const struct keymap_range *range;
    struct keymap_run *runs;
    struct buf *values;   /* NULL with hold_values 0 */
    struct buf *sums;     /* NULL when frozen */
    float *slots[OPTIMIZER_SLOTS_MAX];
    struct contribution *contributions; /* by rank */
    unsigned char *visible;             /* by rank: 1 when the task may read it */
    unsigned char *unpulled;            /* by rank, hold_values 0: is not known to have the last sums */
    uint16_t *turn;                     /* by run: contributions taken so far */
    double *squares;                    /* by run, into the shard's array */
    uint8_t *finite;
    double *trust_norms;                /* lamb: Σw², Σu² a run, into the shard's array */
    struct shard_range *next_done;
    struct optimizer_step step;
    uint64_t clock;
    enum range_phase phase;
    enum range_work work;
    int index; /* in the keymap */
    int initialised;
    int busy;       /* a task is under way */
    int updates;    /* it writes values */
    int news;       /* contributions came while busy */
    int abort_next; /* abort as soon as the task is back */
    int runs_left;
    int unpulled_count;
    int out_of_memory;
};

struct shard {
    struct shard_options options;
    struct shard_range *ranges; /* in keymap order */
    int *of_range;              /* keymap range -> index in ranges, -1 */
    double *squares;
    uint8_t *finite;
    double *trust_norms; /* lamb, else NULL */
    double *ratios;      /* lamb: by tensor, of the step being applied */
    int64_t runs_count, held_bytes;
    int ranges_count, trainable_count, slots;
    int complete_count, prepared_count, finished_count, initialised_count;
    uint64_t clock;      /* finished by all ranges */
    uint64_t verdict;    /* last clock that got one */
    double weight;       /* Σ shares' weights of the step */
    struct optimizer_step next_step;
    uv_async_t *async;
    pthread_mutex_t lock; /* done list and tasks_running */
    pthread_cond_t idle;
    struct shard_range *done;
    int tasks_running;
};

/* By index in the keymap; NULL when it is not here. */
struct shard_range *shard_find(const struct shard *shard, int range);
/* Runs one range's task; pool thread (or the loop thread for small ones). */
void shard_work_run(struct shard_range *range);
/* Makes sure that the caller may write the buffer: replaces a shared one by its copy. 0 or STATUS_NOMEM. */
int shard_make_sole(struct buf **buf, int copy);
int64_t shard_range_bytes(const struct shard_range *range);

#endif
