#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "server/consistency/controller.h"
#include "server/server_internal.h"

void handle_hello(struct server *server, struct message *request, const struct net_return *back)
{
    (void)request;
    Shoal__Envelope reply = SHOAL__ENVELOPE__INIT;
    reply.type = SHOAL__TYPE__WELCOME;
    reply.credit = (uint64_t)server->current->job->parallel.credit_bytes;
    net_reply(server->router, back, &reply, NULL, 0);
}

/* The ranges a request names, with a payload that fits them. *ranges is owned. */
static int take_ranges(const struct server *server, const struct message *request, int **ranges, struct errbuf *err)
{
    const struct server_job *job = server->current;
    const Shoal__Envelope *e = request->envelope;
    *ranges = malloc((e->selector ? e->selector->n_ids + 1 : 1) * sizeof(int));
    if (!*ranges) {
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    }
    int count = server_select(job, e->selector, server->rank, *ranges, err);
    int64_t elements = 0;
    for (int i = 0; i < count; i++) {
        elements += keymap_range_elements(&job->map.ranges[(*ranges)[i]]);
    }
    if (count > 0 && (int64_t)request->frames[0]->bytes != elements * (int64_t)sizeof(float)) {
        count = errbuf_set(err, STATUS_SHAPE, "keys from %llu hold %lld floats, the message carries %zu bytes",
                           (unsigned long long)(e->selector->n_ids ? e->selector->ids[0] : e->selector->begin),
                           (long long)elements, request->frames[0]->bytes);
    }
    if (count > 0 && e->dtype != SHOAL__DTYPE__F32) {
        count = errbuf_set(err, STATUS_INVALID, "dtype %d, expected F32", (int)e->dtype);
    }
    return count;
}

void handle_init(struct server *server, struct message *request, const struct net_return *back)
{
    struct server_job *job = server->current;
    struct errbuf err;
    errbuf_init(&err);
    int *ranges = NULL;
    int status = 0;
    int count = take_ranges(server, request, &ranges, &err);
    if (count > 0 && request->envelope->rank != 0) {
        count = errbuf_set(&err, STATUS_DENIED, "first values come from rank 0");
    }
    const float *data = count > 0 ? request->frames[0]->data : NULL;
    for (int i = 0; i < count && status >= 0; i++) {
        int64_t elements = keymap_range_elements(&job->map.ranges[ranges[i]]);
        status = shard_init_values(job->shard, ranges[i], data);
        job->init_bytes += status == 0 ? elements * (int64_t)sizeof(float) : 0;
        data += elements;
    }
    net_reply_status(server->router, back, count < 0 ? count : status < 0 ? status : 0, err.text);
    free(ranges);
}

static void token_end(struct server *server, struct push_token *token, int status)
{
    if (status != 0) {
        token->status = status;
    }
    if (--token->remaining == 0) {
        if (token->status != STATUS_BUSY && token->status != STATUS_CLOSED) {
            net_reply_status(server->router, &token->back, token->status, NULL);
        }
        free(token);
    }
}

void push_added(void *context, void *token, int status)
{
    token_end(context, token, status);
}

static int is_early(const struct server_job *job, const int *ranges, int count, uint64_t clock)
{
    for (int i = 0; i < count; i++) {
        if (!job->map.ranges[ranges[i]].frozen && clock == shard_clock(job->shard, ranges[i]) + 2) {
            return 1;
        }
    }
    return 0;
}

/* Keeps the request until the step before it has finished here; a resent one only brings a new way back. Its ranks'
 * credits are the limit of what can wait. */
static int keep_early(struct server_job *job, struct message *request, const struct net_return *back)
{
    for (struct push_early *kept = job->early; kept; kept = kept->next) {
        if (kept->request.envelope->rank == request->envelope->rank && kept->back.request == back->request) {
            kept->back = *back;
            return 0;
        }
    }
    int64_t bytes = (int64_t)request->frames[0]->bytes;
    struct push_early *early = NULL;
    if (job->early_bytes + bytes <= job->map.ranks * job->job->parallel.credit_bytes) {
        early = calloc(1, sizeof(*early));
    }
    if (!early) {
        return STATUS_NOMEM;
    }
    early->request = *request;
    early->back = *back;
    memset(request, 0, sizeof(*request)); /* ours now */
    *job->early_tail = early;
    job->early_tail = &early->next;
    job->early_bytes += bytes;
    return 0;
}

void pushes_resume(struct server *server)
{
    struct server_job *job = server->current;
    struct push_early *early = job->early;
    job->early = NULL;
    job->early_tail = &job->early;
    job->early_bytes = 0;
    while (early) {
        struct push_early *next = early->next;
        handle_push(server, &early->request, &early->back);
        message_close(&early->request);
        free(early);
        early = next;
    }
}

void pushes_drop(struct server_job *job)
{
    while (job->early) {
        struct push_early *next = job->early->next;
        message_close(&job->early->request);
        free(job->early);
        job->early = next;
    }
}

/* All or nothing: every range is looked at before the first is touched. */
static int check_clocks(const struct server_job *job, const int *ranges, int count, uint64_t clock, struct errbuf *err)
{
    for (int i = 0; i < count; i++) {
        const struct keymap_range *range = &job->map.ranges[ranges[i]];
        uint64_t finished = shard_clock(job->shard, ranges[i]);
        if (range->frozen) {
            return errbuf_set(err, STATUS_UNKNOWN, "key %lld is frozen", (long long)range->key_first);
        }
        if (job->controller->push(clock, finished) == CONTROLLER_REFUSE) {
            return errbuf_set(err, STATUS_RANGE, "key %lld: clock %llu pushed, %llu is next", (long long)range->key_first,
                              (unsigned long long)clock, (unsigned long long)finished + 1);
        }
    }
    return 0;
}

void handle_push(struct server *server, struct message *request, const struct net_return *back)
{
    struct server_job *job = server->current;
    const Shoal__Envelope *e = request->envelope;
    struct errbuf err;
    errbuf_init(&err);
    int *ranges = NULL;
    int count = take_ranges(server, request, &ranges, &err);
    if (count > 0 && is_early(job, ranges, count, e->clock)) {
        int status = keep_early(job, request, back);
        if (status != 0) {
            net_reply_status(server->router, back, status, "no room for pushes of the next step");
        }
        free(ranges);
        return;
    }
    int status = count < 0 ? count : check_clocks(job, ranges, count, e->clock, &err);
    struct push_token *token = status == 0 ? calloc(1, sizeof(*token)) : NULL;
    if (status == 0 && !token) {
        status = STATUS_NOMEM;
    }
    if (status != 0) {
        net_reply_status(server->router, back, status, err.text);
        free(ranges);
        return;
    }
    token->back = *back;
    token->remaining = count + 1; /* one of ours, so that it lives until the loop below is through */
    struct shard_push push = {.rank = e->rank, .clock = e->clock, .weight = e->weight, .message = request->frames[0],
                              .data = request->frames[0]->data, .token = token};
    for (int i = 0; i < count; i++) {
        int64_t elements = keymap_range_elements(&job->map.ranges[ranges[i]]);
        push.range = ranges[i];
        int result = shard_push(job->shard, &push);
        if (result == SHARD_TAKEN) {
            job->pushed_bytes += elements * (int64_t)sizeof(float);
        }
        if (result != SHARD_TAKEN && result != SHARD_REPEAT_WAITING) {
            token_end(server, token, result == SHARD_REPEAT_DONE ? 0 : result);
        }
        push.data += elements;
    }
    token_end(server, token, 0);
    free(ranges);
}
