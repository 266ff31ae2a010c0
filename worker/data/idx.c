/* The idx format of the MNIST family: 0, 0, type, number of dimensions, then each dimension as 32 bits big-endian,
 * then the values. Type 8 is unsigned bytes, the only one used for images and labels. */
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "worker/data/loader.h"
#include "worker/data/source.h"

enum { DIMS_MAX = 8, TYPE_BYTES = 8 };

struct header {
    int dims;
    int64_t size[DIMS_MAX];
    int64_t items; /* size[0] */
    int64_t width; /* product of the others */
    int64_t bytes; /* of the header itself */
};

static int read_exactly(struct source *source, uint8_t *out, int64_t at, int64_t need, struct errbuf *err)
{
    int64_t got = source_read(source, out + at, (size_t)(need - at), err);
    if (got < 0)
        return (int)got;
    if (got < need - at)
        return errbuf_set(err, STATUS_FORMAT, "%s: idx header incomplete: %lld of %lld bytes", source_name(source),
                          (long long)(at + got), (long long)need);
    return 0;
}

static int read_header(struct source *source, struct header *header, struct errbuf *err)
{
    uint8_t bytes[4 + 4 * DIMS_MAX];
    memset(header, 0, sizeof *header);
    int rc = read_exactly(source, bytes, 0, 4, err);
    if (rc)
        return rc;
    if (bytes[0] != 0 || bytes[1] != 0 || bytes[3] < 1 || bytes[3] > DIMS_MAX)
        return errbuf_set(err, STATUS_FORMAT,
                          "%s: no idx file: magic number 0x%02x%02x%02x%02x, expected 0x0000080N",
                          source_name(source), bytes[0], bytes[1], bytes[2], bytes[3]);
    if (bytes[2] != TYPE_BYTES)
        return errbuf_set(err, STATUS_FORMAT, "%s: idx values of type 0x%02x, expected 0x08 (unsigned bytes)",
                          source_name(source), bytes[2]);
    header->dims = bytes[3];
    header->bytes = 4 + 4 * header->dims;
    rc = read_exactly(source, bytes, 4, header->bytes, err);
    if (rc)
        return rc;
    header->width = 1;
    int overflow = 0;
    for (int d = 0; d < header->dims; d++) {
        const uint8_t *b = bytes + 4 + 4 * d;
        header->size[d] = (int64_t)b[0] << 24 | b[1] << 16 | b[2] << 8 | b[3];
        if (d > 0)
            overflow |= __builtin_mul_overflow(header->width, header->size[d], &header->width);
    }
    header->items = header->size[0];
    int64_t total;
    overflow |= __builtin_mul_overflow(header->items, header->width, &total);
    overflow |= __builtin_add_overflow(total, header->bytes, &total);
    if (overflow)
        return errbuf_set(err, STATUS_FORMAT,
                          "%s: the idx header claims %lld items of more bytes than any file has",
                          source_name(source), (long long)header->items);
    return 0;
}

/* The header against the size of the file, before anything is allocated. */
static int check_size(const struct source *source, const struct header *header, struct errbuf *err)
{
    int64_t need = header->items * header->width, left = source_left_max(source);
    if (source_is_gzip(source)) {
        if (need > left)
            return errbuf_set(err, STATUS_FORMAT,
                              "%s: the idx header claims %lld bytes, a gzip file of this size holds at most %lld",
                              source_name(source), (long long)(need + header->bytes),
                              (long long)(left + header->bytes));
        return 0;
    }
    if (left > need)
        return errbuf_set(err, STATUS_FORMAT, "%s: %lld bytes too many: needs %lld bytes, has %lld",
                          source_name(source), (long long)(left - need), (long long)(need + header->bytes),
                          (long long)(left + header->bytes));
    if (left < need)
        return errbuf_set(err, STATUS_FORMAT, "%s: cut short: needs %lld bytes, has %lld", source_name(source),
                          (long long)(need + header->bytes), (long long)(left + header->bytes));
    return 0;
}

/* Reads on to the end, so that a gzip check is made; more content is an error that counts it. */
static int check_end(struct source *source, const struct header *header, int64_t need, struct errbuf *err)
{
    uint8_t scratch[4096];
    int64_t excess = 0, got;
    do {
        got = source_read(source, scratch, sizeof scratch, err);
        if (got < 0)
            return (int)got;
        excess += got;
    } while (got > 0 && excess < 1 << 24); /* enough to tell; a bomb is not inflated to its end */
    if (excess > 0)
        return errbuf_set(err, STATUS_FORMAT, "%s: %s%lld bytes too many: needs %lld bytes", source_name(source),
                          got > 0 ? "at least " : "", (long long)excess, (long long)(need + header->bytes));
    return 0;
}

static int read_body(struct source *source, const struct header *header, uint8_t **out, struct errbuf *err)
{
    int64_t need = header->items * header->width, capacity = 0, used = 0;
    uint8_t *bytes = NULL;
    int rc = check_size(source, header, err);
    if (rc)
        return rc;
    /* A gzip file may claim a thousand times its size: memory grows with what really comes. */
    while (used < need) {
        capacity = capacity == 0 ? 1 << 26 : 2 * capacity;
        if (capacity > need)
            capacity = need;
        uint8_t *grown = realloc(bytes, (size_t)capacity);
        if (!grown) {
            rc = errbuf_set(err, STATUS_NOMEM, "%s: no memory for %lld bytes", source_name(source),
                            (long long)capacity);
            goto free_bytes;
        }
        bytes = grown;
        int64_t got = source_read(source, bytes + used, (size_t)(capacity - used), err);
        if (got < 0) {
            rc = (int)got;
            goto free_bytes;
        }
        used += got;
        if (used < capacity) {
            rc = errbuf_set(err, STATUS_FORMAT, "%s: cut short: needs %lld bytes, has %lld", source_name(source),
                            (long long)(need + header->bytes), (long long)(used + header->bytes));
            goto free_bytes;
        }
    }
    rc = check_end(source, header, need, err);
    if (rc)
        goto free_bytes;
    *out = bytes;
    return 0;
free_bytes:
    free(bytes);
    return rc;
}

static int parse_images(struct source *images, const struct loader_input *input, struct loader_rows *rows,
                        struct errbuf *err)
{
    struct header header;
    int rc = read_header(images, &header, err);
    if (rc)
        return rc;
    if (header.dims < 2)
        return errbuf_set(err, STATUS_SHAPE, "%s: one dimension: is it the labels file?", source_name(images));
    if (header.items == 0 || header.width == 0)
        return errbuf_set(err, STATUS_SHAPE, "%s: %lld images of %lld bytes: nothing to read", source_name(images),
                          (long long)header.items, (long long)header.width);
    if (input->features > 0 && header.width != input->features)
        return errbuf_set(err, STATUS_SHAPE, "%s: %lld bytes an image, the training images have %lld",
                          source_name(images), (long long)header.width, (long long)input->features);
    rc = read_body(images, &header, &rows->bytes, err);
    if (rc)
        return rc;
    rows->rows = header.items;
    rows->features = header.width;
    return 0;
}

static int parse_labels(struct source *labels, struct loader_rows *rows, struct errbuf *err)
{
    struct header header;
    int rc = read_header(labels, &header, err);
    if (rc)
        return rc;
    if (header.dims != 1)
        return errbuf_set(err, STATUS_SHAPE, "%s: %d dimensions, labels have 1: is it the images file?",
                          source_name(labels), header.dims);
    if (header.items != rows->rows)
        return errbuf_set(err, STATUS_SHAPE, "%s: %lld labels for %lld images", source_name(labels),
                          (long long)header.items, (long long)rows->rows);
    uint8_t *bytes = NULL;
    rc = read_body(labels, &header, &bytes, err);
    if (rc)
        return rc;
    rows->labels = malloc((size_t)rows->rows * sizeof *rows->labels);
    rows->label_file = strdup(source_name(labels));
    if (!rows->labels || !rows->label_file) {
        free(bytes);
        return errbuf_set(err, STATUS_NOMEM, "%s: out of memory", source_name(labels));
    }
    for (int64_t i = 0; i < rows->rows; i++)
        rows->labels[i] = bytes[i];
    free(bytes);
    return 0;
}

int idx_parse(struct source *images, struct source *labels, const struct loader_input *input,
              struct loader_rows *rows, struct errbuf *err)
{
    int rc = parse_images(images, input, rows, err);
    if (rc == 0 && labels)
        rc = parse_labels(labels, rows, err);
    return rc;
}

static int idx_load(const struct loader_input *input, struct loader_rows *rows, struct errbuf *err)
{
    struct source *images = NULL, *labels = NULL;
    const char *label_path = input->files->labels;
    int has_labels = label_path && label_path[0] != '\0';
    if (!has_labels && !input->labels_optional)
        return errbuf_set(err, STATUS_INVALID, "%s: no labels file is given beside these images",
                          input->files->images);
    int rc = source_open(&images, input->folder, input->files->images, err);
    if (rc == 0 && has_labels)
        rc = source_open(&labels, input->folder, label_path, err);
    if (rc == 0)
        rc = idx_parse(images, labels, input, rows, err);
    source_close(images);
    source_close(labels);
    return rc;
}

static int idx_is_given(const struct job_data_files *files)
{
    return files->images && files->images[0] != '\0';
}

const struct loader_ops loader_idx = {
    .name = "idx", .divide_default = 255, .is_given = idx_is_given, .load = idx_load};
