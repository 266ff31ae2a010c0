/* Small models for the tests of room `model`: made data, a model with its parameters, one forward and backward. */
#ifndef SHOAL_TESTS_MODEL_FIXTURE_H
#define SHOAL_TESTS_MODEL_FIXTURE_H

#include <stdint.h>

#include "base/account.h"
#include "config/job.h"
#include "worker/model/model.h"

enum { FIXTURE_ROWS = 13, FIXTURE_FEATURES = 5, FIXTURE_OUTPUTS = 3 };

struct fixture {
    struct job job;
    int64_t hidden[2];
    struct account account;
    struct model *model;
    float *w, *grad; /* (N) */
    float x[FIXTURE_ROWS * FIXTURE_FEATURES];
    int32_t labels[FIXTURE_ROWS];
    float targets[FIXTURE_ROWS * FIXTURE_OUTPUTS]; /* 0 or 1 for binary, else reals */
};

/* The job of an mlp 5-7-6-3, tanh, no norm, no dropout; change it before fixture_open. */
void fixture_job(struct fixture *fixture);
/* Creates the model with `pool` and its initial weights. */
void fixture_open(struct fixture *fixture, struct pool *pool);
void fixture_close(struct fixture *fixture);
/* Rows [first, first + rows) as one training micro-batch of step 3. */
struct model_batch fixture_batch(const struct fixture *fixture, int64_t first, int64_t rows);
/* Forward of all layers and the loss sum. */
double fixture_loss(struct fixture *fixture, const struct model_batch *batch, struct model_reducer *reducer);
/* The same, then backward into grad. */
double fixture_gradient(struct fixture *fixture, const struct model_batch *batch, int accumulate,
                        struct model_reducer *reducer);

#endif
