#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "owner/shard_internal.h"
#include "owner/state_file.h"

static struct state_span span_of(const struct shard_range *range, int slot)
{
    return (struct state_span){.key_first = range->range->key_first, .key_end = range->range->key_end, .slot = slot,
                               .count = keymap_range_elements(range->range),
                               .data = slot < 0 ? range->values->data : range->slots[slot]};
}

static int slots_of(const struct shard_range *range)
{
    return range->range->frozen ? 0 : range->shard->slots;
}

int shard_save(const struct shard *shard, const char *path, uint64_t clock, char sha256_hex[65], uint64_t *bytes,
               struct errbuf *err)
{
    struct state_span *spans = calloc((size_t)shard->ranges_count * (size_t)(1 + shard->slots) + 1, sizeof(*spans));
    if (!spans) {
        return errbuf_set(err, STATUS_NOMEM, "%s: out of memory", path);
    }
    int count = 0;
    for (int i = 0; i < shard->ranges_count; i++) {
        const struct shard_range *range = &shard->ranges[i];
        for (int slot = range->values ? -1 : 0; slot < slots_of(range); slot++) {
            spans[count++] = span_of(range, slot);
        }
    }
    struct state_file file = {.path = path, .clock = clock};
    int status = state_file_write(&file, shard->options.map, spans, count, err);
    memcpy(sha256_hex, file.sha256, sizeof(file.sha256));
    *bytes = file.bytes;
    free(spans);
    return status;
}

static int load_range(struct shard *shard, struct shard_range *range, const struct state_files *files, uint64_t clock,
                      struct errbuf *err)
{
    int status = 0;
    for (int slot = range->values ? -1 : 0; slot < slots_of(range) && status == 0; slot++) {
        struct state_span span = span_of(range, slot);
        status = state_files_copy(files, &span, (float *)span.data, err);
    }
    if (status == 0 && !range->range->frozen && !range->values) {
        memset(range->sums->data, 0, range->sums->bytes); /* nobody pulls sums of before, but nothing else may leak */
    }
    if (status == 0) {
        range->clock = clock;
        shard->initialised_count += !range->initialised;
        range->initialised = 1;
    }
    return status;
}

int shard_load(struct shard *shard, const char *const *paths, int paths_count, uint64_t clock, struct errbuf *err)
{
    struct state_files *files = NULL;
    int status = state_files_open(&files, shard->options.map, paths, paths_count, err);
    for (int i = 0; i < shard->ranges_count && status == 0; i++) {
        status = load_range(shard, &shard->ranges[i], files, clock, err);
    }
    if (status == 0) {
        shard->clock = clock;
        shard->verdict = clock;
    }
    state_files_close(files);
    return status;
}
