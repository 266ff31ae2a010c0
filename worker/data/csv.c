/* Comma-separated values as in RFC 4180: quoted cells, doubled quotes, CRLF or LF, a byte-order mark read over.
 * Every cell but the label is a number. Blank lines are read over; any other line must have as many cells as the
 * first. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "worker/data/loader.h"
#include "worker/data/number.h"
#include "worker/data/source.h"

struct cell {
    char *text; /* into the file's text */
    size_t count;
};

struct csv {
    const struct loader_input *input;
    struct loader_rows *rows;
    struct errbuf *err;
    const char *name;
    locale_t c_locale;
    char *at, *end; /* text not yet read */
    int64_t line;   /* of `at`, from 1 */
    int64_t record; /* line on which the record in `cells` starts */
    int64_t first_record;
    struct cell *cells;
    int64_t cell_count, cell_capacity;
    int64_t width, label; /* cells a record; which is the label, -1: none */
    int64_t row_capacity;
    size_t label_bytes, label_capacity;
};

static int out_of_memory(const struct csv *csv)
{
    return errbuf_set(csv->err, STATUS_NOMEM, "%s: line %lld: out of memory", csv->name, (long long)csv->line);
}

static int cell_error(const struct csv *csv, int64_t column, const char *reason)
{
    char quoted[48];
    const struct cell *cell = &csv->cells[column];
    const char *hint = "";
    if (cell->count == 0 && column > 0 && column == csv->width - 1)
        hint = " (a comma too many at the end of the line?)";
    else if (csv->record == csv->first_record)
        hint = " (a header line? data.header_lines says how many)";
    return errbuf_set(csv->err, STATUS_FORMAT, "%s: line %lld, column %lld of %lld: \"%s\" %s%s", csv->name,
                      (long long)csv->record, (long long)column + 1, (long long)csv->width,
                      number_quote(cell->text, cell->count, quoted), reason, hint);
}

static int cell_push(struct csv *csv, char *text, size_t count)
{
    if (csv->cell_count == csv->cell_capacity) {
        int64_t capacity = csv->cell_capacity ? 2 * csv->cell_capacity : 64;
        struct cell *grown = realloc(csv->cells, (size_t)capacity * sizeof *grown);
        if (!grown)
            return out_of_memory(csv);
        csv->cells = grown;
        csv->cell_capacity = capacity;
    }
    csv->cells[csv->cell_count++] = (struct cell){text, count};
    return 0;
}

static int at_line_end(const struct csv *csv, const char *p)
{
    return p == csv->end || *p == '\n' || (*p == '\r' && (p + 1 == csv->end || p[1] == '\n'));
}

/* csv->at is behind the opening quote; doubled quotes are made single in place. */
static int read_quoted(struct csv *csv)
{
    char *from = csv->at, *to = csv->at, *text = csv->at;
    int64_t line = csv->line;
    for (;; from++) {
        if (from == csv->end)
            return errbuf_set(csv->err, STATUS_FORMAT, "%s: line %lld, column %lld: a quoted cell is not closed",
                              csv->name, (long long)csv->line, (long long)csv->cell_count + 1);
        if (*from == '"') {
            if (from + 1 == csv->end || from[1] != '"')
                break;
            from++;
        }
        line += *from == '\n';
        *to++ = *from;
    }
    csv->at = from + 1;
    if (!at_line_end(csv, csv->at) && *csv->at != ',')
        return errbuf_set(csv->err, STATUS_FORMAT, "%s: line %lld, column %lld: text after a closing quote",
                          csv->name, (long long)line, (long long)csv->cell_count + 1);
    csv->line = line;
    return cell_push(csv, text, (size_t)(to - text));
}

static int read_bare(struct csv *csv)
{
    char *text = csv->at;
    while (!at_line_end(csv, csv->at) && *csv->at != ',')
        csv->at++;
    return cell_push(csv, text, (size_t)(csv->at - text));
}

static void skip_line_end(struct csv *csv)
{
    while (csv->at < csv->end && *csv->at != '\n')
        csv->at++;
    if (csv->at < csv->end) {
        csv->at++;
        csv->line++;
    }
}

static int read_record(struct csv *csv)
{
    csv->cell_count = 0;
    csv->record = csv->line;
    for (;;) {
        int rc;
        if (csv->at < csv->end && *csv->at == '"') {
            csv->at++;
            rc = read_quoted(csv);
        } else {
            rc = read_bare(csv);
        }
        if (rc)
            return rc;
        if (at_line_end(csv, csv->at))
            break;
        csv->at++; /* the comma */
    }
    skip_line_end(csv);
    return 0;
}

static int is_blank_line(const struct csv *csv)
{
    const char *p = csv->at;
    while (p < csv->end && (*p == ' ' || *p == '\t'))
        p++;
    return at_line_end(csv, p);
}

/* The first record fixes the width and which cell is the label. */
static int learn_width(struct csv *csv)
{
    const struct loader_input *input = csv->input;
    int64_t column = input->job->data.label_column;
    csv->width = csv->cell_count;
    csv->first_record = csv->record;
    csv->label = -1;
    if (input->labels_optional && csv->width == input->features) {
        csv->rows->features = csv->width;
        return 0;
    }
    if (csv->width < 2)
        return errbuf_set(csv->err, STATUS_FORMAT,
                          "%s: line %lld: one cell; a feature and a label at least are needed, divided by commas",
                          csv->name, (long long)csv->record);
    if (input->features > 0 && csv->width != input->features + 1)
        return errbuf_set(csv->err, STATUS_SHAPE, "%s: line %lld: %lld columns, expected %lld features and a label",
                          csv->name, (long long)csv->record, (long long)csv->width, (long long)input->features);
    csv->label = column < 0 ? csv->width + column : column;
    if (csv->label < 0 || csv->label >= csv->width)
        return errbuf_set(csv->err, STATUS_RANGE, "%s: data.label_column %lld, but line %lld has %lld columns",
                          csv->name, (long long)column, (long long)csv->record, (long long)csv->width);
    csv->rows->features = csv->width - 1;
    return 0;
}

static int grow_rows(struct csv *csv)
{
    struct loader_rows *rows = csv->rows;
    if (rows->rows < csv->row_capacity)
        return 0;
    /* No more rows can come than the text has room for commas: a wide first line must not ask for much. */
    int64_t most = rows->rows + 1 + (csv->end - csv->at) / csv->width;
    int64_t capacity = csv->row_capacity ? 2 * csv->row_capacity : 64;
    if (capacity > most)
        capacity = most;
    csv->row_capacity = capacity;
    if (loader_resize(&rows->dense, capacity * rows->features, sizeof *rows->dense) ||
        loader_resize(&rows->lines, capacity, sizeof *rows->lines))
        return out_of_memory(csv);
    if (csv->label >= 0 && (loader_resize(&rows->labels, capacity, sizeof *rows->labels) ||
                            loader_resize(&rows->label_at, capacity, sizeof *rows->label_at)))
        return out_of_memory(csv);
    return 0;
}

static int store_label(struct csv *csv)
{
    struct loader_rows *rows = csv->rows;
    struct cell cell = csv->cells[csv->label];
    double value = NAN;
    while (cell.count > 0 && (*cell.text == ' ' || *cell.text == '\t')) {
        cell.text++;
        cell.count--;
    }
    while (cell.count > 0 && (cell.text[cell.count - 1] == ' ' || cell.text[cell.count - 1] == '\t'))
        cell.count--;
    enum number_result result = number_parse(csv->c_locale, cell.text, cell.count, &value);
    if (result == NUMBER_EMPTY)
        return cell_error(csv, csv->label, "is an empty label");
    if (result != NUMBER_OK) {
        if (!csv->input->classification || memchr(cell.text, '\0', cell.count))
            return cell_error(csv, csv->label, number_reason(result));
        rows->labels_are_text = 1;
        value = NAN;
    }
    rows->labels[rows->rows] = value;
    while (csv->label_bytes + cell.count + 1 > csv->label_capacity) {
        csv->label_capacity = csv->label_capacity ? 2 * csv->label_capacity : 1024;
        if (loader_resize(&rows->label_text, (int64_t)csv->label_capacity, 1))
            return out_of_memory(csv);
    }
    memcpy(rows->label_text + csv->label_bytes, cell.text, cell.count);
    rows->label_text[csv->label_bytes + cell.count] = '\0';
    rows->label_at[rows->rows] = (int64_t)csv->label_bytes;
    csv->label_bytes += cell.count + 1;
    return 0;
}

static int store_record(struct csv *csv)
{
    struct loader_rows *rows = csv->rows;
    if (csv->cell_count != csv->width)
        return errbuf_set(csv->err, STATUS_FORMAT, "%s: line %lld: %lld columns, expected %lld as on line %lld",
                          csv->name, (long long)csv->record, (long long)csv->cell_count, (long long)csv->width,
                          (long long)csv->first_record);
    int rc = grow_rows(csv);
    if (rc)
        return rc;
    double *out = rows->dense + rows->rows * rows->features;
    for (int64_t c = 0; c < csv->width; c++) {
        if (c == csv->label)
            continue;
        enum number_result result = number_parse(csv->c_locale, csv->cells[c].text, csv->cells[c].count, out);
        if (result == NUMBER_EMPTY && csv->input->job->data.missing != JOB_MISSING_ERROR)
            *out = NAN;
        else if (result != NUMBER_OK)
            return cell_error(csv, c, number_reason(result));
        out++;
    }
    if (csv->label >= 0) {
        rc = store_label(csv);
        if (rc)
            return rc;
    }
    rows->lines[rows->rows++] = csv->record;
    return 0;
}

static int skip_mark(struct csv *csv)
{
    size_t count = (size_t)(csv->end - csv->at);
    if (count >= 3 && memcmp(csv->at, "\xEF\xBB\xBF", 3) == 0)
        csv->at += 3;
    else if (count >= 2 && (memcmp(csv->at, "\xFF\xFE", 2) == 0 || memcmp(csv->at, "\xFE\xFF", 2) == 0))
        return errbuf_set(csv->err, STATUS_FORMAT, "%s: line 1: the text is UTF-16, expected UTF-8", csv->name);
    return 0;
}

static int parse_text(struct csv *csv)
{
    int rc = skip_mark(csv);
    if (rc)
        return rc;
    for (int64_t i = 0; i < csv->input->job->data.header_lines; i++)
        skip_line_end(csv);
    while (csv->at < csv->end) {
        if (is_blank_line(csv)) {
            skip_line_end(csv);
            continue;
        }
        rc = read_record(csv);
        if (rc == 0 && csv->width == 0)
            rc = learn_width(csv);
        if (rc == 0)
            rc = store_record(csv);
        if (rc)
            return rc;
    }
    if (csv->rows->rows == 0)
        return errbuf_set(csv->err, STATUS_FORMAT, "%s: no rows (%lld lines, data.header_lines %lld)", csv->name,
                          (long long)csv->line - 1, (long long)csv->input->job->data.header_lines);
    return 0;
}

int csv_parse(struct source *source, const struct loader_input *input, struct loader_rows *rows, struct errbuf *err)
{
    char *text;
    size_t count;
    int rc = source_read_all(source, &text, &count, err);
    if (rc)
        return rc;
    struct csv csv = {.input = input, .rows = rows, .err = err, .name = source_name(source), .line = 1};
    csv.at = text;
    csv.end = text + count;
    csv.c_locale = number_locale_create();
    rows->label_file = strdup(csv.name);
    if (!csv.c_locale || !rows->label_file)
        rc = out_of_memory(&csv);
    else
        rc = parse_text(&csv);
    if (csv.c_locale)
        freelocale(csv.c_locale);
    free(csv.cells);
    free(text);
    return rc;
}

static int csv_load(const struct loader_input *input, struct loader_rows *rows, struct errbuf *err)
{
    struct source *source;
    int rc = source_open(&source, input->folder, input->files->file, err);
    if (rc)
        return rc;
    rc = csv_parse(source, input, rows, err);
    source_close(source);
    return rc;
}

static int csv_is_given(const struct job_data_files *files)
{
    return files->file && files->file[0] != '\0';
}

const struct loader_ops loader_csv = {
    .name = "csv", .divide_default = 1, .is_given = csv_is_given, .load = csv_load};
