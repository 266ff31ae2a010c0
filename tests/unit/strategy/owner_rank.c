#include "owner_rank.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/pool.h"

static int kind_of(const struct optimizer_ops *ops)
{
    int kind = 0;
    while (optimizer_at(kind) != ops) {
        assert_non_null(optimizer_at(kind));
        kind++;
    }
    return kind;
}

static void fill_job(struct job *job, const struct shard_options *options)
{
    const struct optimizer_params *p = &options->params;
    job->optimizer.kind = (enum job_optimizer_kind)kind_of(options->optimizer);
    job->optimizer.beta1 = p->beta1;
    job->optimizer.beta2 = p->beta2;
    job->optimizer.eps = p->eps;
    job->optimizer.weight_decay = p->weight_decay;
    job->optimizer.momentum = p->momentum;
}

int64_t owner_rank_flat(const struct owner_rank *rank, int layer, int64_t element)
{
    return rank->world->table.layers[layer].offset + element;
}

static void pack_layer(struct owner_rank *rank, int layer)
{
    const struct shard_world *world = rank->world;
    rank->end[layer] = world->table.layers[layer].count;
    if (rank->rank >= 0) {
        keymap_part(&world->map, layer, rank->rank, &rank->begin[layer], &rank->end[layer]);
    }
    size_t count = (size_t)(rank->end[layer] - rank->begin[layer]);
    if (count > 0) {
        rank->w[layer] = malloc(count * sizeof(float));
        rank->g[layer] = calloc(count, sizeof(float));
        assert_true(rank->w[layer] && rank->g[layer]);
        memcpy(rank->w[layer], world->w + owner_rank_flat(rank, layer, rank->begin[layer]), count * sizeof(float));
    }
}

void owner_rank_open(struct owner_rank *rank, struct shard_world *world, int number, int threads)
{
    size_t layers = (size_t)world->table.layer_count + 1;
    memset(rank, 0, sizeof *rank);
    rank->world = world;
    rank->rank = number;
    rank->pool = pool_create(threads, 0);
    rank->w = calloc(layers, sizeof *rank->w);
    rank->g = calloc(layers, sizeof *rank->g);
    rank->begin = calloc(layers, sizeof *rank->begin);
    rank->end = calloc(layers, sizeof *rank->end);
    assert_true(rank->pool && rank->w && rank->g && rank->begin && rank->end);
    fill_job(&rank->job, &world->options);
    struct owned_options options = {.job = &rank->job, .table = &world->table, .map = &world->map,
                                    .account = &world->account, .pool = rank->pool, .rank = number};
    assert_int_equal(owned_create(&rank->owned, &options, NULL), 0);
    rank->pieces = owned_pieces(rank->owned, &rank->count);
    for (int layer = 0; layer < world->table.layer_count; layer++) {
        pack_layer(rank, layer);
    }
    for (int p = 0; p < rank->count; p++) {
        struct owned_piece *piece = &rank->pieces[p];
        piece->w = rank->w[piece->layer] + (piece->begin - rank->begin[piece->layer]);
        piece->g = rank->g[piece->layer] + (piece->begin - rank->begin[piece->layer]);
    }
    rank->values = (struct owned_values){.w = rank->w, .w_begin = rank->begin};
}

void owner_rank_close(struct owner_rank *rank)
{
    owned_destroy(rank->owned);
    pool_destroy(rank->pool);
    for (int layer = 0; layer < rank->world->table.layer_count; layer++) {
        free(rank->w[layer]);
        free(rank->g[layer]);
    }
    free(rank->w);
    free(rank->g);
    free(rank->begin);
    free(rank->end);
}

void owner_rank_take_sums(struct owner_rank *rank)
{
    for (int layer = 0; layer < rank->world->table.layer_count; layer++) {
        if (rank->g[layer]) {
            memcpy(rank->g[layer], rank->world->sums + owner_rank_flat(rank, layer, rank->begin[layer]),
                   (size_t)(rank->end[layer] - rank->begin[layer]) * sizeof(float));
        }
    }
}

void owner_rank_check(const struct owner_rank *rank, const float *w)
{
    for (int p = 0; p < rank->count; p++) {
        const struct owned_piece *piece = &rank->pieces[p];
        assert_memory_equal(piece->w, w + owner_rank_flat(rank, piece->layer, piece->begin),
                            (size_t)(piece->end - piece->begin) * sizeof(float));
    }
}
