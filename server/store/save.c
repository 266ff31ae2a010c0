#include "server/store/save.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "files/fs.h"
#include "server/server_internal.h"

enum { SAVE_KEPT = 8 };

struct save {
    struct pool_task task; /* first member */
    uv_async_t async;
    struct server *server;
    const struct shard *shard;
    uint64_t step, bytes;
    uint64_t kept[SAVE_KEPT]; /* whole snapshots that must stay */
    size_t kept_count;
    char folder[PATH_MAX], name[64], path[PATH_MAX], sha256[65];
    struct errbuf err;
    pthread_mutex_t lock;
    pthread_cond_t finished;
    int status, running, done;
};

static void write_file(struct pool_task *task)
{
    struct save *save = (struct save *)task;
    char folder[PATH_MAX];
    snprintf(folder, sizeof(folder), "%s", save->path);
    *strrchr(folder, '/') = '\0';
    int status = fs_make_folders(folder, &save->err);
    if (status == 0) {
        fs_remove_temporaries(folder, save->name); /* others may write here now, from other machines */
        status = shard_save(save->shard, save->path, save->step, save->sha256, &save->bytes, &save->err);
    }
    pthread_mutex_lock(&save->lock);
    save->status = status;
    save->done = 1;
    uv_async_send(&save->async);
    pthread_cond_signal(&save->finished);
    pthread_mutex_unlock(&save->lock);
}

static void on_closed(uv_handle_t *handle)
{
    struct save *save = handle->data;
    pthread_mutex_destroy(&save->lock);
    pthread_cond_destroy(&save->finished);
    free(save);
}

static void on_acked(void *context, int status, struct message *reply)
{
    (void)context;
    (void)status;
    (void)reply;
}

static void send_done(struct server *server, const struct save *save)
{
    Shoal__SnapshotFile file = SHOAL__SNAPSHOT_FILE__INIT;
    file.owner = (uint32_t)server->rank;
    file.name = (char *)save->name;
    file.sha256 = (char *)save->sha256;
    file.bytes = save->bytes;
    file.holder = server->address;
    Shoal__Snapshot body = SHOAL__SNAPSHOT__INIT;
    body.step = save->step;
    body.folder = (char *)save->folder;
    body.file = &file;
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    envelope.type = SHOAL__TYPE__SNAPSHOT_DONE;
    envelope.clock = save->step;
    envelope.status = save->status;
    envelope.text = (char *)save->err.text;
    envelope.body_case = SHOAL__ENVELOPE__BODY_SNAPSHOT;
    envelope.snapshot = &body;
    member_request(server->member, &envelope, NULL, 0, on_acked, server);
}

/* --- a folder of its own (--state): the coordinator's store cannot tidy it up ---------------------------- */

static int must_stay(const struct save *save, uint64_t step)
{
    for (size_t i = 0; i < save->kept_count; i++) {
        if (save->kept[i] == step) {
            return 1;
        }
    }
    return 0;
}

static void remove_own(const struct server *server, const struct save *save, uint64_t step)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/step-%08llu/%s", server->options->state_dir, (unsigned long long)step, save->name);
    unlink(path);
    *strrchr(path, '/') = '\0';
    rmdir(path); /* stays while it holds what was fetched from others */
}

/* What this job wrote goes, but for the newest snapshot.keep and what must stay: this one may fail elsewhere yet. */
static void tidy_up(struct server *server, const struct save *save)
{
    struct server_job *job = server->current;
    uint64_t *grown = realloc(job->saved, (job->saved_count + 1) * sizeof(*grown));
    if (!grown) {
        return; /* one file more stays */
    }
    job->saved = grown;
    grown[job->saved_count++] = save->step;
    size_t left = 0, keep = (size_t)job->job->snapshot.keep + 1;
    for (size_t i = 0; i < job->saved_count; i++) {
        if (job->saved_count - i <= keep || must_stay(save, grown[i])) {
            grown[left++] = grown[i];
        } else {
            remove_own(server, save, grown[i]);
        }
    }
    job->saved_count = left;
}

static void on_written(uv_async_t *async)
{
    struct save *save = async->data;
    struct server *server = save->server;
    pthread_mutex_lock(&save->lock);
    int done = save->done;
    pthread_mutex_unlock(&save->lock);
    if (!done || server->current->save != save) {
        return;
    }
    server->current->save = NULL;
    if (save->status != 0) {
        log_error(&server->log, "snapshot step=%llu failed reason=\"%s\"", (unsigned long long)save->step, save->err.text);
    }
    if (save->status == 0 && server->options->state_dir && server->options->state_dir[0]) {
        tidy_up(server, save);
    }
    send_done(server, save);
    uv_close((uv_handle_t *)async, on_closed);
    server_job_release_verdict(server);
}

void save_begin(struct server *server, const Shoal__Snapshot *snapshot)
{
    struct server_job *job = server->current;
    struct save *save = calloc(1, sizeof(*save));
    if (!save || job->save) {
        free(save);
        server_fail(server, save ? STATUS_PROTOCOL : STATUS_NOMEM, "snapshot: one is under way, or out of memory");
        return;
    }
    errbuf_init(&save->err);
    save->server = server;
    save->shard = job->shard;
    save->step = snapshot->step;
    for (size_t i = 0; i < snapshot->n_kept_steps && i < SAVE_KEPT; i++) {
        save->kept[save->kept_count++] = snapshot->kept_steps[i];
    }
    snprintf(save->folder, sizeof(save->folder), "%s", snapshot->folder);
    snprintf(save->name, sizeof(save->name), "owner-%d.safetensors", server->rank);
    server_snapshot_path(server, save->folder, save->name, save->path, sizeof(save->path));
    pthread_mutex_init(&save->lock, NULL);
    pthread_cond_init(&save->finished, NULL);
    uv_async_init(&server->loop, &save->async, on_written);
    save->async.data = save;
    job->save = save;
    save_if_due(server);
}

void save_if_due(struct server *server)
{
    struct server_job *job = server->current;
    struct save *save = job->save;
    if (!save || save->running || job->first_step - 1 + job->steps_done < save->step) {
        return;
    }
    save->running = 1;
    save->task.run = write_file;
    pool_submit(server->pool, &save->task);
}

void save_wait(struct server *server)
{
    struct save *save = server->current->save;
    if (!save) {
        return;
    }
    pthread_mutex_lock(&save->lock);
    while (save->running && !save->done) {
        pthread_cond_wait(&save->finished, &save->lock);
    }
    pthread_mutex_unlock(&save->lock);
    server->current->save = NULL;
    uv_close((uv_handle_t *)&save->async, on_closed);
}
