#include <stdlib.h>
#include <string.h>

#include "server/coordinator/core.h"

static const char *const phase_names[CORE_PHASES] = {"idle",    "waiting for members", "registering", "preparing",
                                                     "running", "finishing",           "ending"};

void core_operators_submit(struct coordinator_core *core, struct message *message, const struct net_return *back)
{
    const Shoal__Envelope *envelope = message->envelope;
    if (envelope->body_case != SHOAL__ENVELOPE__BODY_SUBMIT) {
        core_answer(core, back, STATUS_PROTOCOL, "no body");
        return;
    }
    if (core->submit_request == back->request && core->submit_incarnation == envelope->incarnation &&
        core->submit_request != 0) {
        core_answer(core, back, 0, "%s", "");
        return;
    }
    const Shoal__Submit *submit = envelope->submit;
    struct coordinator_job job = {.yaml = submit->yaml, .directory = submit->directory,
                                  .init_path = submit->init_path, .export_path = submit->export_path,
                                  .metrics_path = submit->metrics_path, .trace_path = submit->trace_path,
                                  .resume = submit->resume};
    struct errbuf err;
    errbuf_init(&err);
    int status = core_launch_submit(core, &job, &err);
    if (status == 0) {
        core->submit_request = back->request;
        core->submit_incarnation = envelope->incarnation;
    }
    core_answer(core, back, status, "%s", err.text);
}

static void fill_member(const struct coordinator_core *core, const struct core_member *member, Shoal__Member *out)
{
    shoal__member__init(out);
    out->role = member->kind == CORE_SERVER ? SHOAL__ROLE__SERVER : SHOAL__ROLE__WORKER;
    out->rank = member->rank;
    out->state = core->now_ns - member->heard_ns > 5000000000 ? "silent" : member->counted ? "at work" : "joined";
    out->host = member->host;
    out->pid = member->pid;
    out->address = member->address;
}

void core_operators_status(struct coordinator_core *core, struct message *message, const struct net_return *back)
{
    (void)message;
    Shoal__Envelope envelope;
    Shoal__Status body = SHOAL__STATUS__INIT;
    size_t room = (size_t)(core->members_limit[0] + core->members_limit[1]) + 1;
    Shoal__Member *members = calloc(room, sizeof *members);
    Shoal__Member **pointers = calloc(room, sizeof *pointers);
    core_envelope(core, &envelope, SHOAL__TYPE__STATUS);
    envelope.body_case = SHOAL__ENVELOPE__BODY_STATUS_REPORT;
    envelope.status_report = &body;
    body.phase = (char *)phase_names[core->phase];
    body.refused_peers = core->refused;
    if (core_job_of(core) != NULL) {
        body.job_name = core->job.job->name;
        body.step = core->job.last_step;
        body.total_steps = core->job.total_steps;
        body.loss = core->job.last_loss;
    }
    for (int kind = 0; members != NULL && pointers != NULL && kind < CORE_KINDS; kind++)
        for (int rank = 0; rank < core->members_limit[kind]; rank++)
            if (core->members[kind][rank] != NULL) {
                fill_member(core, core->members[kind][rank], &members[body.n_members]);
                pointers[body.n_members] = &members[body.n_members];
                body.n_members++;
            }
    body.members = pointers;
    core->ops.reply(core->ops.context, back, &envelope, NULL, 0);
    free(members);
    free(pointers);
}

void core_operators_stop(struct coordinator_core *core, struct message *message, const struct net_return *back)
{
    (void)message;
    core_answer(core, back, 0, "%s", "");
    if (!core->stopping) /* a repeat changes nothing */
        core->closing = 1;
    coordinator_core_stop(core, core->now_ns);
}
