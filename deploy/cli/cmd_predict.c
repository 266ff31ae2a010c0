#include <math.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "deploy/cli/command.h"
#include "deploy/cli/scoring.h"
#include "tensor/loss.h"
#include "worker/model/model.h"

struct options {
    struct scoring_args scoring;
};
static const struct arg rows[] = {
    SCORING_ARG_ROWS(options, scoring),
    {"format", ARG_TEXT, offsetof(struct options, scoring.format), "text|csv|json",
     "text (default): class and probability, or the values; csv: with row numbers and a header; json: an object a "
     "row",
     0, 0},
};
static const struct args_table table = {
    "shoal predict MODEL.safetensors --data FILE [options]",
    "Says the class and its probability, or the value, of every row; one line a row.\n"
    "Labels, if there are any, are not used.",
    rows,
    sizeof rows / sizeof *rows,
    1,
    1,
    "a model",
    NULL};

enum format { TEXT, CSV, JSON };
enum { NAME_BYTES = 256 };

static int read_format(const char *text, enum format *format)
{
    static const char *const names[] = {"text", "csv", "json"};
    *format = TEXT;
    for (int i = 0; text && i < 3; i++) {
        if (strcmp(text, names[i]) == 0) {
            *format = (enum format)i;
            return 1;
        }
    }
    return text == NULL;
}

/* RFC 4180. */
static void print_csv_text(const char *text)
{
    if (!strpbrk(text, ",\"\r\n")) {
        fputs(text, stdout);
        return;
    }
    putchar('"');
    for (; *text; text++) {
        if (*text == '"')
            putchar('"');
        putchar(*text);
    }
    putchar('"');
}

static void print_json_text(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            printf("\\%c", *text);
        else if ((unsigned char)*text < 0x20)
            printf("\\u%04x", (unsigned)*text);
        else
            putchar(*text);
    }
    putchar('"');
}

static void print_class(const struct scoring *scoring, enum format format, int64_t row, const float *probabilities,
                        const float *logits)
{
    char name[NAME_BYTES];
    int class_number = scoring_class(scoring, logits);
    double probability = probabilities[class_number];
    scoring_class_text(scoring, class_number, name, sizeof name);
    if (format == TEXT) {
        printf("%s %.6g\n", name, probability);
    } else if (format == CSV) {
        printf("%lld,", (long long)row);
        print_csv_text(name);
        printf(",%.9g\n", probability);
    } else {
        printf("{\"row\":%lld,\"class\":", (long long)row);
        print_json_text(name);
        printf(",\"probability\":%.9g}\n", probability);
    }
}

static void print_json_number(double value)
{
    if (isfinite(value))
        printf("%.9g", value);
    else
        fputs("null", stdout);
}

static void print_values(const struct scoring *scoring, enum format format, int64_t row, const float *values)
{
    const char *between = format == TEXT ? " " : ",";
    if (format == CSV)
        printf("%lld,", (long long)row);
    if (format == JSON)
        printf("{\"row\":%lld,\"value\":%s", (long long)row, scoring->outputs > 1 ? "[" : "");
    for (int64_t k = 0; k < scoring->outputs; k++) {
        fputs(k ? between : "", stdout);
        if (format == JSON)
            print_json_number(values[k]);
        else
            printf("%.9g", values[k]);
    }
    puts(format == JSON ? scoring->outputs > 1 ? "]}" : "}" : "");
}

static void print_row(const struct scoring *scoring, enum format format, int64_t row, const float *logits,
                      float *probabilities)
{
    if (!scoring_is_classes(scoring)) {
        print_values(scoring, format, row, logits);
        return;
    }
    if (scoring->loss == JOB_LOSS_BINARY_CROSS_ENTROPY) {
        double p = 1 / (1 + exp(-(double)logits[0]));
        float both[2] = {(float)(1 - p), (float)p};
        print_class(scoring, format, row, both, logits);
        return;
    }
    softmax_rows(logits, probabilities, 1, scoring->outputs);
    print_class(scoring, format, row, probabilities, logits);
}

static int predict_all(struct scoring *scoring, enum format format, struct errbuf *err)
{
    float *probabilities =
        account_alloc(&scoring->account, ACCOUNT_CONTROL, (size_t)scoring->outputs * sizeof(float));
    int status = probabilities ? 0 : errbuf_set(err, STATUS_NOMEM, "out of memory");
    if (format == CSV)
        puts(scoring_is_classes(scoring) ? "row,class,probability" : "row,value");
    for (int64_t first = 0; first < dataset_rows(scoring->data) && status == 0; first += SCORING_ROWS) {
        status = scoring_block(scoring, first, err);
        for (int64_t i = 0; i < scoring->rows && status == 0; i++)
            print_row(scoring, format, first + i, scoring->logits + i * scoring->outputs, probabilities);
    }
    account_free(&scoring->account, ACCOUNT_CONTROL, probabilities, (size_t)scoring->outputs * sizeof(float));
    if (status == 0 && (fflush(stdout) != 0 || ferror(stdout)))
        status = errbuf_set(err, STATUS_IO, "standard output cannot be written to");
    return status;
}

static int predict(const char *model, const struct options *options)
{
    struct scoring scoring;
    struct errbuf err;
    enum format format;
    errbuf_init(&err);
    if (!read_format(options->scoring.format, &format))
        return command_fail(2, "predict: --format: found \"%.40s\", expected text, csv or json",
                            options->scoring.format);
    int status = scoring_open(&scoring, model, &options->scoring, &err);
    if (status == 0)
        status = predict_all(&scoring, format, &err);
    scoring_close(&scoring);
    return status == 0 ? 0
                       : command_fail(status == STATUS_INVALID || status == STATUS_UNKNOWN ? 2 : 1, "predict: %s",
                                      err.text);
}

static int predict_run(int argc, char **argv)
{
    struct options options = {0};
    struct args_list operands;
    int code = 0;
    if (!command_parse(&table, argc, argv, &options, &operands, &code))
        return code;
    code = predict(operands.items[0], &options);
    args_close(&table, &options, &operands);
    return code;
}

const struct command command_predict = {"predict", "classes or values that a trained model gives to rows of data",
                                        predict_run};
