/* The product's own one-process answer: model + optimizer on one thread of control, no network, no servers. The
 * global batch is cut into `groups` shares as workers × accumulate would cut it; their gradients are summed in
 * float32 in order of group. Tests compare every other way of running a job with it. */
#ifndef SHOAL_TESTS_REFERENCE_H
#define SHOAL_TESTS_REFERENCE_H

#include <stdint.h>

#include "base/account.h"
#include "config/job.h"
#include "optim/optimizer.h"
#include "worker/model/model.h"

struct errbuf;

/* Rows in memory; borrowed. labels or targets, as the loss wants. */
struct reference_data {
    const float *x; /* (rows, features) */
    const int32_t *labels;
    const float *targets;
    int64_t rows, features, outputs;
};

struct reference {
    const struct job *job;
    struct reference_data data;
    int groups;
    struct account account;
    struct pool *pool;
    struct model *model;
    const struct optimizer_ops *ops;
    struct optimizer_params params;
    void *plugin;
    float *w, *grad, *part; /* (N): weights, sum, one group's */
    float *slots[OPTIMIZER_SLOTS_MAX];
    double *stats, *merged; /* norm_stats vectors */
    int64_t step, t;        /* done; applied */
    double loss;            /* of the last step, before its update */
    double grad_norm;       /* before clipping */
};

/* A job with the file's defaults: linear, softmax, sgd, constant lr 0.1, batch 1, one epoch. Nothing to free. */
void reference_job(struct job *job);
/* Creates the model with its initial weights. */
int reference_open(struct reference *reference, const struct job *job, const struct reference_data *data,
                   int groups, int threads, struct errbuf *err);
void reference_close(struct reference *reference);
/* One optimizer step on the next batch in file order (last batch of an epoch short). */
int reference_step(struct reference *reference, struct errbuf *err);
int64_t reference_steps_per_epoch(const struct reference *reference);
/* Mean loss over all rows of data in evaluation mode; *correct counts right rows (NULL ok). Blocks of batch_size.
 */
double reference_evaluate(struct reference *reference, const struct reference_data *data, int64_t *correct);
/* First row and number of rows of share `group` of `groups` of `rows`: contiguous, remainders first. */
void reference_share(int64_t rows, int groups, int group, int64_t *first, int64_t *count);

#endif
