/* A shard: what one owner holds (values, gradient sums, optimizer state, the clock of every range) and what it does to
 * them. Servers hold the ranges of their rank; a worker that updates itself (update_at: worker) holds all of them.
 *
 * A range's life in one step (clock c = its finished steps + 1):
 *
 *    idle --push--> summing --all turns taken--> complete --verdict apply--> applying --> idle (clock c finished)
 *      ^               |                            |   \--verdict skip-----------------> idle (clock c finished)
 *      |               +---------- abort -----------+
 *      +------------------------------------------------ (contributions are pushed again)
 *
 * lamb goes from complete to prepared (its direction is known, its norms are reported) and applies when the tensors' trust
 * ratios come.
 *
 * Contributions are taken run by run in canonical turn; one that comes early waits, holding its message, and is given
 * back (`added`) when it has been taken everywhere. Arithmetic runs on pool threads, one task a range at a time;
 * everything else, callbacks included, on the loop thread that called shard_create. */
#ifndef SHOAL_OWNER_SHARD_H
#define SHOAL_OWNER_SHARD_H

#include <stdint.h>
#include <uv.h>

#include "base/buf.h"
#include "cluster/keymap.h"
#include "optim/optimizer.h"
#include "owner/aggregator.h"

struct account;
struct errbuf;
struct pool;
struct trace;

struct shard_ops {
    /* A push's token comes back once: its contribution is part of the sums (status 0), or was dropped (STATUS_ABORTED). */
    void (*added)(void *context, void *token, int status);
    /* Every trainable range has all contributions of this clock. */
    void (*complete)(void *context, uint64_t clock);
    /* lamb: every range's direction is ready, shard_trust_norms may be sent. */
    void (*trust)(void *context, uint64_t clock);
    /* range (index in the keymap) finished clock: pulls of it may go out. */
    void (*applied)(void *context, int range, uint64_t clock);
    /* All ranges finished clock. */
    void (*finished)(void *context, uint64_t clock);
    void *context;
};

struct shard_options {
    const struct keymap *map; /* borrowed */
    int server;               /* whose ranges; -1: all */
    int hold_values;          /* 0 with update_at: worker at a server: sums only */
    int eager;                /* update: eager */
    int prescaled;            /* 1: no division by Σw */
    int mean;                 /* aggregate: mean */
    const struct shoal_aggregator *aggregator; /* NULL: sum in canonical order */
    struct aggregator_params aggregator_params;
    const struct optimizer_ops *optimizer;
    struct optimizer_params params;
    struct pool *pool;
    struct account *account;
    struct trace *trace; /* NULL ok */
    uv_loop_t *loop;
    struct shard_ops ops;
};

struct shard;
int shard_create(struct shard **shard, const struct shard_options *options, struct errbuf *err);
/* Waits for tasks under way; tokens still held are given back with STATUS_CLOSED first. Takes NULL. The loop must run once
 * more for the async handle to close. */
void shard_destroy(struct shard *shard);

enum shard_push_result {
    SHARD_TAKEN,          /* token comes back through `added` */
    SHARD_REPEAT_DONE,    /* taken before: acknowledge at once */
    SHARD_REPEAT_WAITING, /* held already: the old token came back with STATUS_BUSY, this one replaces it */
};
struct shard_push {
    int range; /* index in the keymap, of this shard, trainable */
    int rank;
    uint64_t clock;
    double weight;
    struct buf *message; /* shared while held */
    const float *data;   /* the range's floats inside message; copied when not aligned to 4 bytes */
    void *token;
};
/* Before the first values a push is held. STATUS_UNKNOWN (range not here or frozen), STATUS_RANGE (a clock beyond the
 * next). */
int shard_push(struct shard *shard, const struct shard_push *push);

/* First values of a range (clock 0). 0; 1: it has them, nothing was changed; STATUS_UNKNOWN (not here), STATUS_NOMEM. */
int shard_init_values(struct shard *shard, int range, const float *data);
/* 1 when every range has its values. */
int shard_has_values(const struct shard *shard);

/* lr and t of the coming step, for update: eager; before that step's first push and its predecessor's verdict. */
void shard_next_step(struct shard *shard, const struct optimizer_step *step);
enum shard_decision { SHARD_APPLY, SHARD_SKIP, SHARD_ABORT };
/* The verdict of clock; a repeat or an older clock is ignored. grad_scale is in step. STATUS_RANGE: not complete, or a later
 * clock. An abort waits for tasks under way; with `eager` every verdict only lets the next clock begin. */
int shard_verdict(struct shard *shard, uint64_t clock, enum shard_decision decision, const struct optimizer_step *step);

/* Clock a range has finished. */
uint64_t shard_clock(const struct shard *shard, int range);
/* What a pull of the range sends: values (or sums with hold_values 0, from `applied` until every rank has pushed for the
 * next clock: contributions wait that long); shared, never written while somebody else holds a reference. NULL before INIT
 * and while the next ones are made: `applied` says when they are there. */
struct buf *shard_share(const struct shard *shard, int range);

/* Norms of the complete step (0 in eager mode, which does not measure them): Σg² and finite byte (step.h) of each run, in
 * this shard's range order; arrays of `shard_runs` entries, borrowed until the next step. weight: Σ of the shares'. */
int64_t shard_runs(const struct shard *shard);
void shard_norms(const struct shard *shard, const double **squares, const uint8_t **finite, double *weight);

/* lamb: Σw² and Σu² of every run, 2 x shard_runs doubles; and the answer: one trust ratio a tensor of the table, copied. A
 * repeat is ignored; STATUS_RANGE when nothing waits for it. */
const double *shard_trust_norms(const struct shard *shard);
int shard_trust_ratios(struct shard *shard, uint64_t clock, const double *ratios);

/* Held and idle memory of contributions that wait, bytes now. */
int64_t shard_held_bytes(const struct shard *shard);

/* Snapshot of the state at rest (no step in its apply phase) into one safetensors file, and back. */
int shard_save(const struct shard *shard, const char *path, uint64_t clock, char sha256_hex[65], uint64_t *bytes,
               struct errbuf *err);
/* Loads what this shard needs from any number of such files (any S, P, message_bytes). STATUS_FORMAT naming what is
 * missing. */
int shard_load(struct shard *shard, const char *const *paths, int paths_count, uint64_t clock, struct errbuf *err);
#endif
