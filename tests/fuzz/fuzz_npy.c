#include "base/errbuf.h"
#include "files/npy.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct npy *npy;
    struct errbuf err;
    errbuf_init(&err);
    if (npy_parse(&npy, data, bytes, &err) != 0) {
        if (npy || !err.text[0])
            abort();
        return 0;
    }
    const struct npy_shape *shape = npy_shape(npy);
    int64_t count = shape->rows * shape->row_elements; /* at most the number of bytes */
    if (count < 0 || (size_t)count > bytes)
        abort();
    void *out = malloc((size_t)count * 8 + 1);
    if (out) {
        if (npy_read_f32(npy, 0, shape->rows, out) || npy_read_f64(npy, 0, shape->rows, out))
            abort();
        npy_read_i64(npy, 0, shape->rows, out);
    }
    free(out);
    npy_close(npy);
    return 0;
}
