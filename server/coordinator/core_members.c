#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/core.h"

static const int64_t second_ns = 1000000000;
/* A gap between ticks that means this process itself stood still: silence in it says nothing about members. */
static const int64_t own_pause_ns = 3000000000;
static const double idle_dead_s = 60;

int core_kind_of(Shoal__Role role)
{
    return role == SHOAL__ROLE__SERVER ? CORE_SERVER : role == SHOAL__ROLE__WORKER ? CORE_WORKER : -1;
}

const char *core_kind_name(enum core_kind kind)
{
    return kind == CORE_SERVER ? "server" : "worker";
}

int core_kind_count(const struct coordinator_core *core, enum core_kind kind)
{
    return kind == CORE_SERVER ? core->job.servers : core->job.workers;
}

struct core_member *core_member_at(const struct coordinator_core *core, enum core_kind kind, int rank)
{
    return rank < 0 || rank >= CORE_RANKS_MAX ? NULL : core->members[kind][rank];
}

struct core_member *core_member_of(const struct coordinator_core *core, const Shoal__Envelope *envelope)
{
    int kind = core_kind_of(envelope->role);
    struct core_member *member = kind < 0 ? NULL : core_member_at(core, (enum core_kind)kind, envelope->rank);
    if (member != NULL && member->incarnation == envelope->incarnation)
        return member;
    /* An elastic job has given it another rank, of which it has not heard yet. */
    for (int rank = 0; kind == CORE_WORKER && rank < core->members_limit[CORE_WORKER]; rank++) {
        member = core->members[CORE_WORKER][rank];
        if (member != NULL && member->moved && member->incarnation == envelope->incarnation)
            return member;
    }
    return NULL;
}

void core_member_text(const struct core_member *member, char out[CORE_LINE])
{
    snprintf(out, CORE_LINE, "%s %d (pid %lld on %.200s)", core_kind_name(member->kind), member->rank,
             (long long)member->pid, member->host);
}

/* What it sent for the current job. */
static void forget_sent(struct core_member *member)
{
    if (member->summary != NULL)
        shoal__summary__free_unpacked(member->summary, NULL);
    if (member->peer != NULL)
        shoal__peer__free_unpacked(member->peer, NULL);
    buf_release(member->trace);
    member->summary = NULL;
    member->peer = NULL;
    member->trace = NULL;
}

void core_members_clear_job(struct coordinator_core *core)
{
    for (int kind = 0; kind < CORE_KINDS; kind++)
        for (int rank = 0; rank < core->members_limit[kind]; rank++) {
            struct core_member *member = core->members[kind][rank];
            if (member == NULL)
                continue;
            member->counted = member->registered = member->ready = member->left = 0;
            member->registering.held = 0;
            forget_sent(member);
        }
}

void core_members_close_ranks(struct coordinator_core *core)
{
    struct core_member **workers = core->members[CORE_WORKER];
    int next = 0;
    for (int rank = 0; rank < core->members_limit[CORE_WORKER]; rank++) {
        struct core_member *member = workers[rank];
        if (member == NULL)
            continue;
        workers[rank] = NULL;
        workers[next] = member;
        member->moved |= member->rank != next;
        member->rank = next++;
    }
}

void core_members_remove(struct coordinator_core *core, struct core_member *member)
{
    core->members[member->kind][member->rank] = NULL;
    forget_sent(member);
    if (member->join != NULL)
        shoal__join__free_unpacked(member->join, NULL);
    free(member->host);
    free(member->address);
    free(member->core_type);
    free(member);
}

int core_members_all_in(const struct coordinator_core *core)
{
    for (int kind = 0; kind < CORE_KINDS; kind++)
        for (int rank = 0; rank < core_kind_count(core, (enum core_kind)kind); rank++)
            if (core->members[kind][rank] == NULL)
                return 0;
    return 1;
}

int core_members_any(const struct coordinator_core *core)
{
    for (int kind = 0; kind < CORE_KINDS; kind++)
        for (int rank = 0; rank < core->members_limit[kind]; rank++)
            if (core->members[kind][rank] != NULL)
                return 1;
    return 0;
}

int core_members_check_types(struct coordinator_core *core, const char *type, char out[CORE_LINE])
{
    if (core->job.job->cluster.mixed_processors)
        return 0;
    const struct core_member *first = NULL;
    for (int rank = 0; rank < core->job.workers; rank++) {
        const struct core_member *member = core->members[CORE_WORKER][rank];
        if (member == NULL || member->core_type[0] == '\0')
            continue;
        if (first == NULL)
            first = member;
        const char *other = type != NULL ? type : member->core_type;
        if (*other == '\0' || strcmp(first->core_type, other) == 0)
            continue;
        snprintf(out, CORE_LINE,
                 "BLAS core type %.60s, but worker %d has %.60s: the ranks' bits would differ "
                 "(cluster.mixed_processors: true allows it)",
                 other, first->rank, first->core_type);
        return STATUS_INVALID;
    }
    return 0;
}

static struct core_member *find_life(const struct coordinator_core *core, enum core_kind kind,
                                     const Shoal__Envelope *envelope)
{
    for (int rank = 0; rank < core->members_limit[kind]; rank++) {
        struct core_member *member = core->members[kind][rank];
        if (member != NULL && member->incarnation == envelope->incarnation && member->pid == envelope->join->pid &&
            strcmp(member->host, envelope->join->host) == 0)
            return member;
    }
    return NULL;
}

/* The rank a newcomer gets, or a status with the reason. */
static int pick_rank(const struct coordinator_core *core, enum core_kind kind, int wanted, char out[CORE_LINE])
{
    /* A ring job uses no servers: those that come wait for the next job. */
    int any = core->phase == CORE_IDLE || (core->job.ring && kind == CORE_SERVER);
    int limit = any ? CORE_RANKS_MAX : core_kind_count(core, kind);
    if (core->phase != CORE_IDLE && kind == CORE_WORKER) {
        /* An elastic job with fewer workers has room, and ranks are counted anew: a wish for one means nothing. */
        limit = (int)core->job.job->cluster.workers;
        wanted = core->job.job->cluster.elastic_min > 0 && core->phase > CORE_GATHERING ? -1 : wanted;
    }
    if (wanted >= limit) {
        snprintf(out, CORE_LINE, "%s rank %d is out of range: the job has %d (cluster.%ss)", core_kind_name(kind),
                 wanted, limit, core_kind_name(kind));
        return STATUS_RANGE;
    }
    if (wanted >= 0 && core->members[kind][wanted] != NULL) {
        const struct core_member *holder = core->members[kind][wanted];
        snprintf(out, CORE_LINE, "rank %d is taken by pid %lld on %.200s", wanted, (long long)holder->pid,
                 holder->host);
        return STATUS_EXISTS;
    }
    if (wanted >= 0)
        return wanted;
    for (int rank = 0; rank < limit; rank++)
        if (core->members[kind][rank] == NULL)
            return rank;
    snprintf(out, CORE_LINE, "all %d %ss are in: one more than cluster.%ss says", limit, core_kind_name(kind),
             core_kind_name(kind));
    return STATUS_EXISTS;
}

static struct core_member *add(struct coordinator_core *core, enum core_kind kind, int rank,
                               const Shoal__Envelope *envelope)
{
    struct core_member *member = calloc(1, sizeof *member);
    if (member == NULL)
        return NULL;
    const Shoal__Join *join = envelope->join;
    member->kind = kind;
    member->rank = rank;
    member->incarnation = envelope->incarnation;
    member->pid = join->pid;
    member->heard_ns = core->now_ns;
    member->since = core->sequence; /* a job's first event comes after its members */
    member->host = strdup(join->host);
    member->address = strdup(join->address);
    member->core_type = strdup(join->core_type);
    member->join = core_copy(&join->base);
    core->members[kind][rank] = member;
    if (rank >= core->members_limit[kind])
        core->members_limit[kind] = rank + 1;
    if (member->host == NULL || member->address == NULL || member->core_type == NULL || member->join == NULL) {
        core_members_remove(core, member);
        return NULL;
    }
    return member;
}

static void reply_joined(struct coordinator_core *core, const struct core_member *member,
                         const struct net_return *back)
{
    Shoal__Envelope envelope;
    Shoal__Joined joined = SHOAL__JOINED__INIT;
    core_envelope(core, &envelope, SHOAL__TYPE__JOINED);
    envelope.body_case = SHOAL__ENVELOPE__BODY_JOINED;
    envelope.joined = &joined;
    joined.rank = member->rank;
    joined.heartbeat_ms = CORE_HEARTBEAT_MS;
    core->ops.reply(core->ops.context, back, &envelope, NULL, 0);
}

/* Why a newcomer may not come in at all; 0 when it may. */
static int refuse_newcomer(struct coordinator_core *core, enum core_kind kind, const Shoal__Envelope *envelope,
                           char out[CORE_LINE])
{
    if (envelope->job != 0 && envelope->job != core->job.id) {
        snprintf(out, CORE_LINE, "this coordinator does not serve job %016llx", (unsigned long long)envelope->job);
        return STATUS_DENIED;
    }
    if (core->phase == CORE_ENDING || core->stopping) {
        snprintf(out, CORE_LINE, "the coordinator is about to end");
        return STATUS_ABORTED;
    }
    if (core->phase != CORE_IDLE && kind == CORE_WORKER)
        return core_members_check_types(core, envelope->join->core_type, out);
    return 0;
}

/* "127.0.0.1", "tcp://127.0.1.1:7071", "tcp://localhost:7071", "tcp://[::1]:7071" */
static int is_loopback(const char *address)
{
    const char *host = strncmp(address, "tcp://", 6) == 0 ? address + 6 : address;
    return strncmp(host, "127.", 4) == 0 || strncmp(host, "localhost:", 10) == 0 || strncmp(host, "[::1]", 5) == 0 ||
           strcmp(host, "::1") == 0;
}

/* A server that came over the network and is to be reached over loopback, e.g. because its own name means 127.0.1.1. */
static void warn_of_loopback(struct coordinator_core *core, const struct core_member *member, const char *from)
{
    if (member->kind == CORE_SERVER && from[0] != '\0' && !is_loopback(from) && is_loopback(member->address))
        core_log(core, LOG_WARNING, "server %d came from %.60s but advertises %.200s, which workers on other machines cannot "
                 "reach: give it --listen tcp://HOST:PORT or --advertise", member->rank, from, member->address);
}

void core_members_join(struct coordinator_core *core, struct message *message, const struct net_return *back)
{
    const Shoal__Envelope *envelope = message->envelope;
    char text[CORE_LINE] = "";
    int kind = core_kind_of(envelope->role);
    if (kind < 0 || envelope->body_case != SHOAL__ENVELOPE__BODY_JOIN) {
        core_answer(core, back, STATUS_PROTOCOL, "only servers and workers join");
        return;
    }
    struct core_member *member = find_life(core, (enum core_kind)kind, envelope);
    if (member != NULL) {
        member->heard_ns = core->now_ns;
        reply_joined(core, member, back);
        return;
    }
    int rank = pick_rank(core, (enum core_kind)kind, envelope->join->wanted_rank, text);
    int status = rank < 0 ? rank : refuse_newcomer(core, (enum core_kind)kind, envelope, text);
    if (status == 0 && (member = add(core, (enum core_kind)kind, rank, envelope)) == NULL) {
        status = STATUS_NOMEM;
        snprintf(text, sizeof text, "out of memory");
    }
    if (status != 0) {
        core_log(core, LOG_WARNING, "join refused %s=%d pid=%lld host=%.100s: %s", core_kind_name((enum core_kind)kind),
                 envelope->join->wanted_rank, (long long)envelope->join->pid, envelope->join->host, text);
        core_answer(core, back, status, "%s", text);
        return;
    }
    core_log(core, LOG_INFO, "joined %s=%d pid=%lld host=%.100s address=%.100s core_type=%.40s",
             core_kind_name(member->kind), rank, (long long)member->pid, member->host, member->address,
             member->core_type);
    warn_of_loopback(core, member, message->address);
    reply_joined(core, member, back);
    if (core->phase == CORE_GATHERING && core_members_all_in(core))
        core_launch_gathered(core);
    core_elastic_look(core);
}

/* A worker of the job is not there any more: an elastic one goes on. */
static void lost(struct coordinator_core *core, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void lost(struct coordinator_core *core, int status, const char *format, ...)
{
    char text[CORE_LINE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (!core_elastic_lost(core, text))
        core_ending_end(core, status, "%s", text);
}

int core_members_left(const struct coordinator_core *core)
{
    int left = 0;
    for (int rank = 0; rank < core->job.workers; rank++)
        left += core->members[CORE_WORKER][rank] != NULL && core->members[CORE_WORKER][rank]->left;
    return left;
}

/* A client program that is through; the job ends with the last of them. Who ends a step now would wait for ever. */
static void client_left(struct coordinator_core *core, struct core_member *member, const char *who)
{
    member->left = 1;
    core_log(core, LOG_INFO, "left worker=%d", member->rank);
    if (core->job.step.workers_missing < core->job.workers)
        core_ending_end(core, STATUS_ABORTED, "%s left after step %llu: no step can follow", who,
                        (unsigned long long)core->job.last_step);
    else if (core_members_left(core) == core->job.workers)
        core_ending_clients(core);
}

void core_members_leave(struct coordinator_core *core, struct message *message, const struct net_return *back)
{
    const Shoal__Envelope *envelope = message->envelope;
    struct core_member *member = core_member_of(core, envelope);
    core_answer(core, back, 0, "%s", "");
    if (member == NULL)
        return;
    char who[CORE_LINE];
    core_member_text(member, who);
    int active = member->counted && core->phase > CORE_GATHERING && core->phase < CORE_ENDING;
    if (active && envelope->status == STATUS_STOPPED) {
        core_ending_ask(core, who); /* it stays until END */
        return;
    }
    if (member->left)
        return; /* said before */
    if (active && envelope->status == 0 && member->kind == CORE_WORKER && core->phase == CORE_RUNNING &&
        core->job.total_steps == 0) {
        client_left(core, member, who);
        return;
    }
    int rank = member->rank;
    enum core_kind kind = member->kind;
    core_log(core, envelope->status == 0 ? LOG_INFO : LOG_ERROR, "left %s=%d status=%d %.400s", core_kind_name(kind),
             rank, envelope->status, envelope->text);
    core_members_remove(core, member);
    if (active && envelope->status != 0)
        lost(core, envelope->status, "%s: %.600s", who,
                        *envelope->text == '\0' ? status_text(envelope->status) : envelope->text);
    else if (active)
        lost(core, STATUS_ABORTED, "%s left in the middle of the job", who);
}

void core_members_death(struct coordinator_core *core, struct message *message, const struct net_return *back)
{
    const Shoal__Death *death = message->envelope->death;
    if (message->envelope->body_case != SHOAL__ENVELOPE__BODY_DEATH) {
        core_answer(core, back, STATUS_PROTOCOL, "no body");
        return;
    }
    core_answer(core, back, 0, "%s", "");
    struct core_member *dead = NULL;
    for (int kind = 0; kind < CORE_KINDS; kind++)
        for (int rank = 0; rank < core->members_limit[kind]; rank++) {
            struct core_member *member = core->members[kind][rank];
            if (member != NULL && member->pid == death->pid && strcmp(member->host, death->host) == 0)
                dead = member;
        }
    char who[CORE_LINE];
    int running = core->phase != CORE_IDLE && core->phase != CORE_ENDING;
    if (dead == NULL) {
        /* It ended before it joined: nobody else will come in its place. */
        if (core->phase == CORE_GATHERING)
            core_ending_end(core, STATUS_ABORTED, "pid %lld on %.200s ended before it joined: %.400s",
                            (long long)death->pid, death->host, death->text);
        return;
    }
    core_member_text(dead, who);
    core_log(core, running ? LOG_ERROR : LOG_INFO, "died %s: %.400s", who, death->text);
    if (dead->left)
        return; /* its part was over */
    int needed = core->phase == CORE_GATHERING && dead->rank < core_kind_count(core, dead->kind);
    int counted = dead->counted || needed;
    core_members_remove(core, dead);
    if (running && counted)
        lost(core, STATUS_ABORTED, "%s %.400s", who, death->text);
}

static double dead_after_s(const struct coordinator_core *core, enum core_kind kind)
{
    const struct job *job = core_job_of(core);
    if (job == NULL)
        return idle_dead_s;
    return kind == CORE_SERVER ? job->cluster.timeouts.server_dead : job->cluster.timeouts.worker_dead;
}

void core_members_tick(struct coordinator_core *core)
{
    int64_t gap = core->now_ns - core->tick_ns;
    for (int kind = 0; kind < CORE_KINDS; kind++)
        for (int rank = 0; rank < core->members_limit[kind]; rank++) {
            struct core_member *member = core->members[kind][rank];
            if (member == NULL || member->left)
                continue;
            if (gap > own_pause_ns)
                member->heard_ns += gap;
            double silent_s = (double)(core->now_ns - member->heard_ns) / (double)second_ns;
            if (silent_s < dead_after_s(core, member->kind))
                continue;
            char who[CORE_LINE];
            core_member_text(member, who);
            int counted = member->counted && core->phase != CORE_IDLE && core->phase != CORE_ENDING;
            core_log(core, counted ? LOG_ERROR : LOG_WARNING, "silent %s seconds=%.0f", who, silent_s);
            core_members_remove(core, member);
            if (counted)
                lost(core, STATUS_TIMEOUT, "%s silent for %.0f s", who, silent_s);
        }
}

static void append(char out[CORE_LINE], const char *text)
{
    size_t used = strlen(out);
    snprintf(out + used, CORE_LINE - used, "%s", text);
}

void core_members_list(const struct coordinator_core *core, core_missing_fn *missing, const char *what,
                       char out[CORE_LINE])
{
    out[0] = '\0';
    for (int kind = 0; kind < CORE_KINDS; kind++) {
        int first = 1;
        for (int rank = 0; rank < core_kind_count(core, (enum core_kind)kind); rank++) {
            char item[32];
            if (!missing(core, (enum core_kind)kind, rank))
                continue;
            if (first) {
                append(out, out[0] == '\0' ? what : "; ");
                append(out, core_kind_name((enum core_kind)kind));
                append(out, "s");
            }
            snprintf(item, sizeof item, "%s%d", first ? " " : ", ", rank);
            append(out, item);
            first = 0;
        }
    }
}
