#include "owner/state_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "files/safetensors.h"
#include "optim/optimizer.h"

enum { STATE_NAME_MAX = 64 };

static void state_name(char *name, const struct state_span *span)
{
    if (span->slot < 0) {
        snprintf(name, STATE_NAME_MAX, "%lld-%lld/values", (long long)span->key_first, (long long)span->key_end);
    } else {
        snprintf(name, STATE_NAME_MAX, "%lld-%lld/slot%d", (long long)span->key_first, (long long)span->key_end,
                 span->slot);
    }
}

int state_file_write(const char *path, const struct state_span *spans, int count, uint64_t clock, char sha256_hex[65],
                     uint64_t *bytes, struct errbuf *err)
{
    struct safetensors_tensor *tensors = calloc((size_t)count + 1, sizeof(*tensors));
    char (*names)[STATE_NAME_MAX] = calloc((size_t)count + 1, sizeof(*names));
    int status = STATUS_NOMEM;
    if (!tensors || !names) {
        errbuf_set(err, status, "%s: out of memory", path);
        goto done;
    }
    for (int i = 0; i < count; i++) {
        state_name(names[i], &spans[i]);
        tensors[i] = (struct safetensors_tensor){.name = names[i], .dtype = SAFETENSORS_F32, .dims = 1,
                                                 .shape = {spans[i].count}, .count = spans[i].count,
                                                 .bytes = (size_t)spans[i].count * sizeof(float), .data = spans[i].data};
    }
    char clock_text[24];
    snprintf(clock_text, sizeof(clock_text), "%llu", (unsigned long long)clock);
    struct safetensors_meta meta = {"clock", clock_text};
    status = safetensors_write(path, tensors, count, &meta, 1, sha256_hex, err);
    struct stat info;
    *bytes = status == 0 && stat(path, &info) == 0 ? (uint64_t)info.st_size : 0;
done:
    free(tensors);
    free(names);
    return status;
}

/* --- reading ------------------------------------------------------------------------------------------ */

struct stored {
    int64_t key_first, key_end;
    const struct safetensors *file;
    const struct safetensors_tensor *tensor;
    int slot; /* -1: values */
};

struct state_files {
    const struct keymap *map;
    struct safetensors **files;
    int files_count;
    struct stored *entries; /* by slot, then key_first */
    int count, room;
};

static int stored_order(const void *a, const void *b)
{
    const struct stored *x = a;
    const struct stored *y = b;
    if (x->slot != y->slot) {
        return x->slot < y->slot ? -1 : 1;
    }
    return (x->key_first > y->key_first) - (x->key_first < y->key_first);
}

static int64_t keys_elements(const struct keymap *map, int64_t first, int64_t end)
{
    int64_t sum = 0;
    for (int64_t key = first; key < end; key++) {
        sum += map->keys[key].end - map->keys[key].begin;
    }
    return sum;
}

/* Tensor t of the last file opened. */
static int index_tensor(struct state_files *index, int t, const char *path, struct errbuf *err)
{
    const struct keymap *map = index->map;
    const struct safetensors *file = index->files[index->files_count - 1];
    const struct safetensors_tensor *tensor = safetensors_at(file, t);
    long long first = -1;
    long long end = -1;
    int slot = -1;
    int used = 0;
    if (sscanf(tensor->name, "%lld-%lld/values%n", &first, &end, &used) != 2 || tensor->name[used] || used == 0) {
        used = 0;
        if (sscanf(tensor->name, "%lld-%lld/slot%d%n", &first, &end, &slot, &used) != 3 || tensor->name[used] || slot < 0 ||
            slot >= OPTIMIZER_SLOTS_MAX) {
            return errbuf_set(err, STATUS_FORMAT, "%s: tensor \"%s\" is not a shard's", path, tensor->name);
        }
    }
    if (first < 0 || end <= first || end > map->keys_count || tensor->dtype != SAFETENSORS_F32 ||
        tensor->count != keys_elements(map, first, end)) {
        return errbuf_set(err, STATUS_FORMAT, "%s: tensor \"%s\" does not fit this model's %lld keys", path,
                          tensor->name, (long long)map->keys_count);
    }
    if (index->count == index->room) {
        int room = index->room ? 2 * index->room : 64;
        struct stored *entries = realloc(index->entries, (size_t)room * sizeof(*entries));
        if (!entries) {
            return errbuf_set(err, STATUS_NOMEM, "%s: out of memory", path);
        }
        index->entries = entries;
        index->room = room;
    }
    index->entries[index->count++] =
        (struct stored){.key_first = first, .key_end = end, .file = file, .tensor = tensor, .slot = slot};
    return 0;
}

static const struct stored *stored_find(const struct state_files *index, int slot, int64_t key)
{
    int low = 0;
    int high = index->count;
    while (low < high) { /* first entry that begins after (slot, key) */
        int middle = low + (high - low) / 2;
        const struct stored *e = &index->entries[middle];
        if (e->slot < slot || (e->slot == slot && e->key_first <= key)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    const struct stored *e = low > 0 ? &index->entries[low - 1] : NULL;
    return e && e->slot == slot && key < e->key_end ? e : NULL;
}

int state_file_copy(const struct state_files *files, const struct state_span *span, float *out, struct errbuf *err)
{
    const struct keymap *map = files->map;
    int slot = span->slot;
    for (int64_t key = span->key_first; key < span->key_end; key++) {
        const struct stored *e = stored_find(files, slot, key);
        int64_t count = map->keys[key].end - map->keys[key].begin;
        if (!e) {
            return errbuf_set(err, STATUS_FORMAT, "snapshot: key %lld of tensor %s has no stored %s", (long long)key,
                              map->table->tensors[map->keys[key].tensor].name, slot < 0 ? "values" : "optimizer state");
        }
        int64_t at = keys_elements(map, e->key_first, key);
        struct safetensors_tensor piece = *e->tensor;
        piece.data = (const char *)piece.data + at * (int64_t)sizeof(float);
        piece.bytes = (size_t)count * sizeof(float);
        piece.count = count;
        safetensors_take_f32(e->file, &piece, out);
        out += count;
    }
    return 0;
}

void state_files_close(struct state_files *files)
{
    for (int f = 0; files && f < files->files_count; f++) {
        safetensors_close(files->files[f]);
    }
    if (files) {
        free(files->files);
        free(files->entries);
        free(files);
    }
}

int state_files_open(struct state_files **out, const struct keymap *map, const char *const *paths, int paths_count,
                     struct errbuf *err)
{
    struct state_files *files = calloc(1, sizeof(*files));
    int status = STATUS_NOMEM;
    if (files) {
        files->map = map;
        files->files = calloc((size_t)paths_count + 1, sizeof(*files->files));
    }
    if (!files || !files->files) {
        errbuf_set(err, status, "snapshot: out of memory");
        goto fail;
    }
    for (int f = 0; f < paths_count; f++) {
        status = safetensors_open(&files->files[f], paths[f], err);
        if (status != 0) {
            goto fail;
        }
        files->files_count = f + 1;
        for (int t = 0; t < safetensors_count(files->files[f]); t++) {
            status = index_tensor(files, t, paths[f], err);
            if (status != 0) {
                goto fail;
            }
        }
    }
    if (files->count > 0) {
        qsort(files->entries, (size_t)files->count, sizeof(*files->entries), stored_order);
    }
    *out = files;
    return 0;

fail:
    state_files_close(files);
    return status;
}
