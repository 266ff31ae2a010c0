#include "worker/client/client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/host.h"
#include "base/status.h"
#include "worker/client/client_internal.h"

enum { TICK_MS = 100, LEAVE_MS = 2000, LIMIT_BYTES = 64 << 20 };
static const double DEAD_S = 60;

void client_fail_locked(struct client *client, int status, const char *text)
{
    if (client->status == 0) {
        client->status = status;
        errbuf_set(&client->why, status, "%s", text);
    }
    pthread_cond_broadcast(&client->changed);
}

void client_fail(struct client *client, int status, const char *text)
{
    pthread_mutex_lock(&client->lock);
    client_fail_locked(client, status, text);
    pthread_mutex_unlock(&client->lock);
}

/* --- on the loop thread -------------------------------------------------------------------------------- */

static void on_joined(void *context, int rank)
{
    struct client *client = context;
    pthread_mutex_lock(&client->lock);
    client->joined = 1;
    client->rank = rank;
    client->log.rank = rank;
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->lock);
}

int client_end_status(int status)
{
    return status == STATUS_STOPPED || status == STATUS_ROLLED_BACK ? status : STATUS_ABORTED;
}

static void on_event(void *context, struct message *event)
{
    struct client *client = context;
    struct client_event *kept = calloc(1, sizeof(*kept));
    if (!kept) {
        client_fail(client, STATUS_NOMEM, "out of memory for an event");
        return;
    }
    kept->message = *event;
    memset(event, 0, sizeof(*event)); /* ours now */
    pthread_mutex_lock(&client->lock);
    const Shoal__Envelope *e = kept->message.envelope;
    if (e->type == SHOAL__TYPE__JOB) {
        client->status = 0;
        client->stop_asked = 0;
        client->last_asked = 0;
    }
    if (e->type == SHOAL__TYPE__LAST) {
        client->last_asked = 1;
        pthread_mutex_unlock(&client->lock);
        message_close(&kept->message);
        free(kept);
        return;
    }
    if (e->type == SHOAL__TYPE__END && e->status != 0) {
        client_fail_locked(client, client_end_status(e->status), e->text);
    }
    client->lost |= e->type == SHOAL__TYPE__END && e->closing; /* no other job will come */
    *client->events_tail = kept;
    client->events_tail = &kept->next;
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->lock);
}

static void on_lost(void *context, int status, const char *text)
{
    struct client *client = context;
    pthread_mutex_lock(&client->lock);
    client->lost = 1;
    client_fail_locked(client, status, text);
    pthread_mutex_unlock(&client->lock);
}

static void on_reply(void *context, int status, struct message *reply)
{
    struct client_request *request = context;
    struct client *client = request->client;
    pthread_mutex_lock(&client->lock);
    if (request->posted) {
        const char *text = reply && reply->envelope && reply->envelope->text ? reply->envelope->text : "";
        client_end_posted(request, status, text[0] ? text : status_text(status));
        pthread_mutex_unlock(&client->lock);
        return;
    }
    if (request->given_up) {
        pthread_mutex_unlock(&client->lock);
        free(request);
        return;
    }
    request->status = status;
    if (reply && status == 0) {
        request->reply = *reply;
        memset(reply, 0, sizeof(*reply));
    } else if (status != 0) {
        const char *text = reply && reply->envelope && reply->envelope->text ? reply->envelope->text : "";
        errbuf_set(&request->err, status, "%s", text[0] ? text : status_text(status));
    }
    request->done = 1;
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->lock);
}

/* Sent under the lock: a caller that gives up must find its request either queued or sent. */
static void send_requests(struct client *client)
{
    pthread_mutex_lock(&client->lock);
    while (client->requests) {
        struct client_request *request = client->requests;
        client->requests = request->next;
        request->sent = 1;
        if (member_request(client->member, request->envelope, request->frames, request->frames_count, on_reply,
                           request) != 0) {
            continue;
        }
        if (request->posted) {
            client_end_posted(request, STATUS_NOMEM, "out of memory for a request");
        } else {
            request->status = errbuf_set(&request->err, STATUS_NOMEM, "out of memory for a request");
            request->done = 1;
            pthread_cond_broadcast(&client->changed);
        }
    }
    pthread_mutex_unlock(&client->lock);
}

static void on_left(void *context)
{
    struct client *client = context;
    pthread_mutex_lock(&client->lock);
    client->left = 1;
    pthread_mutex_unlock(&client->lock);
    uv_stop(&client->loop);
}

void client_turn(struct client *client)
{
    pthread_mutex_lock(&client->lock);
    int closing = client->closing;
    int stop = client->stop_asked == 1;
    int next = client->next_job;
    client->stop_asked += stop;
    client->next_job = 0;
    client->offset_ns = member_clock_offset_ns(client->member);
    member_set_dead_after(client->member, client->dead_s);
    client->woken = 0;
    pthread_mutex_unlock(&client->lock);
    if (next) {
        member_next_job(client->member);
    }
    send_requests(client);
    exchange_turn(client);
    if (stop) {
        member_ask_stop(client->member);
    }
    if (closing && !client->leaving) {
        client->leaving = 1;
        exchange_close_links(client);
        if (client->joined) {
            member_leave(client->member, client->leave_status, client->leave_text, LEAVE_MS, on_left, client);
        } else {
            on_left(client);
        }
    }
}

static void on_wake(uv_async_t *wake)
{
    struct client *client = wake->data;
    client_turn(client);
    pthread_mutex_lock(&client->lock);
    int wanted = client->turner == CLIENT_LOOP_WANTED;
    pthread_mutex_unlock(&client->lock);
    if (wanted) {
        uv_stop(&client->loop);
    }
}

/* Waiters sleep on a condition that a signal handler cannot raise; the tick looks for them. */
static void on_tick(uv_timer_t *timer)
{
    struct client *client = timer->data;
    struct role_host *host = client->options.host;
    if (host->tick) {
        host->tick(host->context);
    }
    if (host->stop) {
        pthread_mutex_lock(&client->lock);
        pthread_cond_broadcast(&client->changed);
        pthread_mutex_unlock(&client->lock);
    }
    client_turn(client);
}

static void *loop_main(void *argument)
{
    struct client *client = argument;
    client_loop_run(client);
    exchange_close_links(client);
    member_destroy(client->member);
    net_destroy(client->net, 500);
    pthread_mutex_lock(&client->lock);
    client->loop_over = 1;
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->lock);
    uv_close((uv_handle_t *)&client->wake, NULL);
    uv_close((uv_handle_t *)&client->timer, NULL);
    uv_run(&client->loop, UV_RUN_DEFAULT);
    uv_loop_close(&client->loop);
    return NULL;
}

/* --- opening and closing -------------------------------------------------------------------------------- */

static int open_net(struct client *client, struct errbuf *err)
{
    struct role_host *host = client->options.host;
    client->net = net_create(&client->loop, host->zmq, &client->log, LIMIT_BYTES);
    if (!client->net) {
        return errbuf_set(err, STATUS_NOMEM, "client: out of memory");
    }
    struct net_self *self = net_self(client->net);
    self->role = SHOAL__ROLE__WORKER;
    self->rank = -1;
    self->incarnation = client->incarnation = host_incarnation();
    shoal__join__init(&client->join);
    host_id(client->host_id, sizeof(client->host_id));
    client->join.address = (char *)"";
    client->join.core_type = (char *)client->options.core_type;
    client->join.host = client->host_id;
    client->join.pid = getpid();
    client->join.wanted_rank = client->options.rank;
    client->join.version = (char *)SHOAL_VERSION;
    struct member_options member = {
        .cluster = client->options.cluster, .curve = client->has_curve ? &client->curve : NULL, .join = &client->join,
        .start_s = client->options.start_s, .dead_s = DEAD_S, .log = &client->log, .ops = {on_joined, on_event, on_lost, client}};
    return member_create(&client->member, client->net, &client->loop, &member, err);
}

static void destroy_lock(struct client *client)
{
    pthread_mutex_destroy(&client->lock);
    pthread_cond_destroy(&client->changed);
    pthread_cond_destroy(&client->parked);
}

static int wait_joined(struct client *client, struct errbuf *err)
{
    pthread_mutex_lock(&client->lock);
    while (!client->joined && client->status == 0 && !client->options.host->stop) {
        pthread_cond_wait(&client->changed, &client->lock);
    }
    int status = client->joined ? 0 : client->status ? client->status : STATUS_STOPPED;
    if (status != 0) {
        errbuf_set(err, status, "%s", client->status ? client->why.text : "stopped by signal");
    }
    pthread_mutex_unlock(&client->lock);
    return status;
}

int client_open(struct client **out, const struct client_options *options, struct errbuf *err)
{
    struct client *client = calloc(1, sizeof(*client));
    if (!client) {
        return errbuf_set(err, STATUS_NOMEM, "client: out of memory");
    }
    client->options = *options;
    client->log = options->host->log;
    client->events_tail = &client->events;
    client->rank = -1;
    client->dead_s = client->server_dead_s = DEAD_S;
    errbuf_init(&client->why);
    if (options->host->keys_dir && options->host->keys_dir[0]) {
        int status = net_keys_load(&client->curve, options->host->keys_dir, options->host->key_name, "coordinator", err);
        if (status != 0) {
            free(client);
            return status;
        }
        client->has_curve = 1;
    }
    pthread_mutex_init(&client->lock, NULL);
    pthread_cond_init(&client->changed, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&client->parked, &monotonic);
    pthread_condattr_destroy(&monotonic);
    uv_loop_init(&client->loop);
    uv_async_init(&client->loop, &client->wake, on_wake);
    uv_timer_init(&client->loop, &client->timer);
    client->wake.data = client;
    client->timer.data = client;
    uv_timer_start(&client->timer, on_tick, TICK_MS, TICK_MS);
    int status = open_net(client, err);
    if (status == 0 && pthread_create(&client->thread, NULL, loop_main, client) != 0) {
        status = errbuf_set(err, STATUS_NOMEM, "client: no thread");
    }
    if (status != 0) {
        on_left(client);
        loop_main(client);
        destroy_lock(client);
        free(client);
        return status;
    }
    status = wait_joined(client, err);
    if (status != 0) {
        client_close(client, 0, NULL);
        return status;
    }
    *out = client;
    return 0;
}

void client_close(struct client *client, int status, const char *text)
{
    if (!client) {
        return;
    }
    client_detach(client);
    pthread_mutex_lock(&client->lock);
    client->closing = 1;
    client->leave_status = status;
    snprintf(client->leave_text, sizeof(client->leave_text), "%s", text ? text : "");
    client_wake(client);
    pthread_mutex_unlock(&client->lock);
    pthread_join(client->thread, NULL);
    while (client->requests) { /* only posted ones have nobody who waits */
        struct client_request *request = client->requests;
        client->requests = request->next;
        client_free_posted(request);
    }
    while (client->events) {
        struct client_event *event = client->events;
        client->events = event->next;
        message_close(&event->message);
        free(event);
    }
    destroy_lock(client);
    free(client);
}

void client_cancel(struct client *client)
{
    client_fail(client, STATUS_CLOSED, "the client was closed");
}

int client_rank(const struct client *client)
{
    return client->rank;
}

uint64_t client_incarnation(const struct client *client)
{
    return client->incarnation;
}

int64_t client_clock_offset_ns(struct client *client)
{
    pthread_mutex_lock(&client->lock);
    int64_t offset = client->offset_ns;
    pthread_mutex_unlock(&client->lock);
    return offset;
}

void client_set_dead_after(struct client *client, double coordinator_s, double server_s)
{
    pthread_mutex_lock(&client->lock);
    client->dead_s = coordinator_s;
    client->server_dead_s = server_s;
    pthread_mutex_unlock(&client->lock);
}

void client_set_trace(struct client *client, struct trace *trace)
{
    pthread_mutex_lock(&client->lock);
    client->trace = trace;
    pthread_mutex_unlock(&client->lock);
}

void client_ask_stop(struct client *client)
{
    pthread_mutex_lock(&client->lock);
    client->stop_asked += client->stop_asked == 0;
    client_wake(client);
    pthread_mutex_unlock(&client->lock);
}

/* --- events and calls ------------------------------------------------------------------------------------ */

int client_next_event(struct client *client, int idle, struct message *out, struct errbuf *err)
{
    pthread_mutex_lock(&client->lock);
    if (idle && !client->lost) {
        client->status = 0; /* that was the last job's */
    }
    if (idle) {
        client->next_job = 1;
        client_wake(client);
    }
    struct client_waiting waiting;
    client_wait_begin(client, &waiting);
    while (!client->events && client->status == 0 && !client->loop_over && !(idle && client->options.host->stop)) {
        if (idle) {
            pthread_cond_wait(&client->changed, &client->lock);
        } else {
            client_wait_step(client, &waiting);
        }
    }
    client_wait_end(client, &waiting);
    struct client_event *event = client->events;
    int status = 0;
    if (event) {
        client->events = event->next;
        if (!client->events) {
            client->events_tail = &client->events;
        }
        *out = event->message;
    } else if (client->status != 0) {
        status = errbuf_set(err, client->status, "%s", client->why.text);
    } else {
        status = errbuf_set(err, STATUS_STOPPED, "stopped by signal");
    }
    pthread_mutex_unlock(&client->lock);
    free(event);
    return status;
}

/* Under the lock. */
static void give_up(struct client *client, struct client_request *request)
{
    if (request->sent) {
        request->given_up = 1; /* the reply, which comes at the latest when the link closes, frees it */
        return;
    }
    struct client_request **link = &client->requests;
    while (*link != request) {
        link = &(*link)->next;
    }
    *link = request->next;
    free(request);
}

int client_call(struct client *client, Shoal__Envelope *envelope, struct buf *const *frames, int frames_count,
                struct message *reply, struct errbuf *err)
{
    struct client_request *request = calloc(1, sizeof(*request));
    if (!request) {
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    }
    *request = (struct client_request){.client = client, .envelope = envelope, .frames = frames,
                                       .frames_count = frames_count};
    errbuf_init(&request->err);
    pthread_mutex_lock(&client->lock);
    client_add_request(client, request);
    struct client_waiting waiting;
    client_wait_begin(client, &waiting);
    while (!request->done && !client->loop_over && client->status == 0) {
        client_wait_step(client, &waiting);
    }
    client_wait_end(client, &waiting);
    if (!request->done) {
        int status = client->status ? client->status : STATUS_CLOSED;
        errbuf_set(err, status, "%s", client->status ? client->why.text : "the client is closed");
        give_up(client, request);
        pthread_mutex_unlock(&client->lock);
        return status;
    }
    pthread_mutex_unlock(&client->lock);
    int status = request->status;
    if (status != 0) {
        errbuf_set(err, status, "%s", request->err.text);
    } else if (reply) {
        *reply = request->reply;
    } else {
        message_close(&request->reply);
    }
    free(request);
    return status;
}

int client_status(struct client *client, struct errbuf *err)
{
    pthread_mutex_lock(&client->lock);
    int status = client->status ? errbuf_set(err, client->status, "%s", client->why.text) : 0;
    pthread_mutex_unlock(&client->lock);
    return status;
}

int client_wait_failure(struct client *client, double seconds, struct errbuf *err)
{
    int64_t until_ns = clock_now_ns() + (int64_t)(seconds * 1e9);
    pthread_mutex_lock(&client->lock);
    while (client->status == 0 && !client->loop_over && clock_now_ns() < until_ns) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until); /* a tick's length: clocks that are set do no harm */
        until.tv_nsec += TICK_MS * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&client->changed, &client->lock, &until);
    }
    pthread_mutex_unlock(&client->lock);
    return client_status(client, err);
}

int client_last_asked(struct client *client)
{
    pthread_mutex_lock(&client->lock);
    int asked = client->last_asked;
    pthread_mutex_unlock(&client->lock);
    return asked;
}
