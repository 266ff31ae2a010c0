#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "worker/model/model_kind.h"

/* Words of the job file, in the order of the enumerations of job.h. */
static const char *const loss_names[] = {"softmax_cross_entropy", "binary_cross_entropy", "mse",
                                         "half_squared_error"};
static const char *const activation_names[] = {"relu", "gelu", "gelu_tanh", "tanh", "none"};

enum {
    LOSSES = sizeof loss_names / sizeof *loss_names,
    ACTIVATIONS = sizeof activation_names / sizeof *activation_names
};

static int word_index(const char *const *words, int count, const char *word)
{
    for (int i = 0; i < count; i++)
        if (strcmp(words[i], word) == 0)
            return i;
    return -1;
}

static json_t *hidden_array(const struct job *job)
{
    json_t *hidden = json_array();
    for (int i = 0; i < job->model.hidden_count && hidden; i++)
        json_array_append_new(hidden, json_integer((json_int_t)job->model.hidden[i]));
    return hidden;
}

char *model_section_write(const struct model *model, const struct job *job)
{
    json_t *root = json_object();
    int failed = json_object_set_new(root, "kind", json_string(model->ops->name));
    failed |= json_object_set_new(root, "loss", json_string(loss_names[job->model.loss]));
    failed |= json_object_set_new(root, "features", json_integer((json_int_t)model->features));
    failed |= json_object_set_new(root, "outputs", json_integer((json_int_t)model->outputs));
    if (job->model.kind != JOB_MODEL_LINEAR) {
        failed |= json_object_set_new(root, "hidden", hidden_array(job));
        failed |= json_object_set_new(root, "activation", json_string(activation_names[job->model.activation]));
        failed |= json_object_set_new(root, "batch_norm", json_boolean(job->model.batch_norm));
        failed |= json_object_set_new(root, "dropout", json_real(job->model.dropout));
    }
    char *text = failed ? NULL : json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(15));
    json_decref(root);
    return text;
}

static int read_word(const json_t *root, const char *key, const char *const *words, int count, struct errbuf *err)
{
    const char *word = json_string_value(json_object_get(root, key));
    int index = word ? word_index(words, count, word) : -1;
    if (index < 0)
        return errbuf_set(err, STATUS_FORMAT, "model section: %s is %s", key, word ? word : "missing");
    return index;
}

static int read_hidden(struct job *job, const json_t *root, struct errbuf *err)
{
    const json_t *hidden = json_object_get(root, "hidden");
    size_t count = json_array_size(hidden);
    if (!json_is_array(hidden) || count > 10000)
        return errbuf_set(err, STATUS_FORMAT, "model section: hidden is not a list of widths");
    job->model.hidden = calloc(count + 1, sizeof *job->model.hidden);
    if (!job->model.hidden)
        return errbuf_set(err, STATUS_NOMEM, "model section: out of memory");
    job->model.hidden_count = (int)count;
    for (size_t i = 0; i < count; i++)
        job->model.hidden[i] =
            json_integer_value(json_array_get(hidden, i)); /* 0, which is refused, if no number */
    return STATUS_OK;
}

static int read_mlp(struct job *job, const json_t *root, struct errbuf *err)
{
    int activation = read_word(root, "activation", activation_names, ACTIVATIONS, err);
    if (activation < 0)
        return activation;
    job->model.activation = (enum job_activation)activation;
    job->model.batch_norm = json_is_true(json_object_get(root, "batch_norm"));
    job->model.dropout = json_number_value(json_object_get(root, "dropout"));
    return read_hidden(job, root, err);
}

static int read_section(struct model_section *section, const json_t *root, struct errbuf *err)
{
    const char *kind = json_string_value(json_object_get(root, "kind"));
    const struct model_ops *ops = kind ? model_table_find_name(kind) : NULL;
    if (!ops)
        return errbuf_set(err, STATUS_FORMAT, "model section: kind is %s", kind ? kind : "missing");
    int loss = read_word(root, "loss", loss_names, LOSSES, err);
    if (loss < 0)
        return loss;
    section->job.model.kind = ops->kind;
    section->job.model.loss = (enum job_loss)loss;
    section->features = json_integer_value(json_object_get(root, "features"));
    section->outputs = json_integer_value(json_object_get(root, "outputs"));
    return ops->kind == JOB_MODEL_MLP ? read_mlp(&section->job, root, err) : STATUS_OK;
}

int model_section_read(struct model_section *section, const char *json, struct errbuf *err)
{
    memset(section, 0, sizeof *section);
    json_error_t reason;
    json_t *root = json_loads(json, JSON_REJECT_DUPLICATES, &reason);
    if (!root)
        return errbuf_set(err, STATUS_FORMAT, "model section: %s", reason.text);
    int status = read_section(section, root, err);
    json_decref(root);
    if (status != STATUS_OK)
        model_section_close(section);
    return status;
}

void model_section_close(struct model_section *section)
{
    free(section->job.model.hidden);
    section->job.model.hidden = NULL;
}
