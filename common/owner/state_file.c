#include "owner/state_file.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "files/safetensors.h"
#include "optim/optimizer.h"

enum { STATE_NAME_MAX = 112 };

/* Elements from the flat vector's start; keys lie end to end. */
static int64_t key_begin(const struct keymap *map, int64_t key)
{
    const struct keymap_key *k = &map->keys[key];
    return map->table->layers[map->table->tensors[k->tensor].layer].offset + k->begin;
}

static int64_t key_end(const struct keymap *map, int64_t key)
{
    return key_begin(map, key) + map->keys[key].end - map->keys[key].begin;
}

/* --- writing ------------------------------------------------------------------------------------------ */

struct state_span state_span_of(const struct keymap *map, int layer, int64_t begin, int64_t end)
{
    struct state_span span = {.count = end - begin, .slot = -1};
    if (end > begin) {
        span.key_first = keymap_key_at(map, layer, begin);
        span.key_end = keymap_key_at(map, layer, end - 1) + 1;
        span.skip = begin - map->keys[span.key_first].begin;
    }
    return span;
}

static void state_name(char *name, const struct keymap *map, const struct state_span *span)
{
    int64_t whole = key_end(map, span->key_end - 1) - key_begin(map, span->key_first);
    int at = snprintf(name, STATE_NAME_MAX, "%" PRId64 "-%" PRId64, span->key_first, span->key_end);
    if (span->count != whole) {
        at += snprintf(name + at, (size_t)(STATE_NAME_MAX - at), "+%" PRId64 ":%" PRId64, span->skip, span->count);
    }
    if (span->slot < 0) {
        snprintf(name + at, (size_t)(STATE_NAME_MAX - at), "/values");
    } else {
        snprintf(name + at, (size_t)(STATE_NAME_MAX - at), "/slot%d", span->slot);
    }
}

int state_file_write(struct state_file *file, const struct keymap *map, const struct state_span *spans, int count,
                     struct errbuf *err)
{
    struct safetensors_tensor *tensors = calloc((size_t)count + 1, sizeof(*tensors));
    char (*names)[STATE_NAME_MAX] = calloc((size_t)count + 1, sizeof(*names));
    int status = STATUS_NOMEM;
    int written = 0;
    if (!tensors || !names) {
        errbuf_set(err, status, "%s: out of memory", file->path);
        goto done;
    }
    for (int i = 0; i < count; i++) {
        if (spans[i].count == 0) {
            continue;
        }
        state_name(names[written], map, &spans[i]);
        tensors[written] = (struct safetensors_tensor){
            .name = names[written], .dtype = SAFETENSORS_F32, .dims = 1, .shape = {spans[i].count},
            .count = spans[i].count, .bytes = (size_t)spans[i].count * sizeof(float), .data = spans[i].data};
        written++;
    }
    char clock_text[24];
    snprintf(clock_text, sizeof(clock_text), "%" PRIu64, file->clock);
    struct safetensors_meta meta = {"clock", clock_text};
    status = safetensors_write(file->path, tensors, written, &meta, 1, file->sha256, err);
    struct stat info;
    file->bytes = status == 0 && stat(file->path, &info) == 0 ? (uint64_t)info.st_size : 0;
done:
    free(tensors);
    free(names);
    return status;
}

/* --- reading ------------------------------------------------------------------------------------------ */

struct stored {
    int64_t begin, end; /* elements from the flat vector's start */
    const struct safetensors_tensor *tensor;
    int slot; /* -1: values */
    int file;
};

struct state_files {
    const struct keymap *map;
    struct safetensors **files;
    int files_count;
    struct stored *entries; /* by slot, begin; ends ascend too: what lies inside another is left out */
    int count, room;
};

/* By slot, then begin, the longer one first. */
static int stored_order(const void *a, const void *b)
{
    const struct stored *x = a;
    const struct stored *y = b;
    if (x->slot != y->slot) {
        return x->slot < y->slot ? -1 : 1;
    }
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return (x->end < y->end) - (x->end > y->end);
}

/* A whole number at *text, which moves behind it; -1 when there is none or it is too large. */
static int64_t read_number(const char **text)
{
    int64_t value = isdigit((unsigned char)**text) ? 0 : -1;
    for (; isdigit((unsigned char)**text); (*text)++) {
        int digit = **text - '0';
        if (value > (INT64_MAX - digit) / 10) {
            return -1;
        }
        value = value * 10 + digit;
    }
    return value;
}

static int read_character(const char **text, char wanted)
{
    int there = **text == wanted;
    *text += there;
    return there;
}

/* The name's numbers; count -1 when it says nothing of elements. Returns 0 when the name is none of ours. */
static int read_name(const char *name, struct state_span *span)
{
    *span = (struct state_span){.slot = -1, .count = -1};
    span->key_first = read_number(&name);
    int good = span->key_first >= 0 && read_character(&name, '-');
    span->key_end = good ? read_number(&name) : -1;
    good = span->key_end >= 0;
    if (good && read_character(&name, '+')) {
        span->skip = read_number(&name);
        good = span->skip >= 0 && read_character(&name, ':');
        span->count = good ? read_number(&name) : -1;
        good = span->count >= 0;
    }
    if (good && strncmp(name, "/slot", 5) == 0) {
        name += 5;
        int64_t slot = read_number(&name);
        span->slot = slot < OPTIMIZER_SLOTS_MAX ? (int)slot : -1;
        return span->slot >= 0 && *name == '\0';
    }
    return good && strcmp(name, "/values") == 0;
}

/* The elements lie in the keys that are named: all of them, or from inside the first to inside the last. */
static int fits_keys(const struct keymap *map, const struct state_span *span)
{
    if (span->key_first >= span->key_end || span->key_end > map->keys_count || span->count < 1) {
        return 0;
    }
    int64_t begin = key_begin(map, span->key_first);
    int64_t whole = key_end(map, span->key_end - 1) - begin;
    return span->skip < key_end(map, span->key_first) - begin && span->count <= whole - span->skip &&
           span->skip + span->count > key_begin(map, span->key_end - 1) - begin;
}

static int index_tensor(struct state_files *files, const struct safetensors_tensor *tensor, const char *path,
                        struct errbuf *err)
{
    const struct keymap *map = files->map;
    struct state_span span;
    if (!read_name(tensor->name, &span)) {
        return errbuf_set(err, STATUS_FORMAT, "%s: tensor \"%.120s\" is not an owner's", path, tensor->name);
    }
    if (span.count < 0 && span.key_first < span.key_end && span.key_end <= map->keys_count) {
        span.count = key_end(map, span.key_end - 1) - key_begin(map, span.key_first);
    }
    if (!fits_keys(map, &span) || tensor->dtype != SAFETENSORS_F32 || tensor->count != span.count) {
        return errbuf_set(err, STATUS_FORMAT, "%s: tensor \"%s\" does not fit this model's %" PRId64 " keys", path,
                          tensor->name, map->keys_count);
    }
    if (files->count == files->room) {
        int room = files->room ? 2 * files->room : 64;
        struct stored *entries = realloc(files->entries, (size_t)room * sizeof(*entries));
        if (!entries) {
            return errbuf_set(err, STATUS_NOMEM, "%s: out of memory", path);
        }
        files->entries = entries;
        files->room = room;
    }
    int64_t begin = key_begin(map, span.key_first) + span.skip;
    files->entries[files->count++] = (struct stored){.begin = begin, .end = begin + span.count, .tensor = tensor,
                                                     .slot = span.slot, .file = files->files_count - 1};
    return 0;
}

static const char *stored_data(const struct stored *entry, int64_t at)
{
    return (const char *)entry->tensor->data + (at - entry->begin) * (int64_t)sizeof(float);
}

/* The key that holds an element of the flat vector. */
static int64_t key_of(const struct keymap *map, int64_t at)
{
    int64_t low = 0;
    int64_t high = map->keys_count;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (key_begin(map, middle) <= at) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

static int tell_difference(const struct state_files *files, const struct stored *a, const struct stored *b,
                           const char *const *paths, struct errbuf *err)
{
    int64_t at = b->begin;
    while (memcmp(stored_data(a, at), stored_data(b, at), sizeof(float)) == 0) {
        at++;
    }
    int64_t key = key_of(files->map, at);
    return errbuf_set(err, STATUS_FORMAT,
                      "snapshot: key %" PRId64 " of tensor %s is stored twice and differs at its element %" PRId64
                      ": \"%s\" in %s, \"%s\" in %s",
                      key, files->map->table->tensors[files->map->keys[key].tensor].name,
                      at - key_begin(files->map, key), a->tensor->name, paths[a->file], b->tensor->name, paths[b->file]);
}

/* Compares what is stored twice and leaves out what lies inside another. Entries kept so far reach as far as any before
 * them, and the last of them has all that an entry may share with those before it. */
static int settle_overlaps(struct state_files *files, const char *const *paths, struct errbuf *err)
{
    int kept = 0;
    for (int i = 0; i < files->count; i++) {
        const struct stored *e = &files->entries[i];
        const struct stored *last = kept > 0 ? &files->entries[kept - 1] : NULL;
        if (last && last->slot == e->slot && e->begin < last->end) {
            int64_t shared = (e->end < last->end ? e->end : last->end) - e->begin;
            if (memcmp(stored_data(last, e->begin), e->tensor->data, (size_t)shared * sizeof(float)) != 0) {
                return tell_difference(files, last, e, paths, err);
            }
            if (e->end <= last->end) {
                continue;
            }
        }
        files->entries[kept++] = *e;
    }
    files->count = kept;
    return 0;
}

/* The last entry that begins at or before an element, or NULL. */
static const struct stored *stored_before(const struct state_files *files, int slot, int64_t at)
{
    int low = 0;
    int high = files->count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        const struct stored *e = &files->entries[middle];
        if (e->slot < slot || (e->slot == slot && e->begin <= at)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    const struct stored *e = low > 0 ? &files->entries[low - 1] : NULL;
    return e && e->slot == slot ? e : NULL;
}

/* No file has the element; says of which key and how much of it, up to what is wanted. */
static int tell_missing(const struct state_files *files, int slot, int64_t at, int64_t wanted_end, struct errbuf *err)
{
    const struct keymap *map = files->map;
    int64_t key = key_of(map, at);
    int64_t begin = key_begin(map, key);
    int64_t end = key_end(map, key) < wanted_end ? key_end(map, key) : wanted_end;
    for (int i = 0; i < files->count; i++) {
        const struct stored *e = &files->entries[i];
        if (e->slot == slot && e->begin > at && e->begin < end) {
            end = e->begin;
        }
    }
    char part[80] = "";
    if (at > begin || end < key_end(map, key)) {
        snprintf(part, sizeof(part), " for its elements %" PRId64 " to %" PRId64, at - begin, end - 1 - begin);
    }
    return errbuf_set(err, STATUS_FORMAT, "snapshot: key %" PRId64 " of tensor %s has no stored %s%s", key,
                      map->table->tensors[map->keys[key].tensor].name, slot < 0 ? "values" : "optimizer state", part);
}

int state_files_copy(const struct state_files *files, const struct state_span *span, float *out, struct errbuf *err)
{
    if (span->count == 0) {
        return 0;
    }
    int64_t at = key_begin(files->map, span->key_first) + span->skip;
    int64_t end = at + span->count;
    while (at < end) {
        const struct stored *e = stored_before(files, span->slot, at);
        if (!e || e->end <= at) {
            return tell_missing(files, span->slot, at, end, err);
        }
        int64_t count = (e->end < end ? e->end : end) - at;
        struct safetensors_tensor piece = *e->tensor;
        piece.data = stored_data(e, at);
        piece.bytes = (size_t)count * sizeof(float);
        piece.count = count;
        safetensors_take_f32(files->files[e->file], &piece, out);
        out += count;
        at += count;
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

static int check_clock(const struct state_files *files, const char *const *paths, struct errbuf *err)
{
    int last = files->files_count - 1;
    const char *first = safetensors_metadata(files->files[0], "clock");
    const char *clock = safetensors_metadata(files->files[last], "clock");
    if (first && clock && strcmp(first, clock) != 0) {
        return errbuf_set(err, STATUS_FORMAT, "%s is of step %.24s, %s of step %.24s", paths[0], first, paths[last], clock);
    }
    return 0;
}

static int add_file(struct state_files *files, const char *const *paths, struct errbuf *err)
{
    int f = files->files_count;
    int status = safetensors_open(&files->files[f], paths[f], err);
    if (status != 0) {
        return status;
    }
    files->files_count++;
    for (int t = 0; t < safetensors_count(files->files[f]) && status == 0; t++) {
        status = index_tensor(files, safetensors_at(files->files[f], t), paths[f], err);
    }
    return status == 0 ? check_clock(files, paths, err) : status;
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
        status = add_file(files, paths, err);
        if (status != 0) {
            goto fail;
        }
    }
    if (files->count > 0) {
        qsort(files->entries, (size_t)files->count, sizeof(*files->entries), stored_order);
    }
    status = settle_overlaps(files, paths, err);
    if (status != 0) {
        goto fail;
    }
    *out = files;
    return 0;

fail:
    state_files_close(files);
    return status;
}
