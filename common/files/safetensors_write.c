#include "files/safetensors.h"

#include "base/errbuf.h"
#include "base/sha256.h"
#include "base/status.h"
#include "files/fs.h"

#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { WRITE_HEADER_MAX = 100000000, WRITE_PART_BYTES = 1 << 20 };

static int write_compare_key(const void *left, const void *right)
{
    return strcmp(((const struct safetensors_meta *)left)->key, ((const struct safetensors_meta *)right)->key);
}

static int write_add_metadata(json_t *root, const struct safetensors_image *image, struct errbuf *err)
{
    if (image->metadata_count == 0)
        return STATUS_OK;
    size_t count = (size_t)image->metadata_count;
    int status = STATUS_NOMEM;
    json_t *metadata = json_object();
    struct safetensors_meta *sorted = calloc(count, sizeof *sorted);
    if (!sorted || json_object_set(root, "__metadata__", metadata) != 0)
        goto out;
    memcpy(sorted, image->metadata, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, write_compare_key);
    status = STATUS_OK;
    for (size_t i = 0; !status && i < count; i++) {
        if (i > 0 && strcmp(sorted[i - 1].key, sorted[i].key) == 0)
            status = errbuf_set(err, STATUS_INVALID, "metadata key %.80s twice", sorted[i].key);
        else if (json_object_set_new(metadata, sorted[i].key, json_string(sorted[i].value)) != 0)
            status = errbuf_set(err, STATUS_INVALID, "metadata %.80s is not UTF-8", sorted[i].key);
    }
out:
    free(sorted);
    json_decref(metadata);
    return status;
}

static int write_check_tensor(const json_t *root, const struct safetensors_tensor *tensor, struct errbuf *err)
{
    int64_t count = 1, bytes = 0;
    int fits = tensor->dims >= 0 && tensor->dims <= 8 && tensor->dtype < SAFETENSORS_DTYPES;
    for (int d = 0; fits && d < tensor->dims; d++)
        fits = tensor->shape[d] >= 0 && !__builtin_mul_overflow(count, tensor->shape[d], &count);
    if (!fits || __builtin_mul_overflow(count, (int64_t)safetensors_dtype_bytes(tensor->dtype), &bytes) ||
        (uint64_t)bytes != tensor->bytes)
        return errbuf_set(err, STATUS_INVALID, "tensor %.80s: shape, dtype and %zu bytes do not fit", tensor->name,
                          tensor->bytes);
    if (json_object_get(root, tensor->name) || strcmp(tensor->name, "__metadata__") == 0)
        return errbuf_set(err, STATUS_INVALID, "tensor %.80s: the name is taken", tensor->name);
    return STATUS_OK;
}

static int write_add_tensor(json_t *root, const struct safetensors_tensor *tensor, int64_t *offset,
                            struct errbuf *err)
{
    int status = write_check_tensor(root, tensor, err);
    if (status)
        return status;
    int64_t end;
    if (__builtin_add_overflow(*offset, (int64_t)tensor->bytes, &end))
        return errbuf_set(err, STATUS_INVALID, "tensor %.80s: the file would be too large", tensor->name);
    json_t *shape = json_array();
    for (int d = 0; d < tensor->dims; d++) {
        if (json_array_append_new(shape, json_integer(tensor->shape[d])) != 0) {
            json_decref(shape);
            return STATUS_NOMEM;
        }
    }
    /* "o" takes shape, also on failure. */
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", safetensors_dtype_name(tensor->dtype), "shape",
                              shape, "data_offsets", (json_int_t)*offset, (json_int_t)end);
    if (!entry)
        return STATUS_NOMEM;
    if (json_object_set_new(root, tensor->name, entry) != 0)
        return errbuf_set(err, STATUS_INVALID, "tensor %.80s: the name is not UTF-8", tensor->name);
    *offset = end;
    return STATUS_OK;
}

/* Length and JSON text, padded with blanks to a multiple of 8 bytes; owned. jansson keeps the order of insertion.
 */
static int write_make_header(const struct safetensors_image *image, char **header, size_t *bytes,
                             struct errbuf *err)
{
    json_t *root = json_object();
    int64_t offset = 0;
    int status = root ? write_add_metadata(root, image, err) : STATUS_NOMEM;
    for (int i = 0; !status && i < image->count; i++)
        status = write_add_tensor(root, &image->tensors[i], &offset, err);
    char *text = status ? NULL : json_dumps(root, JSON_COMPACT);
    json_decref(root);
    if (status)
        return status;
    size_t length = text ? strlen(text) : 0;
    uint64_t padded = (length + 7) / 8 * 8;
    *header = text ? malloc(sizeof padded + padded) : NULL;
    if (*header) {
        memcpy(*header, &padded, sizeof padded);
        memcpy(*header + sizeof padded, text, length);
        memset(*header + sizeof padded + length, ' ', padded - length);
        *bytes = sizeof padded + padded;
    }
    free(text);
    if (!*header)
        return STATUS_NOMEM;
    if (padded > WRITE_HEADER_MAX) {
        free(*header);
        *header = NULL;
        return errbuf_set(err, STATUS_RANGE, "a header of %" PRIu64 " bytes, at most %d are allowed", padded,
                          WRITE_HEADER_MAX);
    }
    return STATUS_OK;
}

struct safetensors_writer {
    struct fs_file file;
    const char *path; /* borrowed; NULL: only the hash */
    struct sha256 *sha;
    struct safetensors_image image; /* borrows what it points to */
    int next;                       /* tensor whose bytes come next */
};

static int writer_fail(const struct safetensors_writer *writer, int status, struct errbuf *err)
{
    return errbuf_prefix(err, status, "safetensors: %s", writer->path ? writer->path : "(no file)");
}

/* In parts, so that the hash reads what is still in the cache for the write. */
static int write_bytes(struct safetensors_writer *writer, const char *data, size_t bytes, struct errbuf *err)
{
    int status = STATUS_OK;
    for (size_t at = 0; !status && at < bytes; at += WRITE_PART_BYTES) {
        size_t part = bytes - at < WRITE_PART_BYTES ? bytes - at : WRITE_PART_BYTES;
        sha256_update(writer->sha, data + at, part);
        if (writer->path)
            status = fs_write(&writer->file, data + at, part, err);
    }
    return status;
}

static int write_header(struct safetensors_writer *writer, const struct fs *fs, struct errbuf *err)
{
    char *header = NULL;
    size_t header_bytes = 0;
    errbuf_set(err, STATUS_OK, "out of memory"); /* what every STATUS_NOMEM below means */
    writer->sha = sha256_create();
    int status = writer->sha ? write_make_header(&writer->image, &header, &header_bytes, err) : STATUS_NOMEM;
    if (!status && writer->path)
        status = fs_create(&writer->file, fs, writer->path, err);
    if (!status)
        status = write_bytes(writer, header, header_bytes, err);
    free(header);
    if (status)
        return writer_fail(writer, status, err);
    errbuf_init(err);
    return STATUS_OK;
}

int safetensors_writer_open(struct safetensors_writer **out, const struct fs *fs, const char *path,
                            const struct safetensors_image *image, struct errbuf *err)
{
    struct safetensors_writer *writer = calloc(1, sizeof *writer);
    *out = NULL;
    if (!writer)
        return errbuf_set(err, STATUS_NOMEM, "safetensors: out of memory");
    writer->file.fd = -1;
    writer->path = path;
    writer->image = *image;
    int status = write_header(writer, fs, err);
    if (status)
        safetensors_writer_close(writer);
    else
        *out = writer;
    return status;
}

int safetensors_writer_put(struct safetensors_writer *writer, const void *data, struct errbuf *err)
{
    assert(writer->next < writer->image.count);
    int status = write_bytes(writer, data, writer->image.tensors[writer->next++].bytes, err);
    return status ? writer_fail(writer, status, err) : STATUS_OK;
}

int safetensors_writer_commit(struct safetensors_writer *writer, char sha256_hex[65], struct errbuf *err)
{
    assert(writer->next == writer->image.count);
    int status = writer->path ? fs_commit(&writer->file, err) : STATUS_OK;
    if (status)
        return writer_fail(writer, status, err);
    if (sha256_hex)
        sha256_finish(writer->sha, sha256_hex);
    return STATUS_OK;
}

void safetensors_writer_close(struct safetensors_writer *writer)
{
    if (!writer)
        return;
    if (writer->path)
        fs_abandon(&writer->file);
    sha256_destroy(writer->sha);
    free(writer);
}

int safetensors_write_on(const struct fs *fs, const char *path, const struct safetensors_image *image,
                         char sha256_hex[65], struct errbuf *err)
{
    struct safetensors_writer *writer;
    int status = safetensors_writer_open(&writer, fs, path, image, err);
    for (int i = 0; !status && i < image->count; i++)
        status = safetensors_writer_put(writer, image->tensors[i].data, err);
    if (!status)
        status = safetensors_writer_commit(writer, sha256_hex, err);
    safetensors_writer_close(writer);
    return status;
}

int safetensors_write(const char *path, const struct safetensors_tensor *tensors, int count,
                      const struct safetensors_meta *metadata, int metadata_count, char sha256_hex[65],
                      struct errbuf *err)
{
    const struct safetensors_image image = {tensors, count, metadata, metadata_count};
    return safetensors_write_on(&fs_real, path, &image, sha256_hex, err);
}
