#include "worker/data/loader.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"

static const struct {
    enum job_data_kind kind;
    const struct loader_ops *ops;
} loaders[] = {
    {JOB_DATA_IDX, &loader_idx},
    {JOB_DATA_CSV, &loader_csv},
    {JOB_DATA_LIBSVM, &loader_libsvm},
    {JOB_DATA_NPY, &loader_npy},
    {JOB_DATA_SYNTHETIC, &loader_synthetic},
};

const struct loader_ops *loader_find(enum job_data_kind kind)
{
    for (size_t i = 0; i < sizeof loaders / sizeof loaders[0]; i++)
        if (loaders[i].kind == kind)
            return loaders[i].ops;
    return NULL;
}

int loader_resize(void *array, int64_t count, size_t item_bytes)
{
    void *old;
    memcpy(&old, array, sizeof old); /* through memcpy: a T ** is not a void ** to the compiler */
    void *grown = realloc(old, (size_t)count * item_bytes);
    if (!grown)
        return STATUS_NOMEM;
    memcpy(array, &grown, sizeof grown);
    return 0;
}

void loader_rows_close(struct loader_rows *rows)
{
    free(rows->bytes);
    free(rows->dense);
    free(rows->sparse_first);
    free(rows->sparse_column);
    free(rows->sparse_value);
    free(rows->labels);
    free(rows->label_text);
    free(rows->label_at);
    free(rows->lines);
    free(rows->label_file);
    memset(rows, 0, sizeof *rows);
}
