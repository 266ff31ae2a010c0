/* Measures of predictions against the truth. Pure; any thread. */
#ifndef SHOAL_CLI_SCORES_H
#define SHOAL_CLI_SCORES_H

#include <stdint.h>

/* Area under the ROC curve as the Mann-Whitney statistic, ties at half: the chance that a random positive scores
 * above a random negative. positive[i] is 0 or 1. NaN when a class is absent or a score is NaN. *auc is written;
 * STATUS_NOMEM. */
int scores_auc(const double *score, const uint8_t *positive, int64_t count, double *auc);

/* log(1 + exp(-margin)) without overflow: the log loss of one row, margin being the logit of its true class. */
double scores_log_loss(double margin);

struct scores_confusion {
    int truth, predicted;
    int64_t count;
};
/* counts (classes, classes), row: truth. The up to `most` largest off the diagonal that are not 0, largest first,
 * ties by truth, then predicted. Returns how many. */
int scores_worst(const int64_t *counts, int classes, struct scores_confusion *worst, int most);

#endif
