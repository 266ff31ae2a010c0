#include "server/store/restore.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/errbuf.h"
#include "base/sha256.h"
#include "base/status.h"
#include "files/fs.h"
#include "server/server_internal.h"

enum { PIECE_BYTES = 1 << 20, PIECE_DEADLINE_MS = 30000 };

struct restore_file {
    char *path, *name, *sha256, *holder;
    char holder_key[41]; /* CURVE public key */
    uint64_t bytes;
};

struct fetch {
    struct server *server;
    struct restore_file *files;
    int files_count, at; /* file at hand */
    uint64_t step, offset;
    char *folder;
    struct net_link *link;
    struct fs_file out;
    int writing;
    int fetched; /* the file at hand came whole */
    void (*done)(void *context, int status, const char *text);
    void *context;
};

static void fetch_next(struct fetch *fetch);

static void fetch_free(struct fetch *fetch)
{
    net_link_close(fetch->link);
    if (fetch->writing) {
        fs_abandon(&fetch->out);
    }
    for (int f = 0; f < fetch->files_count; f++) {
        free(fetch->files[f].path);
        free(fetch->files[f].name);
        free(fetch->files[f].sha256);
        free(fetch->files[f].holder);
    }
    free(fetch->files);
    free(fetch->folder);
    free(fetch);
}

static void finish(struct fetch *fetch, int status, const char *text)
{
    void (*done)(void *, int, const char *) = fetch->done;
    void *context = fetch->context;
    fetch->server->current->fetch = NULL;
    char copy[512];
    snprintf(copy, sizeof(copy), "%s", text);
    fetch_free(fetch);
    done(context, status, copy);
}

static void load_all(struct fetch *fetch)
{
    struct server_job *job = fetch->server->current;
    const char **paths = calloc((size_t)fetch->files_count + 1, sizeof(*paths));
    struct errbuf err;
    errbuf_init(&err);
    for (int f = 0; paths && f < fetch->files_count; f++) {
        paths[f] = fetch->files[f].path;
    }
    int status = paths ? shard_load(job->shard, paths, fetch->files_count, fetch->step, &err) : STATUS_NOMEM;
    free(paths);
    finish(fetch, status, err.text);
}

static void on_piece(void *context, int status, struct message *reply)
{
    struct fetch *fetch = context;
    struct restore_file *file = &fetch->files[fetch->at];
    struct errbuf err;
    errbuf_init(&err);
    if (status == STATUS_CLOSED) {
        return;
    }
    if (status == 0 && reply->frames_count == 1 && reply->frames[0]->bytes > 0) {
        status = fs_write(&fetch->out, reply->frames[0]->data, reply->frames[0]->bytes, &err);
        fetch->offset += reply->frames[0]->bytes;
    } else if (status == 0) {
        status = STATUS_FORMAT;
    }
    if (status == 0 && fetch->offset >= file->bytes) {
        fetch->writing = 0;
        fetch->fetched = 1;
        status = fs_commit(&fetch->out, &err);
        fetch->offset = 0;
        net_link_close(fetch->link);
        fetch->link = NULL;
    }
    if (status != 0) {
        errbuf_prefix(&err, status, "snapshot: fetching %s from %s: %s", file->name, file->holder, status_text(status));
        finish(fetch, status, err.text);
        return;
    }
    fetch_next(fetch);
}

static void ask_piece(struct fetch *fetch)
{
    struct restore_file *file = &fetch->files[fetch->at];
    Shoal__Fetch body = SHOAL__FETCH__INIT;
    body.folder = fetch->folder;
    body.name = file->name;
    body.offset = fetch->offset;
    body.bytes = file->bytes - fetch->offset < PIECE_BYTES ? file->bytes - fetch->offset : PIECE_BYTES;
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    envelope.type = SHOAL__TYPE__FETCH;
    envelope.body_case = SHOAL__ENVELOPE__BODY_FETCH;
    envelope.fetch = &body;
    struct net_call call = {.envelope = &envelope, .deadline_ms = PIECE_DEADLINE_MS, .resend_ms = 3000,
                            .reply = on_piece, .context = fetch};
    if (net_request(fetch->link, &call) == 0) {
        finish(fetch, STATUS_NOMEM, "snapshot: out of memory for a request");
    }
}

static int begin_fetch(struct fetch *fetch, struct restore_file *file, struct errbuf *err)
{
    struct server *server = fetch->server;
    char folder[PATH_MAX];
    server_snapshot_path(server, fetch->folder, NULL, folder, sizeof(folder));
    int status = fs_make_folders(folder, err);
    if (status == 0) {
        struct net_curve curve = server->curve;
        snprintf(curve.server_key, sizeof(curve.server_key), "%s", file->holder_key);
        status = net_link_open(&fetch->link, server->net, file->holder, server->has_curve ? &curve : NULL, NULL, NULL, err);
    }
    if (status == 0) {
        status = fs_create(&fetch->out, &fs_real, file->path, err);
        fetch->writing = status == 0;
    }
    return status;
}

/* Goes on with the file at hand: here and whole, under way, or to be asked for. */
static void fetch_next(struct fetch *fetch)
{
    struct errbuf err;
    errbuf_init(&err);
    char hex[65];
    for (; fetch->at < fetch->files_count; fetch->at++) {
        struct restore_file *file = &fetch->files[fetch->at];
        if (fetch->writing) {
            ask_piece(fetch);
            return;
        }
        int here = access(file->path, R_OK) == 0;
        if (here && sha256_of_file(file->path, hex) == 0 && strcmp(hex, file->sha256) == 0) {
            fetch->fetched = 0;
            continue;
        }
        if (fetch->fetched || !file->holder[0] || strcmp(file->holder, fetch->server->address) == 0) {
            errbuf_set(&err, here ? STATUS_CHECKSUM : STATUS_IO, "snapshot: %s is %s", file->path,
                       here ? "damaged: its SHA-256 is not the manifest's" : "missing");
            finish(fetch, here ? STATUS_CHECKSUM : STATUS_IO, err.text);
            return;
        }
        int status = begin_fetch(fetch, file, &err);
        if (status != 0) {
            finish(fetch, status, err.text);
            return;
        }
        ask_piece(fetch);
        return;
    }
    load_all(fetch);
}

static int copy_file(const struct server *server, struct restore_file *to, const Shoal__SnapshotFile *from,
                     const char *folder)
{
    char path[PATH_MAX];
    server_snapshot_path(server, folder, from->name, path, sizeof(path));
    to->path = strdup(path);
    to->name = strdup(from->name);
    to->sha256 = strdup(from->sha256);
    to->holder = strdup(from->holder);
    to->bytes = from->bytes;
    return to->path && to->name && to->sha256 && to->holder && !strchr(from->name, '/') ? 0 : STATUS_INVALID;
}

void restore_start(struct server *server, const Shoal__Start *start,
                   void (*done)(void *context, int status, const char *text), void *context)
{
    struct fetch *fetch = calloc(1, sizeof(*fetch));
    if (!fetch) {
        done(context, STATUS_NOMEM, "snapshot: out of memory");
        return;
    }
    server->current->fetch = fetch;
    *fetch = (struct fetch){.server = server, .step = start->snapshot_step, .done = done, .context = context};
    fetch->folder = strdup(start->snapshot_folder);
    fetch->files = calloc(start->n_files + 1, sizeof(*fetch->files));
    int status = fetch->folder && fetch->files ? 0 : STATUS_NOMEM;
    for (size_t f = 0; f < start->n_files && status == 0; f++) {
        struct restore_file *file = &fetch->files[fetch->files_count++];
        status = copy_file(server, file, start->files[f], fetch->folder);
        for (size_t s = 0; s < start->n_servers && s < start->n_server_keys && status == 0; s++) {
            if (strcmp(start->servers[s], file->holder) == 0) {
                snprintf(file->holder_key, sizeof(file->holder_key), "%s", start->server_keys[s]);
            }
        }
    }
    if (status != 0) {
        finish(fetch, status, "snapshot: a bad file list");
        return;
    }
    fetch_next(fetch);
}

void restore_cancel(struct server *server)
{
    if (server->current->fetch) {
        fetch_free(server->current->fetch);
        server->current->fetch = NULL;
    }
}
