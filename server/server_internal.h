/* The context that owns everything in a server; all of it belongs to the loop thread. */
#ifndef SHOAL_SERVER_INTERNAL_H
#define SHOAL_SERVER_INTERNAL_H

#include <uv.h>

#include "base/account.h"
#include "base/errbuf.h"
#include "base/pool.h"
#include "cluster/keymap.h"
#include "config/job.h"
#include "net/member.h"
#include "net/net.h"
#include "owner/shard.h"
#include "server/server.h"

struct controller_ops;
struct fetch;
struct pull;
struct save;
struct stored;

/* A PULL that waits until every range it names is new enough. */
struct pull_wait {
    struct pull *pull;
    struct pull_wait *next; /* of the same range */
    int range;
};
struct pull {
    struct net_return back;
    uint64_t clock; /* wanted: finished at least this */
    int rank, remaining, count;
    struct pull_wait waits[];
};

/* A PUSH that waits until all its ranges are taken. */
struct push_token {
    struct net_return back;
    int remaining, status;
};

/* A PUSH of the step after the one whose verdict is still being applied here: its sender knows the verdict already. */
struct push_early {
    struct message request;
    struct net_return back;
    struct push_early *next;
};

/* One job's state. */
struct server_job {
    struct job *job;
    struct param_table table;
    struct keymap map;
    struct shard *shard;
    const struct controller_ops *controller;
    void *optimizer_handle, *aggregator_handle;
    uint64_t *incarnations; /* by worker rank */
    struct pull_wait **waiting; /* by range */
    struct push_early *early, **early_tail;
    int64_t early_bytes;
    struct trace *trace;
    struct save *save;      /* under way */
    uint64_t *saved;        /* steps written to the folder of its own, not yet removed, oldest first */
    size_t saved_count;
    struct fetch *fetch;    /* restoring from other servers */
    struct optimizer_step next; /* eager: of the coming step */
    uint64_t *pulled; /* (workers, ranges) the last request that was answered */
    int64_t pushed_bytes, pulled_bytes, again_bytes, init_bytes; /* again: values whose answer was lost on its way */
    uint64_t steps_done, first_step;
    Shoal__Verdict held_verdict; /* eager: waits until the snapshot is written */
    uint64_t held_clock;
    int verdict_waits_for_save;
};

struct server {
    struct role_host *host;
    const struct server_options *options;
    struct log log;
    uv_loop_t loop;
    uv_timer_t timer;
    struct net *net;
    struct net_router *router;
    struct member *member;
    struct pool *pool;
    struct account account;
    struct net_curve curve;
    int has_curve;
    int rank;
    char *address;
    Shoal__Join join;
    struct stored *stored; /* what join.stored lists */
    struct server_job *current; /* NULL between jobs */
    int status;   /* what server_run returns */
    struct errbuf why; /* of server_fail: what the coordinator is told */
    int leaving, done, stop_asked;
};

/* server_job.c */
void server_job_begin(struct server *server, const Shoal__JobBegin *begin);
void server_job_start(struct server *server, struct message *event);
void server_job_verdict(struct server *server, const Shoal__Verdict *verdict, uint64_t clock);
void server_job_ratios(struct server *server, const struct message *event);
void server_job_release_verdict(struct server *server);
void server_job_summary(struct server *server);
void server_job_end(struct server *server);
/* Where this server keeps its file `name` (NULL: the folder itself) of a snapshot folder that the coordinator named:
 * there, or below its own --state. */
void server_snapshot_path(const struct server *server, const char *folder, const char *name, char *path, size_t bytes);
/* Ends this server's part with an error that everybody will see. */
void server_fail(struct server *server, int status, const char *text);

/* handle_push.c, handle_pull.c: one function a message type, see dispatch.c */
void handle_hello(struct server *server, struct message *request, const struct net_return *back);
void handle_init(struct server *server, struct message *request, const struct net_return *back);
void handle_push(struct server *server, struct message *request, const struct net_return *back);
void handle_pull(struct server *server, struct message *request, const struct net_return *back);
void handle_fetch(struct server *server, struct message *request, const struct net_return *back);
void pushes_resume(struct server *server); /* a step has finished: takes what came early */
void pushes_drop(struct server_job *job);
/* The shard's callbacks. */
void push_added(void *context, void *token, int status);
void pull_applied(void *context, int range, uint64_t clock);
void pulls_drop(struct server *server, int status);

/* dispatch.c */
void server_dispatch(void *context, struct net_router *router, struct message *request, const struct net_return *back);
/* Ranges that a selector names, into `ranges` (room for the keymap's count); their number or a negative status with
 * the reason in err. */
int server_select(const struct server_job *job, const Shoal__Selector *selector, int server_rank, int *ranges,
                  struct errbuf *err);

#endif
