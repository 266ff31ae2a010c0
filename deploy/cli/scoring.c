#include "deploy/cli/scoring.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/pool.h"
#include "base/status.h"
#include "files/safetensors.h"
#include "tensor/gemm.h"
#include "worker/model/model.h"

static int find_loss(const char *model_json, enum job_loss *loss)
{
    static const char *const names[] = {"softmax_cross_entropy", "binary_cross_entropy", "mse",
                                        "half_squared_error"};
    json_t *root = json_loads(model_json, 0, NULL);
    const char *word = json_string_value(json_object_get(root, "loss"));
    int found = 0;
    for (size_t i = 0; word && i < sizeof names / sizeof *names; i++) {
        if (strcmp(names[i], word) == 0) {
            *loss = (enum job_loss)i;
            found = 1;
        }
    }
    json_decref(root);
    return found;
}

/* A file without a transform was not trained on data that we know of: rows go in as they are. */
static int default_transform(struct scoring *scoring, int64_t features)
{
    scoring->transform = (struct dataset_transform){.features = features, .divide = 1};
    if (scoring_is_classes(scoring))
        scoring->transform.classes = scoring->outputs > 1 ? (int)scoring->outputs : 2;
    return 0;
}

static int read_metadata(struct scoring *scoring, const char *path, struct errbuf *err)
{
    struct safetensors *file;
    int status = safetensors_open(&file, path, err);
    if (status != 0)
        return status;
    const char *model = safetensors_metadata(file, "model"), *transform = safetensors_metadata(file, "transform");
    if (!model || !find_loss(model, &scoring->loss))
        status = errbuf_set(err, STATUS_FORMAT, "%.300s: its model section names no loss", path);
    else if (transform)
        status = dataset_transform_from_json(&scoring->transform, transform, err);
    else
        status = default_transform(scoring, model_features(scoring->model));
    if (status == 0 && scoring->transform.features != model_features(scoring->model))
        status = errbuf_set(err, STATUS_SHAPE, "%.300s: transform of %lld features, model of %lld", path,
                            (long long)scoring->transform.features, (long long)model_features(scoring->model));
    safetensors_close(file);
    return status;
}

static int open_model(struct scoring *scoring, const char *path, int threads, struct errbuf *err)
{
    int status = gemm_start(err);
    if (status != 0)
        return status;
    pool_thread_numerics();
    scoring->pool = pool_create(threads > 0 ? threads : pool_available_cores(), 0);
    if (!scoring->pool)
        return errbuf_set(err, STATUS_NOMEM, "no threads");
    status = model_create_from_file(&scoring->model, path, SCORING_ROWS, scoring->pool, &scoring->account, err);
    if (status != 0)
        return status;
    scoring->outputs = model_outputs(scoring->model);
    scoring->w = malloc((size_t)model_params(scoring->model)->count * sizeof *scoring->w + 1);
    if (!scoring->w)
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    status = model_import(scoring->model, path, scoring->w, err);
    return status == 0 ? read_metadata(scoring, path, err) : status;
}

static int load_settings(struct scoring *scoring, const struct scoring_args *args, struct errbuf *err)
{
    struct scoring_sets made;
    int status = scoring_sets_make(&made, &args->data, err);
    int count = made.count + args->sets.count;
    const char **sets = calloc((size_t)count + 1, sizeof *sets);
    if (status == 0 && !sets)
        status = errbuf_set(err, STATUS_NOMEM, "out of memory");
    for (int i = 0; status == 0 && i < count; i++)
        sets[i] = i < made.count ? made.items[i] : args->sets.items[i - made.count];
    struct job_source source = {.path = args->job, .sets = sets, .sets_count = count, .need = JOB_NEED_NOTHING};
    if (status == 0)
        status = job_load(&scoring->job, &source, err);
    free(sets);
    scoring_sets_close(&made);
    return status;
}

static int open_data(struct scoring *scoring, const struct scoring_args *args, struct errbuf *err)
{
    if (args->data.count == 0 && !args->job)
        return errbuf_set(err, STATUS_INVALID, "missing: --data FILE or --job JOB.yaml");
    int status = load_settings(scoring, args, err);
    if (status != 0)
        return status;
    char *full = args->job ? realpath(args->job, NULL) : strdup("");
    char *slash = full ? strrchr(full, '/') : NULL;
    if (slash)
        *slash = '\0';
    scoring->job_dir = full;
    if (!full)
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    status = dataset_load_with(&scoring->data, scoring->job, &scoring->job->data.test, full,
                               args->data_dir ? args->data_dir : "", &scoring->transform, &scoring->account, err);
    if (status == 0 && dataset_features(scoring->data) != model_features(scoring->model))
        status = errbuf_set(err, STATUS_SHAPE, "the data has %lld features, the model was trained on %lld",
                            (long long)dataset_features(scoring->data), (long long)model_features(scoring->model));
    return status;
}

int scoring_open(struct scoring *scoring, const char *model_path, const struct scoring_args *args,
                 struct errbuf *err)
{
    memset(scoring, 0, sizeof *scoring);
    account_init(&scoring->account);
    int status = open_model(scoring, model_path, args->threads, err);
    if (status == 0)
        status = open_data(scoring, args, err);
    if (status != 0)
        return status;
    size_t features = (size_t)model_features(scoring->model), outputs = (size_t)scoring->outputs;
    scoring->x = malloc(SCORING_ROWS * features * sizeof *scoring->x + 1);
    scoring->targets = malloc(SCORING_ROWS * outputs * sizeof *scoring->targets + 1);
    scoring->labels = malloc(SCORING_ROWS * sizeof *scoring->labels);
    if (!scoring->x || !scoring->targets || !scoring->labels)
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    return 0;
}

int scoring_block(struct scoring *scoring, int64_t first, struct errbuf *err)
{
    int64_t left = dataset_rows(scoring->data) - first;
    int status = 0;
    scoring->rows = left < SCORING_ROWS ? left : SCORING_ROWS;
    for (int64_t i = 0; i < scoring->rows; i++)
        scoring->indices[i] = first + i;
    dataset_read(scoring->data, scoring->indices, scoring->rows, scoring->x, scoring->labels, scoring->targets);
    struct model_batch batch = {
        .x = scoring->x, .labels = scoring->labels, .targets = scoring->targets, .rows = scoring->rows, .step = 1};
    const struct param_layer *layers = model_params(scoring->model)->layers;
    for (int layer = 0; layer < model_layers(scoring->model) && status == 0; layer++)
        status = model_forward(scoring->model, layer, scoring->w + layers[layer].offset, &batch, NULL, err);
    scoring->logits = model_logits(scoring->model);
    scoring->loss_sum = 0;
    scoring->counted = scoring->correct = 0;
    if (status == 0)
        model_loss(scoring->model, &batch, &scoring->loss_sum, &scoring->counted, &scoring->correct);
    return status;
}

void scoring_close(struct scoring *scoring)
{
    dataset_destroy(scoring->data);
    job_destroy(scoring->job);
    dataset_transform_close(&scoring->transform);
    model_destroy(scoring->model);
    pool_destroy(scoring->pool);
    free(scoring->job_dir);
    free(scoring->w);
    free(scoring->x);
    free(scoring->targets);
    free(scoring->labels);
}

int scoring_is_classes(const struct scoring *scoring)
{
    return scoring->loss == JOB_LOSS_SOFTMAX_CROSS_ENTROPY || scoring->loss == JOB_LOSS_BINARY_CROSS_ENTROPY;
}

int scoring_class(const struct scoring *scoring, const float *logits)
{
    if (scoring->loss == JOB_LOSS_BINARY_CROSS_ENTROPY)
        return logits[0] > 0;
    int best = 0;
    for (int c = 1; c < scoring->outputs; c++) {
        if (logits[c] > logits[best])
            best = c;
    }
    return best;
}

void scoring_class_text(const struct scoring *scoring, int class_number, char *out, size_t out_bytes)
{
    const struct dataset_transform *transform = &scoring->transform;
    if (transform->class_names && class_number < transform->classes)
        snprintf(out, out_bytes, "%s", transform->class_names[class_number]);
    else if (transform->class_values && class_number < transform->classes)
        snprintf(out, out_bytes, "%.9g", transform->class_values[class_number]);
    else
        snprintf(out, out_bytes, "%d", class_number);
}
