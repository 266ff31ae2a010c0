/* Any bytes as a csv file: refused in one line, or finite rows. The first byte chooses the options. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/errbuf.h"
#include "worker/data/loader.h"
#include "worker/data/source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct job job = {0};
    struct loader_input input = {.job = &job, .folder = ""};
    struct loader_rows rows = {0};
    struct source *source;
    struct errbuf err;
    if (bytes < 1)
        return 0;
    job.data.label_column = data[0] % 4 - 2;
    job.data.header_lines = data[0] >> 2 & 1;
    job.data.missing = data[0] >> 3 & 1 ? JOB_MISSING_MEAN : JOB_MISSING_ERROR;
    input.classification = data[0] >> 4 & 1;
    input.labels_optional = data[0] >> 5 & 1;
    input.features = data[0] >> 6;
    errbuf_init(&err);
    int rc = source_open_memory(&source, "csv", data + 1, bytes - 1, &err);
    if (rc == 0)
        rc = csv_parse(source, &input, &rows, &err);
    if (rc != 0 && err.text[0] == '\0')
        abort();
    for (int64_t i = 0; rc == 0 && i < rows.rows * rows.features; i++)
        if (!isfinite(rows.dense[i]) && job.data.missing == JOB_MISSING_ERROR)
            abort();
    for (int64_t r = 0; rc == 0 && rows.labels && r < rows.rows; r++)
        if (!isfinite(rows.labels[r]) && !rows.labels_are_text)
            abort();
    loader_rows_close(&rows);
    source_close(source);
    return 0;
}
