#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "deploy/cli/inspect.h"
#include "files/fs.h"
#include "server/coordinator/manifest.h"

static int load_manifest(const char *path, struct manifest *manifest, struct errbuf *err)
{
    char *text = NULL;
    size_t bytes = 0;
    manifest_init(manifest);
    int status = fs_read_file(path, MANIFEST_BYTES_MAX, &text, &bytes, err);
    if (status == 0)
        status = manifest_parse(text, bytes, manifest, err);
    free(text);
    return status == 0 ? 0 : errbuf_prefix(err, status, "%.200s", path);
}

int inspect_manifest(const char *path, struct errbuf *err)
{
    struct manifest manifest;
    int status = load_manifest(path, &manifest, err);
    if (status != 0)
        return status;
    printf("snapshot: step %" PRIu64 " of %" PRIu64 ", %" PRIu64
           " updates applied, written by %d workers, %d servers%s\n",
           manifest.step, manifest.total_steps, manifest.applied, manifest.workers, manifest.servers,
           manifest.best ? ", the best one" : "");
    for (int i = 0; i < manifest.files_count; i++) {
        const struct manifest_file *file = &manifest.files[i];
        printf("  %s of server %u, %" PRIu64 " bytes, sha256 %s\n", file->name, file->owner, file->bytes,
               file->sha256);
    }
    manifest_close(&manifest);
    return 0;
}

/* 1 when the folder has a manifest that can be read. */
static int print_child(const char *folder, const char *name)
{
    struct manifest manifest;
    struct errbuf err;
    char *path = NULL;
    errbuf_init(&err);
    if (asprintf(&path, "%s/%s/manifest.json", folder, name) < 0)
        return 0;
    int status = load_manifest(path, &manifest, &err);
    free(path);
    if (status != 0)
        return 0;
    printf("  %s: step %" PRIu64 " of %" PRIu64 "%s\n", name, manifest.step, manifest.total_steps,
           manifest.best ? ", the best one" : "");
    manifest_close(&manifest);
    return 1;
}

static int list_snapshots(const char *path, struct errbuf *err)
{
    struct dirent **entries = NULL;
    int count = scandir(path, &entries, NULL, versionsort), found = 0;
    for (int i = 0; i < count; i++) {
        found += entries[i]->d_name[0] != '.' && print_child(path, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    return found > 0 ? 0 : errbuf_set(err, STATUS_FORMAT, "%.300s: no whole snapshot in this folder", path);
}

int inspect_folder(const char *path, struct errbuf *err)
{
    struct stat info;
    char *manifest = NULL;
    if (asprintf(&manifest, "%s/manifest.json", path) < 0)
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    int status = stat(manifest, &info) == 0 ? inspect_manifest(manifest, err) : list_snapshots(path, err);
    free(manifest);
    return status;
}
