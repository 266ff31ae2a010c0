#include "worker/strategy/owned.h"

#include <assert.h>
#include <stdlib.h>

#include "base/account.h"
#include "base/errbuf.h"
#include "base/pool.h"
#include "base/status.h"
#include "owner/apply.h"
#include "worker/strategy/owned_internal.h"

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* --- making and unmaking ------------------------------------------------------------------------------ */

void owned_part(const struct owned *owned, int layer, int64_t *begin, int64_t *end)
{
    if (owned->options.rank < 0) {
        *begin = 0;
        *end = owned->options.table->layers[layer].count;
    } else {
        keymap_part(owned->options.map, layer, owned->options.rank, begin, end);
    }
}

/* The trainable tensors' pieces of a layer; with pieces NULL only counts. */
static int cut_layer(const struct owned *owned, int layer, struct owned_piece *pieces)
{
    const struct param_table *table = owned->options.table;
    const struct keymap *map = owned->options.map;
    int64_t part_begin = 0;
    int64_t part_end = 0;
    int count = 0;
    owned_part(owned, layer, &part_begin, &part_end);
    for (int i = 0; i < table->layers[layer].tensor_count; i++) {
        int t = table->layers[layer].tensor_first + i;
        const struct param_tensor *tensor = &table->tensors[t];
        int64_t begin = max_i64(part_begin, tensor->offset);
        int64_t end = min_i64(part_end, tensor->offset + tensor->count);
        if (tensor->frozen || begin >= end) {
            continue;
        }
        if (pieces) {
            int64_t run = keymap_run_at(map, keymap_key_at(map, layer, begin), begin);
            int64_t last = keymap_run_at(map, keymap_key_at(map, layer, end - 1), end - 1);
            pieces[count] = (struct owned_piece){.tensor = t, .layer = layer, .begin = begin, .end = end,
                                                 .run_first = run, .runs = last - run + 1};
        }
        count++;
    }
    return count;
}

/* Pieces, and the keys they touch as units of work. */
static int fill_pieces(struct owned *owned)
{
    const struct param_table *table = owned->options.table;
    const struct keymap *map = owned->options.map;
    owned->layer_first = calloc((size_t)table->layer_count + 1, sizeof(int));
    if (!owned->layer_first) {
        return STATUS_NOMEM;
    }
    for (int layer = 0; layer < table->layer_count; layer++) {
        owned->layer_first[layer + 1] = owned->layer_first[layer] + cut_layer(owned, layer, NULL);
    }
    owned->count = owned->layer_first[table->layer_count];
    owned->pieces = calloc((size_t)owned->count + 1, sizeof(*owned->pieces));
    owned->key_first = calloc((size_t)owned->count + 1, sizeof(int64_t));
    owned->unit_first = calloc((size_t)owned->count + 1, sizeof(int64_t));
    if (!owned->pieces || !owned->key_first || !owned->unit_first) {
        return STATUS_NOMEM;
    }
    for (int layer = 0; layer < table->layer_count; layer++) {
        cut_layer(owned, layer, &owned->pieces[owned->layer_first[layer]]);
    }
    for (int p = 0; p < owned->count; p++) {
        const struct owned_piece *piece = &owned->pieces[p];
        int64_t last = keymap_key_at(map, piece->layer, piece->end - 1);
        owned->key_first[p] = keymap_key_at(map, piece->layer, piece->begin);
        owned->unit_first[p + 1] = owned->unit_first[p] + last - owned->key_first[p] + 1;
        owned->elements += piece->end - piece->begin;
    }
    return 0;
}

static size_t piece_bytes(const struct owned_piece *piece)
{
    return (size_t)(piece->end - piece->begin) * sizeof(float);
}

static int allocate_slots(struct owned *owned)
{
    for (int p = 0; p < owned->count; p++) {
        struct owned_piece *piece = &owned->pieces[p];
        for (int s = 0; s < owned->slots; s++) {
            piece->slots[s] = account_alloc(owned->options.account, ACCOUNT_OPTIMIZER, piece_bytes(piece));
            if (!piece->slots[s]) {
                return STATUS_NOMEM;
            }
        }
    }
    return 0;
}

int owned_create(struct owned **out, const struct owned_options *options, struct errbuf *err)
{
    struct owned *owned = calloc(1, sizeof(*owned));
    if (!owned) {
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    }
    owned->options = *options;
    int status = optimizer_of_job(options->job, &owned->ops, &owned->params, &owned->plugin, err);
    if (status != 0) {
        goto fail;
    }
    owned->slots = owned->ops->slots(&owned->params);
    status = fill_pieces(owned);
    if (status == 0) {
        status = allocate_slots(owned);
    }
    if (status != 0) {
        errbuf_set(err, status, "out of memory for the optimizer's state");
        goto fail;
    }
    *out = owned;
    return 0;

fail:
    owned_destroy(owned);
    return status;
}

void owned_destroy(struct owned *owned)
{
    if (!owned) {
        return;
    }
    for (int p = 0; owned->pieces && p < owned->count; p++) {
        for (int s = 0; s < owned->slots; s++) {
            float *slot = owned->pieces[p].slots[s];
            account_free(owned->options.account, ACCOUNT_OPTIMIZER, slot, slot ? piece_bytes(&owned->pieces[p]) : 0);
        }
    }
    optimizer_unload(owned->plugin);
    free(owned->layer_first);
    free(owned->pieces);
    free(owned->key_first);
    free(owned->unit_first);
    free(owned);
}

struct owned_piece *owned_pieces(struct owned *owned, int *count)
{
    *count = owned->count;
    return owned->pieces;
}

void owned_layer(const struct owned *owned, int layer, int *first, int *end)
{
    *first = owned->layer_first[layer];
    *end = owned->layer_first[layer + 1];
}

int owned_slots(const struct owned *owned)
{
    return owned->slots;
}

int owned_needs_norms(const struct owned *owned)
{
    return owned->ops->prepare != NULL;
}

int64_t owned_elements(const struct owned *owned)
{
    return owned->elements;
}

/* --- updates ------------------------------------------------------------------------------------------ */

/* What one tensor's rule works on. */
struct view {
    struct optimizer_step step;
    struct owner_rule rule;
    float *w, *g;
    float *slots[OPTIMIZER_SLOTS_MAX];
};

static void view_piece(const struct owned *owned, const struct owned_piece *piece, int64_t begin,
                       const struct owned_step *step, struct view *view)
{
    int64_t at = begin - piece->begin;
    view->step = (struct optimizer_step){.lr = step->lr, .t = step->t, .grad_scale = step->grad_scale,
                                         .trust_ratio = step->ratios ? step->ratios[piece->tensor] : 1};
    view->rule = (struct owner_rule){.ops = owned->ops, .params = &owned->params, .step = &view->step,
                                     .decay = !owned->options.table->tensors[piece->tensor].no_decay};
    view->w = piece->w + at;
    view->g = piece->g ? piece->g + at : NULL;
    for (int s = 0; s < owned->slots; s++) {
        view->slots[s] = piece->slots[s] + at;
    }
}

/* A unit of work: what a piece has of one key. */
struct unit {
    const struct owned_piece *piece;
    int64_t key, begin, end;
};

struct work {
    const struct owned *owned;
    const struct owned_step *step;
    int64_t unit_first;
    double *norms;
};

static void find_unit(const struct work *work, int64_t index, struct unit *unit)
{
    const struct owned *owned = work->owned;
    int64_t at = work->unit_first + index;
    int low = 0;
    int high = owned->count;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (owned->unit_first[middle] <= at) {
            low = middle;
        } else {
            high = middle;
        }
    }
    const struct owned_piece *piece = &owned->pieces[low];
    int64_t key = owned->key_first[low] + at - owned->unit_first[low];
    *unit = (struct unit){.piece = piece, .key = key,
                          .begin = max_i64(piece->begin, owned->options.map->keys[key].begin),
                          .end = min_i64(piece->end, owned->options.map->keys[key].end)};
}

static void update_unit(void *context, int64_t index)
{
    const struct work *work = context;
    struct unit unit;
    struct view view;
    find_unit(work, index, &unit);
    view_piece(work->owned, unit.piece, unit.begin, work->step, &view);
    owner_apply(&view.rule, view.w, view.g, view.slots, unit.end - unit.begin);
}

void owned_update(struct owned *owned, int first, int end, const struct owned_step *step)
{
    struct work work = {.owned = owned, .step = step, .unit_first = owned->unit_first[first]};
    pool_for(owned->options.pool, owned->unit_first[end] - work.unit_first, update_unit, &work);
}

int owned_update_sum(struct owned *owned, const struct keymap_run *range, int layer,
                     const struct owned_sources *sources, const struct owned_step *step)
{
    const float *shifted[sources->count];
    int finite = 1;
    assert(!owned->ops->prepare);
    for (int p = owned->layer_first[layer]; p < owned->layer_first[layer + 1]; p++) {
        const struct owned_piece *piece = &owned->pieces[p];
        int64_t begin = max_i64(range->begin, piece->begin);
        int64_t end = min_i64(range->end, piece->end);
        if (begin >= end) {
            continue;
        }
        struct view view;
        view_piece(owned, piece, begin, step, &view);
        for (int s = 0; s < sources->count; s++) {
            shifted[s] = sources->sources[s] + (begin - range->begin);
        }
        finite &= owner_apply_sum(&view.rule, view.w, view.slots, shifted, sources->count, end - begin);
    }
    return finite;
}

static void prepare_unit(void *context, int64_t index)
{
    const struct work *work = context;
    const struct keymap *map = work->owned->options.map;
    struct unit unit;
    find_unit(work, index, &unit);
    for (int64_t at = unit.begin; at < unit.end;) {
        int64_t end = min_i64(keymap_run_end(map, unit.key, at), unit.end);
        double *norms = &work->norms[2 * keymap_run_at(map, unit.key, at)];
        struct view view;
        view_piece(work->owned, unit.piece, at, work->step, &view);
        norms[0] = norms[1] = 0;
        view.rule.ops->prepare(view.rule.params, view.rule.step, view.rule.decay, view.w, view.g, view.slots, end - at,
                               norms);
        at = end;
    }
}

void owned_prepare(struct owned *owned, const struct owned_step *step, double *norms)
{
    struct work work = {.owned = owned, .step = step, .norms = norms};
    pool_for(owned->options.pool, owned->unit_first[owned->count], prepare_unit, &work);
}

/* --- sums --------------------------------------------------------------------------------------------- */

void owned_sum(const struct keymap *map, const struct keymap_run *range, int64_t run_first, float *g,
               const struct owned_sources *sources, const struct owned_norms *norms)
{
    const float *shifted[sources->count];
    int64_t key = range->key;
    int64_t run = run_first;
    for (int64_t at = range->begin; at < range->end;) {
        while (map->keys[key].end <= at) {
            key++;
        }
        int64_t end = min_i64(keymap_run_end(map, key, at), range->end);
        for (int s = 0; s < sources->count; s++) {
            shifted[s] = sources->sources[s] + (at - range->begin);
        }
        if (map->keys[key].run_first >= 0) {
            int finite = 1;
            norms->squares[run] = owner_sum(g + (at - range->begin), shifted, sources->count, end - at, &finite);
            norms->finite[run++] = (uint8_t)finite;
        }
        at = end;
    }
}
