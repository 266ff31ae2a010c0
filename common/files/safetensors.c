#include "files/safetensors.h"

#include "base/errbuf.h"
#include "base/status.h"
#include "files/file_map.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensor data is read in place");

enum { SAFETENSORS_HEADER_MAX = 100000000, SAFETENSORS_DEPTH_MAX = 16, SAFETENSORS_DIMS_MAX = 8,
       SAFETENSORS_PIECE_BYTES = 4 << 20 };

struct safetensors_kind {
    const char *name;
    size_t bytes;
};
static const struct safetensors_kind safetensors_kinds[SAFETENSORS_DTYPES] = {
    [SAFETENSORS_F32] = {"F32", 4},   [SAFETENSORS_F16] = {"F16", 2}, [SAFETENSORS_BF16] = {"BF16", 2},
    [SAFETENSORS_F64] = {"F64", 8},   [SAFETENSORS_I64] = {"I64", 8}, [SAFETENSORS_I32] = {"I32", 4},
    [SAFETENSORS_U8] = {"U8", 1},     [SAFETENSORS_I16] = {"I16", 2}, [SAFETENSORS_I8] = {"I8", 1},
    [SAFETENSORS_BOOL] = {"BOOL", 1}, [SAFETENSORS_U16] = {"U16", 2}, [SAFETENSORS_U32] = {"U32", 4},
    [SAFETENSORS_U64] = {"U64", 8},
};

struct safetensors {
    struct file_map map;              /* empty after safetensors_parse */
    json_t *root;                     /* owns names and metadata */
    const json_t *metadata;           /* inside root, or NULL */
    struct safetensors_tensor *items; /* in order of offset */
    int *by_name;                     /* indices into items */
    int count;
};

const char *safetensors_dtype_name(enum safetensors_dtype dtype)
{
    return safetensors_kinds[dtype].name;
}

size_t safetensors_dtype_bytes(enum safetensors_dtype dtype)
{
    return safetensors_kinds[dtype].bytes;
}

/* Depth of brackets outside of strings, so that the recursive JSON parser cannot run out of stack. */
static int safetensors_too_deep(const char *text, size_t bytes)
{
    int depth = 0, in_string = 0;
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = 0;
        } else if (c == '"') {
            in_string = 1;
        } else if (c == '{' || c == '[') {
            if (++depth > SAFETENSORS_DEPTH_MAX)
                return 1;
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
    return 0;
}

static int safetensors_load_header(struct safetensors *file, const char *text, size_t bytes, struct errbuf *err)
{
    if (bytes == 0 || text[0] != '{')
        return errbuf_set(err, STATUS_FORMAT, "the header is not a JSON object");
    if (safetensors_too_deep(text, bytes))
        return errbuf_set(err, STATUS_FORMAT, "the header is nested deeper than %d", SAFETENSORS_DEPTH_MAX);
    json_error_t error;
    file->root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!file->root)
        return errbuf_set(err, STATUS_FORMAT, "the header is not valid JSON: %s", error.text);
    return STATUS_OK;
}

static int safetensors_check_metadata(const json_t *metadata, struct errbuf *err)
{
    if (!json_is_object(metadata))
        return errbuf_set(err, STATUS_FORMAT, "__metadata__ is not an object");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value)
    {
        if (!json_is_string(value))
            return errbuf_set(err, STATUS_FORMAT, "__metadata__: the value of %.80s is not a text", key);
    }
    return STATUS_OK;
}

static int safetensors_read_dtype(const json_t *entry, struct safetensors_tensor *tensor, struct errbuf *err)
{
    const char *name = json_string_value(json_object_get(entry, "dtype"));
    if (!name)
        return errbuf_set(err, STATUS_FORMAT, "tensor %.80s: dtype is missing or not a text", tensor->name);
    for (int kind = 0; kind < SAFETENSORS_DTYPES; kind++) {
        if (strcmp(name, safetensors_kinds[kind].name) == 0) {
            tensor->dtype = (enum safetensors_dtype)kind;
            return STATUS_OK;
        }
    }
    return errbuf_set(err, STATUS_FORMAT, "tensor %.80s: dtype %.40s is not known", tensor->name, name);
}

static int safetensors_read_shape(const json_t *entry, struct safetensors_tensor *tensor, struct errbuf *err)
{
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape))
        return errbuf_set(err, STATUS_FORMAT, "tensor %.80s: shape is missing or not a list", tensor->name);
    size_t dims = json_array_size(shape);
    if (dims > SAFETENSORS_DIMS_MAX)
        return errbuf_set(err, STATUS_FORMAT, "tensor %.80s: %zu dimensions, at most %d are read", tensor->name,
                          dims, SAFETENSORS_DIMS_MAX);
    tensor->dims = (int)dims;
    tensor->count = 1;
    for (size_t d = 0; d < dims; d++) {
        const json_t *length = json_array_get(shape, d);
        if (!json_is_integer(length) || json_integer_value(length) < 0)
            return errbuf_set(err, STATUS_FORMAT, "tensor %.80s: dimension %zu is not a whole number from 0 up",
                              tensor->name, d);
        tensor->shape[d] = json_integer_value(length);
        if (__builtin_mul_overflow(tensor->count, tensor->shape[d], &tensor->count))
            return errbuf_set(err, STATUS_FORMAT, "tensor %.80s: its shape has too many elements", tensor->name);
    }
    return STATUS_OK;
}

static int safetensors_read_offsets(const json_t *entry, struct safetensors_tensor *tensor,
                                    const unsigned char *data, size_t data_bytes, struct errbuf *err)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *second = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(second))
        return errbuf_set(err, STATUS_FORMAT, "tensor %.80s: data_offsets is not a list of two whole numbers",
                          tensor->name);
    int64_t begin = json_integer_value(first), end = json_integer_value(second), wanted;
    if (begin < 0 || end < begin || (uint64_t)end > data_bytes)
        return errbuf_set(err, STATUS_FORMAT,
                          "tensor %.80s: data_offsets [%" PRId64 ", %" PRId64
                          "] do not lie in the %zu bytes of data",
                          tensor->name, begin, end, data_bytes);
    int64_t size = (int64_t)safetensors_kinds[tensor->dtype].bytes;
    if (__builtin_mul_overflow(tensor->count, size, &wanted) || wanted != end - begin)
        return errbuf_set(err, STATUS_FORMAT,
                          "tensor %.80s: its shape has %" PRId64 " elements of %" PRId64
                          " bytes, its data_offsets span %" PRId64 " bytes",
                          tensor->name, tensor->count, size, end - begin);
    tensor->data = data + begin;
    tensor->bytes = (size_t)(end - begin);
    return STATUS_OK;
}

static int safetensors_read_entries(struct safetensors *file, const unsigned char *data, size_t data_bytes,
                                    struct errbuf *err)
{
    size_t entries = json_object_size(file->root);
    if (entries > INT32_MAX)
        return errbuf_set(err, STATUS_FORMAT, "too many tensors");
    file->items = calloc(entries + 1, sizeof *file->items);
    file->by_name = calloc(entries + 1, sizeof *file->by_name);
    if (!file->items || !file->by_name)
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    const char *key;
    json_t *entry;
    json_object_foreach(file->root, key, entry)
    {
        int status;
        if (strcmp(key, "__metadata__") == 0) {
            file->metadata = entry;
            status = safetensors_check_metadata(entry, err);
        } else {
            struct safetensors_tensor *tensor = &file->items[file->count++];
            tensor->name = key;
            if (!json_is_object(entry))
                return errbuf_set(err, STATUS_FORMAT, "tensor %.80s: its entry is not an object", key);
            status = safetensors_read_dtype(entry, tensor, err);
            if (!status)
                status = safetensors_read_shape(entry, tensor, err);
            if (!status)
                status = safetensors_read_offsets(entry, tensor, data, data_bytes, err);
        }
        if (status)
            return status;
    }
    return STATUS_OK;
}

/* Empty tensors come before the one that begins at their offset. */
static int safetensors_compare_offset(const void *left, const void *right)
{
    const struct safetensors_tensor *a = left, *b = right;
    const char *a_begin = a->data, *b_begin = b->data;
    if (a_begin != b_begin)
        return a_begin < b_begin ? -1 : 1;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Sorts by offset and checks that the tensors cover the data without overlap, gap or rest. */
static int safetensors_check_cover(struct safetensors *file, const unsigned char *data, size_t data_bytes,
                                   struct errbuf *err)
{
    qsort(file->items, (size_t)file->count, sizeof *file->items, safetensors_compare_offset);
    const unsigned char *end = data;
    const char *before = "the header";
    for (int i = 0; i < file->count; i++) {
        const struct safetensors_tensor *tensor = &file->items[i];
        const unsigned char *begin = tensor->data;
        if (begin != end)
            return errbuf_set(err, STATUS_FORMAT,
                              "tensor %.80s: its data begin at %zu and %s %.80s, which ends at %zu", tensor->name,
                              (size_t)(begin - data), begin < end ? "overlap" : "leave a gap after", before,
                              (size_t)(end - data));
        end = begin + tensor->bytes;
        before = tensor->name;
    }
    if (end != data + data_bytes)
        return errbuf_set(err, STATUS_FORMAT, "%zu spare bytes after the last tensor (%.80s)",
                          data_bytes - (size_t)(end - data), before);
    return STATUS_OK;
}

static int safetensors_compare_name(const void *left, const void *right, void *context)
{
    const struct safetensors_tensor *items = context;
    return strcmp(items[*(const int *)left].name, items[*(const int *)right].name);
}

static int safetensors_fill(struct safetensors *file, const unsigned char *bytes, size_t count, struct errbuf *err)
{
    uint64_t header_bytes = 0;
    if (count < sizeof header_bytes)
        return errbuf_set(err, STATUS_FORMAT, "%zu bytes are too short for the length of a header", count);
    memcpy(&header_bytes, bytes, sizeof header_bytes);
    if (header_bytes > SAFETENSORS_HEADER_MAX)
        return errbuf_set(err, STATUS_FORMAT, "a header of %" PRIu64 " bytes, at most %d are allowed", header_bytes,
                          SAFETENSORS_HEADER_MAX);
    if (header_bytes > count - sizeof header_bytes)
        return errbuf_set(err, STATUS_FORMAT, "a header of %" PRIu64 " bytes does not fit into a file of %zu",
                          header_bytes, count);
    const unsigned char *data = bytes + sizeof header_bytes + header_bytes;
    size_t data_bytes = count - sizeof header_bytes - (size_t)header_bytes;
    int status =
        safetensors_load_header(file, (const char *)bytes + sizeof header_bytes, (size_t)header_bytes, err);
    if (!status)
        status = safetensors_read_entries(file, data, data_bytes, err);
    if (!status)
        status = safetensors_check_cover(file, data, data_bytes, err);
    if (status)
        return status;
    for (int i = 0; i < file->count; i++)
        file->by_name[i] = i;
    qsort_r(file->by_name, (size_t)file->count, sizeof *file->by_name, safetensors_compare_name, file->items);
    return STATUS_OK;
}

int safetensors_parse(struct safetensors **out, const void *bytes, size_t count, struct errbuf *err)
{
    *out = NULL;
    struct safetensors *file = calloc(1, sizeof *file);
    if (!file)
        return errbuf_set(err, STATUS_NOMEM, "safetensors: out of memory");
    int status = safetensors_fill(file, bytes, count, err);
    if (status) {
        safetensors_close(file);
        return errbuf_prefix(err, status, "safetensors");
    }
    *out = file;
    return STATUS_OK;
}

int safetensors_open(struct safetensors **out, const char *path, struct errbuf *err)
{
    struct file_map map;
    *out = NULL;
    int status = file_map_open(&map, path, err);
    if (status)
        return errbuf_prefix(err, status, "safetensors");
    status = safetensors_parse(out, map.data, map.bytes, err);
    if (status) {
        file_map_close(&map);
        return errbuf_prefix(err, status, "%s", path);
    }
    (*out)->map = map;
    return STATUS_OK;
}

void safetensors_close(struct safetensors *file)
{
    if (!file)
        return;
    free(file->by_name);
    free(file->items);
    json_decref(file->root);
    file_map_close(&file->map);
    free(file);
}

int safetensors_count(const struct safetensors *file)
{
    return file->count;
}

const struct safetensors_tensor *safetensors_at(const struct safetensors *file, int index)
{
    return index >= 0 && index < file->count ? &file->items[index] : NULL;
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *file, const char *name)
{
    int low = 0, high = file->count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        const struct safetensors_tensor *tensor = &file->items[file->by_name[middle]];
        int order = strcmp(name, tensor->name);
        if (order == 0)
            return tensor;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

const char *safetensors_metadata(const struct safetensors *file, const char *key)
{
    return json_string_value(json_object_get(file->metadata, key));
}

int safetensors_take_f32(const struct safetensors *file, const struct safetensors_tensor *tensor, float *out)
{
    int64_t size = (int64_t)safetensors_kinds[tensor->dtype].bytes, most = SAFETENSORS_PIECE_BYTES / size;
    int status = tensor->count == 0 ? safetensors_to_f32(tensor, out) : STATUS_OK;
    for (int64_t at = 0; !status && at < tensor->count; at += most) {
        struct safetensors_tensor piece = *tensor;
        piece.count = tensor->count - at < most ? tensor->count - at : most;
        piece.bytes = (size_t)(piece.count * size);
        piece.data = (const char *)tensor->data + at * size;
        status = safetensors_to_f32(&piece, out + at);
        file_map_forget(&file->map, piece.data, piece.bytes);
    }
    return status;
}
