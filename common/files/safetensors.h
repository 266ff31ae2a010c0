/* The safetensors format: 8 bytes little-endian header length, JSON header, data. Reader by mmap, writer streaming
 * into a temporary that is synced and renamed. Every field is checked against every other before use: offsets
 * inside the data, in order of nothing (any order), no overlap, no gap, no spare byte, size = product × dtype,
 * unique names, header at most 100 MB. */
#ifndef SHOAL_FILES_SAFETENSORS_H
#define SHOAL_FILES_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

struct errbuf;

enum safetensors_dtype { SAFETENSORS_F32, SAFETENSORS_F16, SAFETENSORS_BF16, SAFETENSORS_F64, SAFETENSORS_I64,
                         SAFETENSORS_I32, SAFETENSORS_U8, SAFETENSORS_I16, SAFETENSORS_I8, SAFETENSORS_BOOL,
                         SAFETENSORS_U16, SAFETENSORS_U32, SAFETENSORS_U64, SAFETENSORS_DTYPES };

struct safetensors_tensor {
    const char *name;
    enum safetensors_dtype dtype;
    int dims;
    int64_t shape[8];
    int64_t count;    /* elements */
    const void *data; /* into the mapping, maybe unaligned */
    size_t bytes;
};

struct safetensors; /* an open file; owns its mapping */
int safetensors_open(struct safetensors **file, const char *path, struct errbuf *err); /* STATUS_IO, STATUS_FORMAT */
/* The same checks on memory (fuzzing); bytes borrowed. */
int safetensors_parse(struct safetensors **file, const void *bytes, size_t count, struct errbuf *err);
void safetensors_close(struct safetensors *file);
int safetensors_count(const struct safetensors *file);
const struct safetensors_tensor *safetensors_at(const struct safetensors *file, int index); /* file offset order */
const struct safetensors_tensor *safetensors_find(const struct safetensors *file, const char *name); /* or NULL */
const char *safetensors_metadata(const struct safetensors *file, const char *key); /* or NULL */
/* Converts F32, F16, BF16, F64 to float32; STATUS_INVALID for other kinds. */
int safetensors_to_f32(const struct safetensors_tensor *tensor, float *out);
/* The same in pieces whose pages of the file leave memory as soon as they are converted, so that reading a large file
 * takes no more than what is read into. The tensor is one of this file, or a piece of one. */
int safetensors_take_f32(const struct safetensors *file, const struct safetensors_tensor *tensor, float *out);

struct safetensors_meta {
    const char *key, *value;
};
/* Writes tensors in the given order (data pointers borrowed) with __metadata__ sorted by key; deterministic bytes.
 * File beside, synced, renamed, folder synced. sha256_hex (NULL ok) is of the whole file. */
int safetensors_write(const char *path, const struct safetensors_tensor *tensors, int count,
                      const struct safetensors_meta *metadata, int metadata_count, char sha256_hex[65],
                      struct errbuf *err);

/* The same through another table of system calls (tests). All borrowed. */
struct safetensors_image {
    const struct safetensors_tensor *tensors;
    int count;
    const struct safetensors_meta *metadata;
    int metadata_count;
};
struct fs;
/* path NULL: nothing is written, only the hash of what would be. */
int safetensors_write_on(const struct fs *fs, const char *path, const struct safetensors_image *image,
                         char sha256_hex[65], struct errbuf *err);

/* The same tensor by tensor, for values that are never in memory together. The header comes from the image, whose data
 * pointers are not read; then `put` gives each tensor's bytes in the image's order, and commit, after the last, puts the
 * file in its place. Path and what the image points to are borrowed until close. After an error: close. */
struct safetensors_writer;
int safetensors_writer_open(struct safetensors_writer **writer, const struct fs *fs, const char *path,
                            const struct safetensors_image *image, struct errbuf *err);
int safetensors_writer_put(struct safetensors_writer *writer, const void *data, struct errbuf *err);
int safetensors_writer_commit(struct safetensors_writer *writer, char sha256_hex[65], struct errbuf *err);
/* What was not committed leaves nothing behind. Takes NULL. */
void safetensors_writer_close(struct safetensors_writer *writer);

/* "F32", …; bytes of one element. */
const char *safetensors_dtype_name(enum safetensors_dtype dtype);
size_t safetensors_dtype_bytes(enum safetensors_dtype dtype);

#endif
