#include "net/member.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/errbuf.h"
#include "base/log.h"
#include "base/status.h"

enum { RESEND_MS = 3000, TICK_MS = 250 };

struct leave {
    void (*done)(void *context);
    void *context;
};

struct member {
    struct member_options options;
    struct net *net;
    struct net_link *link;
    uv_timer_t *timer;
    uint64_t sequence; /* last event seen */
    int64_t began_ns, heard_ns, beat_ns, best_trip_ns, offset_ns;
    int64_t heartbeat_ns;
    int joined, lost, beating;
    int between_jobs; /* END was handed out, no event is asked for */
    struct leave leave;
    char stall[1024]; /* what the coordinator last waited for */
};

static void await_next(struct member *member);

static void lose(struct member *member, int status, const char *text)
{
    if (!member->lost) {
        member->lost = 1;
        member->options.ops.lost(member->options.ops.context, status, text);
    }
}

static const char *text_of(const struct message *reply, int status)
{
    return reply && reply->envelope && reply->envelope->text && reply->envelope->text[0] ? reply->envelope->text
                                                                                         : status_text(status);
}

/* An elastic job counts its ranks anew when one is lost or comes: a worker is known by its life. */
static void take_rank(struct member *member, const Shoal__JobBegin *begin)
{
    struct net_self *self = net_self(member->net);
    for (size_t rank = 0; self->role == SHOAL__ROLE__WORKER && rank < begin->n_worker_incarnations; rank++) {
        if (begin->worker_incarnations[rank] == self->incarnation && self->rank != (int)rank) {
            self->rank = (int)rank;
            member->options.ops.joined(member->options.ops.context, self->rank);
        }
    }
}

static void on_event(void *context, int status, struct message *reply)
{
    struct member *member = context;
    if (status == STATUS_CLOSED || member->lost) {
        return;
    }
    /* The end of a failed job is an event that carries a status, not a failed request. */
    if (status != 0 && !(reply && reply->envelope->type == SHOAL__TYPE__END)) {
        lose(member, status, text_of(reply, status));
        return;
    }
    member->heard_ns = clock_now_ns();
    if (reply->envelope->sequence <= member->sequence) {
        await_next(member);
        return;
    }
    member->sequence = reply->envelope->sequence;
    struct net_self *self = net_self(member->net);
    self->term = reply->envelope->term;
    self->job = reply->envelope->job;
    if (reply->envelope->cluster_epoch) {
        self->cluster_epoch = reply->envelope->cluster_epoch;
    }
    if (reply->envelope->type == SHOAL__TYPE__JOB) {
        take_rank(member, reply->envelope->job_begin);
    }
    member->between_jobs = reply->envelope->type == SHOAL__TYPE__END;
    if (!member->between_jobs) {
        await_next(member); /* first, so that the next event is on its way while this one is handled */
    }
    member->options.ops.event(member->options.ops.context, reply);
}

static void await_next(struct member *member)
{
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    envelope.type = SHOAL__TYPE__AWAIT;
    envelope.sequence = member->sequence;
    if (member_request(member, &envelope, NULL, 0, on_event, member) == 0) {
        lose(member, STATUS_NOMEM, "out of memory for the next event");
    }
}

void member_next_job(struct member *member)
{
    if (member->between_jobs && !member->lost) {
        member->between_jobs = 0;
        await_next(member);
    }
}

static void on_joined(void *context, int status, struct message *reply)
{
    struct member *member = context;
    if (status == STATUS_CLOSED || member->lost) {
        return;
    }
    if (status != 0) {
        lose(member, status, text_of(reply, status));
        return;
    }
    const Shoal__Envelope *envelope = reply->envelope;
    struct net_self *self = net_self(member->net);
    self->rank = envelope->joined->rank;
    self->term = envelope->term;
    self->cluster_epoch = envelope->cluster_epoch;
    member->heartbeat_ns = (int64_t)envelope->joined->heartbeat_ms * 1000000;
    member->heard_ns = clock_now_ns();
    member->joined = 1;
    member->options.ops.joined(member->options.ops.context, self->rank);
    await_next(member);
}

static void send_join(struct member *member)
{
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    envelope.type = SHOAL__TYPE__JOIN;
    envelope.body_case = SHOAL__ENVELOPE__BODY_JOIN;
    envelope.join = (Shoal__Join *)member->options.join;
    if (member_request(member, &envelope, NULL, 0, on_joined, member) == 0) {
        lose(member, STATUS_NOMEM, "out of memory to join");
    }
}

static void on_heartbeat(void *context, int status, struct message *reply)
{
    struct member *member = context;
    member->beating = 0;
    if (status != 0) {
        if (status != STATUS_CLOSED && status != STATUS_TIMEOUT) {
            lose(member, status, text_of(reply, status));
        }
        return;
    }
    int64_t now = clock_now_ns();
    member->heard_ns = now;
    const Shoal__Envelope *e = reply->envelope;
    if (e->text[0] && strcmp(e->text, member->stall) != 0 && member->options.log) {
        log_warning(member->options.log, "%s", e->text);
    }
    snprintf(member->stall, sizeof(member->stall), "%s", e->text);
    int64_t trip = (now - e->echo_ns) - (e->sent_ns - e->received_ns);
    if (e->echo_ns && (member->best_trip_ns == 0 || trip < member->best_trip_ns)) {
        member->best_trip_ns = trip;
        member->offset_ns = ((e->received_ns - e->echo_ns) + (e->sent_ns - now)) / 2;
    }
}

static void send_heartbeat(struct member *member, int64_t now)
{
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    envelope.type = SHOAL__TYPE__HEARTBEAT;
    struct net_call call = {.envelope = &envelope, .deadline_ms = 10000, .reply = on_heartbeat, .context = member};
    member->beating = 1;
    member->beat_ns = now;
    if (net_request(member->link, &call) == 0) {
        member->beating = 0;
    }
}

static void on_tick(uv_timer_t *timer)
{
    struct member *member = timer->data;
    int64_t now = clock_now_ns();
    char text[160];
    if (member->lost) {
        return;
    }
    if (!member->joined) {
        if ((double)(now - member->began_ns) / 1e9 > member->options.start_s) {
            snprintf(text, sizeof(text), "coordinator %s did not answer within %.0f s", member->options.cluster,
                     member->options.start_s);
            lose(member, STATUS_TIMEOUT, text);
        }
        return;
    }
    if ((double)(now - member->heard_ns) / 1e9 > member->options.dead_s) {
        snprintf(text, sizeof(text), "coordinator %s silent for %.0f s", member->options.cluster, member->options.dead_s);
        lose(member, STATUS_TIMEOUT, text);
    } else if (!member->beating && now - member->beat_ns >= member->heartbeat_ns) {
        send_heartbeat(member, now);
    }
}

int member_create(struct member **out, struct net *net, uv_loop_t *loop, const struct member_options *options,
                  struct errbuf *err)
{
    struct member *member = calloc(1, sizeof(*member));
    uv_timer_t *timer = malloc(sizeof(*timer));
    if (!member || !timer) {
        free(member);
        free(timer);
        return errbuf_set(err, STATUS_NOMEM, "member: out of memory");
    }
    member->options = *options;
    member->net = net;
    member->began_ns = clock_now_ns();
    int status = net_link_open(&member->link, net, options->cluster, options->curve, NULL, member, err);
    if (status != 0) {
        free(member);
        free(timer);
        return status;
    }
    member->timer = timer;
    uv_timer_init(loop, timer);
    timer->data = member;
    uv_timer_start(timer, on_tick, TICK_MS, TICK_MS);
    send_join(member);
    *out = member;
    return 0;
}

static void on_timer_closed(uv_handle_t *handle)
{
    free(handle);
}

void member_destroy(struct member *member)
{
    if (!member) {
        return;
    }
    member->lost = 1;
    net_link_close(member->link);
    uv_timer_stop(member->timer);
    uv_close((uv_handle_t *)member->timer, on_timer_closed);
    free(member);
}

void member_set_dead_after(struct member *member, double seconds)
{
    member->options.dead_s = seconds;
}

uint64_t member_request(struct member *member, Shoal__Envelope *envelope, struct buf *const *frames, int frames_count,
                        net_reply_fn *reply, void *context)
{
    struct net_call call = {.envelope = envelope, .frames = frames, .frames_count = frames_count,
                            .resend_ms = RESEND_MS, .reply = reply, .context = context};
    return net_request(member->link, &call);
}

static void on_left(void *context, int status, struct message *reply)
{
    (void)status;
    (void)reply;
    struct member *member = context;
    member->leave.done(member->leave.context);
}

static void on_stop_acked(void *context, int status, struct message *reply)
{
    (void)context;
    (void)status;
    (void)reply;
}

void member_ask_stop(struct member *member)
{
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    envelope.type = SHOAL__TYPE__LEAVE;
    envelope.status = STATUS_STOPPED;
    envelope.text = (char *)"stopped by signal";
    member_request(member, &envelope, NULL, 0, on_stop_acked, member);
}

void member_leave(struct member *member, int status, const char *text, int64_t deadline_ms,
                  void (*done)(void *context), void *context)
{
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    envelope.type = SHOAL__TYPE__LEAVE;
    envelope.status = status;
    envelope.text = (char *)(text ? text : "");
    struct net_call call = {.envelope = &envelope, .deadline_ms = deadline_ms, .reply = on_left, .context = member};
    member->leave = (struct leave){done, context};
    member->lost = 1; /* nothing more is told */
    if (net_request(member->link, &call) == 0) {
        done(context);
    }
}

int64_t member_clock_offset_ns(const struct member *member)
{
    return member->offset_ns;
}
