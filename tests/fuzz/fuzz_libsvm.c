/* Any bytes as a libsvm file: refused in one line, or finite rows with ascending columns below the width. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/errbuf.h"
#include "worker/data/loader.h"
#include "worker/data/source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check_rows(const struct loader_rows *rows)
{
    for (int64_t r = 0; r < rows->rows; r++)
        for (int64_t e = rows->sparse_first[r]; e < rows->sparse_first[r + 1]; e++) {
            int64_t before = e > rows->sparse_first[r] ? rows->sparse_column[e - 1] : -1;
            if (rows->sparse_column[e] <= before || rows->sparse_column[e] >= rows->features ||
                !isfinite(rows->sparse_value[e]))
                abort();
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct job job = {0};
    struct loader_input input = {.job = &job, .folder = ""};
    struct loader_rows rows = {0};
    struct source *source;
    struct errbuf err;
    if (bytes < 1)
        return 0;
    input.index_base = data[0] & 1;
    input.features = data[0] >> 1 & 7;
    errbuf_init(&err);
    int rc = source_open_memory(&source, "libsvm", data + 1, bytes - 1, &err);
    if (rc == 0)
        rc = libsvm_parse(source, &input, &rows, &err);
    if (rc == 0)
        check_rows(&rows);
    else if (err.text[0] == '\0')
        abort();
    loader_rows_close(&rows);
    source_close(source);
    return 0;
}
