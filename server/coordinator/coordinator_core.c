#include "server/coordinator/coordinator_core.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/core.h"

static const uint8_t phase_moves[CORE_PHASES][CORE_PHASES] = {
    [CORE_IDLE] = {[CORE_GATHERING] = 1, [CORE_ENDING] = 1},
    [CORE_GATHERING] = {[CORE_REGISTERING] = 1, [CORE_ENDING] = 1},
    [CORE_REGISTERING] = {[CORE_PREPARING] = 1, [CORE_GATHERING] = 1, [CORE_ENDING] = 1},
    [CORE_PREPARING] = {[CORE_RUNNING] = 1, [CORE_FINISHING] = 1, [CORE_ENDING] = 1},
    [CORE_RUNNING] = {[CORE_FINISHING] = 1, [CORE_GATHERING] = 1, [CORE_ENDING] = 1},
    [CORE_FINISHING] = {[CORE_GATHERING] = 1, [CORE_ENDING] = 1},
    [CORE_ENDING] = {[CORE_IDLE] = 1},
};

void core_set_phase(struct coordinator_core *core, enum core_phase phase)
{
    core->stall[0] = '\0';
    int allowed = phase_moves[core->phase][phase];
    assert(allowed);
    (void)allowed;
    core->phase = phase;
    core->job.phase_ns = core->now_ns;
    core->job.said_ns = core->now_ns;
}

void core_log(struct coordinator_core *core, enum log_level level, const char *format, ...)
{
    char line[CORE_LINE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    core->ops.log(core->ops.context, level, line);
}

void core_stall(struct coordinator_core *core, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(core->stall, sizeof core->stall, format, arguments);
    va_end(arguments);
    core_log(core, LOG_WARNING, "%s", core->stall);
}

void core_say(struct coordinator_core *core, const char *format, ...)
{
    char line[CORE_LINE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    core->ops.say(core->ops.context, line);
}

void core_envelope(const struct coordinator_core *core, Shoal__Envelope *envelope, Shoal__Type type)
{
    shoal__envelope__init(envelope);
    envelope->protocol_low = PROTOCOL_LOW;
    envelope->protocol_high = PROTOCOL_HIGH;
    envelope->type = type;
    envelope->role = SHOAL__ROLE__COORDINATOR;
    envelope->rank = -1;
    envelope->job = core->job.id;
    envelope->term = core->term;
    envelope->cluster_epoch = core->cluster_epoch;
}

void core_answer(struct coordinator_core *core, const struct net_return *back, int status, const char *format, ...)
{
    char text[CORE_LINE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    Shoal__Envelope envelope;
    core_envelope(core, &envelope, SHOAL__TYPE__ACK);
    envelope.status = status;
    envelope.text = text;
    core->ops.reply(core->ops.context, back, &envelope, NULL, 0);
}

const struct job *core_job_of(const struct coordinator_core *core)
{
    return core->phase == CORE_IDLE ? NULL : core->job.job;
}

struct coordinator_core *coordinator_core_create(const struct coordinator_core_options *options, struct errbuf *err)
{
    struct coordinator_core *core = calloc(1, sizeof *core);
    if (core == NULL) {
        errbuf_set(err, STATUS_NOMEM, "out of memory");
        return NULL;
    }
    core->ops = *options->ops;
    core->once = options->once;
    core->now_ns = core->tick_ns = options->now_ns;
    struct durable_state state;
    durable_state_init(&state);
    if (options->state != NULL) {
        core->term = options->state->term;
        core->cluster_epoch = options->state->cluster_epoch;
        if (options->state->manifest != NULL)
            core->manifest_folder = strdup(options->state->manifest);
    }
    core->term++;
    state.term = core->term;
    state.cluster_epoch = core->cluster_epoch;
    state.manifest = core->manifest_folder;
    if (core->ops.persist(core->ops.context, &state, err) != 0) {
        coordinator_core_destroy(core);
        return NULL;
    }
    return core;
}

void coordinator_core_destroy(struct coordinator_core *core)
{
    if (core == NULL)
        return;
    core_job_close(&core->job);
    core_events_close(core);
    for (int kind = 0; kind < CORE_KINDS; kind++)
        for (int rank = 0; rank < CORE_RANKS_MAX; rank++)
            if (core->members[kind][rank] != NULL)
                core_members_remove(core, core->members[kind][rank]);
    free(core->manifest_folder);
    free(core);
}

int coordinator_core_submit(struct coordinator_core *core, int64_t now_ns, const struct coordinator_job *job,
                            struct errbuf *err)
{
    core->now_ns = now_ns;
    return core_launch_submit(core, job, err);
}

/* Requests of members. `running`: only while the job it names is current. */
typedef void member_fn(struct coordinator_core *core, struct core_member *member, struct message *message,
                       const struct net_return *back);
struct member_row {
    Shoal__Type type;
    int roles; /* AUDIENCE bits */
    int running;
    member_fn *handle;
};

static void heartbeat(struct coordinator_core *core, struct core_member *member, struct message *message,
                      const struct net_return *back)
{
    (void)member;
    (void)message;
    Shoal__Envelope envelope;
    core_envelope(core, &envelope, SHOAL__TYPE__HEARTBEAT);
    envelope.text = core->stall;
    core->ops.reply(core->ops.context, back, &envelope, NULL, 0);
}

static const struct member_row member_rows[] = {
    {SHOAL__TYPE__HEARTBEAT, AUDIENCE_ALL, 0, heartbeat},
    {SHOAL__TYPE__AWAIT, AUDIENCE_ALL, 0, core_events_await},
    {SHOAL__TYPE__REGISTER, AUDIENCE_WORKERS, 1, core_launch_register},
    {SHOAL__TYPE__READY, AUDIENCE_SERVERS, 1, core_launch_ready},
    {SHOAL__TYPE__PREPARED, AUDIENCE_SERVERS, 1, core_steps_prepared},
    {SHOAL__TYPE__TRUST, AUDIENCE_SERVERS, 1, core_trust_message},
    {SHOAL__TYPE__REPORT, AUDIENCE_WORKERS, 1, core_steps_report},
    {SHOAL__TYPE__GATHER, AUDIENCE_WORKERS, 1, core_gather_message},
    {SHOAL__TYPE__EVALUATED, AUDIENCE_WORKERS, 1, core_evaluation_message},
    {SHOAL__TYPE__SNAPSHOT_DONE, AUDIENCE_ALL, 1, core_snapshots_done},
    {SHOAL__TYPE__SUMMARY, AUDIENCE_ALL, 1, core_ending_summary},
};

/* What a message of a job that is over or not this one is told; 1 when it was answered. */
static int answered_as_foreign(struct coordinator_core *core, const struct core_member *member,
                               const Shoal__Envelope *envelope, const struct net_return *back)
{
    int over = core->phase == CORE_IDLE || core->phase == CORE_ENDING;
    if (envelope->job != core->job.id && core->job.rollbacks > 0) {
        /* Sent before its rank heard of the rollback: it has to stay for what comes, not to end. */
        core_answer(core, back, STATUS_ROLLED_BACK, "rolled back to step %llu: %.600s",
                    (unsigned long long)core->job.rolled_to, core->job.rolled_why);
        return 1;
    }
    if (envelope->job != core->job.id) {
        core_answer(core, back, STATUS_ABORTED, "that job is not the current one");
        return 1;
    }
    if (over && core->end_status == 0) {
        core_answer(core, back, 0, "%s", "");
        return 1;
    }
    if (over) {
        core_answer(core, back, core->end_status == STATUS_STOPPED ? STATUS_STOPPED : STATUS_ABORTED,
                    "the job is over: %s", core->end_text);
        return 1;
    }
    if (!member->counted) {
        core_answer(core, back, STATUS_DENIED, "%s %d has no part in this job", core_kind_name(member->kind),
                    member->rank);
        return 1;
    }
    return 0;
}

static void member_request(struct coordinator_core *core, struct message *message, const struct net_return *back)
{
    const Shoal__Envelope *envelope = message->envelope;
    struct core_member *member = core_member_of(core, envelope);
    if (member == NULL) {
        if (envelope->term != 0 && envelope->term != core->term)
            core_answer(core, back, STATUS_ABORTED, "the coordinator was restarted");
        else
            core_answer(core, back, STATUS_DENIED, "not a member");
        return;
    }
    member->heard_ns = core->now_ns;
    for (size_t i = 0; i < sizeof member_rows / sizeof *member_rows; i++) {
        const struct member_row *row = &member_rows[i];
        if (row->type != envelope->type)
            continue;
        if ((row->roles & 1 << member->kind) == 0)
            core_answer(core, back, STATUS_PROTOCOL, "not for a %s to send", core_kind_name(member->kind));
        else if (!row->running || !answered_as_foreign(core, member, envelope, back))
            row->handle(core, member, message, back);
        return;
    }
    core_answer(core, back, STATUS_PROTOCOL, "not a request to a coordinator");
}

void coordinator_core_message(struct coordinator_core *core, int64_t now_ns, struct message *message,
                              const struct net_return *back)
{
    core->now_ns = now_ns;
    switch ((int)message->envelope->type) {
    case SHOAL__TYPE__JOIN:
        core_members_join(core, message, back);
        break;
    case SHOAL__TYPE__LEAVE:
        core_members_leave(core, message, back);
        break;
    case SHOAL__TYPE__REPORT_DEATH:
        core_members_death(core, message, back);
        break;
    case SHOAL__TYPE__SUBMIT:
        core_operators_submit(core, message, back);
        break;
    case SHOAL__TYPE__STATUS:
        core_operators_status(core, message, back);
        break;
    case SHOAL__TYPE__STOP:
        core_operators_stop(core, message, back);
        break;
    default:
        member_request(core, message, back);
    }
    core_ending_tick(core);
}

void coordinator_core_tick(struct coordinator_core *core, int64_t now_ns)
{
    core->now_ns = now_ns;
    core_members_tick(core);
    core_launch_tick(core);
    core_steps_tick(core);
    core_ending_tick(core);
    core->tick_ns = now_ns;
}

int coordinator_core_busy(const struct coordinator_core *core)
{
    return core->phase != CORE_IDLE;
}

int coordinator_core_stopping(const struct coordinator_core *core)
{
    return core->stopping;
}

void coordinator_core_refused(struct coordinator_core *core, uint64_t refused)
{
    core->refused = refused;
}
