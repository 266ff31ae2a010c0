#include "worker/strategy/ballot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "worker/collective/collective.h"

/* Consecutive runs of one owner. */
struct ballot_span {
    int64_t first, count;
};

/* A rank's blob: head, statistics, Σg² of its runs, their finite flags. */
struct ballot_head {
    uint64_t cluster_epoch, step;
    struct ballot_share share;
};

enum { NORMS_A_RUN = 2 };

/* Calls `each` for every run in order; runs of one range lie together in keymap_runs. */
typedef void run_fn(void *context, int owner, int64_t run);
static int for_runs(const struct keymap *map, run_fn *each, void *context)
{
    int most = 1;
    for (int r = 0; r < map->ranges_count; r++) {
        most = map->ranges[r].runs > most ? map->ranges[r].runs : most;
    }
    struct keymap_run *runs = calloc((size_t)most, sizeof(*runs));
    for (int r = 0; runs && r < map->ranges_count; r++) {
        keymap_runs(map, &map->ranges[r], runs);
        for (int i = 0; i < map->ranges[r].runs; i++) {
            each(context, runs[i].owner, map->ranges[r].run_first + i);
        }
    }
    free(runs);
    return runs ? 0 : STATUS_NOMEM;
}

static void count_run(void *context, int owner, int64_t run)
{
    (void)run;
    ((int64_t *)context)[owner]++;
}

struct span_fill {
    struct ballot *ballot;
    int *filled; /* spans so far, by owner */
};

/* First pass (spans NULL) counts the spans of every owner in span_first[owner + 1]. */
static void add_span(void *context, int owner, int64_t run)
{
    struct span_fill *fill = context;
    struct ballot *ballot = fill->ballot;
    int64_t *last = &ballot->owner_runs[ballot->options.world + owner]; /* last run seen, + 1 */
    int joins = *last == run && run > 0;
    *last = run + 1;
    if (!ballot->spans) {
        ballot->span_first[owner + 1] += !joins;
    } else if (joins) {
        ballot->spans[ballot->span_first[owner] + fill->filled[owner] - 1].count++;
    } else {
        ballot->spans[ballot->span_first[owner] + fill->filled[owner]++] = (struct ballot_span){run, 1};
    }
    ballot->owner_runs[owner] += ballot->spans != NULL;
}

static int make_spans(struct ballot *ballot)
{
    int world = ballot->options.world;
    struct span_fill fill = {ballot, calloc((size_t)world, sizeof(int))};
    int status = fill.filled ? for_runs(ballot->options.map, add_span, &fill) : STATUS_NOMEM;
    for (int k = 0; k < world; k++) {
        ballot->span_first[k + 1] += ballot->span_first[k];
        ballot->owner_runs[world + k] = 0;
    }
    if (status == 0) {
        ballot->spans = calloc((size_t)ballot->span_first[world] + 1, sizeof(*ballot->spans));
        status = ballot->spans ? for_runs(ballot->options.map, add_span, &fill) : STATUS_NOMEM;
    }
    free(fill.filled);
    return status;
}

static size_t padded(size_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

static size_t blob_bytes(int64_t runs, int64_t statistics)
{
    return padded(sizeof(struct ballot_head) + (size_t)statistics * sizeof(double) +
                  (size_t)runs * (sizeof(double) + 1));
}

size_t ballot_bytes_max(const struct keymap *map, int64_t statistics)
{
    int64_t *runs = calloc((size_t)map->ranks, sizeof(*runs));
    size_t most = blob_bytes(map->runs_count, statistics);
    if (runs && for_runs(map, count_run, runs) == 0) {
        int64_t highest = 0;
        for (int k = 0; k < map->ranks; k++) {
            highest = runs[k] > highest ? runs[k] : highest;
        }
        most = blob_bytes(highest, statistics);
        size_t norms = (size_t)highest * NORMS_A_RUN * sizeof(double);
        most = norms > most ? norms : most;
    }
    free(runs);
    return most;
}

/* Rank 0's, so that no two ranks' libraries can differ in the last bit of a cosine. */
static double lr_at(const void *context, int64_t t)
{
    const struct ballot *ballot = context;
    return t == ballot->step.applied + 1 ? ballot->shares_all[0].lr : ballot->shares_all[0].next_lr;
}

int ballot_init(struct ballot *ballot, const struct ballot_options *options, struct errbuf *err)
{
    memset(ballot, 0, sizeof(*ballot));
    ballot->options = *options;
    size_t world = (size_t)options->world;
    size_t runs = (size_t)options->map->runs_count;
    ballot->squares = calloc(runs + 1, sizeof(double));
    ballot->finite = calloc(runs + 1, 1);
    ballot->statistics = calloc((size_t)options->statistics + 1, sizeof(double));
    ballot->span_first = calloc(world + 1, sizeof(int));
    ballot->owner_runs = calloc(2 * world, sizeof(int64_t));
    ballot->offsets = calloc(world, sizeof(size_t));
    ballot->sizes = calloc(world, sizeof(size_t));
    ballot->shares = ballot->shares_all = calloc(world, sizeof(*ballot->shares_all));
    size_t room = world * ballot_bytes_max(options->map, options->statistics);
    ballot->blobs = malloc(room);
    if (!ballot->squares || !ballot->finite || !ballot->statistics || !ballot->span_first || !ballot->owner_runs ||
        !ballot->offsets || !ballot->sizes || !ballot->shares_all || !ballot->blobs || make_spans(ballot) != 0) {
        return errbuf_set(err, STATUS_NOMEM, "ballot: out of memory for %zu runs", runs);
    }
    struct step_rules rules = {.owners = options->world, .workers = options->world, .runs = (int64_t)runs,
                               .clip_norm = options->clip_norm, .nonfinite_stop = options->nonfinite_stop,
                               .lr_at = lr_at, .lr_context = ballot};
    int status = step_init(&ballot->step, &rules);
    return status == 0 ? 0 : errbuf_set(err, status, "ballot: no step of %zu runs", runs);
}

void ballot_close(struct ballot *ballot)
{
    step_close(&ballot->step);
    free(ballot->squares);
    free(ballot->finite);
    free(ballot->statistics);
    free(ballot->span_first);
    free(ballot->owner_runs);
    free(ballot->offsets);
    free(ballot->sizes);
    free(ballot->shares_all);
    free(ballot->blobs);
    free(ballot->spans);
    memset(ballot, 0, sizeof(*ballot));
}

static void lay_out(struct ballot *ballot, size_t (*bytes)(const struct ballot *, int64_t runs))
{
    size_t at = 0;
    for (int k = 0; k < ballot->options.world; k++) {
        ballot->offsets[k] = at;
        ballot->sizes[k] = bytes(ballot, ballot->owner_runs[k]);
        at += ballot->sizes[k];
    }
}

static size_t ballot_blob(const struct ballot *ballot, int64_t runs)
{
    return blob_bytes(runs, ballot->options.statistics);
}

static size_t norms_blob(const struct ballot *ballot, int64_t runs)
{
    (void)ballot;
    return (size_t)runs * NORMS_A_RUN * sizeof(double);
}

static void write_mine(struct ballot *ballot, uint64_t step)
{
    const struct ballot_options *o = &ballot->options;
    struct ballot_head head = {ballot->cluster_epoch, step, ballot->mine};
    uint8_t *at = ballot->blobs + ballot->offsets[o->rank];
    memset(at, 0, ballot->sizes[o->rank]);
    memcpy(at, &head, sizeof(head));
    at += sizeof(head);
    memcpy(at, ballot->statistics, (size_t)o->statistics * sizeof(double));
    at += (size_t)o->statistics * sizeof(double);
    uint8_t *flags = at + (size_t)ballot->owner_runs[o->rank] * sizeof(double);
    for (int i = ballot->span_first[o->rank]; i < ballot->span_first[o->rank + 1]; i++) {
        const struct ballot_span *span = &ballot->spans[i];
        memcpy(at, ballot->squares + span->first, (size_t)span->count * sizeof(double));
        memcpy(flags, ballot->finite + span->first, (size_t)span->count);
        at += (size_t)span->count * sizeof(double);
        flags += span->count;
    }
}

const void *ballot_statistics(const struct ballot *ballot, int rank)
{
    return ballot->blobs + ballot->offsets[rank] + sizeof(struct ballot_head);
}

/* Takes rank k's sums into the step. */
static int read_sums(struct ballot *ballot, int k, uint64_t step)
{
    const uint8_t *at = ballot_statistics(ballot, k);
    at += (size_t)ballot->options.statistics * sizeof(double);
    const uint8_t *flags = at + (size_t)ballot->owner_runs[k] * sizeof(double);
    int status = 0;
    for (int i = ballot->span_first[k]; i < ballot->span_first[k + 1] && status >= 0; i++) {
        const struct ballot_span *span = &ballot->spans[i];
        memcpy(ballot->squares + span->first, at, (size_t)span->count * sizeof(double));
        memcpy(ballot->finite + span->first, flags, (size_t)span->count);
        double weight = 0;
        for (int r = 0; r < ballot->options.world; r++) {
            weight += (double)ballot->shares_all[r].samples;
        }
        struct step_sums sums = {.owner = k, .cluster_epoch = ballot->cluster_epoch, .step = step,
                                 .run_first = span->first, .runs = span->count,
                                 .squares = ballot->squares + span->first, .finite = ballot->finite + span->first,
                                 .weight = weight};
        status = step_prepared(&ballot->step, &sums);
        at += (size_t)span->count * sizeof(double);
        flags += span->count;
    }
    return status < 0 ? status : 0;
}

static int read_heads(struct ballot *ballot, uint64_t step, struct errbuf *err)
{
    ballot->stop = 0;
    for (int k = 0; k < ballot->options.world; k++) {
        struct ballot_head head;
        memcpy(&head, ballot->blobs + ballot->offsets[k], sizeof(head));
        if (head.step != step || head.cluster_epoch != ballot->cluster_epoch) {
            return errbuf_set(err, STATUS_PROTOCOL,
                              "rank %d is at step %llu of cluster epoch %llu, rank %d at step %llu of %llu", k,
                              (unsigned long long)head.step, (unsigned long long)head.cluster_epoch,
                              ballot->options.rank, (unsigned long long)step,
                              (unsigned long long)ballot->cluster_epoch);
        }
        ballot->shares_all[k] = head.share;
        ballot->stop |= head.share.stop != 0;
    }
    return 0;
}

int ballot_cast(struct ballot *ballot, struct collective *group, uint64_t step, int64_t applied, struct errbuf *err)
{
    lay_out(ballot, ballot_blob);
    write_mine(ballot, step);
    struct collective_blobs blobs = {ballot->blobs, ballot->offsets, ballot->sizes};
    int status = collective_exchange(group, &blobs, err);
    if (status == 0) {
        status = read_heads(ballot, step, err);
    }
    if (status != 0) {
        return status;
    }
    step_begin(&ballot->step, ballot->cluster_epoch, step, applied);
    for (int k = 0; k < ballot->options.world && status == 0; k++) {
        status = read_sums(ballot, k, step);
    }
    for (int k = 0; k < ballot->options.world && status == 0; k++) {
        status = step_report(&ballot->step, ballot->cluster_epoch, step, k);
    }
    const struct step_verdict *verdict = step_verdict_of(&ballot->step);
    if (status != 0 || !verdict) {
        return errbuf_set(err, status ? status : STATUS_PROTOCOL, "step %llu: the ballots make no verdict",
                          (unsigned long long)step);
    }
    ballot->verdict = *verdict;
    return 0;
}

int ballot_norms(struct ballot *ballot, struct collective *group, double *norms, struct errbuf *err)
{
    const struct ballot_options *o = &ballot->options;
    lay_out(ballot, norms_blob);
    for (int pass = 0; pass < 2; pass++) { /* out into the own blob, then in from all */
        for (int k = pass == 0 ? o->rank : 0; k < (pass == 0 ? o->rank + 1 : o->world); k++) {
            uint8_t *at = ballot->blobs + ballot->offsets[k];
            for (int i = ballot->span_first[k]; i < ballot->span_first[k + 1]; i++) {
                double *of_span = norms + NORMS_A_RUN * ballot->spans[i].first;
                size_t bytes = (size_t)ballot->spans[i].count * NORMS_A_RUN * sizeof(double);
                memcpy(pass == 0 ? (void *)at : (void *)of_span, pass == 0 ? (const void *)of_span : (const void *)at,
                       bytes);
                at += bytes;
            }
        }
        struct collective_blobs blobs = {ballot->blobs, ballot->offsets, ballot->sizes};
        int status = pass == 0 ? collective_exchange(group, &blobs, err) : 0;
        if (status != 0) {
            return status;
        }
    }
    return 0;
}
