#include "server/coordinator/manifest.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"

void manifest_init(struct manifest *manifest)
{
    memset(manifest, 0, sizeof *manifest);
}

void manifest_close(struct manifest *manifest)
{
    for (int i = 0; i < manifest->files_count; i++) {
        free(manifest->files[i].name);
        free(manifest->files[i].holder);
    }
    free(manifest->files);
    free(manifest->yaml);
    free(manifest->running);
    manifest_init(manifest);
}

int manifest_add_file(struct manifest *manifest, const struct manifest_file *file)
{
    struct manifest_file *files =
        realloc(manifest->files, ((size_t)manifest->files_count + 1) * sizeof *files);
    if (files == NULL)
        return STATUS_NOMEM;
    manifest->files = files;
    struct manifest_file copy = *file;
    copy.name = strdup(file->name == NULL ? "" : file->name);
    copy.holder = strdup(file->holder == NULL ? "" : file->holder);
    if (copy.name == NULL || copy.holder == NULL) {
        free(copy.name);
        free(copy.holder);
        return STATUS_NOMEM;
    }
    files[manifest->files_count++] = copy;
    return 0;
}

static json_t *hex_u64(uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)value);
    return json_string(text);
}

static json_t *hex_double(double value)
{
    char text[48];
    snprintf(text, sizeof text, "%a", value);
    return json_string(text);
}

char *manifest_to_text(const struct manifest *manifest)
{
    json_t *root = json_object();
    json_t *files = json_array(), *running = json_array();
    for (int i = 0; i < manifest->files_count; i++) {
        const struct manifest_file *file = &manifest->files[i];
        json_array_append_new(files, json_pack("{s:I,s:s,s:s,s:I,s:s}", "owner", (json_int_t)file->owner, "name",
                                               file->name, "sha256", file->sha256, "bytes",
                                               (json_int_t)file->bytes, "holder", file->holder));
    }
    for (int64_t i = 0; i < manifest->running_count; i++)
        json_array_append_new(running, hex_double(manifest->running[i]));
    json_object_set_new(root, "format", json_integer(MANIFEST_FORMAT));
    json_object_set_new(root, "step", json_integer((json_int_t)manifest->step));
    json_object_set_new(root, "applied", json_integer((json_int_t)manifest->applied));
    json_object_set_new(root, "num_batches_tracked", json_integer((json_int_t)manifest->applied));
    json_object_set_new(root, "total_steps", json_integer((json_int_t)manifest->total_steps));
    json_object_set_new(root, "workers", json_integer(manifest->workers));
    json_object_set_new(root, "servers", json_integer(manifest->servers));
    json_object_set_new(root, "job_hash", hex_u64(manifest->job_hash));
    json_object_set_new(root, "job", json_string(manifest->yaml == NULL ? "" : manifest->yaml));
    json_object_set_new(root, "files", files);
    json_object_set_new(root, "running", running);
    json_object_set_new(root, "evaluations", json_integer(manifest->watched));
    json_object_set_new(root, "bad_evaluations", json_integer(manifest->bad_evaluations));
    json_object_set_new(root, "early_best", hex_double(manifest->early_best));
    json_object_set_new(root, "best_value", hex_double(manifest->best_value));
    json_object_set_new(root, "best_known", json_boolean(manifest->best_known));
    json_object_set_new(root, "best", json_boolean(manifest->best));
    json_object_set_new(root, "best_step", json_integer((json_int_t)manifest->best_step));
    char *text = json_dumps(root, JSON_INDENT(1));
    json_decref(root);
    return text;
}

static int read_hex_double(const char *text, double *value)
{
    char *end;
    *value = strtod(text, &end);
    return *text != '\0' && *end == '\0' ? 0 : STATUS_FORMAT;
}

static int read_hex_u64(const char *text, uint64_t *value)
{
    if (strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
        return STATUS_FORMAT;
    *value = strtoull(text, NULL, 16);
    return 0;
}

static int read_file(const json_t *item, struct manifest *manifest, struct errbuf *err)
{
    json_int_t owner, bytes;
    const char *name, *digest, *holder;
    json_error_t why;
    if (json_unpack_ex((json_t *)item, &why, JSON_STRICT, "{s:I,s:s,s:s,s:I,s:s}", "owner", &owner, "name", &name,
                       "sha256", &digest, "bytes", &bytes, "holder", &holder) != 0)
        return errbuf_set(err, STATUS_FORMAT, "files[%d]: %s", manifest->files_count, why.text);
    if (owner < 0 || owner > UINT16_MAX || bytes < 0)
        return errbuf_set(err, STATUS_FORMAT, "files[%d]: a number out of range", manifest->files_count);
    if (*name == '\0' || strchr(name, '/') != NULL || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return errbuf_set(err, STATUS_FORMAT, "files[%d]: \"%.60s\" is no file name", manifest->files_count, name);
    if (strlen(digest) != 64 || strspn(digest, "0123456789abcdef") != 64)
        return errbuf_set(err, STATUS_FORMAT, "files[%d]: sha256 is not 64 hexadecimal digits",
                          manifest->files_count);
    struct manifest_file file = {.owner = (unsigned)owner, .name = (char *)name, .bytes = (uint64_t)bytes,
                                 .holder = (char *)holder};
    memcpy(file.sha256, digest, 65);
    return manifest_add_file(manifest, &file);
}

static int read_arrays(const json_t *files, const json_t *running, struct manifest *manifest, struct errbuf *err)
{
    size_t index;
    json_t *item;
    if (!json_is_array(files) || !json_is_array(running))
        return errbuf_set(err, STATUS_FORMAT, "files and running must be lists");
    json_array_foreach(files, index, item)
    {
        int status = read_file(item, manifest, err);
        if (status != 0)
            return status;
    }
    manifest->running_count = (int64_t)json_array_size(running);
    manifest->running = calloc((size_t)manifest->running_count + 1, sizeof *manifest->running);
    if (manifest->running == NULL)
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    json_array_foreach(running, index, item)
    {
        double value;
        if (!json_is_string(item) || read_hex_double(json_string_value(item), &value) != 0)
            return errbuf_set(err, STATUS_FORMAT, "running[%zu]: not a number", index);
        if (isfinite(value) && fabs(value) > 3.4028234663852886e38)
            return errbuf_set(err, STATUS_FORMAT, "running[%zu]: beyond float32", index);
        manifest->running[index] = (float)value;
    }
    return 0;
}

static int read_root(json_t *root, struct manifest *manifest, struct errbuf *err)
{
    json_error_t why;
    json_int_t format, step, applied, tracked, total, workers, servers, watched, bad, best_step;
    const char *hash, *yaml, *early, *best_value;
    json_t *files, *running;
    if (json_unpack_ex(root, &why, JSON_STRICT,
                       "{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:s,s:s,s:o,s:o,s:I,s:I,s:s,s:s,s:b,s:b,s:I}", "format", &format,
                       "step", &step, "applied", &applied, "num_batches_tracked", &tracked, "total_steps", &total,
                       "workers", &workers, "servers", &servers, "job_hash", &hash, "job", &yaml, "files", &files,
                       "running", &running, "evaluations", &watched, "bad_evaluations", &bad, "early_best", &early,
                       "best_value", &best_value, "best_known", &manifest->best_known, "best",
                       &manifest->best, "best_step", &best_step) != 0)
        return errbuf_set(err, STATUS_FORMAT, "%s", why.text);
    if (format != MANIFEST_FORMAT)
        return errbuf_set(err, STATUS_FORMAT, "format %lld, this release reads %d", (long long)format,
                          MANIFEST_FORMAT);
    if (step < 1 || applied < 0 || applied > step || tracked != applied || total < 0 || workers < 1 ||
        workers > UINT16_MAX || servers < 0 || servers > UINT16_MAX || watched < 0 || watched > INT32_MAX ||
        bad < 0 || bad > watched || best_step < 0 || best_step > step)
        return errbuf_set(err, STATUS_FORMAT, "a number out of range");
    manifest->step = (uint64_t)step;
    manifest->best_step = (uint64_t)best_step;
    manifest->applied = (uint64_t)applied;
    manifest->total_steps = (uint64_t)total;
    manifest->workers = (int)workers;
    manifest->servers = (int)servers;
    manifest->watched = (int)watched;
    manifest->bad_evaluations = (int)bad;
    if (read_hex_u64(hash, &manifest->job_hash) != 0 || read_hex_double(early, &manifest->early_best) != 0 ||
        read_hex_double(best_value, &manifest->best_value) != 0)
        return errbuf_set(err, STATUS_FORMAT, "job_hash, early_best or best_value is not a number");
    manifest->yaml = strdup(yaml);
    if (manifest->yaml == NULL)
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    return read_arrays(files, running, manifest, err);
}

int manifest_parse(const char *text, size_t bytes, struct manifest *manifest, struct errbuf *err)
{
    manifest_init(manifest);
    json_error_t why;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL)
        return errbuf_set(err, STATUS_FORMAT, "line %d: %s", why.line, why.text);
    int status = read_root(root, manifest, err);
    json_decref(root);
    if (status != 0)
        manifest_close(manifest);
    return status;
}
