/* NumPy arrays: features (n, ...) of any real dtype, dimensions after the first flattened; labels (n) or (n, 1). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "files/npy.h"
#include "worker/data/loader.h"
#include "worker/data/source.h"

static int open_array(struct npy **npy, char **path, const char *folder, const char *name, struct errbuf *err)
{
    *path = source_resolve(folder, name);
    if (!*path)
        return errbuf_set(err, STATUS_NOMEM, "%s: out of memory", name);
    return npy_open(npy, *path, err);
}

/* Unsigned bytes stay bytes; all else becomes double. */
static int take_features(const struct npy *npy, const char *path, const struct loader_input *input,
                         struct loader_rows *rows, struct errbuf *err)
{
    const struct npy_shape *shape = npy_shape(npy);
    int64_t cells = shape->rows * shape->row_elements;
    if (shape->rows == 0 || shape->row_elements == 0)
        return errbuf_set(err, STATUS_SHAPE, "%s: %lld rows of %lld features: nothing to read", path,
                          (long long)shape->rows, (long long)shape->row_elements);
    if (input->features > 0 && shape->row_elements != input->features)
        return errbuf_set(err, STATUS_SHAPE, "%s: %lld features a row, the training rows have %lld", path,
                          (long long)shape->row_elements, (long long)input->features);
    rows->rows = shape->rows;
    rows->features = shape->row_elements;
    if (shape->dtype == NPY_U1) {
        rows->bytes = malloc((size_t)cells);
        if (!rows->bytes)
            return errbuf_set(err, STATUS_NOMEM, "%s: no memory for %lld bytes", path, (long long)cells);
        memcpy(rows->bytes, npy_data(npy), (size_t)cells);
        return 0;
    }
    rows->dense = malloc((size_t)cells * sizeof *rows->dense);
    if (!rows->dense)
        return errbuf_set(err, STATUS_NOMEM, "%s: no memory for %lld numbers", path, (long long)cells);
    int rc = npy_read_f64(npy, 0, shape->rows, rows->dense);
    if (rc)
        return errbuf_set(err, rc, "%s: cannot be read as numbers", path);
    for (int64_t i = 0; i < cells; i++)
        if (!isfinite(rows->dense[i]))
            return errbuf_set(err, STATUS_FORMAT, "%s: row %lld, column %lld (from 1): %g is not a finite number",
                              path, (long long)(i / rows->features) + 1, (long long)(i % rows->features) + 1,
                              rows->dense[i]);
    return 0;
}

static int take_labels(const struct npy *npy, const char *path, struct loader_rows *rows, struct errbuf *err)
{
    const struct npy_shape *shape = npy_shape(npy);
    if (shape->row_elements != 1)
        return errbuf_set(err, STATUS_SHAPE, "%s: %lld numbers a row, expected one label", path,
                          (long long)shape->row_elements);
    if (shape->rows != rows->rows)
        return errbuf_set(err, STATUS_SHAPE, "%s: %lld labels for %lld rows of features", path,
                          (long long)shape->rows, (long long)rows->rows);
    rows->labels = malloc((size_t)rows->rows * sizeof *rows->labels);
    rows->label_file = strdup(path);
    if (!rows->labels || !rows->label_file)
        return errbuf_set(err, STATUS_NOMEM, "%s: out of memory", path);
    int rc = npy_read_f64(npy, 0, shape->rows, rows->labels);
    if (rc)
        return errbuf_set(err, rc, "%s: cannot be read as numbers", path);
    for (int64_t r = 0; r < rows->rows; r++)
        if (!isfinite(rows->labels[r]) || !isfinite((float)rows->labels[r]))
            return errbuf_set(err, STATUS_FORMAT, "%s: row %lld (from 1): %g is not a finite label", path,
                              (long long)r + 1, rows->labels[r]);
    return 0;
}

static int npy_load(const struct loader_input *input, struct loader_rows *rows, struct errbuf *err)
{
    const char *label_name = input->files->labels;
    int has_labels = label_name && label_name[0] != '\0';
    struct npy *features = NULL, *labels = NULL;
    char *feature_path = NULL, *label_path = NULL;
    if (!has_labels && !input->labels_optional)
        return errbuf_set(err, STATUS_INVALID, "%s: no labels file is given beside these features",
                          input->files->features);
    int rc = open_array(&features, &feature_path, input->folder, input->files->features, err);
    if (rc == 0)
        rc = take_features(features, feature_path, input, rows, err);
    if (rc == 0 && has_labels)
        rc = open_array(&labels, &label_path, input->folder, label_name, err);
    if (rc == 0 && has_labels)
        rc = take_labels(labels, label_path, rows, err);
    npy_close(features);
    npy_close(labels);
    free(feature_path);
    free(label_path);
    return rc;
}

static int npy_is_given(const struct job_data_files *files)
{
    return files->features && files->features[0] != '\0';
}

const struct loader_ops loader_npy = {
    .name = "npy", .divide_default = 1, .is_given = npy_is_given, .load = npy_load};
