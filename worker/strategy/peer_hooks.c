#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/errbuf.h"
#include "base/status.h"
#include "base/trace.h"
#include "cluster/canonical.h"
#include "cluster/norm_stats.h"
#include "config/job.h"
#include "owner/trust.h"
#include "tensor/reduce.h"
#include "worker/strategy/gather.h"
#include "worker/strategy/peer.h"

enum { COMPUTE_LANE = 0, COMM_LANE = 1, STEP_RANKS_NAMED = 253 /* what a flag of step.h can say */ };

/* --- on the comm thread -------------------------------------------------------------------------------------- */

static void trace_part(const struct peer *peer, int lane, const char *name, int layer, int64_t begin)
{
    trace_add(peer->s->trace, TRACE_COLLECTIVE, lane, name, peer->s->step, layer, begin, clock_now_ns());
}

static int is_eager(const struct peer *peer)
{
    return peer->s->job->parallel.update == JOB_UPDATE_EAGER;
}

/* Says in the flags of runs that are not finite whose contribution was the first that is not. Sources are every rank's in
 * canonical order, or what the ring brought and the own one, which the sum may have overwritten. */
static void name_culprit(struct peer *peer, const struct bucket_segment *at, const struct owned_sources *all)
{
    const struct strategy *s = peer->s;
    int rank = s->rank;
    for (int turn = 0; turn + 1 < all->count && rank == s->rank; turn++) {
        int finite = 1;
        reduce_norm_squared(all->sources[turn], at->end - at->begin, &finite);
        int from_all = all->count == s->world;
        rank = finite ? rank : from_all ? canonical_rank_at(s->world, s->rank, turn) : -1;
    }
    for (int64_t run = at->run_first; run < at->run_first + at->runs; run++) {
        uint8_t *flag = &peer->ballot.finite[run];
        *flag = *flag == 0 && rank >= 0 && rank < STEP_RANKS_NAMED ? (uint8_t)(2 + rank) : *flag;
    }
}

/* The sums of an own segment, for a verdict. */
static void sink_sum(void *context, int segment, const float *const *sources, int sources_count)
{
    struct peer_bucket *bucket = context;
    struct peer *peer = bucket->peer;
    const struct bucket_segment *at = &bucket->segments[segment];
    struct keymap_run range = {.begin = at->begin, .end = at->end, .owner = at->owner, .key = at->key};
    struct owned_sources all = {sources, sources_count};
    struct owned_norms norms = {peer->ballot.squares, peer->ballot.finite};
    owned_sum(peer->s->map, &range, at->run_first, bucket->sum_at[segment], &all, &norms);
    int whole = 1;
    for (int64_t run = at->run_first; run < at->run_first + at->runs; run++) {
        whole &= norms.finite[run] == 1;
    }
    if (!whole) {
        name_culprit(peer, at, &all);
    }
}

/* Eager: updated at once; no norm is taken, as at a server. */
static void sink_update(void *context, int segment, const float *const *sources, int sources_count)
{
    struct peer_bucket *bucket = context;
    struct peer *peer = bucket->peer;
    const struct bucket_segment *at = &bucket->segments[segment];
    struct keymap_run range = {.begin = at->begin, .end = at->end, .owner = at->owner, .key = at->key};
    struct owned_sources all = {sources, sources_count};
    int finite = owned_update_sum(peer->owned, &range, at->layer, &all, &peer->eager);
    for (int64_t run = at->run_first; run < at->run_first + at->runs; run++) {
        peer->ballot.squares[run] = 0;
        peer->ballot.finite[run] = (uint8_t)finite;
    }
    if (!finite) {
        name_culprit(peer, at, &all);
    }
}

int peer_reduce(struct comm_op *op, struct errbuf *err)
{
    struct peer_bucket *bucket = op->context;
    struct peer *peer = bucket->peer;
    int64_t begin = clock_now_ns();
    int status = collective_reduce_scatter(bucket->grads, is_eager(peer) ? sink_update : sink_sum, bucket, err);
    trace_part(peer, COMM_LANE, is_eager(peer) ? "reduce, update" : "reduce", op->layer, begin);
    if (status == 0 && is_eager(peer) && bucket->weights) {
        begin = clock_now_ns();
        status = collective_all_gather(bucket->weights, err);
        trace_part(peer, COMM_LANE, "gather", op->layer, begin);
    }
    return status;
}

int peer_reduce_and_return(struct comm_op *op, struct errbuf *err)
{
    struct peer_bucket *bucket = op->context;
    struct peer *peer = bucket->peer;
    int64_t begin = clock_now_ns();
    int status = collective_reduce_scatter(bucket->grads, sink_sum, bucket, err);
    trace_part(peer, COMM_LANE, "reduce", op->layer, begin);
    begin = clock_now_ns();
    if (status == 0) {
        status = collective_all_gather(bucket->grads, err);
        trace_part(peer, COMM_LANE, "gather", op->layer, begin);
    }
    if (status == 0 && is_eager(peer)) {
        begin = clock_now_ns();
        owned_update(peer->owned, bucket->piece_first, bucket->piece_end, &peer->eager);
        trace_part(peer, COMM_LANE, "update", op->layer, begin);
    }
    return status;
}

/* --- hooks --------------------------------------------------------------------------------------------------- */

int peer_step_begin(struct strategy *s, int64_t step)
{
    struct peer *peer = peer_of(s);
    s->step = step;
    peer->eager = (struct owned_step){.lr = s->next_lr, .t = s->applied + 1, .grad_scale = 1};
    for (int b = 0; b < peer->buckets_count; b++) {
        peer->buckets[b].waiting = peer->buckets[b].bucket.layers;
    }
    return 0;
}

int peer_acquire_whole(struct strategy *s, int layer, enum strategy_pass pass, struct errbuf *err)
{
    struct peer *peer = peer_of(s);
    int b = peer->bucket_of[layer];
    if (b < 0 || pass == STRATEGY_BACKWARD) {
        return 0;
    }
    int status = comm_wait(peer->comm, &peer->buckets[b].values, err);
    /* Eager parameters come with the gradients' op. */
    return status == 0 ? comm_wait(peer->comm, &peer->buckets[b].reduce, err) : status;
}

int peer_acquire_room(struct strategy *s, int layer, struct errbuf *err)
{
    struct peer *peer = peer_of(s);
    int b = peer->bucket_of[layer];
    if (b < 0 || s->g[layer]) {
        return 0;
    }
    struct peer_bucket *bucket = &peer->buckets[b];
    /* Who had the slot before, in this step or (the last buckets) in the step before. */
    for (int other = b % PEER_SLOTS; other < peer->buckets_count; other += PEER_SLOTS) {
        int status = other != b ? comm_wait(peer->comm, &peer->buckets[other].reduce, err) : 0;
        if (status != 0) {
            return status;
        }
    }
    peer_place_gradients(peer, bucket);
    return 0;
}

int peer_acquire_slots(struct strategy *s, int layer, enum strategy_pass pass, struct errbuf *err)
{
    return pass == STRATEGY_BACKWARD ? peer_acquire_room(s, layer, err) : peer_acquire_whole(s, layer, pass, err);
}

void peer_release(struct strategy *s, int layer, enum strategy_pass pass)
{
    (void)s;
    (void)layer;
    (void)pass;
}

int peer_grads_ready(struct strategy *s, int layer, double weight)
{
    struct peer *peer = peer_of(s);
    int b = peer->bucket_of[layer];
    (void)weight; /* the loss was scaled by the whole batch */
    if (b < 0 || --peer->buckets[b].waiting > 0) {
        return 0;
    }
    struct peer_bucket *bucket = &peer->buckets[b];
    for (int l = bucket->bucket.low; peer->slots[0] && l <= bucket->bucket.high; l++) {
        s->g[l] = peer->bucket_of[l] == b ? NULL : s->g[l]; /* gone once it is reduced */
    }
    comm_submit(peer->comm, &bucket->reduce, s->step);
    return 0;
}

int peer_step_sent(struct strategy *s, struct errbuf *err)
{
    (void)s;
    (void)err;
    return 0;
}

static void say_verdict(const struct peer *peer, const struct step_verdict *from, struct strategy_decision *to)
{
    shoal__verdict__init(&to->verdict);
    to->verdict.decision = from->decision == STEP_APPLY ? SHOAL__DECISION__APPLY : SHOAL__DECISION__SKIP;
    to->verdict.grad_scale = from->grad_scale;
    to->verdict.lr = from->lr;
    to->verdict.t = (uint64_t)from->t + (from->decision != STEP_APPLY);
    to->verdict.next_lr = from->next_lr;
    to->grad_norm = is_eager(peer) ? NAN : from->grad_norm;
    to->nonfinite_run = from->nonfinite_run;
    to->nonfinite_rank = from->nonfinite_rank;
    to->stop_job = from->decision == STEP_STOP;
    to->stop_asked = peer->ballot.stop;
    to->ballot = &peer->ballot;
}

int peer_decide(struct strategy *s, const struct ballot_share *mine, const double *statistics,
                struct strategy_decision *decision, struct errbuf *err)
{
    struct peer *peer = peer_of(s);
    peer->ballot.mine = *mine;
    peer->ballot.mine.lr = s->next_lr;
    peer->ballot.mine.next_lr = lr_schedule_at(s->job, s->applied + 2, s->total_steps);
    if (s->statistics > 0) {
        memcpy(peer->ballot.statistics, statistics, (size_t)s->statistics * sizeof(double));
    }
    int status = comm_run(peer->comm, &peer->cast, s->step, err); /* after all buckets of the step */
    if (status == 0) {
        say_verdict(peer, &peer->ballot.verdict, decision);
    }
    return status;
}

int peer_combine(struct strategy *s, int merge, double *values, int64_t count, struct errbuf *err)
{
    struct peer *peer = peer_of(s);
    size_t bytes = (size_t)count * sizeof(double);
    for (int k = 0; k < s->world; k++) {
        peer->combine_offsets[k] = (size_t)k * bytes;
        peer->combine_sizes[k] = bytes;
    }
    memcpy(peer->combined.all + peer->combine_offsets[s->rank], values, bytes);
    int status = comm_run(peer->comm, &peer->combine, s->step, err);
    memset(values, 0, bytes);
    for (int k = 0; k < s->world && status == 0; k++) {
        norm_stats_combine(merge, values, (const double *)(const void *)(peer->combined.all + peer->combine_offsets[k]),
                           count);
    }
    return status;
}

/* lamb's second round: directions, their norms from all ranks, a ratio a tensor. */
static int prepare(struct peer *peer, struct owned_step *step, struct errbuf *err)
{
    const struct strategy *s = peer->s;
    if (!owned_needs_norms(peer->owned)) {
        return 0;
    }
    owned_prepare(peer->owned, step, peer->trust_norms);
    int status = peer->owns_all ? 0 : comm_run(peer->comm, &peer->norms, s->step, err);
    trust_ratios(s->map, peer->trust_norms, peer->ratios);
    step->ratios = peer->ratios;
    return status;
}

static int begin_finish(struct peer *peer, const Shoal__Verdict *verdict)
{
    struct strategy *s = peer->s;
    int applies = verdict->decision == SHOAL__DECISION__APPLY;
    s->steps_done++;
    s->next_lr = verdict->next_lr;
    s->applied += applies;
    peer->applied_here += applies;
    return applies && !is_eager(peer);
}

static struct owned_step rule_of(const Shoal__Verdict *verdict)
{
    return (struct owned_step){.lr = verdict->lr, .t = (int64_t)verdict->t, .grad_scale = verdict->grad_scale};
}

int peer_finish_everything(struct strategy *s, const Shoal__Verdict *verdict, struct errbuf *err)
{
    struct peer *peer = peer_of(s);
    if (!begin_finish(peer, verdict)) {
        return 0;
    }
    struct owned_step step = rule_of(verdict);
    int64_t begin = clock_now_ns();
    int count;
    owned_pieces(peer->owned, &count);
    int status = prepare(peer, &step, err);
    if (status == 0) {
        owned_update(peer->owned, 0, count, &step);
        trace_part(peer, COMPUTE_LANE, "update", -1, begin);
    }
    return status;
}

int peer_finish_parts(struct strategy *s, const Shoal__Verdict *verdict, struct errbuf *err)
{
    struct peer *peer = peer_of(s);
    if (!begin_finish(peer, verdict)) {
        return 0;
    }
    struct owned_step step = rule_of(verdict);
    int status = prepare(peer, &step, err);
    /* What forward needs first goes first. */
    for (int b = peer->buckets_count - 1; b >= 0 && status == 0; b--) {
        struct peer_bucket *bucket = &peer->buckets[b];
        int64_t begin = clock_now_ns();
        owned_update(peer->owned, bucket->piece_first, bucket->piece_end, &step);
        trace_part(peer, COMPUTE_LANE, "update", bucket->bucket.low, begin);
        if (bucket->weights) {
            comm_submit(peer->comm, &bucket->values, s->step);
        }
    }
    return status;
}

int peer_settle(struct strategy *s, struct errbuf *err)
{
    return comm_drain(peer_of(s)->comm, err);
}

int peer_save(struct strategy *s, const char *path, char sha256[65], uint64_t *bytes, struct errbuf *err)
{
    struct peer *peer = peer_of(s);
    struct owned_values values = {s->w, NULL};
    struct owned_file file = {.path = path, .clock = (uint64_t)s->step};
    if (peer->gather) {
        gather_values(peer->gather, &values);
    }
    int status = comm_drain(peer->comm, err);
    if (status == 0) {
        status = owned_save(peer->owned, &values, &file, err);
    }
    memcpy(sha256, file.sha256, sizeof(file.sha256));
    *bytes = file.bytes;
    return status;
}
