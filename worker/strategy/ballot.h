/* The verdict of a ring's step: every rank casts a ballot (what it measured of the sums it owns, its share of the loss, its
 * wishes), all ballots go to all ranks in one small exchange, and every rank comes to the same verdict from them, in order
 * of rank, by common/step. One thread. */
#ifndef SHOAL_STRATEGY_BALLOT_H
#define SHOAL_STRATEGY_BALLOT_H

#include <stddef.h>
#include <stdint.h>

#include "cluster/keymap.h"
#include "step/step.h"

struct collective;
struct errbuf;

struct ballot_options {
    const struct keymap *map; /* runs and their owners; borrowed */
    int rank, world;
    int64_t statistics; /* BatchNorm doubles a rank adds */
    double clip_norm;
    int nonfinite_stop;
};

/* What one rank says. */
struct ballot_share {
    double loss_sum, lr, next_lr; /* lr: of rank 0 only, for t = applied + 1 and the one after */
    int64_t counted, correct, samples;
    int64_t stop; /* 1: this step should be the last */
};

struct ballot {
    struct ballot_options options;
    struct step step;
    double *squares; /* (runs) Σg²: the own ones are written by whoever sums, then all are known */
    uint8_t *finite; /* (runs) 1 finite */
    struct ballot_share mine;
    double *statistics; /* (statistics) of this rank, written by the caller */
    /* after ballot_cast */
    struct step_verdict verdict;
    int stop;                            /* somebody voted for it */
    const struct ballot_share *shares;   /* (world) */
    /* inside */
    struct ballot_span *spans; /* runs by owner */
    int *span_first;           /* (world + 1) */
    int64_t *owner_runs;       /* (world) */
    uint8_t *blobs;
    size_t *offsets, *sizes; /* (world) */
    struct ballot_share *shares_all;
    uint64_t cluster_epoch;
};

/* STATUS_NOMEM. */
int ballot_init(struct ballot *ballot, const struct ballot_options *options, struct errbuf *err);
void ballot_close(struct ballot *ballot);
/* Largest blob a rank sends: what collective_options.blob_bytes_max must allow. Also enough for ballot_norms. */
size_t ballot_bytes_max(const struct keymap *map, int64_t statistics);
/* Exchanges and decides. applied: optimizer steps so far. STATUS_PROTOCOL: the ranks are not at the same step. */
int ballot_cast(struct ballot *ballot, struct collective *group, uint64_t step, int64_t applied, struct errbuf *err);
/* BatchNorm statistics of a rank after ballot_cast: doubles, maybe unaligned. */
const void *ballot_statistics(const struct ballot *ballot, int rank);
/* lamb: (2 x runs) doubles of which the own runs are written: fills in the others'. */
int ballot_norms(struct ballot *ballot, struct collective *group, double *norms, struct errbuf *err);

#endif
