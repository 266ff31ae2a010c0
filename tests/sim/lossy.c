#include "sim/lossy.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const int64_t millisecond_ns = 1000000, resend_ns = 500000000;

void lossy_begin(struct lossy *net, uint64_t seed, int faulty)
{
    net->random = seed;
    net->faulty = faulty;
}

void lossy_close(struct lossy *net)
{
    for (int m = 0; m < LOSSY_MEMBERS; m++)
        for (int c = 0; c < LOSSY_CALLS; c++)
            free(net->members[m].calls[c].envelope);
    world_close(&net->world);
}

uint32_t lossy_draw(struct lossy *net, uint32_t below)
{
    net->random = net->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(net->random >> 33) % below;
}

static void fly(struct lossy *net, int member, int call)
{
    int copies = !net->faulty ? 1 : lossy_draw(net, 10) < 2 ? 0 : lossy_draw(net, 10) < 3 ? 2 : 1;
    for (int i = 0; i < copies && net->flights_count < LOSSY_FLIGHTS; i++) {
        int64_t delay = net->faulty ? (int64_t)lossy_draw(net, 300) * millisecond_ns : millisecond_ns;
        net->flights[net->flights_count++] = (struct lossy_flight){
            member, call, net->members[member].calls[call].request, net->world.now_ns + delay};
    }
}

/* A call in the air may be doubled after its slot was used again; the number tells. */
void lossy_ask(struct lossy *net, int index, Shoal__Envelope *envelope, const struct lossy_frames *frames)
{
    struct lossy_member *member = &net->members[index];
    static const struct lossy_frames none = {0};
    const struct lossy_frames *from = frames != NULL ? frames : &none;
    int slot = 0;
    while (slot < LOSSY_CALLS && member->calls[slot].used)
        slot++;
    assert(slot < LOSSY_CALLS && from->values_count <= 64 && from->flags_count <= 64);
    struct lossy_call *call = &member->calls[slot];
    call->used = 1;
    call->request = ++net->world.requests;
    call->type = envelope->type;
    free(call->envelope);
    call->envelope_bytes = shoal__envelope__get_packed_size(envelope);
    call->envelope = malloc(call->envelope_bytes + 1);
    assert(call->envelope != NULL);
    shoal__envelope__pack(envelope, call->envelope);
    call->frame_bytes = (size_t)from->values_count * sizeof *from->values;
    if (call->frame_bytes > 0)
        memcpy(call->frame, from->values, call->frame_bytes);
    call->flags_bytes = (size_t)from->flags_count;
    if (call->flags_bytes > 0)
        memcpy(call->flags, from->flags, call->flags_bytes);
    call->resend_ns = net->world.now_ns + resend_ns;
    fly(net, index, slot);
}

void lossy_forget(struct lossy *net, int member)
{
    for (int c = 0; c < LOSSY_CALLS; c++)
        net->members[member].calls[c].used = 0;
}

static void deliver(struct lossy *net, const struct lossy_flight *flight)
{
    struct lossy_member *member = &net->members[flight->member];
    struct lossy_call *call = &member->calls[flight->call];
    if (call->request != flight->request)
        return; /* its slot serves another; the doubled one was lost */
    Shoal__Envelope *envelope = shoal__envelope__unpack(NULL, call->envelope_bytes, call->envelope);
    actor_resend(&member->actor, envelope, call->request, call->frame_bytes > 0 ? call->frame : NULL,
                 call->frame_bytes, call->flags_bytes > 0 ? call->flags : NULL, call->flags_bytes);
    shoal__envelope__free_unpacked(envelope, NULL);
}

static void take_reply(struct lossy *net, const struct world_reply *reply)
{
    for (int m = 0; m < net->count; m++)
        for (int c = 0; c < LOSSY_CALLS; c++) {
            struct lossy_call *call = &net->members[m].calls[c];
            if (!call->used || call->request != reply->request)
                continue;
            call->used = 0;
            if (net->act(net, m, call->type, reply) && call->request == reply->request)
                call->used = 1;
            return;
        }
}

/* Answers that came since: the first one of a call counts, if it is not lost on the way. */
static void take_replies(struct lossy *net)
{
    while (net->replies_seen < net->world.replies_count) {
        struct world_reply reply = net->world.replies[net->replies_seen++];
        if (!net->faulty || lossy_draw(net, 10) >= 2)
            take_reply(net, &reply);
    }
}

static void resend_overdue(struct lossy *net)
{
    for (int m = 0; m < net->count; m++)
        for (int c = 0; c < LOSSY_CALLS; c++) {
            struct lossy_call *call = &net->members[m].calls[c];
            if (!call->used || call->resend_ns > net->world.now_ns)
                continue;
            call->resend_ns = net->world.now_ns + resend_ns;
            fly(net, m, c);
        }
}

void lossy_turn(struct lossy *net)
{
    int due = -1;
    for (int f = 0; f < net->flights_count; f++)
        if (net->flights[f].at_ns <= net->world.now_ns && (due < 0 || lossy_draw(net, 2) == 0))
            due = f;
    if (due >= 0) {
        struct lossy_flight flight = net->flights[due];
        net->flights[due] = net->flights[--net->flights_count];
        deliver(net, &flight);
    } else {
        net->world.now_ns += 10 * millisecond_ns;
        coordinator_core_tick(net->world.core, net->world.now_ns);
        resend_overdue(net);
    }
    take_replies(net);
}
