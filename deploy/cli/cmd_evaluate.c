#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "deploy/cli/command.h"
#include "deploy/cli/scores.h"
#include "deploy/cli/scoring.h"

struct options {
    struct scoring_args scoring;
};
static const struct arg rows[] = {SCORING_ARG_ROWS(options, scoring)};
static const struct args_table table = {
    "shoal evaluate MODEL.safetensors --data FILE [options]",
    "Loss and accuracy, the confusion matrix and the three worst confusions; for two classes AUC and log loss;\n"
    "for values the root of the mean squared error.",
    rows,
    sizeof rows / sizeof *rows,
    1,
    1,
    "a model",
    NULL};

enum { MATRIX_CLASSES_MAX = 40, WORST = 3, NAME_BYTES = 64, NAME_COLUMN = 12 };

struct tally {
    int64_t rows, counted, correct;
    double loss, square, log_loss;
    int classes;        /* 0: values */
    int64_t *confusion; /* (classes, classes) */
    double *score;      /* two classes: how much class 1 is preferred, of the counted rows */
    uint8_t *positive;
    int64_t scored;
};

static int open_tally(struct tally *tally, const struct scoring *scoring, struct errbuf *err)
{
    *tally = (struct tally){.rows = dataset_rows(scoring->data)};
    if (!scoring_is_classes(scoring))
        return 0;
    tally->classes = scoring->loss == JOB_LOSS_BINARY_CROSS_ENTROPY ? 2 : (int)scoring->outputs;
    size_t cells = (size_t)tally->classes * (size_t)tally->classes;
    tally->confusion = calloc(cells, sizeof *tally->confusion);
    if (tally->classes == 2) {
        tally->score = malloc((size_t)tally->rows * sizeof *tally->score + 1);
        tally->positive = malloc((size_t)tally->rows + 1);
    }
    if (!tally->confusion || (tally->classes == 2 && (!tally->score || !tally->positive)))
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    return 0;
}

static void close_tally(struct tally *tally)
{
    free(tally->confusion);
    free(tally->score);
    free(tally->positive);
}

/* -1: no label. */
static int true_class(const struct scoring *scoring, int64_t i)
{
    if (scoring->loss != JOB_LOSS_BINARY_CROSS_ENTROPY)
        return scoring->labels[i];
    return isnan(scoring->targets[i]) ? -1 : scoring->targets[i] > 0.5f;
}

static void count_class(struct tally *tally, const struct scoring *scoring, int64_t i)
{
    const float *logits = scoring->logits + i * scoring->outputs;
    int truth = true_class(scoring, i);
    if (truth < 0 || truth >= tally->classes)
        return;
    tally->confusion[(int64_t)truth * tally->classes + scoring_class(scoring, logits)]++;
    if (tally->classes != 2)
        return;
    double preferred = scoring->outputs == 1 ? (double)logits[0] : (double)logits[1] - (double)logits[0];
    tally->score[tally->scored] = preferred;
    tally->positive[tally->scored++] = (uint8_t)truth;
    tally->log_loss += scores_log_loss(truth ? preferred : -preferred);
}

static void count_values(struct tally *tally, const struct scoring *scoring, int64_t i)
{
    for (int64_t k = 0; k < scoring->outputs; k++) {
        double target = scoring->targets[i * scoring->outputs + k];
        double error = (double)scoring->logits[i * scoring->outputs + k] - target;
        tally->square += isnan(target) ? 0 : error * error / (double)scoring->outputs;
    }
}

static int count_all(struct tally *tally, struct scoring *scoring, struct errbuf *err)
{
    int status = 0;
    for (int64_t first = 0; first < tally->rows && status == 0; first += SCORING_ROWS) {
        status = scoring_block(scoring, first, err);
        tally->loss += scoring->loss_sum;
        tally->counted += scoring->counted;
        tally->correct += scoring->correct;
        for (int64_t i = 0; i < scoring->rows && status == 0; i++)
            (tally->classes ? count_class : count_values)(tally, scoring, i);
    }
    return status;
}

/* --- what is printed ---------------------------------------------------------------------------------------- */

static void print_matrix(const struct tally *tally, const struct scoring *scoring)
{
    char name[NAME_BYTES];
    if (tally->classes > MATRIX_CLASSES_MAX) {
        printf("confusion matrix of %d classes: too wide to print\n", tally->classes);
        return;
    }
    printf("confusion matrix (line: true class, column: predicted)\n%*s", NAME_COLUMN, "");
    for (int c = 0; c < tally->classes; c++) {
        scoring_class_text(scoring, c, name, sizeof name);
        printf(" %*.*s", NAME_COLUMN, NAME_COLUMN, name);
    }
    putchar('\n');
    for (int truth = 0; truth < tally->classes; truth++) {
        scoring_class_text(scoring, truth, name, sizeof name);
        printf("%-*.*s", NAME_COLUMN, NAME_COLUMN, name);
        for (int c = 0; c < tally->classes; c++)
            printf(" %*" PRId64, NAME_COLUMN, tally->confusion[(int64_t)truth * tally->classes + c]);
        putchar('\n');
    }
}

static void print_worst(const struct tally *tally, const struct scoring *scoring)
{
    struct scores_confusion worst[WORST];
    char truth[NAME_BYTES], predicted[NAME_BYTES];
    int found = scores_worst(tally->confusion, tally->classes, worst, WORST);
    for (int i = 0; i < found; i++) {
        scoring_class_text(scoring, worst[i].truth, truth, sizeof truth);
        scoring_class_text(scoring, worst[i].predicted, predicted, sizeof predicted);
        printf("confused: %s taken for %s, %" PRId64 " times\n", truth, predicted, worst[i].count);
    }
}

static int print_tally(const struct tally *tally, const struct scoring *scoring, struct errbuf *err)
{
    double counted = (double)tally->counted, auc = NAN;
    printf("rows %" PRId64 ", with a label %" PRId64 "\nloss %.9g\n", tally->rows, tally->counted,
           tally->loss / counted);
    if (tally->classes == 0) {
        printf("rmse %.9g\n", sqrt(tally->square / counted));
        return 0;
    }
    printf("accuracy %.2f%% (%" PRId64 " of %" PRId64 ")\n", 100 * (double)tally->correct / counted, tally->correct,
           tally->counted);
    if (tally->classes == 2) {
        if (scores_auc(tally->score, tally->positive, tally->scored, &auc) != 0)
            return errbuf_set(err, STATUS_NOMEM, "out of memory");
        if (isnan(auc))
            puts("auc undefined: it needs rows of both classes");
        else
            printf("auc %.9g\n", auc);
        printf("log loss %.9g\n", tally->log_loss / counted);
    }
    print_matrix(tally, scoring);
    print_worst(tally, scoring);
    return 0;
}

static int evaluate_data(struct scoring *scoring, struct errbuf *err)
{
    struct tally tally;
    int status = open_tally(&tally, scoring, err);
    if (status == 0 && !dataset_has_labels(scoring->data))
        status = errbuf_set(err, STATUS_INVALID, "the data has no labels to compare with");
    if (status == 0)
        status = count_all(&tally, scoring, err);
    if (status == 0 && tally.counted == 0)
        status = errbuf_set(err, STATUS_SHAPE, "no row has a label");
    if (status == 0)
        status = print_tally(&tally, scoring, err);
    close_tally(&tally);
    return status;
}

static int evaluate(const char *model, const struct options *options)
{
    struct scoring scoring;
    struct errbuf err;
    errbuf_init(&err);
    int status = scoring_open(&scoring, model, &options->scoring, &err);
    if (status == 0)
        status = evaluate_data(&scoring, &err);
    scoring_close(&scoring);
    return status == 0 ? 0
                       : command_fail(status == STATUS_INVALID || status == STATUS_UNKNOWN ? 2 : 1, "evaluate: %s",
                                      err.text);
}

static int evaluate_run(int argc, char **argv)
{
    struct options options = {0};
    struct args_list operands;
    int code = 0;
    if (!command_parse(&table, argc, argv, &options, &operands, &code))
        return code;
    code = evaluate(operands.items[0], &options);
    args_close(&table, &options, &operands);
    return code;
}

const struct command command_evaluate = {"evaluate", "how well a trained model does on labelled data",
                                         evaluate_run};
