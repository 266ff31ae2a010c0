#include "lib/shard_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/pool.h"
#include "base/status.h"
#include "cluster/canonical.h"
#include "owner/shard_internal.h"
#include "tensor/reduce.h"

enum { NOISE_EXTRA = 8192 };

static const int default_lengths[] = {20000, 100, 50 + SHARD_WORLD_FROZEN, SHARD_WORLD_LAYER, 3, 0, 33000, 7,
                                      SHARD_WORLD_LAYER, 17, SHARD_WORLD_LAYER, SHARD_WORLD_END};

/* splitmix64 */
uint64_t shard_world_random(struct shard_world *world, uint64_t below)
{
    uint64_t z = world->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
}

/* --- what the shard says ---------------------------------------------------------------------------------- */

static void on_added(void *context, void *token, int status)
{
    struct shard_world_token *t = token;
    assert_ptr_equal(t->world, context);
    assert_int_equal(t->held, 1); /* once */
    t->held = 0;
    t->status = status;
    t->world->held--;
    t->world->returned[-status]++;
}

static void on_complete(void *context, uint64_t clock)
{
    struct shard_world *world = context;
    assert_int_equal(world->finished_clock + 1, clock);
    world->completes++;
    world->complete_clock = clock;
}

static void on_trust(void *context, uint64_t clock)
{
    struct shard_world *world = context;
    world->trust_clock = clock;
}

static void on_applied(void *context, int range, uint64_t clock)
{
    struct shard_world *world = context;
    world->applied[range] = clock;
}

static void on_finished(void *context, uint64_t clock)
{
    struct shard_world *world = context;
    assert_int_equal(clock, world->finished_clock + 1);
    world->finishes++;
    world->finished_clock = clock;
}

/* --- open and close ---------------------------------------------------------------------------------------- */

static void build_table(struct shard_world *world)
{
    const int *lengths = world->setup.lengths ? world->setup.lengths : default_lengths;
    param_table_init(&world->table);
    for (int i = 0, open = 0; lengths[i] != SHARD_WORLD_END; i++) {
        if (!open) {
            assert_true(param_table_add_layer(&world->table) >= 0);
            open = 1;
        }
        if (lengths[i] == SHARD_WORLD_LAYER) {
            open = 0;
            continue;
        }
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        int64_t n = lengths[i] & ~SHARD_WORLD_FROZEN;
        int index = param_table_add(&world->table, name, 1, &n, NULL);
        assert_true(index >= 0);
        world->table.tensors[index].frozen = (lengths[i] & SHARD_WORLD_FROZEN) != 0;
        world->table.tensors[index].no_decay = i % 2;
    }
}

static float noise(struct shard_world *world)
{
    return ((float)shard_world_random(world, 1 << 24) / (1 << 23) - 1) * (float)(1 + shard_world_random(world, 64));
}

static void fill_reference(struct shard_world *world)
{
    size_t n = (size_t)world->table.count + 1;
    world->w = calloc(n, sizeof(float));
    world->sums = calloc(n, sizeof(float));
    world->scratch = calloc(n, sizeof(float));
    world->noise = calloc(n + NOISE_EXTRA, sizeof(float));
    world->applied = calloc((size_t)world->map.ranges_count + 1, sizeof(*world->applied));
    assert_true(world->w && world->sums && world->scratch && world->noise && world->applied);
    for (int s = 0; s < OPTIMIZER_SLOTS_MAX; s++) {
        world->slots[s] = calloc(n, sizeof(float));
        assert_non_null(world->slots[s]);
    }
    for (size_t i = 0; i + 1 < n; i++) {
        world->w[i] = noise(world);
    }
    for (size_t i = 0; i < n + NOISE_EXTRA; i++) {
        world->noise[i] = noise(world);
    }
}

void shard_world_open(struct shard_world *world, const struct shard_world_setup *setup, uint64_t seed, int init)
{
    memset(world, 0, sizeof(*world));
    world->setup = *setup;
    world->random = seed;
    account_init(&world->account);
    build_table(world);
    int64_t message_bytes = setup->message_bytes ? setup->message_bytes : KEY_ELEMENTS * 4;
    struct keymap_layout layout = {.ranks = setup->ranks, .servers = setup->servers ? setup->servers : 1,
                                   .message_bytes = message_bytes, .placement = setup->placement};
    assert_int_equal(keymap_init(&world->map, &world->table, &layout, NULL), 0);
    fill_reference(world);
    assert_int_equal(uv_loop_init(&world->loop), 0);
    world->pool = pool_create(1, setup->threads);
    assert_non_null(world->pool);
    world->options = (struct shard_options){
        .map = &world->map, .server = setup->server, .hold_values = !setup->sums_only,
        .eager = setup->eager, .prescaled = setup->prescaled, .mean = setup->mean,
        .aggregator = setup->aggregator ? aggregator_find(setup->aggregator) : NULL,
        .aggregator_params = {.trim_fraction = setup->trim_fraction},
        .optimizer = optimizer_find(setup->optimizer ? setup->optimizer : "adam"),
        .params = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01, .momentum = setup->momentum},
        .pool = world->pool, .account = &world->account, .loop = &world->loop,
        .ops = {on_added, on_complete, on_trust, on_applied, on_finished, world}};
    assert_int_equal(shard_create(&world->shard, &world->options, NULL), 0);
    for (int r = 0; init && r < world->map.ranges_count; r++) {
        shard_world_init(world, r);
    }
    shard_world_gradients(world);
}

void shard_world_close(struct shard_world *world)
{
    shard_destroy(world->shard);
    assert_int_equal(world->held, 0);
    while (world->tokens) {
        struct shard_world_token *token = world->tokens;
        world->tokens = token->next;
        free(token);
    }
    for (int kind = 0; kind < ACCOUNT_KINDS; kind++) {
        assert_int_equal(world->account.bytes[kind], 0);
    }
    uv_run(&world->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&world->loop), 0);
    pool_destroy(world->pool);
    keymap_close(&world->map);
    param_table_close(&world->table);
    free(world->w);
    free(world->sums);
    free(world->scratch);
    free(world->noise);
    free(world->applied);
    for (int s = 0; s < OPTIMIZER_SLOTS_MAX; s++) {
        free(world->slots[s]);
    }
}

int shard_world_load(struct shard_world *world, const struct shard_world *from, const char *const *paths, int count,
                     uint64_t clock, struct errbuf *err)
{
    size_t bytes = (size_t)world->table.count * sizeof(float);
    assert_int_equal(world->table.count, from->table.count);
    memcpy(world->w, from->w, bytes);
    for (int s = 0; s < OPTIMIZER_SLOTS_MAX; s++) {
        memcpy(world->slots[s], from->slots[s], bytes);
    }
    world->finished_clock = clock;
    return shard_load(world->shard, paths, count, clock, err);
}

/* --- driving ------------------------------------------------------------------------------------------------ */

static int64_t flat(const struct shard_world *world, const struct keymap_range *range)
{
    return world->table.layers[range->layer].offset + range->begin;
}

int shard_world_mine(const struct shard_world *world, int range)
{
    const struct keymap_range *r = &world->map.ranges[range];
    return !r->frozen && (world->setup.server < 0 || r->server == world->setup.server);
}

void shard_world_init(struct shard_world *world, int range)
{
    const struct keymap_range *r = &world->map.ranges[range];
    int mine = world->setup.server < 0 || r->server == world->setup.server;
    assert_int_equal(shard_init_values(world->shard, range, world->w + flat(world, r)), mine ? 0 : STATUS_UNKNOWN);
}

void shard_world_gradients(struct shard_world *world)
{
    for (int rank = 0; rank < world->setup.ranks; rank++) {
        world->g[rank] = world->noise + shard_world_random(world, NOISE_EXTRA);
        world->weight[rank] = world->setup.prescaled ? 1 : (double)shard_world_random(world, 9);
    }
}

int shard_world_push(struct shard_world *world, int range, int rank, uint64_t clock)
{
    const struct keymap_range *r = &world->map.ranges[range];
    size_t bytes = (size_t)keymap_range_elements(r) * sizeof(float);
    size_t shift = (size_t)shard_world_random(world, 9);
    struct buf *message = buf_create(bytes + shift);
    struct shard_world_token *token = calloc(1, sizeof(*token));
    assert_true(message && token);
    *token = (struct shard_world_token){.world = world, .next = world->tokens, .range = range, .rank = rank, .held = 1};
    world->tokens = token;
    world->held++;
    char *data = (char *)message->data + shift;
    if (rank >= 0 && rank < world->setup.ranks) {
        memcpy(data, world->g[rank] + flat(world, r), bytes);
    }
    struct shard_push push = {.range = range, .rank = rank, .clock = clock, .message = message, .token = token,
                              .weight = rank >= 0 && rank < world->setup.ranks ? world->weight[rank] : 1};
    memcpy(&push.data, &(char *){data}, sizeof(push.data));
    int result = shard_push(world->shard, &push);
    buf_release(message);
    if (result != SHARD_TAKEN && result != SHARD_REPEAT_WAITING) {
        assert_int_equal(token->held, 1);
        token->held = 0;
        world->held--;
    }
    return result;
}

void shard_world_push_all(struct shard_world *world, uint64_t clock, const int *order)
{
    for (int i = 0; i < world->setup.ranks; i++) {
        for (int r = 0; r < world->map.ranges_count; r++) {
            if (shard_world_mine(world, r)) {
                assert_int_equal(shard_world_push(world, r, order ? order[i] : i, clock), SHARD_TAKEN);
            }
        }
    }
}

static int is_busy(struct shard *shard)
{
    pthread_mutex_lock(&shard->lock);
    int busy = shard->tasks_running > 0 || shard->done;
    pthread_mutex_unlock(&shard->lock);
    return busy;
}

void shard_world_settle(struct shard_world *world)
{
    while (is_busy(world->shard)) {
        uv_run(&world->loop, UV_RUN_ONCE);
    }
}

/* --- the reference ------------------------------------------------------------------------------------------- */

static float plain_sum(const struct shard_world *world, int layer, int64_t element, int64_t at)
{
    int ranks = world->setup.ranks;
    int weighted = world->setup.mean && !world->setup.prescaled;
    int owner = world->setup.placement == CANONICAL_LAYER
                    ? layer % ranks
                    : canonical_owner(world->table.layers[layer].count, ranks, element);
    float sum = 0;
    for (int turn = 0; turn < ranks; turn++) {
        int rank = (owner + 1 + turn) % ranks;
        float x = world->g[rank][at];
        if (weighted) {
            x = (float)world->weight[rank] * x;
        }
        sum = turn == 0 ? x : sum + x;
    }
    return sum;
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a;
    float y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Median and trimmed mean of the shares that are not empty. */
static float plain_combine(const struct shard_world *world, int64_t at)
{
    float values[SHARD_WORLD_RANKS];
    int n = 0;
    for (int rank = 0; rank < world->setup.ranks; rank++) {
        if (world->weight[rank] > 0) {
            values[n++] = world->g[rank][at];
        }
    }
    qsort(values, (size_t)n, sizeof(float), by_value);
    int median = strcmp(world->setup.aggregator, "median") == 0;
    int trim = median ? (n - 1) / 2 : (int)(world->setup.trim_fraction * n + 1e-9);
    double sum = 0;
    for (int i = trim; i < n - trim; i++) {
        sum += (double)values[i];
    }
    return n == 0 ? 0.0f : (float)(sum / (n - 2 * trim));
}

void shard_world_expect_sums(struct shard_world *world)
{
    for (int l = 0; l < world->table.layer_count; l++) {
        const struct param_layer *layer = &world->table.layers[l];
        for (int64_t e = 0; e < layer->count; e++) {
            int64_t at = layer->offset + e;
            world->sums[at] = world->setup.aggregator ? plain_combine(world, at) : plain_sum(world, l, e, at);
        }
    }
}

struct optimizer_step shard_world_step(const struct shard_world *world, uint64_t t)
{
    double weight = 0;
    for (int rank = 0; rank < world->setup.ranks; rank++) {
        weight += world->weight[rank];
    }
    int divide = world->setup.mean && !world->setup.prescaled;
    return (struct optimizer_step){.lr = 0.01 / (double)t, .t = (int64_t)t, .trust_ratio = 1,
                                   .grad_scale = divide ? (float)(1.0 / weight) : 1.0f};
}

void shard_world_expect_update(struct shard_world *world, const struct optimizer_step *step)
{
    memcpy(world->scratch, world->sums, (size_t)world->table.count * sizeof(float));
    for (int t = 0; t < world->table.tensor_count; t++) {
        const struct param_tensor *tensor = &world->table.tensors[t];
        int64_t at = world->table.layers[tensor->layer].offset + tensor->offset;
        float *slots[OPTIMIZER_SLOTS_MAX];
        for (int s = 0; s < OPTIMIZER_SLOTS_MAX; s++) {
            slots[s] = world->slots[s] + at;
        }
        if (!tensor->frozen) {
            world->options.optimizer->update(&world->options.params, step, !tensor->no_decay, world->w + at,
                                             world->scratch + at, slots, tensor->count);
        }
    }
}

void shard_world_check_values(const struct shard_world *world)
{
    for (int r = 0; r < world->map.ranges_count; r++) {
        const struct keymap_range *range = &world->map.ranges[r];
        if (world->setup.server >= 0 && range->server != world->setup.server) {
            assert_null(shard_share(world->shard, r));
            continue;
        }
        struct buf *got = shard_share(world->shard, r);
        const float *want = (world->setup.sums_only && !range->frozen ? world->sums : world->w) + flat(world, range);
        assert_non_null(got);
        assert_int_equal(got->bytes, keymap_range_elements(range) * 4);
        assert_memory_equal(got->data, want, got->bytes);
        buf_release(got);
    }
}

void shard_world_check_norms(const struct shard_world *world)
{
    const double *squares = NULL;
    const uint8_t *finite = NULL;
    double weight = -1;
    double want_weight = 0;
    int64_t at = 0;
    shard_norms(world->shard, &squares, &finite, &weight);
    for (int r = 0; r < world->map.ranges_count; r++) {
        const struct keymap_range *range = &world->map.ranges[r];
        if (!shard_world_mine(world, r)) {
            continue;
        }
        struct keymap_run *runs = calloc((size_t)range->runs, sizeof *runs);
        keymap_runs(&world->map, range, runs);
        for (int i = 0; i < range->runs; i++, at++) {
            const float *sums = world->sums + world->table.layers[range->layer].offset + runs[i].begin;
            int is_finite = 1;
            double want = reduce_norm_squared(sums, runs[i].end - runs[i].begin, &is_finite);
            want = world->setup.eager ? 0 : want; /* one pass over sum and update leaves none */
            assert_memory_equal(&squares[at], &want, sizeof want);
            assert_int_equal(finite[at], is_finite);
        }
        free(runs);
    }
    assert_int_equal(at, shard_runs(world->shard));
    for (int rank = 0; rank < world->setup.ranks; rank++) {
        want_weight += world->weight[rank];
    }
    assert_true(weight == want_weight);
}

/* --- for the tests ---------------------------------------------------------------------------------------- */

void shard_world_whole_step(struct shard_world *world, uint64_t clock, const int *order)
{
    shard_world_gradients(world);
    struct optimizer_step step = shard_world_step(world, clock);
    shard_next_step(world->shard, &step);
    shard_world_push_all(world, clock, order);
    shard_world_settle(world);
    assert_int_equal(world->complete_clock, clock);
    assert_int_equal(world->held, 0);
    assert_int_equal(shard_held_bytes(world->shard), 0);
    shard_world_expect_sums(world);
    shard_world_check_norms(world);
    assert_int_equal(shard_verdict(world->shard, clock, SHARD_APPLY, &step), 0);
    shard_world_settle(world);
    assert_int_equal(world->finished_clock, clock);
    shard_world_expect_update(world, &step);
    shard_world_check_values(world);
}

int shard_world_range(const struct shard_world *world, int large)
{
    for (int r = 0; r < world->map.ranges_count; r++)
        if (shard_world_mine(world, r) && (keymap_range_elements(&world->map.ranges[r]) * 4 > 32 << 10) == large)
            return r;
    fail();
    return -1;
}
