#include "server/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/errbuf.h"
#include "base/host.h"
#include "base/status.h"
#include "server/server_internal.h"
#include "server/store/save.h"
#include "server/store/stored.h"

enum { TICK_MS = 100, LEAVE_MS = 2000, LIMIT_BYTES = 64 << 20 };
enum { START_S = 120, DEAD_S = 60, AWAKE_NS = 50000 };

static void on_left(void *context)
{
    struct server *server = context;
    server->done = 1;
    uv_stop(&server->loop);
}

static void leave(struct server *server, int status, const char *text)
{
    server->leaving = 2;
    member_leave(server->member, status, text, LEAVE_MS, on_left, server);
}

static void on_joined(void *context, int rank)
{
    struct server *server = context;
    server->rank = rank;
    server->log.rank = rank;
    log_info(&server->log, "joined cluster=%s address=%s", server->options->cluster, server->address);
    if (server->host->status) {
        server->host->status(server->host->context, "joined, waiting for a job");
    }
}

static void on_end(struct server *server, const Shoal__Envelope *e)
{
    server_job_end(server);
    if (e->status != 0) {
        log_error(&server->log, "job ended status=%d reason=\"%s\"", e->status, e->text);
    }
    if (server->options->once || server->host->stop || e->closing) {
        server->status = e->status == 0 ? 0 : e->status == STATUS_STOPPED ? STATUS_STOPPED : STATUS_ABORTED;
        errbuf_set(&server->why, server->status, "%s", e->text);
        leave(server, 0, NULL);
    }
    member_next_job(server->member);
}

static void on_event(void *context, struct message *event)
{
    struct server *server = context;
    const Shoal__Envelope *e = event->envelope;
    server->log.cluster_epoch = net_self(server->net)->cluster_epoch;
    int running = server->current && server->current->shard;
    switch (e->type) {
    case SHOAL__TYPE__JOB:
        server_job_end(server);
        server_job_begin(server, e->job_begin);
        break;
    case SHOAL__TYPE__START:
        server_job_start(server, event);
        break;
    case SHOAL__TYPE__VERDICT:
        if (running && e->verdict->decision == SHOAL__DECISION__DECISION_NONE) {
            server_job_summary(server); /* every worker is through */
        } else if (running) {
            server_job_verdict(server, e->verdict, e->clock);
        }
        break;
    case SHOAL__TYPE__RATIOS:
        if (running) {
            server_job_ratios(server, event);
        }
        break;
    case SHOAL__TYPE__SNAPSHOT:
        if (running) {
            save_begin(server, e->snapshot);
        }
        break;
    case SHOAL__TYPE__END:
        on_end(server, e);
        break;
    default:
        log_warning(&server->log, "event type=%d not known", (int)e->type);
    }
}

static void on_lost(void *context, int status, const char *text)
{
    struct server *server = context;
    log_error(&server->log, "lost status=%d reason=\"%s\"", status, text);
    if (server->status == 0) {
        server->status = errbuf_set(&server->why, status, "%s", text);
    }
    server->done = 1;
    uv_stop(&server->loop);
}

static void reload_allow_list(struct server *server)
{
    struct errbuf err;
    errbuf_init(&err);
    if (!atomic_exchange(&server->host->reload, 0) || !server->router) {
        return;
    }
    if (net_allow_reload(server->router, &err) != 0) {
        log_error(&server->log, "allow-list kept as it was: %s", err.text);
    } else {
        log_info(&server->log, "allow-list read again");
    }
}

static void on_tick(uv_timer_t *timer)
{
    struct server *server = timer->data;
    if (server->host->tick) {
        server->host->tick(server->host->context);
    }
    if (server->done) {
        return;
    }
    reload_allow_list(server);
    if (server->leaving == 1 && server->status != 0) {
        server->leaving = 2;
        member_leave(server->member, server->status, server->why.text, LEAVE_MS, on_left, server);
    } else if (server->host->stop && server->current && !server->stop_asked) {
        server->stop_asked = 1;
        member_ask_stop(server->member);
    } else if (server->host->stop && !server->current && !server->leaving) {
        server->leaving = 2;
        server->status = STATUS_STOPPED;
        member_leave(server->member, 0, "stopped by signal", LEAVE_MS, on_left, server);
    }
}

static int open_all(struct server *server, struct errbuf *err)
{
    const struct server_options *options = server->options;
    struct net_listen listen = {.endpoint = options->listen, .curve = server->has_curve ? &server->curve : NULL,
                                .insecure = server->host->insecure, .serve = server_dispatch, .context = server,
                                .account = &server->account};
    char allow[4096];
    if (server->has_curve) {
        snprintf(allow, sizeof(allow), "%s/allow.list", server->host->keys_dir);
        listen.allow_file = allow;
    }
    int status = net_router_open(&server->router, server->net, &listen, err);
    if (status != 0) {
        return status;
    }
    const char *advertise = options->advertise && options->advertise[0] ? options->advertise
                                                                        : net_router_endpoint(server->router);
    if (strncmp(advertise, "tcp://0.0.0.0:", 14) == 0 || strncmp(advertise, "tcp://[::]:", 11) == 0) {
        return errbuf_set(err, STATUS_INVALID, "%s means every address of this machine: say with --advertise "
                          "tcp://HOST:PORT under which one workers reach it", advertise);
    }
    server->address = strdup(advertise);
    char host[128];
    host_id(host, sizeof(host));
    shoal__join__init(&server->join);
    server->join.address = server->address;
    server->join.core_type = (char *)"";
    server->join.host = host;
    server->join.pid = getpid();
    server->join.wanted_rank = options->rank;
    server->join.version = (char *)SHOAL_VERSION;
    server->join.public_key = server->has_curve ? server->curve.public_key : (char *)"";
    if (options->state_dir && options->state_dir[0]) {
        server->stored = stored_list(options->state_dir, &server->join);
    }
    struct member_options member = {
        .cluster = options->cluster, .curve = server->has_curve ? &server->curve : NULL, .join = &server->join,
        .start_s = START_S, .dead_s = DEAD_S, .log = &server->log, .ops = {on_joined, on_event, on_lost, server}};
    status = member_create(&server->member, server->net, &server->loop, &member, err);
    if (status == 0 && server->host->ready) {
        server->host->ready(server->host->context, server->address);
    }
    return status;
}

static void close_all(struct server *server)
{
    server_job_end(server);
    member_destroy(server->member);
    net_router_close(server->router);
    net_destroy(server->net, 500);
    uv_close((uv_handle_t *)&server->timer, NULL);
    uv_run(&server->loop, UV_RUN_DEFAULT);
    uv_loop_close(&server->loop);
    pool_destroy(server->pool);
    stored_free(server->stored);
    free(server->address);
}

int server_run(struct role_host *host, const struct server_options *options, struct errbuf *err)
{
    struct server server = {.host = host, .options = options, .log = host->log, .rank = -1};
    int threads = options->threads > 0 ? options->threads : pool_available_cores();
    pool_thread_numerics();
    account_init(&server.account);
    if (host->keys_dir && host->keys_dir[0]) {
        int status = net_keys_load(&server.curve, host->keys_dir, host->key_name, "coordinator", err);
        if (status != 0) {
            return status;
        }
        server.has_curve = 1;
    }
    uv_loop_init(&server.loop);
    server.pool = pool_create(1, threads);
    server.net = net_create(&server.loop, host->zmq, &server.log, LIMIT_BYTES);
    uv_timer_init(&server.loop, &server.timer);
    server.timer.data = &server;
    uv_timer_start(&server.timer, on_tick, TICK_MS, TICK_MS);
    int status = STATUS_NOMEM;
    if (server.pool && server.net) {
        struct net_self *self = net_self(server.net);
        self->role = SHOAL__ROLE__SERVER;
        self->rank = -1;
        self->incarnation = host_incarnation();
        net_stay_awake(server.net, AWAKE_NS, pool_available_cores() - 1);
        status = open_all(&server, err);
    }
    if (status == 0) {
        uv_run(&server.loop, UV_RUN_DEFAULT);
        status = server.status;
        if (status != 0) {
            errbuf_set(err, status, "%s", server.why.text);
        }
    }
    close_all(&server);
    return status;
}
