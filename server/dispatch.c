#include <stdio.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "server/server_internal.h"

/* One row a message type that workers and servers send here. */
struct dispatch_row {
    Shoal__Type type;
    void (*handle)(struct server *server, struct message *request, const struct net_return *back);
    int from_worker; /* the sender must be a worker of the running job */
};

static const struct dispatch_row rows[] = {
    {SHOAL__TYPE__HELLO, handle_hello, 1}, {SHOAL__TYPE__INIT, handle_init, 1},
    {SHOAL__TYPE__PUSH, handle_push, 1},   {SHOAL__TYPE__PULL, handle_pull, 1},
    {SHOAL__TYPE__FETCH, handle_fetch, 0},
};

static int is_running(const struct server *server, const Shoal__Envelope *e)
{
    return server->current && server->current->shard && e->job == net_self(server->net)->job;
}

/* NULL when the sender is a worker of the running job, else why not. */
static const char *stranger(const struct server *server, const Shoal__Envelope *e)
{
    const struct server_job *job = server->current;
    if (!is_running(server, e)) {
        return "no such job runs here";
    }
    if (e->rank < 0 || e->rank >= job->map.ranks || job->incarnations[e->rank] != e->incarnation) {
        return "not a worker of this job";
    }
    return e->cluster_epoch != net_self(server->net)->cluster_epoch ? "another cluster epoch" : NULL;
}

void server_dispatch(void *context, struct net_router *router, struct message *request, const struct net_return *back)
{
    struct server *server = context;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].type != request->envelope->type) {
            continue;
        }
        const char *why = rows[i].from_worker ? stranger(server, request->envelope) : NULL;
        if (why) {
            /* A job that has ended here is about to end at its worker too: aborted, not refused. */
            net_reply_status(router, back, is_running(server, request->envelope) ? STATUS_DENIED : STATUS_ABORTED, why);
        } else {
            rows[i].handle(server, request, back);
        }
        return;
    }
    net_reply_status(router, back, STATUS_PROTOCOL, "a server does not take this message");
}

static int select_key(const struct server_job *job, uint64_t key, int server_rank, struct errbuf *err)
{
    int range = keymap_range_at(&job->map, key);
    if (range < 0) {
        return errbuf_set(err, STATUS_UNKNOWN, "key %llu begins no range", (unsigned long long)key);
    }
    if (job->map.ranges[range].server != server_rank) {
        return errbuf_set(err, STATUS_UNKNOWN, "key %llu is held by server %d, not %d", (unsigned long long)key,
                          job->map.ranges[range].server, server_rank);
    }
    return range;
}

int server_select(const struct server_job *job, const Shoal__Selector *selector, int server_rank, int *ranges,
                  struct errbuf *err)
{
    if (!selector || (selector->n_ids == 0 && selector->begin >= selector->end)) {
        return errbuf_set(err, STATUS_INVALID, "empty selector");
    }
    if (selector->n_ids == 0) {
        int range = select_key(job, selector->begin, server_rank, err);
        if (range >= 0 && (uint64_t)job->map.ranges[range].key_end != selector->end) {
            return errbuf_set(err, STATUS_SHAPE, "keys %llu..%llu are no range: it ends at %lld",
                              (unsigned long long)selector->begin, (unsigned long long)selector->end,
                              (long long)job->map.ranges[range].key_end);
        }
        ranges[0] = range;
        return range < 0 ? range : 1;
    }
    if (selector->n_ids > (size_t)job->map.ranges_count) {
        return errbuf_set(err, STATUS_RANGE, "%zu keys named, %d ranges exist", selector->n_ids, job->map.ranges_count);
    }
    for (size_t i = 0; i < selector->n_ids; i++) {
        int range = select_key(job, selector->ids[i], server_rank, err);
        if (range < 0) {
            return range;
        }
        if (i > 0 && selector->ids[i] <= selector->ids[i - 1]) {
            return errbuf_set(err, STATUS_INVALID, "key %llu is named out of order", (unsigned long long)selector->ids[i]);
        }
        ranges[i] = range;
    }
    return (int)selector->n_ids;
}
