#include "daemon/args.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"

enum { ROWS_MAX = 40, NAME_MAX_BYTES = 48, HELP_CODE = 1000, VERSION_CODE = 1001, ROW_CODE = 2000 };

const char *args_dashes(const struct arg *row)
{
    return row->name[1] == '\0' ? "-" : "--";
}

static int least(int a, int b, int c)
{
    int smaller = a < b ? a : b;
    return smaller < c ? smaller : c;
}

/* Levenshtein's distance of texts shorter than NAME_MAX_BYTES. */
static int distance(const char *a, const char *b)
{
    int row[NAME_MAX_BYTES + 1];
    int columns = (int)strlen(b);
    for (int j = 0; j <= columns; j++)
        row[j] = j;
    for (int i = 0; a[i]; i++) {
        int diagonal = row[0];
        row[0] = i + 1;
        for (int j = 0; j < columns; j++) {
            int above = row[j + 1];
            row[j + 1] = least(above + 1, row[j] + 1, diagonal + (a[i] != b[j]));
            diagonal = above;
        }
    }
    return row[columns];
}

const char *args_nearest(const char *typed, const char *(*at)(const void *table, int i), const void *table,
                         int count)
{
    const char *best = NULL;
    size_t length = strlen(typed);
    int best_distance = length >= 6 ? 4 : 3;
    if (length >= NAME_MAX_BYTES)
        return NULL;
    for (int i = 0; i < count; i++) {
        const char *name = at(table, i);
        int apart = strlen(name) < NAME_MAX_BYTES ? distance(typed, name) : best_distance;
        if (apart < best_distance) {
            best_distance = apart;
            best = name;
        }
    }
    return best;
}

static const char *row_name(const void *rows, int i)
{
    return ((const struct arg *)rows)[i].name;
}

static int refuse_unknown(const struct args_table *table, const char *word, struct errbuf *err)
{
    char name[NAME_MAX_BYTES] = "";
    if (strncmp(word, "--", 2) != 0)
        return errbuf_set(err, STATUS_UNKNOWN, "unknown option %.80s; see --help", word);
    size_t length = strcspn(word + 2, "=");
    if (length < sizeof name)
        memcpy(name, word + 2, length);
    const char *nearest = name[0] ? args_nearest(name, row_name, table->rows, table->count) : NULL;
    if (nearest)
        return errbuf_set(err, STATUS_UNKNOWN, "unknown option --%s; did you mean --%s?", name, nearest);
    return errbuf_set(err, STATUS_UNKNOWN, "unknown option --%.*s; see --help", length < 80 ? (int)length : 80,
                      word + 2);
}

/* "--threads", "-b". */
static const char *option_text(const struct arg *row, char text[NAME_MAX_BYTES + 2])
{
    snprintf(text, NAME_MAX_BYTES + 2, "%s%.*s", args_dashes(row), NAME_MAX_BYTES - 1, row->name);
    return text;
}

static int store_number(const struct arg *row, const char *text, int *out, struct errbuf *err)
{
    char *end = NULL, option[NAME_MAX_BYTES + 2];
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < row->low || value > row->high)
        return errbuf_set(err, STATUS_RANGE, "%s: found \"%.80s\", expected a whole number from %d to %d",
                          option_text(row, option), text, row->low, row->high);
    *out = (int)value;
    return 0;
}

static int append(struct args_list *list, const char *text)
{
    const char **items = realloc(list->items, (size_t)(list->count + 1) * sizeof *items);
    if (!items)
        return STATUS_NOMEM;
    list->items = items;
    items[list->count++] = text;
    return 0;
}

static int store(const struct arg *row, const char *text, void *out, struct errbuf *err)
{
    void *field = (char *)out + row->offset;
    char option[NAME_MAX_BYTES + 2];
    switch (row->type) {
    case ARG_FLAG:
        *(int *)field = 1;
        return 0;
    case ARG_TEXT:
        if (text[0] == '\0')
            return errbuf_set(err, STATUS_INVALID, "%s: found nothing, expected %s", option_text(row, option), row->value);
        *(const char **)field = text;
        return 0;
    case ARG_NUMBER:
        return store_number(row, text, field, err);
    default:
        return append(field, text) == 0 ? 0 : errbuf_set(err, STATUS_NOMEM, "out of memory");
    }
}

static int take_operands(const struct args_table *table, int argc, char **argv, struct args_list *operands,
                         struct errbuf *err)
{
    int given = argc - optind;
    if (given > table->operands_max)
        return errbuf_set(err, STATUS_INVALID, "\"%.200s\" is one too many; usage: %s",
                          argv[optind + table->operands_max], table->usage);
    if (given < table->operands_min)
        return errbuf_set(err, STATUS_INVALID, "%s is missing; usage: %s", table->operand, table->usage);
    for (int i = optind; i < argc; i++) {
        if (append(operands, argv[i]) != 0)
            return errbuf_set(err, STATUS_NOMEM, "out of memory");
    }
    return 0;
}

/* A name of one letter is a short option. The long ones are closed by a row of zeros. */
static void fill_options(const struct args_table *table, struct option *options, char *letters)
{
    letters += sprintf(letters, ":h");
    for (int i = 0; i < table->count; i++) {
        const struct arg *row = &table->rows[i];
        int takes = row->type == ARG_FLAG ? no_argument : required_argument;
        if (row->name[1] == '\0')
            letters += sprintf(letters, "%s%s", row->name, takes == required_argument ? ":" : "");
        else
            *options++ = (struct option){row->name, takes, NULL, ROW_CODE + i};
    }
    *options++ = (struct option){"help", no_argument, NULL, HELP_CODE};
    *options = (struct option){"version", no_argument, NULL, VERSION_CODE};
}

static const struct arg *row_of(const struct args_table *table, int code)
{
    for (int i = 0; i < table->count && code < ROW_CODE; i++) {
        if (table->rows[i].name[0] == code && table->rows[i].name[1] == '\0')
            return &table->rows[i];
    }
    return &table->rows[code - ROW_CODE];
}

int args_parse(const struct args_table *table, int argc, char **argv, void *out, struct args_list *operands,
               struct errbuf *err)
{
    struct option options[ROWS_MAX + 3] = {0};
    char letters[2 * ROWS_MAX + 3];
    *operands = (struct args_list){0};
    if (table->count > ROWS_MAX)
        return errbuf_set(err, STATUS_INVALID, "more than %d options in a table", ROWS_MAX);
    fill_options(table, options, letters);
    optind = 0; /* GNU: start afresh */
    opterr = 0;
    for (;;) {
        int word = optind > 0 ? optind : 1;
        int code = getopt_long(argc, argv, letters, options, NULL);
        if (code == -1)
            return take_operands(table, argc, argv, operands, err);
        if (code == 'h' || code == HELP_CODE)
            return ARGS_HELP;
        if (code == VERSION_CODE)
            return ARGS_VERSION;
        if (code == ':')
            return errbuf_set(err, STATUS_INVALID, "%.80s: a value is missing; see --help", argv[optind - 1]);
        if (code == '?') {
            /* A long option was taken whole; of a cluster of short ones the word may still be current. */
            const char *at_fault = optind > word || optopt == 0 ? argv[optind - 1] : argv[word];
            if (optopt >= HELP_CODE && strchr(at_fault, '='))
                return errbuf_set(err, STATUS_INVALID, "%.80s: this option takes no value", at_fault);
            return refuse_unknown(table, at_fault, err);
        }
        int status = store(row_of(table, code), optarg, out, err);
        if (status != 0)
            return status;
    }
}

void args_close(const struct args_table *table, void *out, struct args_list *operands)
{
    for (int i = 0; i < table->count; i++) {
        if (table->rows[i].type == ARG_LIST) {
            struct args_list *list = (struct args_list *)(void *)((char *)out + table->rows[i].offset);
            free(list->items);
            *list = (struct args_list){0};
        }
    }
    free(operands->items);
    *operands = (struct args_list){0};
}
