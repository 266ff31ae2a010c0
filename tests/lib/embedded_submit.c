#include "tests/lib/embedded_submit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/errbuf.h"
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

int embedded_submit_open(struct embedded_submit *submit)
{
    log_init(&submit->log, "shoal");
    uv_loop_init(&submit->loop);
    submit->net = net_create(&submit->loop, submit->zmq, &submit->log, 1 << 20);
    if (submit->net == NULL)
        return STATUS_NOMEM;
    net_self(submit->net)->role = SHOAL__ROLE__OPERATOR;
    net_self(submit->net)->rank = -1;
    net_self(submit->net)->incarnation = (uint64_t)clock_now_ns();
    return net_link_open(&submit->link, submit->net, submit->cluster, NULL, NULL, NULL, NULL);
}

void embedded_submit_close(struct embedded_submit *submit)
{
    if (submit->net == NULL)
        return;
    net_link_close(submit->link);
    net_destroy(submit->net, 0);
    uv_run(&submit->loop, UV_RUN_DEFAULT);
    uv_loop_close(&submit->loop);
    submit->net = NULL;
}

/* One request, one reply. */
static int ask(struct embedded_submit *submit, Shoal__Envelope *envelope, struct answer *answer)
{
    *answer = (struct answer){.loop = &submit->loop};
    struct net_call call = {.envelope = envelope, .deadline_ms = ANSWER_MS, .reply = on_answer, .context = answer};
    if (net_request(submit->link, &call) == 0)
        return STATUS_NOMEM;
    while (!answer->done)
        uv_run(&submit->loop, UV_RUN_DEFAULT);
    snprintf(submit->text, sizeof submit->text, "%s", answer->text);
    return answer->status;
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
