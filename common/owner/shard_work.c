#include "owner/shard_internal.h"

#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/trace.h"
#include "cluster/canonical.h"
#include "owner/apply.h"
#include "tensor/reduce.h"

enum { SOURCES_MAX = 64, LOUD_RANKS = 253 };

int64_t shard_range_bytes(const struct shard_range *range)
{
    return keymap_range_elements(range->range) * (int64_t)sizeof(float);
}

int shard_make_sole(struct buf **buf, int copy)
{
    if (buf_is_sole(*buf)) {
        return 0;
    }
    struct buf *fresh = buf_create((*buf)->bytes);
    if (!fresh) {
        return STATUS_NOMEM;
    }
    if (copy) {
        memcpy(fresh->data, (*buf)->data, fresh->bytes);
    }
    buf_release(*buf);
    *buf = fresh;
    return 0;
}

static int decays(const struct shard_range *range, const struct keymap_run *run)
{
    const struct keymap *map = range->shard->options.map;
    return !map->table->tensors[map->keys[run->key].tensor].no_decay;
}

/* One run's slices of what the range holds, and the rule for them. */
struct run_view {
    struct optimizer_step step;
    struct owner_rule rule;
    float *w, *sums;
    float *slots[OPTIMIZER_SLOTS_MAX];
    int64_t count;
};

static void view_run(const struct shard_range *range, int r, struct run_view *view)
{
    const struct shard *shard = range->shard;
    const struct keymap_run *run = &range->runs[r];
    int64_t at = run->begin - range->range->begin;
    view->step = range->step;
    if (shard->ratios) {
        view->step.trust_ratio = shard->ratios[shard->options.map->keys[run->key].tensor];
    }
    view->rule = (struct owner_rule){.ops = shard->options.optimizer, .params = &shard->options.params,
                                     .step = &view->step, .decay = decays(range, run)};
    view->w = range->values ? (float *)range->values->data + at : NULL;
    view->sums = (float *)range->sums->data + at;
    view->count = run->end - run->begin;
    for (int s = 0; s < shard->slots; s++) {
        view->slots[s] = range->slots[s] + at;
    }
}

static void update_run(struct shard_range *range, int r)
{
    struct run_view view;
    view_run(range, r, &view);
    owner_apply(&view.rule, view.w, view.sums, view.slots, view.count);
}

/* lamb: the direction goes into the sums' place, its norms into the run's. */
static void prepare_run(struct shard_range *range, int r)
{
    struct run_view view;
    double norms[2] = {0, 0};
    view_run(range, r, &view);
    view.rule.ops->prepare(view.rule.params, view.rule.step, view.rule.decay, view.w, view.sums, view.slots, view.count,
                           norms);
    range->trust_norms[2 * r] = norms[0];
    range->trust_norms[2 * r + 1] = norms[1];
}

static double weight_of(const struct shard_range *range)
{
    double weight = 0;
    for (int rank = 0; rank < range->shard->options.map->ranks; rank++) {
        weight += range->contributions[rank].weight;
    }
    return weight;
}

static void begin_eager(struct shard_range *range)
{
    const struct shard_options *options = &range->shard->options;
    range->step = range->shard->next_step;
    range->step.grad_scale = options->mean && !options->prescaled ? (float)(1.0 / weight_of(range)) : 1.0f;
}

/* The first of `taken` contributions, from turn `first` on, that is not finite, as a finite byte (step.h): 2 + its rank,
 * or 0 when only their sum is too large. */
static uint8_t find_loud(const struct shard_range *range, int r, const float *const *sources, int first, int taken)
{
    const struct keymap_run *run = &range->runs[r];
    for (int i = 0; i < taken; i++) {
        int rank = canonical_rank_at(range->shard->options.map->ranks, run->owner, first + i);
        int finite = 1;
        reduce_norm_squared(sources[i], run->end - run->begin, &finite);
        if (!finite && rank < LOUD_RANKS) {
            return (uint8_t)(2 + rank);
        }
    }
    return 0;
}

/* After some of the turns: the norm of the sum so far, and when it is not finite whose contribution spoiled it, which is
 * looked for while it is still here. */
static void measure_run(struct shard_range *range, int r, const float *const *sources, int first, int taken)
{
    const struct keymap_run *run = &range->runs[r];
    const float *sums = (float *)range->sums->data + (run->begin - range->range->begin);
    int finite = 1;
    if (first == 0) {
        range->finite[r] = 1;
    }
    if (range->finite[r] != 1) {
        return;
    }
    range->squares[r] = reduce_norm_squared(sums, run->end - run->begin, &finite);
    if (!finite) {
        range->finite[r] = find_loud(range, r, sources, first, taken);
    }
}

static void apply_eagerly(struct shard_range *range, int r)
{
    const struct shard_options *options = &range->shard->options;
    if (options->eager && options->hold_values && range->finite[r] == 1) {
        begin_eager(range);
        update_run(range, r);
        range->squares[r] = 0; /* as in one pass: a norm must not depend on arrival */
    }
}

/* All turns of a run are taken and measured: in eager mode its update, while it is in the cache. */
static void finish_run(struct shard_range *range, int r)
{
    range->runs_left--;
    apply_eagerly(range, r);
}

/* The same with every contribution of a run here, eager: sum and update in one pass; nobody asks for the norm. */
static void take_all_eagerly(struct shard_range *range, int r, const float *const *sources)
{
    int ranks = range->shard->options.map->ranks;
    struct run_view view;
    begin_eager(range);
    view_run(range, r, &view);
    int finite = owner_apply_sum(&view.rule, view.w, view.slots, sources, ranks, view.count);
    range->finite[r] = finite ? 1 : find_loud(range, r, sources, 0, ranks);
    range->squares[r] = 0;
    range->runs_left--;
}

/* Every contribution of a run is here at its first turn: one pass for the sum and its norm. */
static void take_all(struct shard_range *range, int r, const float *const *sources)
{
    int ranks = range->shard->options.map->ranks;
    int finite = 1;
    if (range->shard->options.eager && range->updates) {
        take_all_eagerly(range, r, sources);
        return;
    }
    float *sums = (float *)range->sums->data + (range->runs[r].begin - range->range->begin);
    range->squares[r] = owner_sum(sums, sources, ranks, range->runs[r].end - range->runs[r].begin, &finite);
    range->finite[r] = finite ? 1 : find_loud(range, r, sources, 0, ranks);
    finish_run(range, r);
}

static const float *contribution_run(const struct shard_range *range, int rank, const struct keymap_run *run)
{
    return range->contributions[rank].data + (run->begin - range->range->begin);
}

/* A weight other than 1 multiplies the share where a mean or a sum of unscaled gradients is wanted. */
static int is_weighted(const struct shard_range *range, int rank)
{
    return !range->shard->options.prescaled && range->shard->options.mean && range->contributions[rank].weight != 1;
}

static void take_one_weighted(struct shard_range *range, float *sums, const float *source, int turn, int rank,
                              int64_t count)
{
    float weight = (float)range->contributions[rank].weight;
    for (int64_t i = 0; i < count; i++) {
        float x = weight * source[i];
        sums[i] = turn == 0 ? x : sums[i] + x;
    }
}

/* Takes the contributions whose turn it is, as many in a row as are here. */
static void take_turns(struct shard_range *range, int r)
{
    const struct keymap_run *run = &range->runs[r];
    int ranks = range->shard->options.map->ranks;
    int64_t count = run->end - run->begin;
    float *sums = (float *)range->sums->data + (run->begin - range->range->begin);
    int turn = range->turn[r];
    while (turn < ranks) {
        const float *sources[SOURCES_MAX];
        int first = turn;
        int taken = 0;
        int rank = canonical_rank_at(ranks, run->owner, turn);
        while (turn < ranks && taken < SOURCES_MAX && range->visible[rank] && !is_weighted(range, rank)) {
            sources[taken++] = contribution_run(range, rank, run);
            range->contributions[rank].runs_taken++;
            rank = canonical_rank_at(ranks, run->owner, ++turn);
        }
        if (taken == ranks) {
            take_all(range, r, sources);
            range->turn[r] = (uint16_t)turn;
            return;
        }
        if (taken > 0) {
            reduce_add_many(sums, sources, taken, first == 0, count);
            measure_run(range, r, sources, first, taken);
        } else if (range->visible[rank] && turn < ranks) {
            sources[0] = contribution_run(range, rank, run);
            take_one_weighted(range, sums, sources[0], turn, rank, count);
            measure_run(range, r, sources, first, 1);
            range->contributions[rank].runs_taken++;
            turn++;
        } else {
            break;
        }
    }
    if (range->turn[r] < ranks && turn == ranks) {
        range->turn[r] = (uint16_t)turn;
        finish_run(range, r);
    }
    range->turn[r] = (uint16_t)turn;
}

/* median, trimmed_mean, plug-ins: all shares at once, when the last is here. */
static void combine_all(struct shard_range *range)
{
    const struct shard_options *options = &range->shard->options;
    int ranks = options->map->ranks;
    const float *shares[ranks];
    double weights[ranks];
    for (int rank = 0; rank < ranks; rank++) {
        if (!range->visible[rank]) {
            return;
        }
        shares[rank] = range->contributions[rank].data;
        weights[rank] = range->contributions[rank].weight;
    }
    options->aggregator->combine(&options->aggregator_params, shares, weights, ranks, range->sums->data,
                                 keymap_range_elements(range->range));
    for (int rank = 0; rank < ranks; rank++) {
        range->contributions[rank].runs_taken = range->range->runs;
    }
    for (int r = 0; r < range->range->runs; r++) {
        const float *sources[ranks];
        for (int turn = 0; turn < ranks; turn++) {
            sources[turn] = contribution_run(range, canonical_rank_at(ranks, range->runs[r].owner, turn), &range->runs[r]);
        }
        measure_run(range, r, sources, 0, ranks);
        range->turn[r] = (uint16_t)ranks;
        finish_run(range, r);
    }
}

static int prepare_buffers(struct shard_range *range)
{
    if (range->work == WORK_SUM && shard_make_sole(&range->sums, 1) != 0) {
        return STATUS_NOMEM;
    }
    if (range->updates && shard_make_sole(&range->values, 1) != 0) {
        return STATUS_NOMEM;
    }
    return 0;
}

static void take_contributions(struct shard_range *range)
{
    if (range->shard->options.aggregator) {
        combine_all(range);
        return;
    }
    for (int r = 0; r < range->range->runs; r++) {
        take_turns(range, r);
    }
}

void shard_work_run(struct shard_range *range)
{
    static const char *const names[] = {[WORK_SUM] = "sum", [WORK_PREPARE] = "prepare", [WORK_APPLY] = "apply"};
    int64_t begin = clock_now_ns();
    range->out_of_memory = prepare_buffers(range) != 0;
    if (range->out_of_memory) {
        return;
    }
    if (range->work == WORK_SUM) {
        take_contributions(range);
    }
    for (int r = 0; range->work != WORK_SUM && r < range->range->runs; r++) {
        if (range->work == WORK_APPLY) {
            update_run(range, r);
        } else {
            prepare_run(range, r);
        }
    }
    trace_add(range->shard->options.trace, TRACE_APPLY, 2, names[range->work], (int64_t)range->clock + 1,
              range->range->layer, begin, clock_now_ns());
}
