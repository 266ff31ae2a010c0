/* The update rules once more, in double and straight from the papers: what the fast rows are compared with. */
#ifndef SHOAL_TESTS_OPTIMIZER_TWIN_H
#define SHOAL_TESTS_OPTIMIZER_TWIN_H

#include "optim/optimizer.h"

enum { TWIN_COUNT_MAX = 64 };

/* A whole tensor; a and b are the rule's state, zero at first. */
struct twin_tensor {
    int count;
    double w[TWIN_COUNT_MAX], a[TWIN_COUNT_MAX], b[TWIN_COUNT_MAX];
};

/* One step of the rule called `name`. */
void twin_step(const char *name, const struct optimizer_params *params, const struct optimizer_step *step,
               int decay, struct twin_tensor *tensor, const double *grad);

#endif
