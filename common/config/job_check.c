#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "config/job_record.h"
#include "config/option_value.h"

enum { MESSAGE_BYTES = 400, VALUE_BYTES = 96 };

const struct job_value_origin *job_record_origin(const struct job *job, const struct option *option)
{
    static const struct job_value_origin none = {.kind = JOB_ORIGIN_NONE};
    return job->record ? &job->record->origins[option_index(option)] : &none;
}

int job_record_is_given(const struct job *job, const struct option *option)
{
    return job_record_origin(job, option)->kind > JOB_ORIGIN_DEFAULT;
}

void job_record_text(const struct job *job, const struct option *option, char *out, size_t out_bytes)
{
    char name[OPTION_PATH_MAX + 8];
    const struct job_value_origin *origin = job_record_origin(job, option);
    switch (origin->kind) {
    case JOB_ORIGIN_NONE:
        snprintf(out, out_bytes, "not given");
        break;
    case JOB_ORIGIN_DEFAULT:
        snprintf(out, out_bytes, "default");
        break;
    case JOB_ORIGIN_FILE:
        snprintf(out, out_bytes, "%.200s:%d", job->record->source_name, origin->line);
        break;
    case JOB_ORIGIN_ENVIRONMENT:
        option_environment_name(option, name);
        snprintf(out, out_bytes, "environment %s", name);
        break;
    case JOB_ORIGIN_SET:
        snprintf(out, out_bytes, "--set");
        break;
    case JOB_ORIGIN_OVERRIDE:
        snprintf(out, out_bytes, "%s", origin->name);
        break;
    }
}

void job_origin(const struct job *job, const char *key, char *out, size_t out_bytes)
{
    const struct option *option = option_find(key);
    if (option) {
        job_record_text(job, option, out, out_bytes);
    } else {
        snprintf(out, out_bytes, "not given");
    }
}

static int given(const struct job *job, const char *key)
{
    return job_record_is_given(job, option_find(key));
}

/* "job.yaml:7: key: message"; a default stands behind the file's name alone. */
static int refuse(const struct job *job, struct errbuf *err, const char *key, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static int refuse(const struct job *job, struct errbuf *err, const char *key, const char *format, ...)
{
    char where[256], message[MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    if (given(job, key)) {
        job_origin(job, key, where, sizeof where);
    } else {
        snprintf(where, sizeof where, "%.200s", job->record->source_name);
    }
    return errbuf_set(err, STATUS_INVALID, "%s: %s: %s", where, key, message);
}

/* ---- defaults that depend on other values ---- */

static int resolve_by_kind(struct job *job, struct errbuf *err)
{
    char why[MESSAGE_BYTES];
    for (int i = 0; i < option_count(); i++) {
        const struct option *option = option_at(i);
        const char *fallback = option->kind_fallback ? option->kind_fallback[job->optimizer.kind] : NULL;
        if (!fallback || job_record_is_given(job, option)) {
            continue;
        }
        int status = option_set_line(job, option, fallback, why, sizeof why);
        if (status != 0) {
            return errbuf_set(err, status, "default of %s.%s: %s", option->section, option->name, why);
        }
        job->record->origins[i].kind = JOB_ORIGIN_DEFAULT;
    }
    return 0;
}

/* `--set steps=100` over a file's epochs means steps: of the two, the one from the later source stays. */
static void resolve_length(struct job *job)
{
    struct job_value_origin *epochs = &job->record->origins[option_index(option_find("epochs"))];
    struct job_value_origin *steps = &job->record->origins[option_index(option_find("steps"))];
    if (job->epochs > 0 && job->steps > 0 && epochs->kind < steps->kind) {
        job->epochs = 0;
        epochs->kind = JOB_ORIGIN_NONE;
    } else if (job->epochs > 0 && job->steps > 0 && steps->kind < epochs->kind) {
        job->steps = 0;
        steps->kind = JOB_ORIGIN_NONE;
    }
}

int job_check_resolve(struct job *job, struct errbuf *err)
{
    resolve_length(job);
    if (!given(job, "snapshot.best.mode") && strcmp(job->snapshot.best_metric, "loss") == 0) {
        job->snapshot.best_mode = JOB_BEST_MIN;
    }
    job->data.synthetic.classes = job->data.classes > 0 ? job->data.classes : 2;
    return resolve_by_kind(job, err);
}

/* ---- what is missing ---- */

struct missing {
    char text[MESSAGE_BYTES];
    size_t used;
    int count;
};

static void add_missing(struct missing *missing, const char *what)
{
    if (missing->used < sizeof missing->text) {
        int wrote = snprintf(missing->text + missing->used, sizeof missing->text - missing->used, "%s%s",
                             missing->count ? ", " : "", what);
        missing->used += wrote > 0 ? (size_t)wrote : 0;
    }
    missing->count++;
}

static int is_empty(const struct job *job, const char *key)
{
    return !option_condition_holds(job, key);
}

static void need_key(const struct job *job, struct missing *missing, const char *key)
{
    const struct option *option = option_find(key);
    int is_text = option->type == OPTION_STRING || option->type == OPTION_PATH;
    if (is_text ? is_empty(job, key) : job_record_origin(job, option)->kind == JOB_ORIGIN_NONE) {
        add_missing(missing, key);
    }
}

/* The files of one set: all or, unless it is the training set, none. */
static void need_files(const struct job *job, struct missing *missing, const char *set, const char *const *names)
{
    char key[OPTION_PATH_MAX];
    int wanted = strcmp(set, "train") == 0;
    for (int i = 0; names[i]; i++) {
        snprintf(key, sizeof key, "data.%s.%s", set, names[i]);
        wanted |= !is_empty(job, key);
    }
    for (int i = 0; wanted && names[i]; i++) {
        snprintf(key, sizeof key, "data.%s.%s", set, names[i]);
        need_key(job, missing, key);
    }
}

static void need_data(const struct job *job, struct missing *missing)
{
    static const char *const idx[] = {"images", "labels", NULL}, *const npy[] = {"features", "labels", NULL},
                             *const file[] = {"file", NULL}, *const sets[] = {"train", "test", "validation", NULL};
    const char *const *names = NULL;
    switch (job->data.kind) {
    case JOB_DATA_IDX:
        names = idx;
        break;
    case JOB_DATA_NPY:
        names = npy;
        break;
    case JOB_DATA_CSV:
    case JOB_DATA_LIBSVM:
        names = file;
        break;
    case JOB_DATA_SYNTHETIC:
        need_key(job, missing, "data.samples");
        need_key(job, missing, "data.features");
        break;
    case JOB_DATA_NONE:
        break;
    }
    for (int i = 0; names && sets[i]; i++) {
        need_files(job, missing, sets[i], names);
    }
}

static int is_missing_kind(const struct job *job, const char *key)
{
    return job_record_origin(job, option_find(key))->kind == JOB_ORIGIN_NONE;
}

int job_check_needs(const struct job *job, struct errbuf *err)
{
    struct missing missing = {.count = 0};
    /* A client program with its own data and model may run for as long as it likes. */
    int is_client_job = !is_missing_kind(job, "data.kind") && !is_missing_kind(job, "model.kind") &&
                        job->data.kind == JOB_DATA_NONE && job->model.kind == JOB_MODEL_NONE;
    if (!is_client_job && job->epochs == 0 && job->steps == 0) {
        add_missing(&missing, "epochs (or steps)");
    }
    for (int i = 0; i < option_count(); i++) {
        const struct option *option = option_at(i);
        char key[OPTION_PATH_MAX];
        option_path(option, key);
        int needed = option->flags & OPTION_ALWAYS_NEEDED || (option->flags & OPTION_REQUIRED && !is_client_job) ||
                     (option->kind_fallback && !is_missing_kind(job, "optimizer.kind") &&
                      !option->kind_fallback[job->optimizer.kind]);
        if (needed) {
            need_key(job, &missing, key);
        }
    }
    need_data(job, &missing);
    if (job->model.kind == JOB_MODEL_MLP && job->model.hidden_count == 0) {
        add_missing(&missing, "model.hidden");
    }
    if (job->optimizer.kind == JOB_OPTIMIZER_PLUGIN) {
        need_key(job, &missing, "optimizer.plugin");
    }
    if (job->parallel.aggregate == JOB_AGGREGATE_PLUGIN) {
        need_key(job, &missing, "parallel.aggregate_plugin");
    }
    if (missing.count > 0) {
        return errbuf_set(err, STATUS_INVALID, "%.200s: missing: %s", job->record->source_name, missing.text);
    }
    return 0;
}

/* ---- what cannot go together ---- */

static int check_length(const struct job *job, struct errbuf *err)
{
    long long share = job->cluster.workers * job->accumulate;
    if (job->epochs > 0 && job->steps > 0) {
        return refuse(job, err, "steps", "found %lld beside epochs %lld, expected only one of the two",
                      (long long)job->steps, (long long)job->epochs);
    }
    if (job->batch_size > 0 && job->batch_size < share) {
        return refuse(job, err, "batch_size", "found %lld, expected at least %lld = %lld workers x %lld accumulate",
                      (long long)job->batch_size, share, (long long)job->cluster.workers,
                      (long long)job->accumulate);
    }
    if (job->lr_schedule.total_steps > 0 && job->lr_schedule.warmup_steps > job->lr_schedule.total_steps) {
        return refuse(job, err, "lr_schedule.warmup_steps", "found %lld, expected at most total_steps %lld",
                      (long long)job->lr_schedule.warmup_steps, (long long)job->lr_schedule.total_steps);
    }
    return 0;
}

static int check_data(const struct job *job, struct errbuf *err)
{
    const struct job_data_files *files = &job->data.validation;
    int has_files = files->file[0] || files->images[0] || files->features[0];
    if (job->data.validation_fraction > 0 && has_files) {
        return refuse(job, err, "data.validation.fraction",
                      "found beside validation files, expected only one of the two");
    }
    if (job->data.scale_divide > 0 && job->data.standardize) {
        return refuse(job, err, "data.scale.divide",
                      "found beside standardize: true, expected only one of the two");
    }
    if (job->data.classes > 0 && job->data.class_names.count > 0 &&
        job->data.class_names.count != job->data.classes) {
        return refuse(job, err, "data.class_names", "found %d names, expected one for each of %lld classes",
                      job->data.class_names.count, (long long)job->data.classes);
    }
    if ((job->data.kind == JOB_DATA_NONE) != (job->model.kind == JOB_MODEL_NONE)) {
        return refuse(job, err, "data.kind", "found %s with model.kind %s, expected none for both or for neither",
                      option_find("data.kind")->choices[job->data.kind],
                      option_find("model.kind")->choices[job->model.kind]);
    }
    return 0;
}

static int check_metric(const struct job *job, struct errbuf *err, const char *key, const char *metric)
{
    int is_regression = job->model.loss == JOB_LOSS_MSE || job->model.loss == JOB_LOSS_HALF_SQUARED_ERROR;
    if (is_regression && strcmp(metric, "accuracy") == 0) {
        return refuse(job, err, key, "found \"accuracy\" with model.loss %s, expected loss",
                      option_find("model.loss")->choices[job->model.loss]);
    }
    return 0;
}

static int check_model(const struct job *job, struct errbuf *err)
{
    int is_binary = job->model.loss == JOB_LOSS_BINARY_CROSS_ENTROPY;
    if (job->model.kind == JOB_MODEL_MLP && job->model.init == JOB_INIT_ZEROS) {
        return refuse(job, err, "model.init",
                      "found zeros with model.kind mlp, expected default (zeros would not train)");
    }
    if (is_binary && job->data.classes > 0 && job->data.classes != 2) {
        return refuse(job, err, "data.classes", "found %lld with model.loss binary_cross_entropy, expected 2",
                      (long long)job->data.classes);
    }
    if (is_binary && job->model.outputs > 1) {
        return refuse(job, err, "model.outputs", "found %lld with model.loss binary_cross_entropy, expected 1",
                      (long long)job->model.outputs);
    }
    if (job->model.loss == JOB_LOSS_SOFTMAX_CROSS_ENTROPY && job->model.outputs > 0 &&
        (job->model.outputs == 1 || job->model.outputs < job->data.classes)) {
        return refuse(job, err, "model.outputs",
                      "found %lld with model.loss softmax_cross_entropy, expected at least %lld",
                      (long long)job->model.outputs, job->data.classes > 2 ? (long long)job->data.classes : 2LL);
    }
    if (job->model.loss == JOB_LOSS_SOFTMAX_CROSS_ENTROPY && job->data.classes == 1) {
        return refuse(job, err, "data.classes",
                      "found 1 with model.loss softmax_cross_entropy, expected at least 2");
    }
    int status = check_metric(job, err, "snapshot.best.metric", job->snapshot.best_metric);
    return status ? status : check_metric(job, err, "evaluate.early_stop.metric", job->evaluate.early_stop_metric);
}

static int check_eager(const struct job *job, struct errbuf *err)
{
    if (job->optimizer.clip_norm > 0) {
        return refuse(job, err, "parallel.update",
                      "found eager with optimizer.clip_norm %.12g, expected step, or clip_norm 0",
                      job->optimizer.clip_norm);
    }
    if (job->optimizer.nonfinite != JOB_NONFINITE_STOP) {
        return refuse(job, err, "parallel.update",
                      "found eager with optimizer.nonfinite skip, expected step, or nonfinite stop");
    }
    if (job->optimizer.kind == JOB_LAMB) {
        return refuse(job, err, "parallel.update", "found eager with optimizer.kind lamb, expected step");
    }
    if (job->parallel.update_at == JOB_UPDATE_AT_WORKER && !job_is_ring(job->parallel.data)) {
        return refuse(job, err, "parallel.update", "found eager with update_at worker, expected step");
    }
    if (job->snapshot.best_metric[0]) { /* known only after the next step has begun */
        return refuse(job, err, "parallel.update", "found eager with snapshot.best, expected step");
    }
    return 0;
}

static int check_optimizer(const struct job *job, struct errbuf *err)
{
    if (job->optimizer.nesterov && !(job->optimizer.momentum > 0)) {
        return refuse(job, err, "optimizer.nesterov", "found true with momentum 0, expected momentum > 0");
    }
    if (job->lr_schedule.kind != JOB_LR_CONSTANT && job->optimizer.lr > 0 &&
        job->lr_schedule.min_lr > job->optimizer.lr) {
        return refuse(job, err, "lr_schedule.min_lr", "found %.12g, expected at most optimizer.lr %.12g",
                      job->lr_schedule.min_lr, job->optimizer.lr);
    }
    return 0;
}

/* Workers without servers: what only servers can do, and who goes on without whom. */
static int check_ring(const struct job *job, struct errbuf *err)
{
    const char *mode = option_find("parallel.data")->choices[job->parallel.data];
    if (job->data.kind == JOB_DATA_NONE && given(job, "data.kind")) {
        return refuse(job, err, "parallel.data", "found %s with data.kind none, expected ps", mode);
    }
    if (job->parallel.aggregate != JOB_MEAN && job->parallel.aggregate != JOB_SUM) {
        return refuse(job, err, "parallel.aggregate", "found %s with parallel.data %s, expected mean or sum, or data ps",
                      option_find("parallel.aggregate")->choices[job->parallel.aggregate], mode);
    }
    if (job->cluster.elastic_min > job->cluster.workers) {
        return refuse(job, err, "cluster.elastic.min", "found %lld, expected at most cluster.workers %lld",
                      (long long)job->cluster.elastic_min, (long long)job->cluster.workers);
    }
    if (job->cluster.elastic_min > 0 && job->snapshot.dir[0] == '\0') {
        return refuse(job, err, "cluster.elastic.min",
                      "found %lld without snapshot.dir, expected a folder that the others go on from, or 0",
                      (long long)job->cluster.elastic_min);
    }
    return 0;
}

static int check_parallel(const struct job *job, struct errbuf *err)
{
    if (job_is_ring(job->parallel.data)) {
        int status = check_ring(job, err);
        if (status != 0) {
            return status;
        }
    }
    if (!job_is_ring(job->parallel.data) && job->parallel.credit_bytes < job->parallel.message_bytes) {
        return refuse(job, err, "parallel.credit_bytes", "found %lld, expected at least message_bytes %lld",
                      (long long)job->parallel.credit_bytes, (long long)job->parallel.message_bytes);
    }
    if (job->parallel.update == JOB_UPDATE_EAGER) {
        int status = check_eager(job, err);
        if (status != 0) {
            return status;
        }
    }
    if (job->evaluate.early_stop_metric[0] && job->evaluate.every == 0) {
        return refuse(job, err, "evaluate.early_stop.metric",
                      "found \"%s\" with evaluate.every 0, expected every > 0", job->evaluate.early_stop_metric);
    }
    return 0;
}

int job_check_combinations(const struct job *job, enum job_need need, struct errbuf *err)
{
    int (*const checks[])(const struct job *, struct errbuf *) = {check_length, check_data, check_model,
                                                                  check_optimizer, check_parallel};
    int count = (int)(sizeof checks / sizeof checks[0]);
    for (int i = 0; i < count; i++) {
        /* predict and evaluate may bring data without a model or the other way round */
        if (need == JOB_NEED_NOTHING && checks[i] == check_data) {
            continue;
        }
        int status = checks[i](job, err);
        if (status != 0) {
            return status;
        }
    }
    return 0;
}

/* ---- warnings ---- */

static int add_warning(struct job *job, const char *text)
{
    struct job_strings *list = &job->record->warnings;
    char **items = realloc(list->items, ((size_t)list->count + 1) * sizeof *items);
    if (!items) {
        return STATUS_NOMEM;
    }
    list->items = items;
    items[list->count] = strdup(text);
    if (!items[list->count]) {
        return STATUS_NOMEM;
    }
    list->count++;
    return 0;
}

/* "optimizer.kind=sgd|plugin" -> "optimizer.kind sgd or plugin". */
static void condition_text(const char *condition, char *out, size_t out_bytes)
{
    size_t used = 0;
    for (; *condition && used + 5 < out_bytes; condition++) {
        if (*condition == '|') {
            memcpy(out + used, " or ", 4);
            used += 4;
        } else {
            out[used++] = *condition == '=' ? ' ' : *condition;
        }
    }
    out[used] = '\0';
}

int job_check_warn(struct job *job, struct errbuf *err)
{
    for (int i = 0; i < option_count(); i++) {
        const struct option *option = option_at(i);
        if (!job_record_is_given(job, option) || option_condition_holds(job, option->only) ||
            option_is_default(job, option)) {
            continue;
        }
        char key[OPTION_PATH_MAX], where[256], when[160], text[MESSAGE_BYTES + 128];
        option_path(option, key);
        job_record_text(job, option, where, sizeof where);
        condition_text(option->only, when, sizeof when);
        snprintf(text, sizeof text, "%s: %s: has no effect, it works only with %s", where, key, when);
        if (add_warning(job, text) != 0) {
            return errbuf_set(err, STATUS_NOMEM, "job: out of memory");
        }
    }
    return 0;
}

const struct job_strings *job_warnings(const struct job *job)
{
    static const struct job_strings none = {NULL, 0};
    return job->record ? &job->record->warnings : &none;
}
