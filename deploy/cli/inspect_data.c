#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "config/job.h"
#include "deploy/cli/inspect.h"
#include "files/npy.h"
#include "files/safetensors.h"
#include "worker/data/loader.h"
#include "worker/data/source.h"

enum { PIECE_BYTES = 65536 };

struct spread {
    double least, most, sum;
    int64_t count, nonfinite;
};

static void spread_add(struct spread *spread, double value)
{
    if (!isfinite(value)) {
        spread->nonfinite++;
        return;
    }
    spread->least = spread->count == 0 || value < spread->least ? value : spread->least;
    spread->most = spread->count == 0 || value > spread->most ? value : spread->most;
    spread->sum += value;
    spread->count++;
}

static void spread_print(const struct spread *spread)
{
    if (spread->count > 0)
        printf("  min %.6g  max %.6g  mean %.6g", spread->least, spread->most, spread->sum / (double)spread->count);
    if (spread->nonfinite > 0)
        printf("  %" PRId64 " not finite", spread->nonfinite);
    putchar('\n');
}

static void print_shape(const int64_t *shape, int dims)
{
    putchar('(');
    for (int i = 0; i < dims; i++)
        printf("%s%" PRId64, i ? "," : "", shape[i]);
    putchar(')');
}

/* --- safetensors ------------------------------------------------------------------------------------------------
 */

static int print_tensor(const struct safetensors_tensor *tensor)
{
    struct spread spread = {0};
    printf("  %s %s ", tensor->name, safetensors_dtype_name(tensor->dtype));
    print_shape(tensor->shape, tensor->dims);
    float *values = malloc((size_t)tensor->count * sizeof *values + 1);
    if (!values)
        return STATUS_NOMEM;
    if (safetensors_to_f32(tensor, values) == 0) {
        for (int64_t i = 0; i < tensor->count; i++)
            spread_add(&spread, values[i]);
    }
    free(values);
    spread_print(&spread);
    return 0;
}

int inspect_safetensors(const char *path, struct errbuf *err)
{
    static const char *const keys[] = {"model", "transform", "clock"};
    struct safetensors *file;
    int64_t elements = 0;
    int status = safetensors_open(&file, path, err);
    if (status != 0)
        return status;
    for (int i = 0; i < safetensors_count(file); i++)
        elements += safetensors_at(file, i)->count;
    printf("safetensors: %d tensors, %" PRId64 " elements\n", safetensors_count(file), elements);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *value = safetensors_metadata(file, keys[i]);
        if (value)
            printf("  %s: %.400s\n", keys[i], value);
    }
    for (int i = 0; i < safetensors_count(file) && status == 0; i++)
        status = print_tensor(safetensors_at(file, i));
    safetensors_close(file);
    return status == 0 ? 0 : errbuf_set(err, status, "out of memory");
}

/* --- npy ---------------------------------------------------------------------------------------------------------
 */

int inspect_npy(const char *path, struct errbuf *err)
{
    struct npy *npy;
    struct spread spread = {0};
    int status = npy_open(&npy, path, err);
    if (status != 0)
        return status;
    const struct npy_shape *shape = npy_shape(npy);
    double *row = malloc((size_t)shape->row_elements * sizeof *row + 1);
    status = row ? 0 : errbuf_set(err, STATUS_NOMEM, "out of memory");
    for (int64_t r = 0; r < shape->rows && status == 0; r++) {
        status = npy_read_f64(npy, r, 1, row);
        for (int64_t i = 0; i < shape->row_elements && status == 0; i++)
            spread_add(&spread, row[i]);
    }
    if (status == 0) {
        printf("npy: %s ", npy_dtype_name(shape->dtype));
        print_shape(shape->shape, shape->dims);
        spread_print(&spread);
    }
    free(row);
    npy_close(npy);
    return status;
}

/* --- idx ---------------------------------------------------------------------------------------------------------
 */

static int64_t big_endian(const uint8_t *bytes)
{
    return (int64_t)bytes[0] << 24 | (int64_t)bytes[1] << 16 | (int64_t)bytes[2] << 8 | bytes[3];
}

static int spread_bytes(struct source *source, struct spread *spread, struct errbuf *err)
{
    uint8_t *piece = malloc(PIECE_BYTES);
    int64_t got = piece ? 1 : errbuf_set(err, STATUS_NOMEM, "out of memory");
    while (got > 0) {
        got = source_read(source, piece, PIECE_BYTES, err);
        for (int64_t i = 0; i < got; i++)
            spread_add(spread, piece[i]);
    }
    free(piece);
    return (int)got;
}

int inspect_idx(const char *path, struct errbuf *err)
{
    struct source *source;
    struct spread spread = {0};
    uint8_t head[4 + 4 * 8];
    int64_t shape[8], elements = 1;
    int status = source_open(&source, "", path, err);
    if (status != 0)
        return status;
    int64_t got = source_read(source, head, 4, err);
    int dims = got == 4 && head[3] <= 8 ? head[3] : 0;
    got = dims > 0 ? source_read(source, head + 4, 4 * (size_t)dims, err) : 0;
    if (dims == 0 || got != 4 * dims) {
        source_close(source);
        return errbuf_set(err, STATUS_FORMAT, "%.300s: idx header cut short", path);
    }
    for (int i = 0; i < dims; i++) {
        shape[i] = big_endian(head + 4 + 4 * i);
        if (__builtin_mul_overflow(elements, shape[i], &elements))
            elements = INT64_MAX;
    }
    int is_bytes = head[2] == 8;
    status = is_bytes ? spread_bytes(source, &spread, err) : 0;
    printf("idx%s: element type 0x%02x ", source_is_gzip(source) ? " (gzip)" : "", head[2]);
    source_close(source);
    print_shape(shape, dims);
    spread_print(&spread);
    if (status == 0 && is_bytes && spread.count != elements)
        return errbuf_set(err, STATUS_FORMAT, "%.300s: the header says %" PRId64 " elements, there are %" PRId64,
                          path, elements, spread.count);
    return status;
}

/* --- csv, libsvm
 * -------------------------------------------------------------------------------------------------- */

static void print_rows(const struct loader_rows *rows, const char *kind)
{
    struct spread values = {0}, labels = {0};
    printf("%s: %" PRId64 " rows, %" PRId64 " features\n", kind, rows->rows, rows->features);
    if (rows->sparse_first) {
        int64_t entries = rows->sparse_first[rows->rows];
        for (int64_t i = 0; i < entries; i++)
            spread_add(&values, rows->sparse_value[i]);
        printf("  entries %" PRId64 " (%.1f a row)", entries,
               rows->rows ? (double)entries / (double)rows->rows : 0.0);
    } else {
        for (int64_t i = 0; i < rows->rows * rows->features; i++)
            spread_add(&values, rows->dense[i]);
        fputs("  features", stdout);
    }
    spread_print(&values);
    if (rows->labels_are_text) {
        puts("  labels (last column) are text");
        return;
    }
    for (int64_t i = 0; rows->labels && i < rows->rows; i++)
        spread_add(&labels, rows->labels[i]);
    fputs(rows->sparse_first ? "  labels" : "  labels (last column)", stdout);
    spread_print(&labels);
}

static int inspect_rows_after(const char *path, const char *kind, int header_lines, struct errbuf *err)
{
    char kind_set[32], header_set[40];
    const char *sets[] = {kind_set, header_set};
    struct job *job = NULL;
    struct loader_rows rows = {0};
    struct job_data_files files = {
        .file = (char *)path, .images = (char *)"", .labels = (char *)"", .features = (char *)""};
    snprintf(kind_set, sizeof kind_set, "data.kind=%s", kind);
    snprintf(header_set, sizeof header_set, "data.header_lines=%d", header_lines);
    struct job_source source = {.sets = sets, .sets_count = header_lines ? 2 : 1, .need = JOB_NEED_NOTHING};
    int status = job_load(&job, &source, err);
    if (status != 0)
        return status;
    struct loader_input input = {.job = job, .files = &files, .folder = "", .index_base = 1, .classification = 1};
    status = loader_find(job->data.kind)->load(&input, &rows, err);
    if (status == 0)
        print_rows(&rows, kind);
    loader_rows_close(&rows);
    job_destroy(job);
    return status;
}

int inspect_rows(const char *path, const char *kind, struct errbuf *err)
{
    int status = inspect_rows_after(path, kind, 0, err);
    if (status == 0 || kind[0] != 'c')
        return status;
    struct errbuf unheard; /* the first reason is the one to tell */
    errbuf_init(&unheard);
    return inspect_rows_after(path, kind, 1, &unheard) == 0 ? 0 : status;
}
