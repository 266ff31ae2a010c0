#include "worker/data/label_map.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "config/job.h"
#include "worker/data/dataset.h"
#include "worker/data/loader.h"
#include "worker/data/number.h"

enum { LISTED_MAX = 16 };

void label_place(const struct loader_rows *rows, int64_t r, char *out, int out_bytes)
{
    const char *file = rows->label_file ? rows->label_file : "data";
    if (rows->lines)
        snprintf(out, (size_t)out_bytes, "%s: line %lld", file, (long long)rows->lines[r]);
    else
        snprintf(out, (size_t)out_bytes, "%s: row %lld", file, (long long)r + 1);
}

static const char *row_text(const struct loader_rows *rows, int64_t r)
{
    return rows->label_text ? rows->label_text + rows->label_at[r] : NULL;
}

static int label_error(const struct loader_rows *rows, int64_t r, struct errbuf *err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static int label_error(const struct loader_rows *rows, int64_t r, struct errbuf *err, const char *format, ...)
{
    char place[320], label[48], reason[256];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    label_place(rows, r, place, sizeof place);
    const char *text = row_text(rows, r);
    if (text)
        number_quote(text, strlen(text), label);
    else
        snprintf(label, sizeof label, "%.17g", rows->labels[r]);
    return errbuf_set(err, STATUS_RANGE, "%s: label %s %s", place, label, reason);
}

/* "-1, 1" or "1, 2, 3, ... 40 (40 labels)": the file's labels in class order. */
static void list_labels(const struct dataset_transform *transform, char *out, size_t cap)
{
    size_t used = 0;
    int identity = transform->class_values != NULL;
    out[0] = '\0';
    for (int k = 0; k < transform->classes && identity; k++)
        identity = transform->class_values[k] == k;
    if (identity && transform->classes > 3) {
        snprintf(out, cap, "0..%d", transform->classes - 1);
        return;
    }
    for (int k = 0; k < transform->classes; k++) {
        char item[64], quoted[48];
        if (k == LISTED_MAX && k < transform->classes - 1) {
            k = transform->classes - 1;
            used += (size_t)snprintf(out + used, cap - used, ", ...");
            if (used >= cap)
                return;
        }
        if (transform->class_values)
            snprintf(item, sizeof item, "%.17g", transform->class_values[k]);
        else
            snprintf(item, sizeof item, "%s",
                     number_quote(transform->class_names[k], strlen(transform->class_names[k]), quoted));
        used += (size_t)snprintf(out + used, cap - used, "%s%s", k ? ", " : "", item);
        if (used >= cap)
            return;
    }
}

static int is_whole(double value)
{
    return fabs(value) <= 9007199254740992.0 && value == floor(value); /* 2^53; false for NaN */
}

/* data.classes: N: the labels are the classes. */
static int learn_fixed(struct dataset_transform *transform, int64_t classes, const struct loader_rows *rows,
                       struct errbuf *err)
{
    for (int64_t r = 0; r < rows->rows; r++) {
        double value = rows->labels[r];
        if (!is_whole(value) || value < 0 || value >= (double)classes)
            return label_error(rows, r, err, "is outside 0..%lld (data.classes: %lld; auto maps any labels)",
                               (long long)classes - 1, (long long)classes);
    }
    transform->class_values = malloc((size_t)classes * sizeof(double));
    if (!transform->class_values)
        return errbuf_set(err, STATUS_NOMEM, "out of memory for %lld classes", (long long)classes);
    for (int64_t k = 0; k < classes; k++)
        transform->class_values[k] = (double)k;
    transform->classes = (int)classes;
    return 0;
}

static int too_many(const struct loader_rows *rows, int64_t r, struct errbuf *err)
{
    return label_error(rows, r, err,
                       "is the %dth different one: are these targets of a regression (model.loss: mse)?",
                       LABEL_CLASSES_MAX + 1);
}

static int learn_numbers(struct dataset_transform *transform, const struct loader_rows *rows, struct errbuf *err)
{
    double *values = malloc(LABEL_CLASSES_MAX * sizeof *values);
    int count = 0, rc = 0;
    if (!values)
        return errbuf_set(err, STATUS_NOMEM, "out of memory for the label map");
    for (int64_t r = 0; r < rows->rows && rc == 0; r++) {
        double value = rows->labels[r];
        int low = 0, high = count;
        if (!is_whole(value)) {
            rc = label_error(rows, r, err, "is not a whole number: class labels are; targets need model.loss: mse");
            break;
        }
        while (low < high) {
            int middle = (low + high) / 2;
            if (values[middle] < value)
                low = middle + 1;
            else
                high = middle;
        }
        if (low < count && values[low] == value)
            continue;
        if (count == LABEL_CLASSES_MAX) {
            rc = too_many(rows, r, err);
            break;
        }
        memmove(values + low + 1, values + low, (size_t)(count - low) * sizeof *values);
        values[low] = value == 0 ? 0 : value; /* -0 is 0 */
        count++;
    }
    if (rc) {
        free(values);
        return rc;
    }
    double *shrunk = realloc(values, (size_t)count * sizeof *values);
    transform->class_values = shrunk ? shrunk : values;
    transform->classes = count;
    return 0;
}

static int learn_texts(struct dataset_transform *transform, const struct loader_rows *rows, struct errbuf *err)
{
    const char **texts = malloc(LABEL_CLASSES_MAX * sizeof *texts);
    int count = 0, rc = 0;
    if (!texts)
        return errbuf_set(err, STATUS_NOMEM, "out of memory for the label map");
    for (int64_t r = 0; r < rows->rows; r++) {
        const char *text = row_text(rows, r);
        int low = 0, high = count;
        while (low < high) {
            int middle = (low + high) / 2;
            if (strcmp(texts[middle], text) < 0)
                low = middle + 1;
            else
                high = middle;
        }
        if (low < count && strcmp(texts[low], text) == 0)
            continue;
        if (count == LABEL_CLASSES_MAX) {
            rc = too_many(rows, r, err);
            goto done;
        }
        json_t *probe = json_string(text); /* the map goes into a model file's JSON */
        if (!probe) {
            rc = label_error(rows, r, err, "is not UTF-8 text");
            goto done;
        }
        json_decref(probe);
        memmove(texts + low + 1, texts + low, (size_t)(count - low) * sizeof *texts);
        texts[low] = text;
        count++;
    }
    transform->class_names = calloc((size_t)count, sizeof *transform->class_names);
    transform->classes = transform->class_names ? count : 0;
    rc = transform->class_names ? 0 : STATUS_NOMEM;
    for (int k = 0; k < count && rc == 0; k++)
        rc = (transform->class_names[k] = strdup(texts[k])) ? 0 : STATUS_NOMEM;
    if (rc)
        errbuf_set(err, rc, "out of memory for the label map");
done:
    free(texts);
    return rc;
}

static int take_names(struct dataset_transform *transform, const struct job_strings *names, struct errbuf *err)
{
    transform->class_names = calloc((size_t)names->count, sizeof *transform->class_names);
    if (!transform->class_names)
        return errbuf_set(err, STATUS_NOMEM, "out of memory for the class names");
    transform->classes = names->count;
    for (int k = 0; k < names->count; k++)
        if (!(transform->class_names[k] = strdup(names->items[k])))
            return errbuf_set(err, STATUS_NOMEM, "out of memory for the class names");
    return 0;
}

static void write_note(const struct dataset_transform *transform, char *note, size_t cap)
{
    char labels[400];
    int identity = transform->class_values != NULL;
    for (int k = 0; k < transform->classes && identity; k++)
        identity = transform->class_values[k] == k;
    if (identity)
        return;
    list_labels(transform, labels, sizeof labels);
    snprintf(note, cap, "labels %s become classes 0..%d", labels, transform->classes - 1);
}

static int check_learnt(const struct dataset_transform *transform, const struct job *job,
                        const struct loader_rows *rows, struct errbuf *err)
{
    const int names = job->data.class_names.count;
    char labels[200];
    list_labels(transform, labels, sizeof labels);
    if (job->model.loss == JOB_LOSS_BINARY_CROSS_ENTROPY && transform->classes != 2)
        return errbuf_set(err, STATUS_RANGE, "%s: binary_cross_entropy needs two classes, found %d (labels %s)",
                          rows->label_file, transform->classes, labels);
    if (transform->classes < 2)
        return errbuf_set(err, STATUS_RANGE, "%s: all labels are %s: a classifier needs two classes",
                          rows->label_file, labels);
    if (names > 0 && names != transform->classes)
        return errbuf_set(err, STATUS_RANGE, "data.class_names: %d names for %d classes (labels %s in %s)", names,
                          transform->classes, labels, rows->label_file);
    if (job->model.loss == JOB_LOSS_SOFTMAX_CROSS_ENTROPY && job->model.outputs > 0 &&
        job->model.outputs < transform->classes)
        return errbuf_set(err, STATUS_RANGE, "model.outputs: %lld for %d classes (labels %s in %s)",
                          (long long)job->model.outputs, transform->classes, labels, rows->label_file);
    return 0;
}

int label_map_learn(struct dataset_transform *transform, const struct job *job, const struct loader_rows *rows,
                    char *note, int note_bytes, struct errbuf *err)
{
    const struct job_strings *names = &job->data.class_names;
    int64_t fixed = job->data.classes;
    int rc;
    if (note_bytes > 0)
        note[0] = '\0';
    if (fixed < 0 || fixed > LABEL_CLASSES_MAX)
        return errbuf_set(err, STATUS_RANGE, "data.classes: %lld is outside 1..%d", (long long)fixed,
                          LABEL_CLASSES_MAX);
    if (rows->labels_are_text && names->count > 0)
        rc = take_names(transform, names, err); /* the job says which texts there are and their order */
    else if (fixed > 0)
        rc = learn_fixed(transform, fixed, rows, err);
    else if (rows->labels_are_text)
        rc = learn_texts(transform, rows, err);
    else
        rc = learn_numbers(transform, rows, err);
    if (rc == 0 && fixed > 0 && transform->classes != fixed)
        rc = errbuf_set(err, STATUS_RANGE, "data.class_names: %d names, but data.classes is %lld",
                        transform->classes, (long long)fixed);
    if (rc == 0)
        rc = check_learnt(transform, job, rows, err);
    if (rc)
        return rc;
    if (note_bytes > 0)
        write_note(transform, note, (size_t)note_bytes);
    if (!transform->class_names && names->count > 0) {
        int classes = transform->classes;
        rc = take_names(transform, names, err);
        transform->classes = classes;
    }
    return rc;
}

struct named_class {
    const char *name;
    int32_t number;
};

static int compare_names(const void *a, const void *b)
{
    const struct named_class *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static int compare_values(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int unknown_label(const struct dataset_transform *transform, const struct loader_rows *rows, int64_t r,
                         struct errbuf *err)
{
    char labels[200];
    list_labels(transform, labels, sizeof labels);
    return label_error(rows, r, err, "is none of the allowed: %s", labels);
}

static int apply_texts(const struct dataset_transform *transform, const struct loader_rows *rows, int32_t *labels,
                       struct errbuf *err)
{
    int rc = 0;
    struct named_class *sorted = malloc((size_t)transform->classes * sizeof *sorted);
    if (!sorted)
        return errbuf_set(err, STATUS_NOMEM, "out of memory for the label map");
    for (int k = 0; k < transform->classes; k++)
        sorted[k] = (struct named_class){transform->class_names[k], k};
    qsort(sorted, (size_t)transform->classes, sizeof *sorted, compare_names);
    for (int64_t r = 0; r < rows->rows && rc == 0; r++) {
        struct named_class key = {row_text(rows, r), 0};
        const struct named_class *found =
            key.name ? bsearch(&key, sorted, (size_t)transform->classes, sizeof *sorted, compare_names) : NULL;
        if (found)
            labels[r] = found->number;
        else
            rc = unknown_label(transform, rows, r, err);
    }
    free(sorted);
    return rc;
}

int label_map_apply(const struct dataset_transform *transform, const struct loader_rows *rows, int32_t *labels,
                    struct errbuf *err)
{
    if (!transform->class_values)
        return apply_texts(transform, rows, labels, err);
    for (int64_t r = 0; r < rows->rows; r++) {
        const double *found = NULL;
        if (!isnan(rows->labels[r]))
            found = bsearch(&rows->labels[r], transform->class_values, (size_t)transform->classes, sizeof(double),
                            compare_values);
        if (!found)
            return unknown_label(transform, rows, r, err);
        labels[r] = (int32_t)(found - transform->class_values);
    }
    return 0;
}
