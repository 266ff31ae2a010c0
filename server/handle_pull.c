#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "server/consistency/controller.h"
#include "server/server_internal.h"

enum { FETCH_BYTES_MAX = 1 << 20 };

/* One range leaves without a copy; several small ones are put together. */
static struct buf *gather_values(const struct server_job *job, const struct pull *pull)
{
    if (pull->count == 1) {
        return shard_share(job->shard, pull->waits[0].range);
    }
    size_t bytes = 0;
    for (int i = 0; i < pull->count; i++) {
        bytes += (size_t)keymap_range_elements(&job->map.ranges[pull->waits[i].range]) * sizeof(float);
    }
    struct buf *all = buf_create(bytes);
    char *at = all ? all->data : NULL;
    for (int i = 0; all && i < pull->count; i++) {
        struct buf *one = shard_share(job->shard, pull->waits[i].range);
        memcpy(at, one->data, one->bytes);
        at += one->bytes;
        buf_release(one);
    }
    return all;
}

/* Values that a worker asks for again, because their answer was lost, are no payload of the step. */
static void book_values(struct server_job *job, const struct pull *pull)
{
    for (int i = 0; i < pull->count; i++) {
        int range = pull->waits[i].range;
        uint64_t *answered = &job->pulled[(size_t)pull->rank * (size_t)job->map.ranges_count + (size_t)range];
        int64_t bytes = keymap_range_elements(&job->map.ranges[range]) * (int64_t)sizeof(float);
        if (*answered == pull->back.request) {
            job->again_bytes += bytes;
        } else {
            job->pulled_bytes += bytes;
        }
        *answered = pull->back.request;
    }
}

static void pull_answer(struct server *server, struct pull *pull)
{
    struct server_job *job = server->current;
    struct buf *values = gather_values(job, pull);
    if (!values) {
        net_reply_status(server->router, &pull->back, STATUS_NOMEM, NULL);
        free(pull);
        return;
    }
    Shoal__Envelope reply = SHOAL__ENVELOPE__INIT;
    reply.type = SHOAL__TYPE__VALUES;
    reply.clock = pull->clock;
    reply.dtype = SHOAL__DTYPE__F32;
    book_values(job, pull);
    net_reply(server->router, &pull->back, &reply, &values, 1);
    buf_release(values);
    free(pull);
}

static int is_ready(const struct server_job *job, int range, uint64_t wanted)
{
    struct buf *values = shard_share(job->shard, range);
    if (!values) {
        return 0;
    }
    buf_release(values);
    return job->controller->pull(wanted, shard_clock(job->shard, range)) == CONTROLLER_SERVE;
}

/* Answers, or waits at the ranges that are not new enough; also at one that was, when its next values are being made. */
static void pull_try(struct server *server, struct pull *pull)
{
    struct server_job *job = server->current;
    for (int i = 0; i < pull->count; i++) {
        struct pull_wait *wait = &pull->waits[i];
        if (!is_ready(job, wait->range, pull->clock)) {
            wait->next = job->waiting[wait->range];
            job->waiting[wait->range] = wait;
            pull->remaining++;
        }
    }
    if (pull->remaining == 0) {
        pull_answer(server, pull);
    }
}

void pull_applied(void *context, int range, uint64_t clock)
{
    struct server *server = context;
    struct server_job *job = server->current;
    (void)clock;
    struct pull_wait *wait = job->waiting[range];
    job->waiting[range] = NULL;
    while (wait) {
        struct pull_wait *next = wait->next;
        if (--wait->pull->remaining == 0) {
            pull_try(server, wait->pull);
        }
        wait = next;
    }
}

/* A resent pull of the same worker: only its way back is new. */
static int replace_repeat(struct server_job *job, const int *ranges, int count, const struct message *request,
                          const struct net_return *back)
{
    for (int i = 0; i < count; i++) {
        for (struct pull_wait *wait = job->waiting[ranges[i]]; wait; wait = wait->next) {
            if (wait->pull->rank == request->envelope->rank && wait->pull->back.request == back->request) {
                wait->pull->back = *back;
                return 1;
            }
        }
    }
    return 0;
}

void handle_pull(struct server *server, struct message *request, const struct net_return *back)
{
    struct server_job *job = server->current;
    struct errbuf err;
    errbuf_init(&err);
    const Shoal__Selector *selector = request->envelope->selector;
    int *ranges = malloc((selector ? selector->n_ids + 1 : 1) * sizeof(int));
    int count = ranges ? server_select(job, selector, server->rank, ranges, &err) : STATUS_NOMEM;
    struct pull *pull = NULL;
    if (count > 0 && replace_repeat(job, ranges, count, request, back)) {
        free(ranges);
        return;
    }
    if (count > 0) {
        pull = calloc(1, sizeof(*pull) + (size_t)count * sizeof(pull->waits[0]));
    }
    if (!pull) {
        net_reply_status(server->router, back, count < 0 ? count : STATUS_NOMEM, err.text);
        free(ranges);
        return;
    }
    *pull = (struct pull){.back = *back, .clock = request->envelope->clock, .rank = request->envelope->rank,
                          .count = count};
    for (int i = 0; i < count; i++) {
        pull->waits[i] = (struct pull_wait){.pull = pull, .range = ranges[i]};
    }
    pull_try(server, pull);
    free(ranges);
}

void pulls_drop(struct server *server, int status)
{
    struct server_job *job = server->current;
    for (int r = 0; r < job->map.ranges_count; r++) {
        while (job->waiting[r]) {
            struct pull_wait *wait = job->waiting[r];
            job->waiting[r] = wait->next;
            if (--wait->pull->remaining == 0) {
                net_reply_status(server->router, &wait->pull->back, status, "the job is over");
                free(wait->pull);
            }
        }
    }
}

/* A plain name inside this server's own state folder; nothing that leads out of it. */
static int is_plain(const char *name)
{
    return name && name[0] && name[0] != '.' && !strchr(name, '/');
}

void handle_fetch(struct server *server, struct message *request, const struct net_return *back)
{
    const Shoal__Fetch *fetch = request->envelope->fetch;
    char path[4096];
    const char *state = server->options->state_dir;
    const char *step = strrchr(fetch->folder, '/');
    step = step ? step + 1 : fetch->folder;
    int allowed = state && state[0] && is_plain(step) && is_plain(fetch->name);
    if (!allowed || fetch->bytes > FETCH_BYTES_MAX) {
        net_reply_status(server->router, back, STATUS_INVALID, "no such snapshot file here");
        return;
    }
    server_snapshot_path(server, fetch->folder, fetch->name, path, sizeof(path));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct buf *piece = buf_create((size_t)fetch->bytes);
    ssize_t got = fd >= 0 && piece ? pread(fd, piece->data, (size_t)fetch->bytes, (off_t)fetch->offset) : -1;
    if (got < 0) {
        net_reply_status(server->router, back, STATUS_IO, "the snapshot file cannot be read");
    } else {
        Shoal__Envelope reply = SHOAL__ENVELOPE__INIT;
        reply.type = SHOAL__TYPE__VALUES;
        piece->bytes = (size_t)got;
        net_reply(server->router, back, &reply, &piece, 1);
    }
    buf_release(piece);
    if (fd >= 0) {
        close(fd);
    }
}
