#include "tests/lib/embedded_submit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "base/clock.h"
#include "base/errbuf.h"
#include "base/log.h"
#include "base/status.h"
#include "config/job.h"
#include "net/net.h"

enum { ANSWER_MS = 10000, ASK_AGAIN_MS = 20 };

struct answer {
    uv_loop_t *loop;
    int done, status, idle;
    char text[512];
};

static void on_answer(void *context, int status, struct message *reply)
{
    struct answer *answer = context;
    answer->done = 1;
    answer->status = status;
    if (reply != NULL && reply->envelope->text != NULL)
        snprintf(answer->text, sizeof answer->text, "%s", reply->envelope->text);
    if (status == 0 && reply != NULL && reply->envelope->body_case == SHOAL__ENVELOPE__BODY_STATUS_REPORT)
        answer->idle = strcmp(reply->envelope->status_report->phase, "idle") == 0;
    uv_stop(answer->loop);
}

/* One request, one reply, on a loop of its own. */
static int ask(struct embedded_submit *submit, Shoal__Envelope *envelope, struct answer *answer)
{
    struct log log;
    struct net_link *link = NULL;
    uv_loop_t loop;
    log_init(&log, "shoal");
    uv_loop_init(&loop);
    struct net *net = net_create(&loop, submit->zmq, &log, 1 << 20);
    if (net == NULL)
        return STATUS_NOMEM;
    net_self(net)->role = SHOAL__ROLE__OPERATOR;
    net_self(net)->rank = -1;
    net_self(net)->incarnation = (uint64_t)clock_now_ns();
    *answer = (struct answer){.loop = &loop};
    int status = net_link_open(&link, net, submit->cluster, NULL, NULL, NULL, NULL);
    struct net_call call = {.envelope = envelope, .deadline_ms = ANSWER_MS, .reply = on_answer, .context = answer};
    if (status == 0 && net_request(link, &call) == 0)
        status = STATUS_NOMEM;
    while (status == 0 && !answer->done)
        uv_run(&loop, UV_RUN_DEFAULT);
    net_link_close(link);
    net_destroy(net, 0);
    uv_run(&loop, UV_RUN_DEFAULT);
    uv_loop_close(&loop);
    snprintf(submit->text, sizeof submit->text, "%s", answer->text);
    return status == 0 ? answer->status : status;
}

int embedded_submit_wait(struct embedded_submit *submit)
{
    struct answer answer = {0};
    int status = 0;
    while (status == 0 && !answer.idle && clock_now_ns() < submit->until_ns) {
        Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
        envelope.type = SHOAL__TYPE__STATUS;
        status = ask(submit, &envelope, &answer);
        if (status == 0 && !answer.idle)
            uv_sleep(ASK_AGAIN_MS); /* an operator has nothing to be woken by */
    }
    return status != 0 ? status : answer.idle ? 0 : STATUS_TIMEOUT;
}

int embedded_submit_job(struct embedded_submit *submit)
{
    struct answer answer;
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    Shoal__Submit body = SHOAL__SUBMIT__INIT;
    int status = embedded_submit_wait(submit);
    if (status != 0)
        return status;
    envelope.type = SHOAL__TYPE__SUBMIT;
    envelope.body_case = SHOAL__ENVELOPE__BODY_SUBMIT;
    envelope.submit = &body;
    body.yaml = job_to_yaml(submit->job);
    body.directory = (char *)submit->directory;
    body.export_path = (char *)submit->export_path;
    body.metrics_path = (char *)submit->metrics_path;
    status = body.yaml == NULL ? STATUS_NOMEM : ask(submit, &envelope, &answer);
    free(body.yaml);
    return status;
}
