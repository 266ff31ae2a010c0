/* One shard on a loop and a pool, and beside it a plain reference that adds and updates whole tensors: what the tests of
 * the shard compare with. Everything that a shard calls back is counted; a token that comes back twice, or never, fails
 * the test. One thread. */
#ifndef SHOAL_TESTS_SHARD_WORLD_H
#define SHOAL_TESTS_SHARD_WORLD_H

#include <stdint.h>
#include <uv.h>

#include "base/account.h"
#include "cluster/keymap.h"
#include "cluster/param_table.h"
#include "owner/shard.h"

enum { SHARD_WORLD_RANKS = 9, SHARD_WORLD_FROZEN = 1 << 30 };
/* In lengths: end of a layer and of the model. A length with SHARD_WORLD_FROZEN is a frozen tensor. */
enum { SHARD_WORLD_LAYER = -1, SHARD_WORLD_END = -2 };

struct shard_world_setup {
    const int *lengths; /* NULL: a model with ranges for the pool and small ones, a frozen tensor and an empty one */
    int ranks, servers, server, threads, placement;
    int64_t message_bytes;
    const char *optimizer;
    int sums_only, eager, prescaled, mean;
    const char *aggregator; /* NULL: sums */
    double trim_fraction, momentum;
};

struct shard_world_token {
    struct shard_world *world;
    struct shard_world_token *next;
    int range, rank, held, status;
};

struct shard_world {
    struct shard_world_setup setup;
    uv_loop_t loop;
    struct pool *pool;
    struct account account;
    struct param_table table;
    struct keymap map;
    struct shard_options options;
    struct shard *shard;
    struct shard_world_token *tokens;
    int held, returned[32]; /* tokens by -status */
    int completes, finishes;
    uint64_t complete_clock, trust_clock, finished_clock;
    uint64_t *applied; /* by range */
    /* the reference: flat vectors of N */
    float *w, *sums, *scratch, *slots[OPTIMIZER_SLOTS_MAX], *noise;
    const float *g[SHARD_WORLD_RANKS]; /* this step's contributions, (N) each, into noise */
    double weight[SHARD_WORLD_RANKS];
    uint64_t random;
};

/* `init`: with first values everywhere. */
void shard_world_open(struct shard_world *world, const struct shard_world_setup *setup, uint64_t seed, int init);
/* Destroys the shard (if it is still there); every token must be back then, and the books empty. */
void shard_world_close(struct shard_world *world);
/* Another shard for the same model and reference, from files. */
int shard_world_load(struct shard_world *world, const struct shard_world *from, const char *const *paths, int count,
                     uint64_t clock, struct errbuf *err);
uint64_t shard_world_random(struct shard_world *world, uint64_t below);
void shard_world_init(struct shard_world *world, int range);
int shard_world_mine(const struct shard_world *world, int range); /* of the shard and trainable */

/* New contributions for all ranks. */
void shard_world_gradients(struct shard_world *world);
/* One contribution, at some alignment; the result of shard_push. */
int shard_world_push(struct shard_world *world, int range, int rank, uint64_t clock);
/* All ranges from all ranks, ranks in the order given (NULL: 0, 1, …). */
void shard_world_push_all(struct shard_world *world, uint64_t clock, const int *order);
/* Runs the loop until no task is under way. */
void shard_world_settle(struct shard_world *world);

/* The reference: sums of the contributions in canonical order (or combined), then one update of everything. */
void shard_world_expect_sums(struct shard_world *world);
void shard_world_expect_update(struct shard_world *world, const struct optimizer_step *step);
struct optimizer_step shard_world_step(const struct shard_world *world, uint64_t t);
/* Values (sums, with sums_only) of every range, to the bit. */
void shard_world_check_values(const struct shard_world *world);
/* Σg² and finite flags by run, to the bit, and the weight. */
void shard_world_check_norms(const struct shard_world *world);
/* One clock from push (order: see shard_world_push_all) to update, all of it compared with the reference. */
void shard_world_whole_step(struct shard_world *world, uint64_t clock, const int *order);
/* The first trained range that goes to the pool (large), or that is small enough for the loop thread. */
int shard_world_range(const struct shard_world *world, int large);

#endif
