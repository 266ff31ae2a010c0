/* The step as a transaction, pure: no time, no sockets, no memory beyond its own vectors. Owners say what they have
 * summed, workers that they are through; when all of it is in there is one verdict. The coordinator of a `ps` job feeds
 * it from messages; peers of a ring feed it from a small all-reduce. One thread.
 *
 *            begin             last contribution
 *   IDLE ------------> COLLECTING ------------> DECIDED
 *                       |      ^                   |
 *                 abort |      | begin             | begin (the next step)
 *                       v      |                   |
 *                      ABORTED-+<------------------+ (to COLLECTING)
 *
 * Nothing is updated before the verdict, so an abort loses nothing; after DECIDED a step can not be taken back. */
#ifndef SHOAL_STEP_STEP_H
#define SHOAL_STEP_STEP_H

#include <stdint.h>

enum step_state { STEP_IDLE, STEP_COLLECTING, STEP_DECIDED, STEP_ABORTED, STEP_STATES };

enum step_decision {
    STEP_PENDING,
    STEP_APPLY, /* update with grad_scale, lr, t */
    STEP_SKIP,  /* not finite, or nothing was counted: the step advances, t does not */
    STEP_STOP   /* not finite and the job says stop */
};

/* Constant over a job. Pointers are borrowed. */
struct step_rules {
    int owners, workers;
    int64_t runs;          /* R: of all owners */
    const int *run_owner;  /* (R): who reports a run; NULL: not checked, and nobody is named as missing */
    double clip_norm;      /* 0: none */
    int nonfinite_stop;    /* 1: `nonfinite: stop` */
    int divide;            /* 1: owners hold Σ w·g, the mean is still to be taken (not prescaled, aggregate mean) */
    double (*lr_at)(const void *context, int64_t t); /* lr of applied step t, from 1 */
    const void *lr_context;
};

struct step_verdict {
    enum step_decision decision;
    float grad_scale;  /* clip coefficient · (1/Σw when dividing), in double, rounded once */
    double lr;         /* of this step */
    int64_t t;         /* applied steps with this one */
    double next_lr;    /* of step t + 1 */
    double grad_norm;  /* of the aggregated gradient before clipping; NaN when it is not finite */
    double weight;     /* Σw */
    int64_t nonfinite_run; /* first run that is not finite, or -1 */
    int nonfinite_rank;    /* whose contribution it was, or -1 when not known */
};

struct step {
    struct step_rules rules;
    enum step_state state;
    uint64_t cluster_epoch, step;
    int64_t applied; /* t before this step */
    double *squares; /* (R) Σg² */
    uint8_t *flags;  /* (R) 0 not in yet, 1 finite, 2 not finite, 3 + r not finite by rank r */
    uint8_t *reported; /* (workers) */
    int64_t runs_missing;
    int workers_missing;
    int64_t weight_run; /* lowest run a weight came with; -1 none */
    double weight;
    struct step_verdict verdict;
};

/* What one owner has summed. */
struct step_sums {
    int owner;
    uint64_t cluster_epoch, step;
    int64_t run_first, runs;
    const double *squares;  /* (runs) Σg² */
    const uint8_t *finite;  /* (runs) 1 finite, 0 not, 2 + r: not, first seen in what rank r (< 253) sent */
    double weight;          /* Σ of the shares' weights */
};

/* STATUS_RANGE (owners, workers < 1, runs < 0), STATUS_NOMEM. */
int step_init(struct step *step, const struct step_rules *rules);
void step_close(struct step *step);
/* From IDLE, DECIDED or ABORTED; anything else is a bug. `applied`: optimizer steps so far. A step without runs and
 * all reports in would decide on the first report. */
void step_begin(struct step *step, uint64_t cluster_epoch, uint64_t number, int64_t applied);

/* 0 taken; 1 a repeat, ignored; STATUS_ABORTED another cluster epoch or an aborted step; STATUS_EXISTS a step that is
 * over; STATUS_RANGE a later step, runs out of range; STATUS_DENIED a run of another owner; STATUS_UNKNOWN no such
 * owner or rank. A refusal changes nothing. */
int step_prepared(struct step *step, const struct step_sums *sums);
int step_report(struct step *step, uint64_t cluster_epoch, uint64_t number, int rank);

/* COLLECTING -> ABORTED (0). STATUS_EXISTS when decided: that stands; STATUS_UNKNOWN when nothing was begun. */
int step_abort(struct step *step);
/* NULL unless DECIDED. */
const struct step_verdict *step_verdict_of(const struct step *step);
/* Who a collecting step waits for: 1 when owner's runs or the rank's report are missing. */
int step_owner_missing(const struct step *step, int owner);
int step_worker_missing(const struct step *step, int rank);

/* torch.nn.utils.clip_grad_norm_: min(1, clip / (norm + 1e-6)); 1 when clip is 0. */
double step_clip_coefficient(double clip_norm, double norm);

#endif
