#include "base/errbuf.h"
#include "files/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Reads every byte that the reader says is there, so that ASan sees one that is not. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct safetensors *file;
    struct errbuf err;
    errbuf_init(&err);
    if (safetensors_parse(&file, data, bytes, &err) != 0) {
        if (file || !err.text[0])
            abort();
        return 0;
    }
    size_t sum = 0;
    for (int i = 0; i < safetensors_count(file); i++) {
        const struct safetensors_tensor *tensor = safetensors_at(file, i);
        if (safetensors_find(file, tensor->name) != tensor || tensor->bytes > bytes)
            abort();
        sum += tensor->bytes;
        float *out = malloc((size_t)tensor->count * sizeof *out + 1);
        if (out && safetensors_to_f32(tensor, out) == 0 && tensor->count > 0)
            memmove(out, out + tensor->count - 1, sizeof *out);
        free(out);
    }
    if (sum > bytes)
        abort();
    safetensors_metadata(file, "format");
    safetensors_close(file);
    return 0;
}
