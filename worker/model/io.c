#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "files/safetensors.h"
#include "worker/model/layer_norm.h"
#include "worker/model/model_kind.h"

/* The tensors of a model's file: parameters, and after each norm's its running statistics (PyTorch's order). */
struct file_list {
    struct safetensors_tensor *items;
    char (*names)[PARAM_NAME_MAX + 1];
    int count, capacity;
};

static int list_init(struct file_list *list, const struct model *model)
{
    list->count = 0;
    list->capacity = model->params.tensor_count + 3 * model->norms_count;
    list->items = calloc((size_t)list->capacity, sizeof *list->items);
    list->names = calloc((size_t)list->capacity, sizeof *list->names);
    return list->items && list->names ? STATUS_OK : STATUS_NOMEM;
}

static void list_close(struct file_list *list)
{
    free(list->items);
    free(list->names);
}

/* name, kind, shape and the place of the values; count and bytes follow. */
static struct safetensors_tensor *list_add(struct file_list *list, const char *name, const char *suffix, int dims,
                                           const int64_t *shape)
{
    struct safetensors_tensor *item = &list->items[list->count];
    snprintf(list->names[list->count], sizeof *list->names, "%s%s", name, suffix);
    item->name = list->names[list->count++];
    item->dtype = SAFETENSORS_F32;
    item->dims = dims;
    item->count = 1;
    for (int d = 0; d < dims; d++) {
        item->shape[d] = shape[d];
        item->count *= shape[d];
    }
    item->bytes = (size_t)item->count * sizeof(float);
    return item;
}

static void list_add_norm(struct file_list *list, const struct layer_norm *norm, const int64_t *batches)
{
    list_add(list, norm->name, ".running_mean", 1, &norm->features)->data = norm->running;
    list_add(list, norm->name, ".running_var", 1, &norm->features)->data = norm->running + norm->features;
    struct safetensors_tensor *tracked = list_add(list, norm->name, ".num_batches_tracked", 0, NULL);
    tracked->dtype = SAFETENSORS_I64;
    tracked->bytes = sizeof *batches;
    tracked->data = batches;
}

/* Everything the file holds, with data pointing into w and the model's buffers. */
static void list_fill(struct file_list *list, const struct model *model, const float *w)
{
    for (int l = 0; l < model->layers_count; l++) {
        const struct param_layer *layer = &model->params.layers[l];
        for (int t = layer->tensor_first; t < layer->tensor_first + layer->tensor_count; t++) {
            const struct param_tensor *tensor = &model->params.tensors[t];
            list_add(list, tensor->name, "", tensor->dims, tensor->shape)->data =
                w + layer->offset + tensor->offset;
        }
        if (model->layers[l]->norm)
            list_add_norm(list, model->layers[l]->norm, &model->buffers.num_batches_tracked);
    }
}

int model_export(const struct model *model, const struct job *job, const float *w, const char *transform_json,
                 const char *path, char sha256_hex[65], struct errbuf *err)
{
    struct file_list list;
    char *section = model_section_write(model, job);
    int status = list_init(&list, model);
    if (status != STATUS_OK || !section) {
        status = errbuf_set(err, STATUS_NOMEM, "%s: out of memory", path);
        goto close_list;
    }
    list_fill(&list, model, w);
    struct safetensors_meta metadata[3] = {{"format", "pt"}, {"model", section}, {"transform", transform_json}};
    status = safetensors_write(path, list.items, list.count, metadata, transform_json ? 3 : 2, sha256_hex, err);
close_list:
    list_close(&list);
    free(section);
    return status;
}

static void shape_text(char *text, size_t bytes, const struct safetensors_tensor *tensor)
{
    size_t at = (size_t)snprintf(text, bytes, "(");
    for (int d = 0; d < tensor->dims && at < bytes; d++)
        at += (size_t)snprintf(text + at, bytes - at, d ? ",%" PRId64 : "%" PRId64, tensor->shape[d]);
    if (at < bytes)
        snprintf(text + at, bytes - at, ")");
}

static int is_real(enum safetensors_dtype dtype)
{
    return dtype == SAFETENSORS_F32 || dtype == SAFETENSORS_F16 || dtype == SAFETENSORS_BF16 ||
           dtype == SAFETENSORS_F64;
}

static int check_tensor(const struct safetensors_tensor *wanted, const struct safetensors_tensor *found,
                        const char *path, struct errbuf *err)
{
    if (!found)
        return errbuf_set(err, STATUS_UNKNOWN, "%s: tensor %s is missing", path, wanted->name);
    int same = wanted->dims == found->dims &&
               memcmp(wanted->shape, found->shape, (size_t)wanted->dims * sizeof *wanted->shape) == 0;
    if (!same) {
        char want[128], have[128];
        shape_text(want, sizeof want, wanted);
        shape_text(have, sizeof have, found);
        return errbuf_set(err, STATUS_SHAPE, "%s: tensor %s: wanted shape %s, found %s", path, wanted->name, want,
                          have);
    }
    if (wanted->dtype == SAFETENSORS_I64 ? found->dtype != SAFETENSORS_I64 : !is_real(found->dtype))
        return errbuf_set(err, STATUS_FORMAT, "%s: tensor %s: wanted %s", path, wanted->name,
                          wanted->dtype == SAFETENSORS_I64 ? "I64" : "F32, F16, BF16 or F64");
    return STATUS_OK;
}

/* Every wanted tensor is there, and nothing else. */
static int check_file(const struct file_list *list, const struct safetensors *file, const char *path,
                      struct errbuf *err)
{
    for (int i = 0; i < list->count; i++) {
        int status = check_tensor(&list->items[i], safetensors_find(file, list->items[i].name), path, err);
        if (status != STATUS_OK)
            return status;
    }
    for (int i = 0; i < safetensors_count(file); i++) {
        const char *name = safetensors_at(file, i)->name;
        int known = 0;
        for (int j = 0; j < list->count && !known; j++)
            known = strcmp(list->items[j].name, name) == 0;
        if (!known)
            return errbuf_set(err, STATUS_UNKNOWN, "%s: tensor %s is not of this model", path, name);
    }
    return STATUS_OK;
}

/* The list's data pointers lead into w and the buffers, which are the caller's and the model's to write. */
static void load_values(const struct file_list *list, const struct safetensors *file)
{
    for (int i = 0; i < list->count; i++) {
        const struct safetensors_tensor *from = safetensors_find(file, list->items[i].name);
        if (from->dtype == SAFETENSORS_I64)
            memcpy((void *)list->items[i].data, from->data, sizeof(int64_t));
        else
            safetensors_to_f32(from, (float *)list->items[i].data);
    }
}

int model_import(struct model *model, const char *path, float *w, struct errbuf *err)
{
    struct safetensors *file;
    int status = safetensors_open(&file, path, err);
    if (status != STATUS_OK)
        return status;
    struct file_list list;
    status = list_init(&list, model);
    if (status != STATUS_OK) {
        errbuf_set(err, status, "%s: out of memory", path);
        goto close_list;
    }
    list_fill(&list, model, w);
    status = check_file(&list, file, path, err);
    if (status == STATUS_OK)
        load_values(&list, file);
close_list:
    list_close(&list);
    safetensors_close(file);
    return status;
}

int model_create_from_file(struct model **model, const char *path, int64_t batch_rows_max, struct pool *pool,
                           struct account *account, struct errbuf *err)
{
    struct safetensors *file;
    int status = safetensors_open(&file, path, err);
    if (status != STATUS_OK)
        return status;
    struct model_section section;
    const char *json = safetensors_metadata(file, "model");
    status = json ? model_section_read(&section, json, err)
                  : errbuf_set(err, STATUS_FORMAT, "no model section in __metadata__");
    if (status == STATUS_OK) {
        status = model_create(model, &section.job, section.features, section.outputs, batch_rows_max, pool, account,
                              err);
        model_section_close(&section);
    }
    safetensors_close(file);
    return status == STATUS_OK ? status : errbuf_prefix(err, status, "%s", path);
}
