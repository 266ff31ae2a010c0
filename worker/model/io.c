#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "files/fs.h"
#include "files/safetensors.h"
#include "worker/model/layer_norm.h"
#include "worker/model/model_kind.h"

/* The tensors of a model's file: parameters, and after each layer's its norm's running statistics (PyTorch's order).
 * data leads into the model's buffers; a parameter has none, but its place in its layer. */
struct file_list {
    struct safetensors_tensor *items;
    char (*names)[PARAM_NAME_MAX + 1];
    int64_t *offsets; /* [count] elements from the layer's start; -1: not a parameter */
    int *ends;        /* [layers] first item behind the layer's */
    int count;
};

static void list_close(struct file_list *list)
{
    free(list->items);
    free(list->names);
    free(list->offsets);
    free(list->ends);
}

/* name, kind, shape and the place of the values; count and bytes follow. */
static struct safetensors_tensor *list_add(struct file_list *list, const char *name, const char *suffix, int dims,
                                           const int64_t *shape)
{
    struct safetensors_tensor *item = &list->items[list->count];
    snprintf(list->names[list->count], sizeof *list->names, "%s%s", name, suffix);
    item->name = list->names[list->count];
    list->offsets[list->count++] = -1;
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

/* Everything the file holds. STATUS_NOMEM; close it also then. */
static int list_make(struct file_list *list, const struct model *model)
{
    size_t room = (size_t)(model->params.tensor_count + 3 * model->norms_count);
    *list = (struct file_list){.items = calloc(room, sizeof *list->items),
                               .names = calloc(room, sizeof *list->names),
                               .offsets = calloc(room, sizeof *list->offsets),
                               .ends = calloc((size_t)model->layers_count, sizeof *list->ends)};
    if (!list->items || !list->names || !list->offsets || !list->ends)
        return STATUS_NOMEM;
    for (int l = 0; l < model->layers_count; l++) {
        const struct param_layer *layer = &model->params.layers[l];
        for (int t = layer->tensor_first; t < layer->tensor_first + layer->tensor_count; t++) {
            const struct param_tensor *tensor = &model->params.tensors[t];
            list_add(list, tensor->name, "", tensor->dims, tensor->shape);
            list->offsets[list->count - 1] = tensor->offset;
        }
        if (model->layers[l]->norm)
            list_add_norm(list, model->layers[l]->norm, &model->buffers.num_batches_tracked);
        list->ends[l] = list->count;
    }
    return STATUS_OK;
}

static int list_first(const struct file_list *list, int layer)
{
    return layer == 0 ? 0 : list->ends[layer - 1];
}

static int write_layer(struct safetensors_writer *writer, const struct file_list *list, int layer, const float *w,
                       struct errbuf *err)
{
    int status = STATUS_OK;
    for (int i = list_first(list, layer); i < list->ends[layer] && status == STATUS_OK; i++) {
        const void *data = list->offsets[i] < 0 ? list->items[i].data : w + list->offsets[i];
        status = safetensors_writer_put(writer, data, err);
    }
    return status;
}

/* Asks for every layer; list and writer NULL: and reads nothing. */
static int pass(const struct model *model, const struct model_values *values, struct safetensors_writer *writer,
                const struct file_list *list, struct errbuf *err)
{
    int status = STATUS_OK;
    for (int layer = 0; layer < model->layers_count && status == STATUS_OK; layer++) {
        const float *w;
        status = values->layer(values->context, layer, &w, err);
        if (status != STATUS_OK)
            break;
        if (writer)
            status = write_layer(writer, list, layer, w, err);
        if (values->done)
            values->done(values->context, layer);
    }
    return status;
}

int model_values_pass(const struct model *model, const struct model_values *values, struct errbuf *err)
{
    return pass(model, values, NULL, NULL, err);
}

int model_export(const struct model *model, const struct job *job, const struct model_values *values,
                 const char *transform_json, const char *path, char sha256_hex[65], struct errbuf *err)
{
    struct file_list list;
    struct safetensors_writer *writer = NULL;
    char *section = model_section_write(model, job);
    int status = list_make(&list, model);
    if (status != STATUS_OK || !section) {
        status = errbuf_set(err, STATUS_NOMEM, "%s: out of memory", path ? path : "export");
        goto close_list;
    }
    const struct safetensors_meta metadata[3] = {{"format", "pt"}, {"model", section}, {"transform", transform_json}};
    const struct safetensors_image image = {list.items, list.count, metadata, transform_json ? 3 : 2};
    status = safetensors_writer_open(&writer, &fs_real, path, &image, err);
    if (status == STATUS_OK)
        status = pass(model, values, writer, &list, err);
    if (status == STATUS_OK)
        status = safetensors_writer_commit(writer, sha256_hex, err);
    safetensors_writer_close(writer);
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

struct model_import {
    struct safetensors *file;
    struct file_list list; /* what is wanted, all of it found */
};

int model_import_open(struct model_import **out, struct model *model, const char *path, struct errbuf *err)
{
    struct model_import *import = calloc(1, sizeof *import);
    *out = NULL;
    if (!import)
        return errbuf_set(err, STATUS_NOMEM, "%s: out of memory", path);
    int status = safetensors_open(&import->file, path, err);
    if (status == STATUS_OK && list_make(&import->list, model) != STATUS_OK)
        status = errbuf_set(err, STATUS_NOMEM, "%s: out of memory", path);
    if (status == STATUS_OK)
        status = check_file(&import->list, import->file, path, err);
    if (status != STATUS_OK) {
        model_import_close(import);
        return status;
    }
    *out = import;
    return STATUS_OK;
}

void model_import_layer(const struct model_import *import, int layer, float *w)
{
    const struct file_list *list = &import->list;
    for (int i = list_first(list, layer); i < list->ends[layer]; i++)
        if (list->offsets[i] >= 0)
            safetensors_take_f32(import->file, safetensors_find(import->file, list->items[i].name),
                                 w + list->offsets[i]);
}

/* The list's data pointers lead into the buffers, which are the model's to write. */
void model_import_buffers(const struct model_import *import)
{
    const struct file_list *list = &import->list;
    for (int i = 0; i < list->count; i++) {
        const struct safetensors_tensor *from = safetensors_find(import->file, list->items[i].name);
        if (list->offsets[i] < 0 && from->dtype == SAFETENSORS_I64)
            memcpy((void *)list->items[i].data, from->data, sizeof(int64_t));
        else if (list->offsets[i] < 0)
            safetensors_to_f32(from, (float *)list->items[i].data);
    }
}

void model_import_close(struct model_import *import)
{
    if (!import)
        return;
    list_close(&import->list);
    safetensors_close(import->file);
    free(import);
}

int model_import(struct model *model, const char *path, float *w, struct errbuf *err)
{
    struct model_import *import;
    int status = model_import_open(&import, model, path, err);
    if (status != STATUS_OK)
        return status;
    for (int layer = 0; layer < model->layers_count; layer++)
        model_import_layer(import, layer, w + model->params.layers[layer].offset);
    model_import_buffers(import);
    model_import_close(import);
    return STATUS_OK;
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
