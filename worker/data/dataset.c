#include "worker/data/dataset.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/rng.h"
#include "base/status.h"
#include "config/job.h"
#include "worker/data/label_map.h"
#include "worker/data/loader.h"
#include "worker/data/standardise.h"
#include "worker/data/store.h"

struct dataset {
    struct store *store;
    int64_t *chosen; /* rows of the store, ascending; NULL: all */
    int64_t rows;
};

/* A load under way. */
struct loading {
    const struct job *job;
    const struct loader_ops *ops;
    const char *folder;
    struct dataset_transform *transform;
    struct account *account;
    char *note;
    size_t note_bytes;
    struct errbuf *err;
};

void dataset_transform_close(struct dataset_transform *transform)
{
    free(transform->mean);
    free(transform->deviation);
    free(transform->class_values);
    for (int k = 0; transform->class_names && k < transform->classes; k++)
        free(transform->class_names[k]);
    free(transform->class_names);
    memset(transform, 0, sizeof *transform);
}

void dataset_destroy(struct dataset *dataset)
{
    if (!dataset)
        return;
    store_release(dataset->store);
    free(dataset->chosen);
    free(dataset);
}

void dataset_set_close(struct dataset_set *set)
{
    dataset_destroy(set->train);
    dataset_destroy(set->validation);
    dataset_destroy(set->test);
    dataset_transform_close(&set->transform);
    memset(set, 0, sizeof *set);
}

static int is_classification(const struct job *job)
{
    return job->model.loss == JOB_LOSS_SOFTMAX_CROSS_ENTROPY || job->model.loss == JOB_LOSS_BINARY_CROSS_ENTROPY;
}

/* Takes chosen, also on failure; shares store. */
static int dataset_create(struct dataset **out, struct store *store, int64_t *chosen, int64_t rows,
                          struct errbuf *err)
{
    struct dataset *dataset = calloc(1, sizeof *dataset);
    if (!dataset) {
        free(chosen);
        return errbuf_set(err, STATUS_NOMEM, "out of memory for a data set");
    }
    dataset->store = store_share(store);
    dataset->chosen = chosen;
    dataset->rows = rows;
    *out = dataset;
    return 0;
}

static void add_note(const struct loading *loading, const char *text)
{
    size_t used = loading->note_bytes ? strlen(loading->note) : 0;
    if (text[0] != '\0' && used + 1 < loading->note_bytes)
        snprintf(loading->note + used, loading->note_bytes - used, "%s%s", used ? "; " : "", text);
}

static int loading_init(struct loading *loading, const char *job_dir, const char *data_dir)
{
    const struct job *job = loading->job;
    loading->ops = loader_find(job->data.kind);
    if (!loading->ops)
        return errbuf_set(loading->err, STATUS_INVALID, "data.kind: none is given");
    loading->folder = data_dir && data_dir[0] != '\0' ? data_dir : job_dir ? job_dir : "";
    return 0;
}

/* Scaling and data.missing: zero, in place; bytes are scaled when they are read. */
static void scale_rows(struct loader_rows *rows, const struct job *job, double divide)
{
    if (rows->dense)
        for (int64_t i = 0; i < rows->rows * rows->features; i++) {
            if (job->data.missing == JOB_MISSING_ZERO && isnan(rows->dense[i]))
                rows->dense[i] = 0;
            rows->dense[i] /= divide;
        }
    if (rows->sparse_value)
        for (int64_t e = 0; e < rows->sparse_first[rows->rows]; e++)
            rows->sparse_value[e] /= divide;
}

static int load_rows(const struct loading *loading, const struct job_data_files *files, int labels_optional,
                     struct loader_rows *rows)
{
    const struct dataset_transform *transform = loading->transform;
    struct loader_input input = {.job = loading->job,
                                 .files = files,
                                 .folder = loading->folder,
                                 .features = transform->features,
                                 .index_base = transform->index_base,
                                 .labels_optional = labels_optional,
                                 .classification = is_classification(loading->job)};
    memset(rows, 0, sizeof *rows);
    int rc = loading->ops->load(&input, rows, loading->err);
    if (rc) {
        loader_rows_close(rows);
        return rc;
    }
    scale_rows(rows, loading->job, transform->divide);
    if (rows->qid_skipped > 0) {
        char text[400];
        snprintf(text, sizeof text, "%s: %lld qid entries skipped", rows->label_file, (long long)rows->qid_skipped);
        add_note(loading, text);
    }
    return 0;
}

/* A further file set under the transform as it stands. */
static int load_other(const struct loading *loading, const struct job_data_files *files, int labels_optional,
                      struct dataset **out)
{
    struct loader_rows rows;
    struct store *store;
    int rc = load_rows(loading, files, labels_optional, &rows);
    if (rc)
        return rc;
    rc = store_create(&store, &rows, loading->transform, loading->account, loading->err);
    if (rc == 0) {
        rc = dataset_create(out, store, NULL, rows.rows, loading->err);
        store_release(store);
    }
    loader_rows_close(&rows);
    return rc;
}

/* What a split takes: both arrays owned, ascending; NULL when there is no split. */
struct split {
    int64_t *train, *validation;
    int64_t train_count, validation_count;
};

static void split_close(struct split *split)
{
    free(split->train);
    free(split->validation);
}

/* The first round(fraction * rows) places of a permutation drawn from the seed become validation rows. */
static int split_choose(struct split *split, const struct loading *loading, int64_t rows)
{
    double fraction = loading->job->data.validation_fraction;
    memset(split, 0, sizeof *split);
    split->train_count = rows;
    if (fraction <= 0)
        return 0;
    int64_t taken = (int64_t)floor(fraction * (double)rows + 0.5);
    if (taken < 1)
        taken = 1;
    if (taken >= rows)
        return errbuf_set(loading->err, STATUS_RANGE,
                          "data.validation.fraction: %g of %lld rows leaves none to train", fraction,
                          (long long)rows);
    int64_t *order = malloc((size_t)rows * sizeof *order);
    char *is_taken = calloc((size_t)rows, 1);
    split->train = malloc((size_t)(rows - taken) * sizeof *split->train);
    split->validation = malloc((size_t)taken * sizeof *split->validation);
    int rc = order && is_taken && split->train && split->validation ? 0 : STATUS_NOMEM;
    if (rc == 0) {
        rng_permutation(loading->job->seed, RNG_SITE_SPLIT, 0, rows, order);
        for (int64_t i = 0; i < taken; i++)
            is_taken[order[i]] = 1;
        split->train_count = 0;
        for (int64_t r = 0; r < rows; r++) {
            if (is_taken[r])
                split->validation[split->validation_count++] = r;
            else
                split->train[split->train_count++] = r;
        }
    } else {
        errbuf_set(loading->err, rc, "out of memory for the validation split");
    }
    free(order);
    free(is_taken);
    return rc;
}

/* Learns the transform from the training file and makes train (and validation, by fraction). */
static int train_from_rows(const struct loading *loading, struct dataset_set *set, struct loader_rows *rows)
{
    const struct job *job = loading->job;
    struct split split = {0};
    struct store *store = NULL;
    char map_note[512] = "";
    int rc = 0;
    loading->transform->features = rows->features;
    if (is_classification(job))
        rc = label_map_learn(loading->transform, job, rows, map_note, sizeof map_note, loading->err);
    if (rc)
        return rc;
    add_note(loading, map_note);
    rc = split_choose(&split, loading, rows->rows);
    if (rc == 0 && (job->data.standardize || job->data.missing == JOB_MISSING_MEAN))
        rc = standardise_learn(loading->transform, rows, split.train, split.train_count, job->data.standardize,
                               loading->err);
    if (rc == 0)
        rc = store_create(&store, rows, loading->transform, loading->account, loading->err);
    if (rc)
        goto close;
    int has_split = split.validation != NULL;
    rc = dataset_create(&set->train, store, split.train, split.train_count, loading->err);
    split.train = NULL;
    if (rc == 0 && has_split) {
        rc = dataset_create(&set->validation, store, split.validation, split.validation_count, loading->err);
        split.validation = NULL;
    }
close:
    store_release(store);
    split_close(&split);
    return rc;
}

static int load_train(const struct loading *loading, struct dataset_set *set)
{
    struct loader_rows rows;
    const struct job *job = loading->job;
    if (loading->ops->is_given && !loading->ops->is_given(&job->data.train))
        return errbuf_set(loading->err, STATUS_INVALID, "data.train: no file is given for data.kind %s",
                          loading->ops->name);
    int rc = load_rows(loading, &job->data.train, 0, &rows);
    if (rc)
        return rc;
    rc = train_from_rows(loading, set, &rows);
    loader_rows_close(&rows);
    return rc;
}

int dataset_load(struct dataset_set *set, const struct job *job, const char *job_dir, const char *data_dir,
                 struct account *account, char *note, int note_bytes, struct errbuf *err)
{
    struct errbuf unheard;
    memset(set, 0, sizeof *set);
    struct loading loading = {.job = job,
                              .transform = &set->transform,
                              .account = account,
                              .note = note,
                              .note_bytes = note && note_bytes > 0 ? (size_t)note_bytes : 0,
                              .err = err ? err : &unheard};
    if (loading.note_bytes)
        note[0] = '\0';
    int rc = loading_init(&loading, job_dir, data_dir);
    if (rc)
        return rc;
    set->transform.divide = job->data.scale_divide != 0 ? job->data.scale_divide : loading.ops->divide_default;
    set->transform.index_base = job->data.index_base;
    int has_validation = loading.ops->is_given && loading.ops->is_given(&job->data.validation);
    int has_test = loading.ops->is_given && loading.ops->is_given(&job->data.test);
    if (has_validation && job->data.validation_fraction > 0)
        return errbuf_set(err, STATUS_INVALID, "data.validation: a file or a fraction, not both");
    rc = load_train(&loading, set);
    if (rc == 0 && has_validation)
        rc = load_other(&loading, &job->data.validation, 0, &set->validation);
    if (rc == 0 && has_test)
        rc = load_other(&loading, &job->data.test, 0, &set->test);
    if (rc)
        dataset_set_close(set);
    return rc;
}

int dataset_load_with(struct dataset **dataset, const struct job *job, const struct job_data_files *files,
                      const char *job_dir, const char *data_dir, const struct dataset_transform *transform,
                      struct account *account, struct errbuf *err)
{
    struct errbuf unheard;
    struct dataset_transform copy = *transform; /* borrowed; only read from here on */
    struct loading loading = {.job = job, .transform = &copy, .account = account, .err = err ? err : &unheard};
    *dataset = NULL;
    int rc = loading_init(&loading, job_dir, data_dir);
    if (rc)
        return rc;
    if (loading.ops->is_given && !loading.ops->is_given(files))
        return errbuf_set(err, STATUS_INVALID, "data: no file is given for data.kind %s", loading.ops->name);
    return load_other(&loading, files, 1, dataset);
}

int64_t dataset_rows(const struct dataset *dataset)
{
    return dataset->rows;
}

int64_t dataset_features(const struct dataset *dataset)
{
    return dataset->store->features;
}

int dataset_has_labels(const struct dataset *dataset)
{
    return dataset->store->labels || dataset->store->targets;
}

void dataset_read(const struct dataset *dataset, const int64_t *indices, int64_t count, float *x, int32_t *labels,
                  float *targets)
{
    const struct store *store = dataset->store;
    for (int64_t i = 0; i < count; i++) {
        int64_t r = dataset->chosen ? dataset->chosen[indices[i]] : indices[i];
        store_read_row(store, r, x + i * store->features);
        if (labels)
            labels[i] = store->labels ? store->labels[r] : -1;
        if (targets)
            targets[i] = store->targets ? store->targets[r] : store->labels ? (float)store->labels[r] : NAN;
    }
}
