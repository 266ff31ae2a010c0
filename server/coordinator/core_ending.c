#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/core.h"

static const double default_stop_s = 4;
/* How long END waits for members to leave: 5 s are all there is after a signal. */
static const double leave_s = 3, leave_stopping_s = 0.8;

void core_ending_summary(struct coordinator_core *core, struct core_member *member, struct message *message,
                         const struct net_return *back)
{
    const Shoal__Envelope *envelope = message->envelope;
    /* In a ring a rank may be through while another one's last REPORT is on its way. */
    int early = core->job.ring && core->phase == CORE_RUNNING && core_ring_is_through(&core->job, member->rank);
    if ((core->phase != CORE_FINISHING && !early) || envelope->body_case != SHOAL__ENVELOPE__BODY_SUMMARY) {
        core_answer(core, back, STATUS_PROTOCOL, "no summary is due");
        return;
    }
    /* A server's later one counts: it has seen the pulls after the last step. */
    if (member->summary == NULL || member->kind == CORE_SERVER) {
        Shoal__Summary *summary = core_copy(&envelope->summary->base);
        if (summary == NULL) {
            core_answer(core, back, STATUS_NOMEM, "out of memory");
            return;
        }
        if (member->summary != NULL)
            shoal__summary__free_unpacked(member->summary, NULL);
        member->summary = summary;
        buf_release(member->trace);
        member->trace = NULL;
        if (message->frames_count > 0) {
            member->trace = message->frames[0];
            message->frames[0] = NULL;
        }
    }
    core_answer(core, back, 0, "%s", "");
    if (member->kind == CORE_WORKER && !core->job.ring)
        core_snapshots_evaluated(core);
    core_ending_advance(core);
}

static int all_in(const struct coordinator_core *core, enum core_kind kind)
{
    for (int rank = 0; rank < core_kind_count(core, kind); rank++)
        if (core->members[kind][rank] == NULL || core->members[kind][rank]->summary == NULL)
            return 0;
    return 1;
}

static void write_trace(struct coordinator_core *core)
{
    struct core_job *job = &core->job;
    if (*job->spec.trace_path == '\0')
        return;
    struct trace_track *tracks = calloc((size_t)(job->workers + job->servers), sizeof *tracks);
    size_t count = 0;
    for (int kind = CORE_KINDS - 1; tracks != NULL && kind >= 0; kind--)
        for (int rank = 0; rank < core_kind_count(core, (enum core_kind)kind); rank++) {
            const struct core_member *member = core->members[kind][rank];
            if (member->trace == NULL)
                continue;
            tracks[count++] = (struct trace_track){core_kind_name((enum core_kind)kind), rank,
                                                   member->summary->clock_offset_ns, member->trace->data,
                                                   member->trace->bytes / sizeof(struct trace_event)};
        }
    struct errbuf err;
    errbuf_init(&err);
    int status = tracks == NULL ? errbuf_set(&err, STATUS_NOMEM, "out of memory")
                                : core->ops.trace(core->ops.context, job->spec.trace_path, tracks, count, &err);
    if (status != 0)
        core_say(core, "warning: no trace: %s", err.text);
    free(tracks);
}

/* N14: the same parameters everywhere at the end. 0, or the job has been ended. */
static int check_end_digests(struct coordinator_core *core)
{
    const ProtobufCBinaryData *first = &core->members[CORE_WORKER][0]->summary->digest;
    for (int rank = 1; rank < core->job.workers; rank++) {
        const ProtobufCBinaryData *other = &core->members[CORE_WORKER][rank]->summary->digest;
        if (other->len == first->len && (first->len == 0 || memcmp(other->data, first->data, first->len) == 0))
            continue;
        core_ending_end(core, STATUS_CHECKSUM, "the parameters of worker %d and worker 0 differ at the end (digest)",
                        rank);
        return STATUS_CHECKSUM;
    }
    if (first->len == 0)
        return 0;
    char text[2 * 64 + 1] = "";
    for (size_t i = 0; i < first->len && i < 64; i++)
        snprintf(text + 2 * i, 3, "%02x", first->data[i]);
    core_say(core, "digest of step %llu %s, the same on %d workers", (unsigned long long)core->job.last_step, text,
             core->job.workers);
    return 0;
}

void core_ending_advance(struct coordinator_core *core)
{
    if (core->phase != CORE_FINISHING || core->job.snapshot.active)
        return;
    if (core_ending_wanted(core)) {
        core_ending_end(core, STATUS_STOPPED, "%s after step %llu",
                        core->stopping ? "stopped by signal" : core->job.stop_text,
                        (unsigned long long)core->job.last_step);
        return;
    }
    if (core_elastic_regroup(core))
        return;
    if (!all_in(core, CORE_WORKER))
        return;
    if (!core->job.asked_summaries) {
        core_verdict_closing(core);
        /* Books that servers sent before the last pulls are asked for again. */
        for (int rank = 0; rank < core->job.servers; rank++) {
            struct core_member *member = core->members[CORE_SERVER][rank];
            if (member->summary != NULL)
                shoal__summary__free_unpacked(member->summary, NULL);
            member->summary = NULL;
        }
    }
    if (!all_in(core, CORE_SERVER) || check_end_digests(core) != 0)
        return;
    int differing = core_report_say(core);
    core_report_metrics(core);
    write_trace(core);
    if (differing > 0)
        core_ending_end(core, STATUS_CHECKSUM, "the report card has %d number%s from %s formula", differing,
                        differing == 1 ? " that differs" : "s that differ", differing == 1 ? "its" : "their");
    else
        core_ending_end(core, 0, "%s", "");
}

/* Clients keep no books: theirs are empty, the servers' are asked for as in any job. */
void core_ending_clients(struct coordinator_core *core)
{
    for (int rank = 0; rank < core->job.workers; rank++) {
        struct core_member *member = core->members[CORE_WORKER][rank];
        member->summary = shoal__summary__unpack(NULL, 0, (const uint8_t *)"");
        if (member->summary == NULL) {
            core_ending_end(core, STATUS_NOMEM, "out of memory");
            return;
        }
    }
    core->job.last = 1;
    core_set_phase(core, CORE_FINISHING);
    core_snapshots_final(core);
    core_ending_advance(core);
}

static void remove_left(struct coordinator_core *core)
{
    for (int rank = 0; rank < core->members_limit[CORE_WORKER]; rank++)
        if (core->members[CORE_WORKER][rank] != NULL && core->members[CORE_WORKER][rank]->left)
            core_members_remove(core, core->members[CORE_WORKER][rank]);
}

void core_ending_end(struct coordinator_core *core, int status, const char *format, ...)
{
    if (core->phase == CORE_ENDING || (core->phase == CORE_IDLE && !core->stopping))
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(core->end_text, sizeof core->end_text, format, arguments);
    va_end(arguments);
    core->end_status = status;
    core->end_ns = core->now_ns;
    core->ended = 0;
    core_log(core, status == 0 || status == STATUS_STOPPED ? LOG_INFO : LOG_ERROR, "end status=%d %s", status,
             core->end_text);
    /* A cluster that goes on does not tell ranks that had no part; before all were in, everyone waits for it. */
    for (int kind = 0; kind < CORE_KINDS && !core->once && !core->stopping && core->phase != CORE_GATHERING; kind++)
        for (int rank = 0; rank < core->members_limit[kind]; rank++)
            if (core->members[kind][rank] != NULL && !core->members[kind][rank]->counted)
                core->members[kind][rank]->since = core->sequence + 1;
    core_set_phase(core, CORE_ENDING);
    Shoal__Envelope envelope;
    core_envelope(core, &envelope, SHOAL__TYPE__END);
    envelope.clock = core->job.last_step;
    envelope.status = status;
    envelope.text = core->end_text;
    envelope.closing = core->closing;
    core_events_push(core, AUDIENCE_ALL, -1, &envelope, NULL);
    remove_left(core);
}

static double stop_timeout_s(const struct coordinator_core *core)
{
    const struct job *job = core_job_of(core);
    return job == NULL || core->job.job == NULL ? default_stop_s : job->cluster.stop_timeout;
}

int core_ending_wanted(const struct coordinator_core *core)
{
    return core->stopping || core->job.stop_asked;
}

void core_ending_ask(struct coordinator_core *core, const char *who)
{
    struct core_job *job = &core->job;
    if (job->stop_asked || core->phase == CORE_IDLE || core->phase == CORE_ENDING)
        return;
    job->stop_asked = 1;
    job->stop_ns = core->now_ns + (int64_t)(stop_timeout_s(core) * 1e9);
    snprintf(job->stop_text, sizeof job->stop_text, "%.600s was stopped by signal", who);
    if (core->phase < CORE_RUNNING)
        core_ending_end(core, STATUS_STOPPED, "%s", job->stop_text);
    else if (core->phase == CORE_FINISHING)
        core_ending_advance(core);
    else
        core_ring_ask_last(core);
}

void core_ending_tick(struct coordinator_core *core)
{
    if (core->job.stop_asked && !core->stopping && core->now_ns >= core->job.stop_ns && core->phase != CORE_IDLE)
        core_ending_end(core, STATUS_STOPPED, "%s; step %llu was not finished in time", core->job.stop_text,
                        (unsigned long long)core->job.last_step + 1);
    if (core->stopping && core->now_ns >= core->stop_ns && core->phase != CORE_IDLE)
        core_ending_end(core, STATUS_STOPPED, "stopped by signal; step %llu was not finished in time",
                        (unsigned long long)core->job.last_step + 1);
    if (core->phase != CORE_ENDING)
        return;
    double waited = (double)(core->now_ns - core->end_ns) / 1e9;
    double limit = core->stopping ? leave_stopping_s : leave_s;
    int stays = !core->once && !core->stopping;
    if (!stays && core_members_any(core) && waited < limit)
        return;
    core_set_phase(core, CORE_IDLE);
    core_members_clear_job(core);
    core->ended = 1;
    core->ops.ended(core->ops.context, core->end_status, core->end_text);
}

void coordinator_core_stop(struct coordinator_core *core, int64_t now_ns)
{
    core->now_ns = now_ns;
    if (core->stopping)
        return;
    core->stop_ns = now_ns + (int64_t)(stop_timeout_s(core) * 1e9);
    core->stopping = 1;
    int unused = core->phase == CORE_RUNNING && core->job.total_steps == 0 &&
                 core->job.step.workers_missing == core->job.workers;
    if (core->phase < CORE_RUNNING || unused)
        core_ending_end(core, STATUS_STOPPED, "stopped by signal");
    else if (core->phase == CORE_FINISHING)
        core_ending_advance(core);
    else
        core_ring_ask_last(core);
    core_ending_tick(core);
}
