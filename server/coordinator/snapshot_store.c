#include "server/coordinator/snapshot_store.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/errbuf.h"
#include "base/sha256.h"
#include "base/status.h"
#include "files/fs.h"

static char *joined(const char *folder, const char *name)
{
    char *path = NULL;
    return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}

static int exists(const char *folder, const char *name)
{
    char *path = joined(folder, name);
    int found = path != NULL && access(path, F_OK) == 0;
    free(path);
    return found;
}

/* Snapshots hold plain files only. */
static void remove_folder(const char *folder)
{
    DIR *dir = opendir(folder);
    if (dir == NULL)
        return;
    /* The manifest goes first: what is half removed is no snapshot. */
    char *manifest = joined(folder, "manifest.json");
    if (manifest != NULL)
        unlink(manifest);
    free(manifest);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char *path = joined(folder, entry->d_name);
        if (path != NULL && strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlink(path);
        free(path);
    }
    closedir(dir);
    rmdir(folder);
}

/* Step of "step-00000100", or -1. */
static int64_t step_of(const char *name)
{
    if (strncmp(name, "step-", 5) != 0 || strlen(name) < 13 || strspn(name + 5, "0123456789") != strlen(name + 5))
        return -1;
    return strtoll(name + 5, NULL, 10);
}

struct listing {
    int64_t *steps; /* newest first */
    int count;
};

static int newest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

static int list_steps(const char *dir_path, struct listing *list, struct errbuf *err)
{
    memset(list, 0, sizeof *list);
    DIR *dir = opendir(dir_path);
    if (dir == NULL)
        return errbuf_set(err, STATUS_IO, "%s: %s", dir_path, strerror(errno));
    int status = 0;
    for (struct dirent *entry; status == 0 && (entry = readdir(dir)) != NULL;) {
        int64_t step = step_of(entry->d_name);
        if (step < 0)
            continue;
        int64_t *steps = realloc(list->steps, ((size_t)list->count + 1) * sizeof *steps);
        if (steps == NULL) {
            status = errbuf_set(err, STATUS_NOMEM, "out of memory");
            break;
        }
        list->steps = steps;
        steps[list->count++] = step;
    }
    closedir(dir);
    if (list->count > 0)
        qsort(list->steps, (size_t)list->count, sizeof *list->steps, newest_first);
    return status;
}

static char *step_folder(const char *dir, const char *prefix, int64_t step)
{
    char *path = NULL;
    return asprintf(&path, "%s/%sstep-%08lld", dir, prefix, (long long)step) < 0 ? NULL : path;
}

static void remove_old(const char *dir_path)
{
    DIR *dir = opendir(dir_path);
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;)
        if (strncmp(entry->d_name, "old-", 4) == 0 && step_of(entry->d_name + 4) >= 0) {
            char *path = joined(dir_path, entry->d_name);
            if (path != NULL)
                remove_folder(path);
            free(path);
        }
    if (dir != NULL)
        closedir(dir);
}

static void set_aside(const char *dir, const struct listing *list, int64_t after, const char *keep)
{
    int removed = 0;
    for (int i = 0; i < list->count; i++) {
        char *from = step_folder(dir, "", list->steps[i]), *to = step_folder(dir, "old-", list->steps[i]);
        if (from != NULL && to != NULL && list->steps[i] > after && strcmp(from, keep) != 0) {
            if (!removed)
                remove_old(dir);
            removed = 1;
            if (rename(from, to) != 0)
                remove_folder(from);
        }
        free(from);
        free(to);
    }
}

static void prune(const char *dir, const struct snapshot_commit *commit)
{
    struct listing list;
    int whole = 0;
    if (list_steps(dir, &list, NULL) != 0)
        list.count = 0;
    for (int i = 0; i < list.count; i++) {
        char *folder = step_folder(dir, "", list.steps[i]);
        if (folder == NULL || list.steps[i] > (int64_t)commit->manifest->step) {
            free(folder);
            continue;
        }
        int is_whole = exists(folder, "manifest.json");
        int best = list.steps[i] == (int64_t)commit->best_step;
        whole += is_whole;
        if (!is_whole || (whole > commit->keep && !best))
            remove_folder(folder);
        free(folder);
    }
    free(list.steps);
}

static int write_best(const char *dir, const struct manifest *manifest, struct errbuf *err)
{
    char *path = joined(dir, "best.json"), name[32];
    snprintf(name, sizeof name, "step-%08llu", (unsigned long long)manifest->step);
    json_t *root = json_pack("{s:s,s:I,s:f}", "folder", name, "step", (json_int_t)manifest->step, "value",
                             manifest->best_value);
    char *text = root == NULL ? NULL : json_dumps(root, JSON_COMPACT);
    int status = path == NULL || text == NULL ? errbuf_set(err, STATUS_NOMEM, "out of memory")
                                              : fs_write_file(path, text, strlen(text), err);
    json_decref(root);
    free(text);
    free(path);
    return status;
}

int snapshot_store_commit(const struct snapshot_commit *commit, struct errbuf *err)
{
    char *dir = strdup(commit->folder), *path = joined(commit->folder, "manifest.json");
    char *text = manifest_to_text(commit->manifest);
    int status = 0;
    if (dir == NULL || path == NULL || text == NULL) {
        status = errbuf_set(err, STATUS_NOMEM, "out of memory");
        goto out;
    }
    char *slash = strrchr(dir, '/');
    if (slash != NULL)
        *slash = '\0';
    status = fs_make_folders(commit->folder, err);
    if (status == 0)
        status = fs_write_file(path, text, strlen(text), err);
    if (status == 0 && commit->manifest->best)
        status = write_best(dir, commit->manifest, err);
    if (status != 0)
        goto out;
    struct listing list;
    if (commit->set_aside_after >= 0 && list_steps(dir, &list, NULL) == 0) {
        set_aside(dir, &list, commit->set_aside_after, commit->folder);
        free(list.steps);
    }
    prune(dir, commit);
out:
    free(text);
    free(path);
    free(dir);
    return status;
}

void snapshot_store_discard(const char *folder)
{
    if (!exists(folder, "manifest.json"))
        remove_folder(folder);
}

static int check_file(const char *folder, struct manifest_file *file, struct errbuf *err)
{
    char *path = joined(folder, file->name), hex[65];
    struct stat info;
    int status = 0;
    if (path == NULL)
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    file->missing = stat(path, &info) != 0;
    if (!file->missing && (uint64_t)info.st_size != file->bytes)
        status = errbuf_set(err, STATUS_CHECKSUM, "%s has %lld bytes, not %llu", file->name,
                            (long long)info.st_size, (unsigned long long)file->bytes);
    else if (!file->missing && (sha256_of_file(path, hex) != 0 || strcmp(hex, file->sha256) != 0))
        status = errbuf_set(err, STATUS_CHECKSUM, "%s: checksum differs", file->name);
    free(path);
    return status;
}

static int load(const char *folder, struct manifest *manifest, struct errbuf *err)
{
    char *path = joined(folder, "manifest.json"), *text = NULL;
    size_t bytes = 0;
    manifest_init(manifest);
    if (path == NULL)
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    int status = fs_read_file(path, MANIFEST_BYTES_MAX, &text, &bytes, err);
    if (status == 0 && (status = manifest_parse(text, bytes, manifest, err)) != 0)
        errbuf_prefix(err, status, "manifest.json");
    for (int i = 0; status == 0 && i < manifest->files_count; i++)
        status = check_file(folder, &manifest->files[i], err);
    if (status != 0)
        manifest_close(manifest);
    free(text);
    free(path);
    return status == STATUS_FORMAT ? STATUS_CHECKSUM : status;
}

/* The damaged one is named, and the one before it, which somebody must ask for. */
static int say_damaged(const char *dir, const struct listing *list, int newest, int status, struct errbuf *err)
{
    char why[300];
    snprintf(why, sizeof why, "%.299s", err == NULL ? "" : err->text);
    for (int i = newest + 1; i < list->count; i++) {
        char *before = step_folder(dir, "", list->steps[i]);
        if (before != NULL && exists(before, "manifest.json")) {
            errbuf_set(err, status, "snapshot step-%08lld is damaged (%s); to go on from the one before, resume from %s",
                       (long long)list->steps[newest], why, before);
            free(before);
            return status;
        }
        free(before);
    }
    return errbuf_set(err, status, "snapshot step-%08lld is damaged (%s); there is none before it",
                      (long long)list->steps[newest], why);
}

int snapshot_store_find(const char *path, struct manifest *manifest, char **folder, int *found, struct errbuf *err)
{
    manifest_init(manifest);
    *folder = NULL;
    *found = 0;
    if (exists(path, "manifest.json")) {
        *folder = strdup(path);
        int status = *folder == NULL ? errbuf_set(err, STATUS_NOMEM, "out of memory") : load(path, manifest, err);
        *found = status == 0;
        return status == 0 ? 0 : errbuf_prefix(err, status, "snapshot %s is damaged", path);
    }
    struct listing list;
    int status = list_steps(path, &list, err);
    for (int i = 0; status == 0 && !*found && i < list.count; i++) {
        free(*folder);
        *folder = step_folder(path, "", list.steps[i]);
        if (*folder == NULL)
            status = errbuf_set(err, STATUS_NOMEM, "out of memory");
        else if (!exists(*folder, "manifest.json"))
            continue; /* unfinished: the manifest comes last */
        else if ((status = load(*folder, manifest, err)) == 0)
            *found = 1;
        else
            status = say_damaged(path, &list, i, status, err);
    }
    free(list.steps);
    if (!*found) {
        free(*folder);
        *folder = NULL;
    }
    return status;
}
