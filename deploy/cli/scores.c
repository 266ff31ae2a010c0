#include "deploy/cli/scores.h"

#include <math.h>
#include <stdlib.h>

#include "base/status.h"

struct scored {
    double score;
    uint8_t positive;
};

static int by_score(const void *a, const void *b)
{
    double left = ((const struct scored *)a)->score, right = ((const struct scored *)b)->score;
    return (left > right) - (left < right);
}

/* Twice the Mann-Whitney U over sorted rows: a positive counts 2 for every negative below, 1 for every one it ties.
 */
static double twice_u(const struct scored *rows, int64_t count)
{
    double total = 0, negatives_below = 0;
    for (int64_t begin = 0; begin < count;) {
        int64_t end = begin, positives = 0;
        while (end < count && rows[end].score == rows[begin].score)
            positives += rows[end++].positive;
        double negatives = (double)(end - begin - positives);
        total += (double)positives * (2 * negatives_below + negatives);
        negatives_below += negatives;
        begin = end;
    }
    return total;
}

int scores_auc(const double *score, const uint8_t *positive, int64_t count, double *auc)
{
    struct scored *rows = malloc((size_t)count * sizeof *rows + 1);
    double positives = 0;
    int has_nan = 0;
    if (!rows)
        return STATUS_NOMEM;
    for (int64_t i = 0; i < count; i++) {
        rows[i] = (struct scored){score[i], positive[i]};
        positives += positive[i];
        has_nan |= isnan(score[i]) != 0;
    }
    double negatives = (double)count - positives;
    *auc = NAN;
    if (!has_nan && positives > 0 && negatives > 0) {
        qsort(rows, (size_t)count, sizeof *rows, by_score);
        *auc = twice_u(rows, count) / 2 / positives / negatives;
    }
    free(rows);
    return 0;
}

double scores_log_loss(double margin)
{
    return margin > 0 ? log1p(exp(-margin)) : log1p(exp(margin)) - margin;
}

int scores_worst(const int64_t *counts, int classes, struct scores_confusion *worst, int most)
{
    int found = 0;
    for (int truth = 0; truth < classes; truth++) {
        for (int predicted = 0; predicted < classes; predicted++) {
            int64_t count = counts[(int64_t)truth * classes + predicted];
            if (truth == predicted || count == 0 || (found == most && count <= worst[found - 1].count))
                continue;
            int at = found < most ? found++ : most - 1;
            for (; at > 0 && worst[at - 1].count < count; at--)
                worst[at] = worst[at - 1];
            worst[at] = (struct scores_confusion){truth, predicted, count};
        }
    }
    return found;
}
