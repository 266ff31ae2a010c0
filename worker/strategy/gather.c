#include "worker/strategy/gather.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/account.h"
#include "base/errbuf.h"
#include "base/status.h"
#include "config/job.h"

struct gather_layer {
    struct comm_op op;
    struct gather *gather;
    struct collective_plan *training, *apart; /* the same, booked by form or apart */
    struct collective_plan *now;              /* which of them the op runs */
    float *own, *whole;                       /* whole: its slot, or memory of its own when it stays */
    int64_t begin, end;                       /* of the own part */
    int layer, slot;                          /* slot -1: stays whole */
    int coming;                               /* its gather was submitted and it was not released since */
    int64_t gathers;                          /* of the training, submitted */
    char name[24];
};

struct gather {
    struct peer *peer;
    struct gather_layer *layers;
    float **own; /* by layer */
    int64_t *begin;
    float **slots;
    int *slot_user; /* by slot: layer that is in it or on its way, -1 none */
    int slots_count, layers_count, ahead, keep_last;
    int64_t slot_elements;
};

static int run_gather(struct comm_op *op, struct errbuf *err)
{
    return collective_all_gather(((struct gather_layer *)op->context)->now, err);
}

static int stays(const struct strategy *s, int layer)
{
    return s->table->layers[layer].count < s->job->parallel.persistence_threshold;
}

static int no_memory(struct errbuf *err, const char *what)
{
    return errbuf_set(err, STATUS_NOMEM, "out of memory for %s", what);
}

static int alloc_slots(struct gather *gather, struct errbuf *err)
{
    struct strategy *s = gather->peer->s;
    for (int l = 0; l < gather->layers_count; l++) {
        int64_t n = s->table->layers[l].count;
        gather->slot_elements = !stays(s, l) && n > gather->slot_elements ? n : gather->slot_elements;
    }
    gather->ahead = (int)s->job->parallel.prefetch_layers;
    int slots = gather->ahead + 1 < gather->layers_count ? gather->ahead + 1 : gather->layers_count;
    gather->slots = calloc((size_t)slots + 1, sizeof(*gather->slots));
    gather->slot_user = calloc((size_t)slots + 1, sizeof(int));
    if (!gather->slots || !gather->slot_user) {
        return no_memory(err, "gathered layers");
    }
    gather->slots_count = slots;
    gather->ahead = slots > 0 ? slots - 1 : 0;
    for (int slot = 0; slot < slots; slot++) {
        gather->slot_user[slot] = -1;
        gather->slots[slot] =
            collective_alloc(s->group, ACCOUNT_BUFFERS, (size_t)gather->slot_elements * sizeof(float));
        if (!gather->slots[slot]) {
            return no_memory(err, "gathered layers");
        }
    }
    return 0;
}

static int alloc_layer(struct gather *gather, int l, struct errbuf *err)
{
    struct strategy *s = gather->peer->s;
    struct gather_layer *layer = &gather->layers[l];
    int64_t n = s->table->layers[l].count;
    keymap_part(s->map, l, s->rank, &layer->begin, &layer->end);
    layer->gather = gather;
    layer->layer = l;
    layer->slot = stays(s, l) ? -1 : l % gather->slots_count;
    layer->op = (struct comm_op){.run = run_gather, .context = layer, .name = "gather", .layer = l};
    snprintf(layer->name, sizeof(layer->name), "layer %d", l);
    int64_t held = layer->slot < 0 ? n : layer->end - layer->begin;
    float *memory = collective_alloc(s->group, ACCOUNT_PARAMETERS, (size_t)held * sizeof(float));
    if (!memory) {
        return no_memory(err, "the parameters");
    }
    layer->whole = layer->slot < 0 ? memory : gather->slots[layer->slot];
    layer->own = layer->slot < 0 ? memory + layer->begin : memory;
    s->w[l] = layer->slot < 0 ? memory : NULL;
    gather->own[l] = layer->own;
    gather->begin[l] = layer->begin;
    return 0;
}

static int plan_layer(struct gather *gather, struct gather_layer *layer, struct errbuf *err)
{
    const struct strategy *s = gather->peer->s;
    const int64_t base = 0;
    struct bucket_segment *segments = NULL;
    struct peer_layout layout = {.low = layer->layer, .base = &base, .whole = layer->whole, .name = layer->name,
                                 .lean = peer_is_lean(gather->peer)};
    int status = bucket_layer_segments(s->map, layer->layer, -1, &segments, &layout.count, err);
    float **own = calloc((size_t)layout.count + 1, sizeof(*own));
    if (status == 0 && !own) {
        status = no_memory(err, "a plan");
    }
    for (int i = 0; status == 0 && i < layout.count; i++) {
        own[i] = segments[i].owner == s->rank ? layer->own + (segments[i].begin - layer->begin) : NULL;
    }
    layout.segments = segments;
    layout.own = own;
    if (status == 0) {
        status = peer_make_plan(gather->peer, &layout, &layer->training, err);
    }
    layout.apart = 1;
    if (status == 0) {
        status = peer_make_plan(gather->peer, &layout, &layer->apart, err);
    }
    free(own);
    free(segments);
    return status;
}

static void bind_pieces(struct gather *gather)
{
    int count;
    struct owned_piece *pieces = owned_pieces(gather->peer->owned, &count);
    for (int p = 0; p < count; p++) {
        const struct gather_layer *layer = &gather->layers[pieces[p].layer];
        pieces[p].w = layer->own + (pieces[p].begin - layer->begin);
    }
}

int gather_open(struct peer *peer, struct errbuf *err)
{
    const struct strategy *s = peer->s;
    size_t layers = (size_t)s->table->layer_count + 1;
    struct gather *gather = calloc(1, sizeof(*gather));
    if (!gather) {
        return no_memory(err, "gathered layers");
    }
    peer->gather = gather;
    gather->peer = peer;
    gather->keep_last = s->job->parallel.keep_last_layer;
    gather->layers = calloc(layers, sizeof(*gather->layers));
    gather->own = calloc(layers, sizeof(*gather->own));
    gather->begin = calloc(layers, sizeof(*gather->begin));
    if (!gather->layers || !gather->own || !gather->begin) {
        return no_memory(err, "gathered layers");
    }
    gather->layers_count = s->table->layer_count;
    int status = alloc_slots(gather, err);
    for (int l = 0; l < gather->layers_count && status == 0; l++) {
        status = alloc_layer(gather, l, err);
    }
    for (int l = 0; l < gather->layers_count && status == 0; l++) {
        status = plan_layer(gather, &gather->layers[l], err);
    }
    if (status == 0) {
        bind_pieces(gather);
    }
    return status;
}

void gather_close(struct gather *gather)
{
    if (!gather) {
        return;
    }
    struct strategy *s = gather->peer->s;
    for (int l = 0; l < gather->layers_count; l++) {
        struct gather_layer *layer = &gather->layers[l];
        collective_plan_destroy(layer->training);
        collective_plan_destroy(layer->apart);
        int64_t held = layer->slot < 0 ? s->table->layers[l].count : layer->end - layer->begin;
        float *memory = layer->slot < 0 ? layer->whole : layer->own;
        collective_free(s->group, ACCOUNT_PARAMETERS, memory, memory ? (size_t)held * sizeof(float) : 0);
    }
    for (int slot = 0; slot < gather->slots_count; slot++) {
        collective_free(s->group, ACCOUNT_BUFFERS, gather->slots[slot], (size_t)gather->slot_elements * sizeof(float));
    }
    free(gather->slots);
    free(gather->slot_user);
    free(gather->layers);
    free(gather->own);
    free(gather->begin);
    free(gather);
}

void gather_values(const struct gather *gather, struct owned_values *values)
{
    *values = (struct owned_values){gather->own, gather->begin};
}

/* Every rank passes every layer through its slot; what it owns of it stays. */
static int first_layer(struct gather *gather, int l, const struct strategy_source *first, struct errbuf *err)
{
    struct gather_layer *layer = &gather->layers[l];
    int status = peer_broadcast_layer(gather->peer, l, layer->whole, first, err);
    if (status == 0 && layer->slot >= 0) {
        memcpy(layer->own, layer->whole + layer->begin, (size_t)(layer->end - layer->begin) * sizeof(float));
    }
    return status;
}

int gather_first_values(struct peer *peer, const struct strategy_source *first, struct errbuf *err)
{
    struct gather *gather = peer->gather;
    const struct strategy *s = peer->s;
    int resumed = s->snapshot_paths_count > 0;
    struct owned_values values;
    gather_values(gather, &values);
    int status = resumed ? owned_load(peer->owned, &values, s->snapshot_paths, s->snapshot_paths_count, err) : 0;
    for (int l = 0; l < gather->layers_count && status == 0; l++) {
        if (!resumed) {
            status = first_layer(gather, l, first, err);
        } else if (gather->layers[l].slot < 0) {
            gather->layers[l].now = gather->layers[l].apart;
            status = comm_run(peer->comm, &gather->layers[l].op, s->step, err);
        }
    }
    return status;
}

/* 1 when the layer is here or on its way now. */
static int submit(struct gather *gather, int l, enum strategy_pass pass)
{
    struct gather_layer *layer = &gather->layers[l];
    if (layer->coming || layer->slot < 0) {
        return 1;
    }
    if (gather->slot_user[layer->slot] >= 0) {
        return 0;
    }
    gather->slot_user[layer->slot] = l;
    layer->coming = 1;
    layer->now = pass == STRATEGY_EVALUATE ? layer->apart : layer->training;
    layer->gathers += pass != STRATEGY_EVALUATE;
    comm_submit(gather->peer->comm, &layer->op, gather->peer->s->step);
    return 1;
}

static void submit_ahead(struct gather *gather, int l, enum strategy_pass pass)
{
    int way = pass == STRATEGY_BACKWARD ? -1 : 1;
    for (int i = 1; i <= gather->ahead; i++) {
        int next = l + way * i;
        if (next < 0 || next >= gather->layers_count || !submit(gather, next, pass)) {
            return;
        }
    }
}

int gather_acquire(struct strategy *s, int l, enum strategy_pass pass, struct errbuf *err)
{
    struct gather *gather = peer_of(s)->gather;
    struct gather_layer *layer = &gather->layers[l];
    int coming = submit(gather, l, pass);
    assert(coming); /* its slot was released before: the layers are used one after the other */
    (void)coming;
    submit_ahead(gather, l, pass);
    int status = comm_wait(peer_of(s)->comm, &layer->op, err);
    s->w[l] = layer->whole;
    return status == 0 && pass == STRATEGY_BACKWARD ? peer_acquire_room(s, l, err) : status;
}

void gather_release(struct strategy *s, int l, enum strategy_pass pass)
{
    struct gather *gather = peer_of(s)->gather;
    struct gather_layer *layer = &gather->layers[l];
    int last = l == gather->layers_count - 1;
    if (layer->slot < 0 || (last && gather->keep_last && pass == STRATEGY_FORWARD)) {
        return;
    }
    s->w[l] = NULL;
    layer->coming = 0;
    gather->slot_user[layer->slot] = -1;
    if (last && pass == STRATEGY_FORWARD) {
        submit(gather, l, STRATEGY_BACKWARD); /* backward begins with it, after the loss */
    }
}

void gather_updated(struct gather *gather)
{
    for (int l = 0; l < gather->layers_count; l++) {
        struct gather_layer *layer = &gather->layers[l];
        if (layer->slot < 0) {
            layer->now = layer->training;
            layer->gathers++;
            comm_submit(gather->peer->comm, &layer->op, gather->peer->s->step);
        }
    }
}

/* --- closed forms -------------------------------------------------------------------------------------------- */

static int64_t part(const struct gather *gather, int l, int rank)
{
    int64_t begin;
    int64_t end;
    keymap_part(gather->peer->s->map, l, rank, &begin, &end);
    return end - begin;
}

int64_t gather_parameter_bytes(const struct gather *gather)
{
    const struct strategy *s = gather->peer->s;
    int64_t elements = 0;
    for (int l = 0; l < gather->layers_count; l++) {
        elements += stays(s, l) ? s->table->layers[l].count : part(gather, l, s->rank);
    }
    return elements * (int64_t)sizeof(float);
}

/* Gathers of a layer that training should have made. */
static int64_t gathers_due(const struct gather *gather, int l)
{
    const struct strategy *s = gather->peer->s;
    int64_t passes = s->steps_done * s->job->accumulate;
    if (stays(s, l)) {
        return gather->peer->applied_here;
    }
    return l == gather->layers_count - 1 && gather->keep_last ? passes : 2 * passes;
}

static int64_t moved(const struct gather *gather, int missing_rank)
{
    const struct strategy *s = gather->peer->s;
    int64_t elements = 0;
    for (int l = 0; l < gather->layers_count; l++) {
        elements += gathers_due(gather, l) * (s->table->layers[l].count - part(gather, l, missing_rank));
    }
    return elements * (int64_t)sizeof(float);
}

int64_t gather_sent_bytes(const struct gather *gather)
{
    const struct strategy *s = gather->peer->s;
    return moved(gather, (s->rank + 1) % s->world);
}

int64_t gather_received_bytes(const struct gather *gather)
{
    return moved(gather, gather->peer->s->rank);
}

int64_t gather_slot_bytes(const struct gather *gather)
{
    return gather->slots_count * gather->slot_elements * (int64_t)sizeof(float);
}
