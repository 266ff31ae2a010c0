/* Any bytes as an images file with any bytes as its labels file, plain or gzip: refused in one line, or rows whose
 * arrays can be read to their ends. The first two bytes say where the second file starts. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "worker/data/loader.h"
#include "worker/data/source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const struct job job;
    struct loader_input input = {.job = &job, .folder = ""};
    struct loader_rows rows = {0};
    struct source *images = NULL, *labels = NULL;
    struct errbuf err;
    if (bytes < 2)
        return 0;
    size_t left = bytes - 2, cut = (size_t)data[0] << 8 | data[1];
    if (cut > left)
        cut = left;
    errbuf_init(&err);
    int rc = source_open_memory(&images, "images", data + 2, cut, &err);
    if (rc == 0)
        rc = source_open_memory(&labels, "labels", data + 2 + cut, left - cut, &err);
    if (rc == 0)
        rc = idx_parse(images, left > cut ? labels : NULL, &input, &rows, &err);
    if (rc == 0 && (!rows.bytes || rows.rows < 1 || rows.features < 1))
        abort();
    if (rc != 0 && err.text[0] == '\0')
        abort();
    int64_t sum = 0; /* reads every byte under the sanitizer's eyes */
    for (int64_t i = 0; rc == 0 && i < rows.rows * rows.features; i++)
        sum += rows.bytes[i];
    if (rc == 0 && sum > 255 * rows.rows * rows.features)
        abort();
    loader_rows_close(&rows);
    source_close(images);
    source_close(labels);
    return 0;
}
