#include <stdlib.h>
#include <string.h>

#include "cluster/norm_stats.h"
#include "server/coordinator/core.h"

static void gather_close(struct core_gather *gather, int workers)
{
    for (int rank = 0; rank < workers && gather->vectors != NULL; rank++)
        buf_release(gather->vectors[rank]);
    free(gather->vectors);
    free(gather->held);
    buf_release(gather->result);
    free(gather);
}

void core_gather_forget(struct core_job *job, uint64_t before_step)
{
    struct core_gather **at = &job->gathers;
    while (*at != NULL) {
        struct core_gather *gather = *at;
        if (gather->step >= before_step) {
            at = &gather->next;
            continue;
        }
        *at = gather->next;
        gather_close(gather, job->workers);
    }
}

static struct core_gather *find_or_add(struct core_job *job, uint64_t step, uint32_t sequence)
{
    struct core_gather *gather = job->gathers;
    while (gather != NULL && (gather->step != step || gather->sequence != sequence))
        gather = gather->next;
    if (gather != NULL)
        return gather;
    gather = calloc(1, sizeof *gather);
    if (gather == NULL)
        return NULL;
    gather->step = step;
    gather->sequence = sequence;
    gather->vectors = calloc((size_t)job->workers, sizeof *gather->vectors);
    gather->held = calloc((size_t)job->workers, sizeof *gather->held);
    if (gather->vectors == NULL || gather->held == NULL) {
        gather_close(gather, job->workers);
        return NULL;
    }
    gather->next = job->gathers;
    job->gathers = gather;
    return gather;
}

/* In order of rank, in double. */
static void combine(struct core_gather *gather, int workers)
{
    double *result = gather->result->data;
    double *one = malloc((size_t)gather->count * sizeof *one + 1);
    if (one == NULL) {
        buf_release(gather->result);
        gather->result = NULL;
        return;
    }
    memset(result, 0, gather->result->bytes);
    for (int rank = 0; rank < workers; rank++) {
        memcpy(one, gather->vectors[rank]->data, gather->result->bytes);
        norm_stats_combine(gather->merge, result, one, gather->count);
        buf_release(gather->vectors[rank]);
        gather->vectors[rank] = NULL;
    }
    free(one);
}

static void reply_gathered(struct coordinator_core *core, struct core_gather *gather, const struct net_return *back)
{
    Shoal__Envelope envelope;
    core_envelope(core, &envelope, SHOAL__TYPE__GATHERED);
    envelope.clock = gather->step;
    core->ops.reply(core->ops.context, back, &envelope, &gather->result, 1);
}

static void finish(struct coordinator_core *core, struct core_gather *gather)
{
    gather->result = buf_create((size_t)gather->count * sizeof(double));
    if (gather->result != NULL)
        combine(gather, core->job.workers);
    if (gather->result == NULL) {
        core_ending_end(core, STATUS_NOMEM, "out of memory");
        return;
    }
    for (int rank = 0; rank < core->job.workers; rank++)
        if (gather->held[rank].held) {
            gather->held[rank].held = 0;
            reply_gathered(core, gather, &gather->held[rank].back);
        }
}

/* 0, or why the request does not belong here. */
static int check(const struct coordinator_core *core, const struct message *message)
{
    const Shoal__Envelope *envelope = message->envelope;
    uint64_t now = core->job.step.step;
    if (core->phase != CORE_RUNNING)
        return STATUS_PROTOCOL;
    if (envelope->body_case != SHOAL__ENVELOPE__BODY_GATHER || message->frames_count < 1)
        return STATUS_PROTOCOL;
    if (envelope->cluster_epoch != core->cluster_epoch)
        return STATUS_ABORTED;
    if (envelope->clock != now && envelope->clock + 1 != now)
        return STATUS_RANGE;
    size_t bytes = message->frames[0]->bytes;
    if (bytes % sizeof(double) != 0 || bytes == 0)
        return STATUS_SHAPE;
    return envelope->gather->merge && bytes / sizeof(double) % 2 == 0 ? STATUS_SHAPE : 0;
}

void core_gather_message(struct coordinator_core *core, struct core_member *member, struct message *message,
                         const struct net_return *back)
{
    const Shoal__Envelope *envelope = message->envelope;
    struct core_job *job = &core->job;
    int status = check(core, message);
    if (status != 0) {
        core_answer(core, back, status, "gather of step %llu: %s", (unsigned long long)envelope->clock,
                    status_text(status));
        return;
    }
    struct core_gather *gather = find_or_add(job, envelope->clock, envelope->gather->sequence);
    if (gather == NULL) {
        core_answer(core, back, STATUS_NOMEM, "out of memory");
        return;
    }
    if (gather->result != NULL) {
        reply_gathered(core, gather, back);
        return;
    }
    gather->held[member->rank].held = 1;
    gather->held[member->rank].back = *back;
    if (gather->vectors[member->rank] != NULL)
        return;
    int64_t count = (int64_t)(message->frames[0]->bytes / sizeof(double));
    if (gather->in > 0 && (gather->count != count || gather->merge != (envelope->gather->merge != 0))) {
        core_ending_end(core, STATUS_SHAPE, "step %llu: worker %d gathers %lld numbers, another rank %lld",
                        (unsigned long long)envelope->clock, member->rank, (long long)count,
                        (long long)gather->count);
        return;
    }
    gather->count = count;
    gather->merge = envelope->gather->merge != 0;
    gather->vectors[member->rank] = message->frames[0];
    message->frames[0] = NULL;
    if (++gather->in == job->workers)
        finish(core, gather);
}
