#include "config/option_value.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "config/job.h"
#include "config/option_table.h"
#include "config/utf8.h"

static void *field_of(const struct job *job, size_t offset)
{
    return (char *)(uintptr_t)job + offset;
}

static int refuse(const struct option *option, const char *found, char *why, size_t why_bytes, int status)
{
    char expected[320];
    option_expected(option, expected, sizeof expected);
    if (found && found[0]) {
        snprintf(why, why_bytes, "found \"%.80s\", expected %s", found, expected);
    } else {
        snprintf(why, why_bytes, "found nothing, expected %s", expected);
    }
    return status;
}

static int in_range(const struct option *option, double value)
{
    if (option->flags & OPTION_LOW_OPEN ? !(value > option->low) : !(value >= option->low)) {
        return 0;
    }
    if (option->flags & OPTION_HIGH_OPEN ? !(value < option->high) : !(value <= option->high)) {
        return 0;
    }
    return !(option->multiple > 0) || fmod(value, option->multiple) == 0;
}

/* Decimal digits with an optional minus only: no octal, no hexadecimal, no spaces. */
static int parse_int(const char *text, int64_t *value)
{
    const char *digits = text + (text[0] == '-');
    if (digits[0] == '\0' || strspn(digits, "0123456789") != strlen(digits)) {
        return STATUS_INVALID;
    }
    errno = 0;
    *value = strtoll(text, NULL, 10);
    return errno ? STATUS_RANGE : 0;
}

static int parse_u64(const char *text, uint64_t *value)
{
    int64_t negative;
    if (text[0] == '-') {
        return parse_int(text, &negative) == STATUS_INVALID ? STATUS_INVALID : STATUS_RANGE;
    }
    if (text[0] == '\0' || strspn(text, "0123456789") != strlen(text)) {
        return STATUS_INVALID;
    }
    errno = 0;
    *value = strtoull(text, NULL, 10);
    return errno ? STATUS_RANGE : 0;
}

/* Decimal only: strtod would also take nan, inf and hexadecimal. */
static int parse_float(const char *text, double *value)
{
    char *end;
    if (text[0] == '\0' || strspn(text, "0123456789+-.eE") != strlen(text)) {
        return STATUS_INVALID;
    }
    *value = strtod(text, &end);
    if (*end != '\0' || end == text) {
        return STATUS_INVALID;
    }
    return isfinite(*value) ? 0 : STATUS_RANGE;
}

static int choice_of(const struct option *option, const char *text)
{
    for (int i = 0; option->choices[i]; i++) {
        if (strcmp(option->choices[i], text) == 0) {
            return i;
        }
    }
    return -1;
}

/* A string keeps to one line of valid UTF-8, so that it can be written back, logged and sent. */
static int set_string(char **field, const struct option *option, const char *text, char *why, size_t why_bytes)
{
    if (!utf8_is_line(text)) {
        snprintf(why, why_bytes, "found control characters or invalid UTF-8, expected %s in one line",
                 option_type_text(option->type));
        return STATUS_INVALID;
    }
    if (option->choices && text[0] && choice_of(option, text) < 0) {
        return refuse(option, text, why, why_bytes, STATUS_INVALID);
    }
    char *copy = strdup(text);
    if (!copy) {
        return STATUS_NOMEM;
    }
    free(*field);
    *field = copy;
    return 0;
}

static int set_number(struct job *job, const struct option *option, const char *text, char *why, size_t why_bytes)
{
    void *field = field_of(job, option->offset);
    int64_t integer = 0;
    uint64_t unsigned_integer = 0;
    double number = 0;
    int is_zero_word = option->zero_word && strcmp(text, option->zero_word) == 0;
    int status = 0;
    if (!is_zero_word && option->type == OPTION_INT) {
        status = parse_int(text, &integer);
        number = (double)integer;
    } else if (!is_zero_word && option->type == OPTION_U64) {
        status = parse_u64(text, &unsigned_integer);
    } else if (!is_zero_word) {
        status = parse_float(text, &number);
    }
    if (status == 0 && !is_zero_word && option->type != OPTION_U64 && !in_range(option, number)) {
        status = STATUS_RANGE;
    }
    if (status != 0) {
        return refuse(option, text, why, why_bytes, status);
    }
    if (option->type == OPTION_INT) {
        *(int64_t *)field = integer;
    } else if (option->type == OPTION_U64) {
        *(uint64_t *)field = unsigned_integer;
    } else {
        *(double *)field = number == 0 ? 0 : number; /* no negative zero */
    }
    return 0;
}

/* Enumerations are stored as int; every enum of job.h has that size. */
_Static_assert(sizeof(enum job_data_kind) == sizeof(int), "enumerations are ints");

static int set_word(struct job *job, const struct option *option, const char *text, char *why, size_t why_bytes)
{
    static const char *const truth[] = {"false", "true", NULL};
    int index = -1;
    if (option->type == OPTION_ENUM) {
        index = choice_of(option, text);
    } else {
        for (int i = 0; truth[i]; i++) {
            index = strcmp(text, truth[i]) == 0 ? i : index;
        }
    }
    if (index < 0) {
        return refuse(option, text, why, why_bytes, STATUS_INVALID);
    }
    memcpy(field_of(job, option->offset), &index, sizeof index);
    return 0;
}

static int set_ints(struct job *job, const struct option *option, const struct option_text *value, char *why,
                    size_t why_bytes)
{
    int64_t *items = NULL;
    if (value->count > 0) {
        items = calloc((size_t)value->count, sizeof *items);
        if (!items) {
            return STATUS_NOMEM;
        }
    }
    for (int i = 0; i < value->count; i++) {
        int status = parse_int(value->items[i], &items[i]);
        if (status == 0 && !in_range(option, (double)items[i])) {
            status = STATUS_RANGE;
        }
        if (status != 0) {
            free(items);
            return refuse(option, value->items[i], why, why_bytes, status);
        }
    }
    option_clear(job, option);
    *(int64_t **)field_of(job, option->offset) = items;
    *(int *)field_of(job, option->count_offset) = value->count;
    return 0;
}

static int set_strings(struct job *job, const struct option *option, const struct option_text *value, char *why,
                       size_t why_bytes)
{
    struct job_strings list = {NULL, 0};
    int status = 0;
    if (value->count > 0) {
        list.items = calloc((size_t)value->count, sizeof *list.items);
        if (!list.items) {
            return STATUS_NOMEM;
        }
    }
    for (int i = 0; i < value->count && status == 0; i++) {
        if (value->items[i][0] == '\0') {
            status = refuse(option, "", why, why_bytes, STATUS_INVALID);
        } else {
            status = set_string(&list.items[i], option, value->items[i], why, why_bytes);
        }
        list.count = i + 1;
    }
    if (status != 0) {
        for (int i = 0; i < list.count; i++) {
            free(list.items[i]);
        }
        free(list.items);
        return status;
    }
    option_clear(job, option);
    *(struct job_strings *)field_of(job, option->offset) = list;
    return 0;
}

int option_set(struct job *job, const struct option *option, const struct option_text *value, char *why,
               size_t why_bytes)
{
    int wants_list = option->type == OPTION_INTS || option->type == OPTION_STRINGS;
    if (wants_list != !value->scalar || (!value->scalar && !value->items && value->count)) {
        return refuse(option, value->scalar ? value->scalar : "[...]", why, why_bytes, STATUS_INVALID);
    }
    switch (option->type) {
    case OPTION_STRING:
    case OPTION_PATH:
        return set_string((char **)field_of(job, option->offset), option, value->scalar, why, why_bytes);
    case OPTION_INT:
    case OPTION_U64:
    case OPTION_FLOAT:
        return set_number(job, option, value->scalar, why, why_bytes);
    case OPTION_BOOL:
    case OPTION_ENUM:
        return set_word(job, option, value->scalar, why, why_bytes);
    case OPTION_INTS:
        return set_ints(job, option, value, why, why_bytes);
    case OPTION_STRINGS:
        return set_strings(job, option, value, why, why_bytes);
    case OPTION_TYPES:
        break;
    }
    return STATUS_INVALID;
}

/* Cuts "a, b" or "[a, b]" in place at its commas; *items is owned (the array, not the texts). */
static int split_line(char *line, char ***items, int *count)
{
    size_t length = strlen(line);
    if (length >= 2 && line[0] == '[' && line[length - 1] == ']') {
        line[length - 1] = '\0';
        line++;
    }
    int commas = 0;
    for (const char *c = line; *c; c++) {
        commas += *c == ',';
    }
    *items = calloc((size_t)commas + 1, sizeof **items);
    *count = 0;
    if (!*items) {
        return STATUS_NOMEM;
    }
    if (line[strspn(line, " ")] == '\0') {
        return 0;
    }
    for (char *rest = line; rest;) {
        char *item = strsep(&rest, ",");
        item += strspn(item, " ");
        for (size_t end = strlen(item); end > 0 && item[end - 1] == ' '; end--) {
            item[end - 1] = '\0';
        }
        size_t bytes = strlen(item);
        if (bytes >= 2 && (item[0] == '"' || item[0] == '\'') && item[bytes - 1] == item[0]) {
            item[bytes - 1] = '\0';
            item++;
        }
        (*items)[(*count)++] = item;
    }
    return 0;
}

int option_set_line(struct job *job, const struct option *option, const char *line, char *why, size_t why_bytes)
{
    if (option->type != OPTION_INTS && option->type != OPTION_STRINGS) {
        struct option_text text = {line, NULL, 0};
        return option_set(job, option, &text, why, why_bytes);
    }
    char *copy = strdup(line);
    char **items = NULL;
    int count = 0;
    int status = copy ? split_line(copy, &items, &count) : STATUS_NOMEM;
    if (status == 0) {
        struct option_text text = {NULL, items, count};
        status = option_set(job, option, &text, why, why_bytes);
    }
    free(items);
    free(copy);
    return status;
}

void option_clear(struct job *job, const struct option *option)
{
    void *field = field_of(job, option->offset);
    if (option->type == OPTION_STRING || option->type == OPTION_PATH) {
        free(*(char **)field);
        *(char **)field = NULL;
    } else if (option->type == OPTION_INTS) {
        free(*(int64_t **)field);
        *(int64_t **)field = NULL;
        *(int *)field_of(job, option->count_offset) = 0;
    } else if (option->type == OPTION_STRINGS) {
        struct job_strings *list = field;
        for (int i = 0; i < list->count; i++) {
            free(list->items[i]);
        }
        free(list->items);
        *list = (struct job_strings){NULL, 0};
    }
}

static void write_float(double value, FILE *out)
{
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) {
            break;
        }
    }
    fputs(text, out);
}

static void write_number(const struct option *option, const void *field, FILE *out)
{
    if (option->type == OPTION_U64) {
        fprintf(out, "%" PRIu64, *(const uint64_t *)field);
        return;
    }
    double value = option->type == OPTION_INT ? (double)*(const int64_t *)field : *(const double *)field;
    if (option->zero_word && value == 0) {
        fputs(option->zero_word, out);
    } else if (option->type == OPTION_INT) {
        fprintf(out, "%" PRId64, *(const int64_t *)field);
    } else {
        write_float(value, out);
    }
}

static void write_list(const struct job *job, const struct option *option, FILE *out)
{
    const void *field = field_of(job, option->offset);
    fputc('[', out);
    if (option->type == OPTION_INTS) {
        const int64_t *items = *(int64_t *const *)field;
        int count = *(const int *)field_of(job, option->count_offset);
        for (int i = 0; i < count; i++) {
            fprintf(out, "%s%" PRId64, i ? ", " : "", items[i]);
        }
    } else {
        const struct job_strings *list = field;
        for (int i = 0; i < list->count; i++) {
            fputs(i ? ", " : "", out);
            utf8_write_quoted(list->items[i], out);
        }
    }
    fputc(']', out);
}

void option_write(const struct job *job, const struct option *option, FILE *out)
{
    const void *field = field_of(job, option->offset);
    int index;
    switch (option->type) {
    case OPTION_STRING:
    case OPTION_PATH:
        utf8_write_quoted(*(char *const *)field ? *(char *const *)field : "", out);
        break;
    case OPTION_INT:
    case OPTION_U64:
    case OPTION_FLOAT:
        write_number(option, field, out);
        break;
    case OPTION_BOOL:
        memcpy(&index, field, sizeof index);
        fputs(index ? "true" : "false", out);
        break;
    case OPTION_ENUM:
        memcpy(&index, field, sizeof index);
        fputs(option->choices[index], out);
        break;
    case OPTION_INTS:
    case OPTION_STRINGS:
        write_list(job, option, out);
        break;
    case OPTION_TYPES:
        break;
    }
}

void option_write_text(const struct job *job, const struct option *option, char *out, size_t out_bytes)
{
    char *text = NULL;
    size_t bytes = 0;
    out[0] = '\0';
    FILE *stream = open_memstream(&text, &bytes);
    if (!stream) {
        return;
    }
    option_write(job, option, stream);
    if (fclose(stream) == 0) {
        snprintf(out, out_bytes, "%s", text);
    }
    free(text);
}

/* The field of a text, enum or bool option as a word; needs no memory, so it cannot fail. */
static const char *word_of(const struct job *job, const struct option *option)
{
    const void *field = field_of(job, option->offset);
    int index;
    if (option->type == OPTION_STRING || option->type == OPTION_PATH) {
        return *(char *const *)field ? *(char *const *)field : "";
    }
    memcpy(&index, field, sizeof index);
    return option->type == OPTION_ENUM ? option->choices[index] : index ? "true" : "false";
}

int option_condition_holds(const struct job *job, const char *condition)
{
    if (!condition) {
        return 1;
    }
    char path[OPTION_PATH_MAX];
    size_t length = strcspn(condition, "=");
    snprintf(path, sizeof path, "%.*s", (int)length, condition);
    const struct option *option = option_find(path);
    if (!option) {
        return 0;
    }
    const char *value = word_of(job, option);
    size_t value_length = strlen(value);
    if (condition[length] == '\0') {
        return value_length > 0;
    }
    for (const char *word = condition + length + 1; *word; word += word[0] == '|') {
        size_t word_length = strcspn(word, "|");
        if (word_length == value_length && strncmp(word, value, word_length) == 0) {
            return 1;
        }
        word += word_length;
    }
    return 0;
}

int option_is_default(const struct job *job, const struct option *option)
{
    const char *fallback = option->fallback;
    if (option->kind_fallback) {
        fallback = option->kind_fallback[job->optimizer.kind];
    }
    struct job other;
    char why[8], mine[128], theirs[128];
    memset(&other, 0, sizeof other);
    if (!fallback || option_set_line(&other, option, fallback, why, sizeof why) != 0) {
        return 0;
    }
    option_write_text(job, option, mine, sizeof mine);
    option_write_text(&other, option, theirs, sizeof theirs);
    option_clear(&other, option);
    return strcmp(mine, theirs) == 0;
}
