#include <stdlib.h>
#include <string.h>

#include "server/coordinator/core.h"

static void event_close(struct core_event *event)
{
    shoal__envelope__free_unpacked(event->envelope, NULL);
    buf_release(event->frame);
}

static int is_for(const struct core_event *event, const struct core_member *member)
{
    /* Ranks a job does not use hear nothing of it. */
    return member->counted && (event->audience & 1 << member->kind) != 0 &&
           (event->rank < 0 || event->rank == member->rank) && event->sequence > member->since;
}

static struct core_event *next_for(const struct coordinator_core *core, const struct core_member *member,
                                   uint64_t after)
{
    for (size_t i = 0; i < core->events_count; i++) {
        struct core_event *event = &core->events[i];
        if (event->sequence <= after)
            continue;
        if (event->end ? event->sequence > member->since : is_for(event, member))
            return event;
    }
    return NULL;
}

static void deliver(struct coordinator_core *core, const struct core_event *event, const struct net_return *back)
{
    core->ops.reply(core->ops.context, back, event->envelope, &event->frame, event->frame != NULL ? 1 : 0);
}

static void flush(struct coordinator_core *core)
{
    for (int kind = 0; kind < CORE_KINDS; kind++)
        for (int rank = 0; rank < core->members_limit[kind]; rank++) {
            struct core_member *member = core->members[kind][rank];
            if (member == NULL || !member->await.held)
                continue;
            const struct core_event *event = next_for(core, member, member->seen);
            if (event == NULL)
                continue;
            member->await.held = 0;
            deliver(core, event, &member->await.back);
        }
}

/* Drops what everyone has said to have. */
static void forget_seen(struct coordinator_core *core)
{
    uint64_t all = core->sequence;
    for (int kind = 0; kind < CORE_KINDS; kind++)
        for (int rank = 0; rank < core->members_limit[kind]; rank++) {
            const struct core_member *member = core->members[kind][rank];
            /* While a job is at work, ranks that it does not use hear nothing and hold nothing back. */
            int at_work = core->phase > CORE_GATHERING && core->phase < CORE_ENDING;
            if (member == NULL || (at_work && !member->counted))
                continue;
            uint64_t seen = member->seen > member->since ? member->seen : member->since;
            all = seen < all ? seen : all;
        }
    size_t drop = 0;
    while (drop < core->events_count && core->events[drop].sequence <= all)
        event_close(&core->events[drop++]);
    if (drop == 0)
        return;
    core->events_count -= drop;
    memmove(core->events, core->events + drop, core->events_count * sizeof *core->events);
}

void core_events_push(struct coordinator_core *core, int audience, int rank, Shoal__Envelope *envelope,
                      struct buf *frame)
{
    if (core->events_count == core->events_room) {
        size_t room = core->events_room == 0 ? 64 : core->events_room * 2;
        struct core_event *events = realloc(core->events, room * sizeof *events);
        if (events == NULL) {
            core_log(core, LOG_ERROR, "event lost: out of memory");
            return;
        }
        core->events = events;
        core->events_room = room;
    }
    envelope->sequence = core->sequence + 1;
    struct core_event event = {.sequence = core->sequence + 1, .audience = audience, .rank = rank,
                               .end = envelope->type == SHOAL__TYPE__END, .envelope = core_copy(&envelope->base)};
    if (event.envelope == NULL) {
        core_log(core, LOG_ERROR, "event lost: out of memory");
        return;
    }
    event.frame = frame == NULL ? NULL : buf_share(frame);
    core->sequence++;
    core->events[core->events_count++] = event;
    flush(core);
}

void core_events_await(struct coordinator_core *core, struct core_member *member, struct message *message,
                       const struct net_return *back)
{
    uint64_t after = message->envelope->sequence;
    if (after > core->sequence) {
        core_answer(core, back, STATUS_RANGE, "event %llu has not happened", (unsigned long long)after);
        return;
    }
    if (after < member->seen) { /* a late repeat: answered again, and the newer one stays held */
        const struct core_event *event = next_for(core, member, after);
        if (event != NULL)
            deliver(core, event, back);
        return;
    }
    member->seen = after;
    forget_seen(core);
    const struct core_event *event = next_for(core, member, after);
    member->await.held = event == NULL;
    member->await.back = *back;
    if (event != NULL)
        deliver(core, event, back);
}

void core_events_begin_job(struct coordinator_core *core)
{
    size_t kept = 0;
    for (size_t i = 0; i < core->events_count; i++) {
        int last_end = core->events[i].end && core->events[i].sequence == core->sequence;
        if (last_end)
            core->events[kept++] = core->events[i];
        else
            event_close(&core->events[i]);
    }
    core->events_count = kept;
}

void core_events_close(struct coordinator_core *core)
{
    for (size_t i = 0; i < core->events_count; i++)
        event_close(&core->events[i]);
    free(core->events);
    core->events = NULL;
    core->events_count = core->events_room = 0;
}
