/* The libsvm (svmlight) text format: `label index:value index:value ... # comment`, indices ascending, from 1
 * unless data.index_base is 0. Blank lines and comment lines are read over; a bare label is a row of zeros; `qid:N`
 * is read over and counted. */
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "worker/data/loader.h"
#include "worker/data/number.h"
#include "worker/data/source.h"

struct libsvm {
    const struct loader_input *input;
    struct loader_rows *rows;
    struct errbuf *err;
    const char *name;
    locale_t c_locale;
    int64_t line;
    int64_t limit;  /* features a row may have; 0: learn */
    int64_t widest; /* columns seen */
    int64_t entries, entry_capacity, row_capacity;
};

static int out_of_memory(const struct libsvm *svm)
{
    return errbuf_set(svm->err, STATUS_NOMEM, "%s: line %lld: out of memory", svm->name, (long long)svm->line);
}

static int is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

/* The next token of the line, or NULL; *at moves behind it. */
static const char *next_token(const char **at, const char *end, size_t *count)
{
    const char *p = *at;
    while (p < end && is_blank(*p))
        p++;
    const char *token = p;
    while (p < end && !is_blank(*p))
        p++;
    *at = p;
    *count = (size_t)(p - token);
    return p > token ? token : NULL;
}

static int token_error(const struct libsvm *svm, const char *token, size_t count, const char *reason)
{
    char quoted[48];
    return errbuf_set(svm->err, STATUS_FORMAT, "%s: line %lld: \"%s\" %s", svm->name, (long long)svm->line,
                      number_quote(token, count, quoted), reason);
}

static int read_index(const struct libsvm *svm, const char *token, size_t digits, int64_t *index)
{
    *index = 0;
    for (size_t i = 0; i < digits; i++) {
        if (token[i] < '0' || token[i] > '9' || *index > INT32_MAX)
            return STATUS_FORMAT;
        *index = *index * 10 + (token[i] - '0');
    }
    return digits > 0 && *index - svm->input->index_base < INT32_MAX ? 0 : STATUS_FORMAT;
}

/* index is as in the file. */
static int check_index(const struct libsvm *svm, int64_t index)
{
    int64_t base = svm->input->index_base;
    if (index < base)
        return errbuf_set(svm->err, STATUS_RANGE,
                          "%s: line %lld: index %lld, but indices start at %lld (data.index_base: 0 if this file "
                          "counts from 0)",
                          svm->name, (long long)svm->line, (long long)index, (long long)base);
    if (svm->limit > 0 && index - base >= svm->limit)
        return errbuf_set(svm->err, STATUS_RANGE,
                          "%s: line %lld: index %lld, but there are %lld features (%lld..%lld)", svm->name,
                          (long long)svm->line, (long long)index, (long long)svm->limit, (long long)base,
                          (long long)(svm->limit - 1 + base));
    int64_t row_first = svm->rows->sparse_first[svm->rows->rows];
    if (svm->entries > row_first && svm->rows->sparse_column[svm->entries - 1] >= index - base)
        return errbuf_set(svm->err, STATUS_FORMAT, "%s: line %lld: index %lld after %lld: indices must ascend",
                          svm->name, (long long)svm->line, (long long)index,
                          (long long)(svm->rows->sparse_column[svm->entries - 1] + base));
    return 0;
}

static int store_feature(struct libsvm *svm, const char *token, size_t count)
{
    struct loader_rows *rows = svm->rows;
    const char *colon = memchr(token, ':', count);
    int64_t index;
    double value;
    if (!colon)
        return token_error(svm, token, count, "is not index:value");
    size_t digits = (size_t)(colon - token), rest = count - digits - 1;
    if (digits == 3 && memcmp(token, "qid", 3) == 0) {
        if (number_parse(svm->c_locale, colon + 1, rest, &value) != NUMBER_OK)
            return token_error(svm, token, count, "is not qid:number");
        rows->qid_skipped++;
        return 0;
    }
    if (read_index(svm, token, digits, &index))
        return token_error(svm, token, count, "is not index:value with an index below 2147483647");
    enum number_result result = number_parse(svm->c_locale, colon + 1, rest, &value);
    if (result != NUMBER_OK)
        return token_error(svm, token, count, result == NUMBER_EMPTY ? "has no value" : number_reason(result));
    int rc = check_index(svm, index);
    if (rc)
        return rc;
    if (svm->entries == svm->entry_capacity) {
        svm->entry_capacity = svm->entry_capacity ? 2 * svm->entry_capacity : 1024;
        if (loader_resize(&rows->sparse_column, svm->entry_capacity, sizeof *rows->sparse_column) ||
            loader_resize(&rows->sparse_value, svm->entry_capacity, sizeof *rows->sparse_value))
            return out_of_memory(svm);
    }
    int64_t column = index - svm->input->index_base;
    rows->sparse_column[svm->entries] = (int32_t)column;
    rows->sparse_value[svm->entries++] = value;
    if (column >= svm->widest)
        svm->widest = column + 1;
    return 0;
}

static int grow_rows(struct libsvm *svm)
{
    struct loader_rows *rows = svm->rows;
    if (rows->rows < svm->row_capacity)
        return 0;
    svm->row_capacity = svm->row_capacity ? 2 * svm->row_capacity : 256;
    if (loader_resize(&rows->sparse_first, svm->row_capacity + 1, sizeof *rows->sparse_first) ||
        loader_resize(&rows->labels, svm->row_capacity, sizeof *rows->labels) ||
        loader_resize(&rows->lines, svm->row_capacity, sizeof *rows->lines))
        return out_of_memory(svm);
    return 0;
}

static int parse_line(struct libsvm *svm, const char *at, const char *end)
{
    struct loader_rows *rows = svm->rows;
    const char *comment = memchr(at, '#', (size_t)(end - at)), *token;
    size_t count;
    double label;
    if (comment)
        end = comment;
    token = next_token(&at, end, &count);
    if (!token)
        return 0;
    enum number_result result = number_parse(svm->c_locale, token, count, &label);
    if (result != NUMBER_OK)
        return token_error(svm, token, count,
                           result == NUMBER_LARGE ? "as a label is too large" : "as a label is not a number");
    int rc = grow_rows(svm);
    if (rc)
        return rc;
    rows->sparse_first[rows->rows] = svm->entries;
    while ((token = next_token(&at, end, &count))) {
        rc = store_feature(svm, token, count);
        if (rc)
            return rc;
    }
    rows->labels[rows->rows] = label;
    rows->lines[rows->rows++] = svm->line;
    rows->sparse_first[rows->rows] = svm->entries;
    return 0;
}

static int parse_text(struct libsvm *svm, const char *text, size_t count)
{
    const char *at = text, *end = text + count;
    if (count >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0)
        at += 3;
    for (svm->line = 1; at < end; svm->line++) {
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        if (!line_end)
            line_end = end;
        int rc = parse_line(svm, at, line_end);
        if (rc)
            return rc;
        at = line_end < end ? line_end + 1 : end;
    }
    if (svm->rows->rows == 0)
        return errbuf_set(svm->err, STATUS_FORMAT, "%s: no rows (%lld lines)", svm->name, (long long)svm->line - 1);
    svm->rows->features = svm->limit > 0 ? svm->limit : svm->widest;
    if (svm->rows->features == 0)
        return errbuf_set(svm->err, STATUS_FORMAT, "%s: %lld rows without a feature", svm->name,
                          (long long)svm->rows->rows);
    /* Rows without any entry are fine in a later file: the arrays must be there all the same. */
    if (svm->entry_capacity == 0 && (loader_resize(&svm->rows->sparse_column, 1, sizeof(int32_t)) ||
                                     loader_resize(&svm->rows->sparse_value, 1, sizeof(double))))
        return out_of_memory(svm);
    return 0;
}

int libsvm_parse(struct source *source, const struct loader_input *input, struct loader_rows *rows,
                 struct errbuf *err)
{
    char *text;
    size_t count;
    int rc = source_read_all(source, &text, &count, err);
    if (rc)
        return rc;
    struct libsvm svm = {.input = input, .rows = rows, .err = err, .name = source_name(source)};
    svm.limit = input->features > 0 ? input->features : input->job->data.features_max;
    svm.c_locale = number_locale_create();
    rows->label_file = strdup(svm.name);
    if (!svm.c_locale || !rows->label_file)
        rc = out_of_memory(&svm);
    else
        rc = parse_text(&svm, text, count);
    if (svm.c_locale)
        freelocale(svm.c_locale);
    free(text);
    return rc;
}

static int libsvm_load(const struct loader_input *input, struct loader_rows *rows, struct errbuf *err)
{
    struct source *source;
    int rc = source_open(&source, input->folder, input->files->file, err);
    if (rc)
        return rc;
    rc = libsvm_parse(source, input, rows, err);
    source_close(source);
    return rc;
}

static int libsvm_is_given(const struct job_data_files *files)
{
    return files->file && files->file[0] != '\0';
}

const struct loader_ops loader_libsvm = {
    .name = "libsvm", .divide_default = 1, .is_given = libsvm_is_given, .load = libsvm_load};
