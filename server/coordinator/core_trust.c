#include <stdlib.h>
#include <string.h>

#include "owner/trust.h"
#include "server/coordinator/core.h"

/* The second round of a step under lamb: after an APPLY every server reports Σw² and Σu² of its runs; when all are in, the
 * tensors' trust ratios go out as one event. Repeats change nothing. */

void core_trust_close(struct core_job *job)
{
    free(job->trust.norms);
    free(job->trust.in);
    memset(&job->trust, 0, sizeof job->trust);
}

/* A new step's norms, or the ones under way. 0 or STATUS_NOMEM. */
static int collect_for(struct core_job *job, uint64_t step)
{
    if (job->trust.step == step)
        return 0;
    if (job->trust.norms == NULL) {
        job->trust.norms = calloc(2 * (size_t)job->keymap.runs_count + 1, sizeof(double));
        job->trust.in = calloc((size_t)job->keymap.runs_count + 1, 1);
        if (job->trust.norms == NULL || job->trust.in == NULL)
            return STATUS_NOMEM;
    }
    memset(job->trust.in, 0, (size_t)job->keymap.runs_count);
    job->trust.missing = job->keymap.runs_count;
    job->trust.step = step;
    return 0;
}

static void announce(struct coordinator_core *core)
{
    struct core_job *job = &core->job;
    Shoal__Envelope envelope;
    core_envelope(core, &envelope, SHOAL__TYPE__RATIOS);
    envelope.clock = job->trust.step;
    struct buf *frame = buf_create((size_t)job->table.tensor_count * sizeof(double));
    if (frame == NULL) {
        core_ending_end(core, STATUS_NOMEM, "out of memory for trust ratios");
        return;
    }
    trust_ratios(&job->keymap, job->trust.norms, frame->data);
    core_events_push(core, AUDIENCE_SERVERS, -1, &envelope, frame);
    buf_release(frame);
}

static void take_span(struct core_job *job, uint64_t first, uint64_t count, const double *norms)
{
    for (uint64_t run = first; run < first + count; run++, norms += 2) {
        if (job->trust.in[run])
            continue;
        job->trust.in[run] = 1;
        job->trust.missing--;
        memcpy(&job->trust.norms[2 * run], norms, 2 * sizeof(double));
    }
}

void core_trust_message(struct coordinator_core *core, struct core_member *member, struct message *message,
                        const struct net_return *back)
{
    const Shoal__Envelope *envelope = message->envelope;
    struct core_job *job = &core->job;
    const Shoal__Prepared *body = envelope->body_case == SHOAL__ENVELOPE__BODY_PREPARED ? envelope->prepared : NULL;
    int64_t runs = body != NULL ? core_steps_spans(body, job->keymap.runs_count) : -1;
    (void)member;
    if (runs < 0 || message->frames_count != 1 || message->frames[0]->bytes != 2 * (size_t)runs * sizeof(double)) {
        core_answer(core, back, STATUS_SHAPE, "trust norms do not fit the model");
        return;
    }
    if (envelope->clock != job->last_step || (core->phase != CORE_RUNNING && core->phase != CORE_FINISHING)) {
        core_answer(core, back, envelope->clock < job->last_step ? 0 : STATUS_RANGE, "%s", "");
        return;
    }
    if (collect_for(job, envelope->clock) != 0) {
        core_answer(core, back, STATUS_NOMEM, "out of memory");
        return;
    }
    int64_t before = job->trust.missing;
    const double *norms = message->frames[0]->data;
    for (size_t i = 0; i < body->n_runs; i++) {
        take_span(job, body->runs_first[i], body->runs[i], norms);
        norms += 2 * body->runs[i];
    }
    core_answer(core, back, 0, "%s", "");
    if (before > 0 && job->trust.missing == 0)
        announce(core);
}
