#include "worker/strategy/peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/account.h"
#include "base/errbuf.h"
#include "base/status.h"
#include "config/job.h"
#include "worker/strategy/gather.h"

static int no_memory(struct errbuf *err, const char *what)
{
    return errbuf_set(err, STATUS_NOMEM, "out of memory for %s", what);
}

/* --- ballots ------------------------------------------------------------------------------------------------- */

static int run_cast(struct comm_op *op, struct errbuf *err)
{
    struct peer *peer = op->context;
    return ballot_cast(&peer->ballot, peer->s->group, (uint64_t)peer->s->step, peer->s->applied, err);
}

static int run_norms(struct comm_op *op, struct errbuf *err)
{
    struct peer *peer = op->context;
    return ballot_norms(&peer->ballot, peer->s->group, peer->trust_norms, err);
}

static int run_combine(struct comm_op *op, struct errbuf *err)
{
    struct peer *peer = op->context;
    return collective_exchange(peer->s->group, &peer->combined, err);
}

static int open_combine(struct peer *peer, struct errbuf *err)
{
    size_t world = (size_t)peer->s->world;
    peer->combine = (struct comm_op){.run = run_combine, .context = peer, .name = "statistics", .layer = -1};
    peer->combine_offsets = calloc(world, sizeof(size_t));
    peer->combine_sizes = calloc(world, sizeof(size_t));
    peer->combined = (struct collective_blobs){malloc(world * (size_t)peer->s->statistics * sizeof(double) + 1),
                                               peer->combine_offsets, peer->combine_sizes};
    int whole = peer->combine_offsets && peer->combine_sizes && peer->combined.all;
    return whole ? 0 : no_memory(err, "BatchNorm statistics");
}

static int open_ballot(struct peer *peer, struct errbuf *err)
{
    const struct strategy *s = peer->s;
    struct ballot_options options = {.map = s->map, .rank = s->rank, .world = s->world, .statistics = s->statistics,
                                     .clip_norm = s->job->optimizer.clip_norm,
                                     .nonfinite_stop = s->job->optimizer.nonfinite == JOB_NONFINITE_STOP};
    peer->cast = (struct comm_op){.run = run_cast, .context = peer, .name = "ballot", .layer = -1};
    peer->norms = (struct comm_op){.run = run_norms, .context = peer, .name = "trust norms", .layer = -1};
    int status = ballot_init(&peer->ballot, &options, err);
    peer->ballot.cluster_epoch = s->cluster_epoch;
    return status;
}

/* --- set-up --------------------------------------------------------------------------------------------------- */

static int list_buckets(struct peer *peer, struct errbuf *err)
{
    const struct strategy *s = peer->s;
    struct bucket *list = NULL;
    peer->bucket_of = calloc((size_t)s->table->layer_count + 1, sizeof(int));
    if (!peer->bucket_of) {
        return no_memory(err, "buckets");
    }
    int status = bucket_list(s->table, s->job->parallel.bucket_bytes, &list, &peer->buckets_count, peer->bucket_of, err);
    if (status != 0) {
        return status;
    }
    peer->buckets = calloc((size_t)peer->buckets_count + 1, sizeof(*peer->buckets));
    for (int b = 0; peer->buckets && b < peer->buckets_count && status == 0; b++) {
        struct peer_bucket *bucket = &peer->buckets[b];
        int unused;
        bucket->bucket = list[b];
        bucket->peer = peer;
        bucket->index = b;
        snprintf(bucket->name, sizeof(bucket->name), "layers %d-%d", list[b].low, list[b].high);
        owned_layer(peer->owned, list[b].low, &bucket->piece_first, &unused);
        owned_layer(peer->owned, list[b].high, &unused, &bucket->piece_end);
        status = bucket_trainable_segments(s->map, list[b].low, list[b].high, &bucket->segments,
                                           &bucket->segments_count, err);
    }
    free(list);
    return peer->buckets ? status : no_memory(err, "buckets");
}

int peer_open(struct strategy *s, int rank, struct errbuf *err)
{
    struct peer *peer = calloc(1, sizeof(*peer));
    if (!peer) {
        return no_memory(err, "the strategy");
    }
    s->own = peer;
    peer->s = s;
    peer->owns_all = rank < 0;
    /* Eager updates run on the comm thread, while the pool is the trainer's. */
    struct owned_options options = {.job = s->job, .table = s->table, .map = s->map, .account = s->account,
                                    .pool = s->job->parallel.update == JOB_UPDATE_EAGER ? NULL : s->pool,
                                    .rank = rank};
    struct comm_options comm = {s->group, s->client, s->trace};
    int status = strategy_alloc_layers(s, err);
    if (status == 0) {
        status = owned_create(&peer->owned, &options, err);
    }
    if (status == 0) {
        status = list_buckets(peer, err);
    }
    if (status == 0) {
        status = open_ballot(peer, err);
    }
    if (status == 0) {
        status = open_combine(peer, err);
    }
    if (status == 0 && owned_needs_norms(peer->owned)) {
        peer->trust_norms = calloc(2 * (size_t)s->map->runs_count + 1, sizeof(double));
        peer->ratios = calloc((size_t)s->table->tensor_count + 1, sizeof(double));
        status = peer->trust_norms && peer->ratios ? 0 : no_memory(err, "trust norms");
    }
    return status == 0 ? comm_start(&peer->comm, &comm, err) : status;
}

int peer_values_whole(struct peer *peer, struct errbuf *err)
{
    struct strategy *s = peer->s;
    peer->flat = collective_alloc(s->group, ACCOUNT_PARAMETERS, (size_t)s->table->count * sizeof(float));
    if (!peer->flat) {
        return no_memory(err, "the parameters");
    }
    for (int layer = 0; layer < s->table->layer_count; layer++) {
        s->w[layer] = peer->flat + s->table->layers[layer].offset;
    }
    int count;
    struct owned_piece *pieces = owned_pieces(peer->owned, &count);
    for (int p = 0; p < count; p++) {
        pieces[p].w = s->w[pieces[p].layer] + pieces[p].begin;
    }
    return 0;
}

/* Element of a layer's first element in its bucket's memory. */
static int64_t in_bucket(const struct peer *peer, const struct bucket *bucket, int layer)
{
    int64_t at = 0;
    for (int l = bucket->low; l < layer; l++) {
        at += peer->bucket_of[l] == peer->bucket_of[layer] ? peer->s->table->layers[l].count : 0;
    }
    return at;
}

void peer_place_gradients(struct peer *peer, const struct peer_bucket *bucket)
{
    int b = bucket->index;
    for (int l = bucket->bucket.low; l <= bucket->bucket.high; l++) {
        if (peer->bucket_of[l] == b) {
            peer->s->g[l] = bucket->whole + in_bucket(peer, &bucket->bucket, l);
        }
    }
}

int peer_grads_whole(struct peer *peer, struct errbuf *err)
{
    struct strategy *s = peer->s;
    for (int b = 0; b < peer->buckets_count; b++) {
        struct peer_bucket *bucket = &peer->buckets[b];
        bucket->whole =
            collective_alloc(s->group, ACCOUNT_GRADIENTS, (size_t)bucket->bucket.elements * sizeof(float));
        if (!bucket->whole) {
            return no_memory(err, "the gradients");
        }
        peer_place_gradients(peer, bucket);
    }
    int count;
    struct owned_piece *pieces = owned_pieces(peer->owned, &count);
    for (int p = 0; p < count; p++) {
        pieces[p].g = s->g[pieces[p].layer] + pieces[p].begin;
    }
    return 0;
}

int peer_grads_parts(struct peer *peer, struct errbuf *err)
{
    struct strategy *s = peer->s;
    if (s->job->accumulate > 1) {
        return peer_grads_whole(peer, err);
    }
    for (int b = 0; b < peer->buckets_count; b++) {
        int64_t elements = peer->buckets[b].bucket.elements;
        peer->slot_elements = elements > peer->slot_elements ? elements : peer->slot_elements;
    }
    for (int slot = 0; slot < PEER_SLOTS; slot++) {
        peer->slots[slot] =
            collective_alloc(s->group, ACCOUNT_BUFFERS, (size_t)peer->slot_elements * sizeof(float));
        if (!peer->slots[slot]) {
            return no_memory(err, "the gradients on their way");
        }
    }
    peer->sums_elements = owned_elements(peer->owned);
    peer->sums = collective_alloc(s->group, ACCOUNT_GRADIENTS, (size_t)peer->sums_elements * sizeof(float));
    if (!peer->sums) {
        return no_memory(err, "the own gradients");
    }
    for (int b = 0; b < peer->buckets_count; b++) {
        peer->buckets[b].whole = peer->slots[b % PEER_SLOTS];
    }
    int count;
    int64_t at = 0;
    struct owned_piece *pieces = owned_pieces(peer->owned, &count);
    for (int p = 0; p < count; p++) {
        pieces[p].g = peer->sums + at;
        at += pieces[p].end - pieces[p].begin;
    }
    return 0;
}

int peer_is_lean(const struct peer *peer)
{
    const int64_t many_bytes = 64 << 20;
    return peer->gather && peer->s->table->count * (int64_t)sizeof(float) >= many_bytes;
}

/* On the comm thread, as everything that waits for peers: who waits for it hears of the job's end. */
struct planning {
    struct comm_op op;
    struct peer *peer;
    const struct collective_layout *layout;
    struct collective_plan **plan;
};

static int run_planning(struct comm_op *op, struct errbuf *err)
{
    struct planning *planning = op->context;
    return collective_plan_create(planning->plan, planning->peer->s->group, planning->layout, err);
}

int peer_make_plan(struct peer *peer, const struct peer_layout *layout, struct collective_plan **plan,
                   struct errbuf *err)
{
    struct collective_segment *segments = calloc((size_t)layout->count + 1, sizeof(*segments));
    if (!segments) {
        return no_memory(err, "a plan");
    }
    for (int i = 0; i < layout->count; i++) {
        const struct bucket_segment *from = &layout->segments[i];
        segments[i] = (struct collective_segment){.begin = layout->base[from->layer - layout->low] + from->begin,
                                                  .count = (int32_t)(from->end - from->begin), .owner = from->owner};
    }
    struct collective_layout group_layout = {.segments = segments, .segments_count = layout->count,
                                             .whole = layout->whole, .own = layout->own, .name = layout->name,
                                             .lean = layout->lean, .apart = layout->apart};
    struct planning planning = {{.run = run_planning, .context = &planning, .layer = -1}, peer, &group_layout, plan};
    int status = comm_run(peer->comm, &planning.op, peer->s->step, err);
    free(segments);
    return status;
}

/* Where the sum of an own segment goes: into its piece's gradients; ddp has pieces of whole tensors, and everybody's sums
 * in whole. */
static float *sum_place(struct peer *peer, const struct peer_bucket *bucket, const struct bucket_segment *segment)
{
    if (!peer->sums) {
        return bucket->whole + in_bucket(peer, &bucket->bucket, segment->layer) + segment->begin;
    }
    int first;
    int end;
    struct owned_piece *pieces = owned_pieces(peer->owned, &end);
    owned_layer(peer->owned, segment->layer, &first, &end);
    while (first + 1 < end && pieces[first].end <= segment->begin) {
        first++;
    }
    return pieces[first].g + (segment->begin - pieces[first].begin);
}

static int plan_bucket(struct peer *peer, struct peer_bucket *bucket, struct errbuf *err)
{
    const struct strategy *s = peer->s;
    int layers = bucket->bucket.high - bucket->bucket.low + 1;
    int64_t *base = calloc((size_t)layers, sizeof(*base));
    bucket->sum_at = calloc((size_t)bucket->segments_count + 1, sizeof(*bucket->sum_at));
    int status = base && bucket->sum_at ? 0 : no_memory(err, "a plan");
    for (int i = 0; i < layers && status == 0; i++) {
        int layer = bucket->bucket.low + i;
        base[i] = peer->bucket_of[layer] == bucket->index ? in_bucket(peer, &bucket->bucket, layer) : 0;
    }
    for (int i = 0; i < bucket->segments_count && status == 0; i++) {
        if (bucket->segments[i].owner == s->rank) {
            bucket->sum_at[i] = sum_place(peer, bucket, &bucket->segments[i]);
        }
    }
    struct peer_layout layout = {.segments = bucket->segments, .count = bucket->segments_count,
                                 .low = bucket->bucket.low, .base = base, .whole = bucket->whole,
                                 .own = bucket->sum_at, .name = bucket->name,
                                 .lean = peer_is_lean(peer)};
    if (status == 0) {
        status = peer_make_plan(peer, &layout, &bucket->grads, err);
    }
    for (int i = 0; peer->flat && i < layers && status == 0; i++) {
        base[i] = s->table->layers[bucket->bucket.low + i].offset;
    }
    layout.whole = peer->flat;
    layout.own = NULL;
    if (status == 0 && peer->flat) {
        status = peer_make_plan(peer, &layout, &bucket->weights, err);
    }
    free(base);
    return status;
}

static int run_values(struct comm_op *op, struct errbuf *err)
{
    struct peer_bucket *bucket = op->context;
    return collective_all_gather(bucket->weights, err);
}

int peer_plan(struct peer *peer, int (*reduce)(struct comm_op *, struct errbuf *), struct errbuf *err)
{
    int status = 0;
    for (int b = 0; b < peer->buckets_count && status == 0; b++) {
        struct peer_bucket *bucket = &peer->buckets[b];
        bucket->reduce = (struct comm_op){.run = reduce, .context = bucket, .layer = bucket->bucket.low};
        bucket->values = (struct comm_op){.run = run_values, .context = bucket, .name = "gather",
                                          .layer = bucket->bucket.low};
        status = plan_bucket(peer, bucket, err);
    }
    return status;
}

/* --- first values --------------------------------------------------------------------------------------------- */

static int run_gather(struct comm_op *op, struct errbuf *err)
{
    return collective_all_gather(op->context, err);
}

/* An all-gather of one layer outside the books; owner as in bucket_layer_segments. */
static int share_layer(struct peer *peer, int layer, float *w, int owner, struct errbuf *err)
{
    const int64_t base = 0;
    struct bucket_segment *segments = NULL;
    struct collective_plan *plan = NULL;
    struct peer_layout layout = {.low = layer, .base = &base, .whole = w, .name = "first values",
                                 .lean = peer_is_lean(peer), .apart = 1};
    int status = bucket_layer_segments(peer->s->map, layer, owner, &segments, &layout.count, err);
    layout.segments = segments;
    if (status == 0) {
        status = peer_make_plan(peer, &layout, &plan, err);
    }
    struct comm_op op = {.run = run_gather, .context = plan, .name = "first values", .layer = layer};
    if (status == 0) {
        status = comm_run(peer->comm, &op, peer->s->step, err);
    }
    collective_plan_destroy(plan);
    free(segments);
    return status;
}

int peer_broadcast_layer(struct peer *peer, int layer, float *w, const struct strategy_source *first,
                         struct errbuf *err)
{
    int status = first ? first->layer(first->context, layer, w, err) : 0;
    return status == 0 ? share_layer(peer, layer, w, 0, err) : status;
}

int peer_first_values(struct peer *peer, const struct strategy_source *first, struct errbuf *err)
{
    struct strategy *s = peer->s;
    int resumed = s->snapshot_paths_count > 0;
    struct owned_values values = {s->w, NULL};
    int status = resumed ? owned_load(peer->owned, &values, s->snapshot_paths, s->snapshot_paths_count, err) : 0;
    for (int layer = 0; layer < s->table->layer_count && status == 0; layer++) {
        status = resumed ? share_layer(peer, layer, s->w[layer], -1, err)
                         : peer_broadcast_layer(peer, layer, s->w[layer], first, err);
    }
    return status;
}

int peer_start_whole(struct strategy *s, const struct peer_setup *setup, const struct strategy_source *first,
                     struct errbuf *err)
{
    int status = peer_open(s, setup->rank, err);
    status = status == 0 ? peer_values_whole(peer_of(s), err) : status;
    status = status == 0 ? setup->grads(peer_of(s), err) : status;
    status = status == 0 ? peer_plan(peer_of(s), setup->reduce, err) : status;
    return status == 0 ? peer_first_values(peer_of(s), first, err) : status;
}

/* --- closing -------------------------------------------------------------------------------------------------- */

static void close_bucket(struct strategy *s, struct peer_bucket *bucket, int own_memory)
{
    collective_plan_destroy(bucket->grads);
    collective_plan_destroy(bucket->weights);
    if (own_memory) {
        collective_free(s->group, ACCOUNT_GRADIENTS, bucket->whole, (size_t)bucket->bucket.elements * sizeof(float));
    }
    free(bucket->segments);
    free(bucket->sum_at);
}

void peer_close(struct strategy *s)
{
    struct peer *peer = s->own;
    if (peer) {
        comm_stop(peer->comm);
        gather_close(peer->gather);
        for (int b = 0; peer->buckets && b < peer->buckets_count; b++) {
            close_bucket(s, &peer->buckets[b], !peer->sums && !peer->slots[0]);
        }
        for (int slot = 0; slot < PEER_SLOTS; slot++) {
            collective_free(s->group, ACCOUNT_BUFFERS, peer->slots[slot], (size_t)peer->slot_elements * sizeof(float));
        }
        collective_free(s->group, ACCOUNT_GRADIENTS, peer->sums, (size_t)peer->sums_elements * sizeof(float));
        collective_free(s->group, ACCOUNT_PARAMETERS, peer->flat, (size_t)s->table->count * sizeof(float));
        ballot_close(&peer->ballot);
        owned_destroy(peer->owned);
        free(peer->combined.all);
        free(peer->combine_offsets);
        free(peer->combine_sizes);
        free(peer->trust_norms);
        free(peer->ratios);
        free(peer->bucket_of);
        free(peer->buckets);
        free(peer);
    }
    free(s->w);
    free(s->g);
    s->own = NULL;
}
