#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "owner/state_file.h"
#include "worker/strategy/owned_internal.h"

static float *values_at(const struct owned_values *values, int layer, int64_t element)
{
    return values->w[layer] + (element - (values->w_begin ? values->w_begin[layer] : 0));
}

/* Values by layer, then slots by piece; owned. NULL when out of memory. */
static struct state_span *spans_of(const struct owned *owned, const struct owned_values *values, int *count)
{
    const struct keymap *map = owned->options.map;
    int layers = owned->options.table->layer_count;
    struct state_span *spans = calloc((size_t)layers + (size_t)(owned->count * owned->slots) + 1, sizeof(*spans));
    *count = 0;
    for (int layer = 0; spans && layer < layers; layer++) {
        int64_t begin = 0;
        int64_t end = 0;
        owned_part(owned, layer, &begin, &end);
        if (begin < end) {
            struct state_span span = state_span_of(map, layer, begin, end);
            span.data = values_at(values, layer, begin);
            spans[(*count)++] = span;
        }
    }
    for (int p = 0; spans && p < owned->count; p++) {
        const struct owned_piece *piece = &owned->pieces[p];
        for (int s = 0; s < owned->slots; s++) {
            struct state_span span = state_span_of(map, piece->layer, piece->begin, piece->end);
            span.slot = s;
            span.data = piece->slots[s];
            spans[(*count)++] = span;
        }
    }
    return spans;
}

int owned_save(const struct owned *owned, const struct owned_values *values, struct owned_file *file,
               struct errbuf *err)
{
    struct state_file out = {.path = file->path, .clock = file->clock};
    int count = 0;
    struct state_span *spans = spans_of(owned, values, &count);
    if (!spans) {
        return errbuf_set(err, STATUS_NOMEM, "%s: out of memory", file->path);
    }
    int status = state_file_write(&out, owned->options.map, spans, count, err);
    memcpy(file->sha256, out.sha256, sizeof(file->sha256));
    file->bytes = out.bytes;
    free(spans);
    return status;
}

int owned_load(struct owned *owned, const struct owned_values *values, const char *const *paths, int paths_count,
               struct errbuf *err)
{
    int count = 0;
    struct state_files *files = NULL;
    struct state_span *spans = spans_of(owned, values, &count);
    if (!spans) {
        return errbuf_set(err, STATUS_NOMEM, "snapshot: out of memory");
    }
    int status = state_files_open(&files, owned->options.map, paths, paths_count, err);
    for (int i = 0; i < count && status == 0; i++) {
        status = state_files_copy(files, &spans[i], (float *)spans[i].data, err); /* ours: const only for writing */
    }
    state_files_close(files);
    free(spans);
    return status;
}
