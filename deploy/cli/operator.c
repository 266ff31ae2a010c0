#include "deploy/cli/operator.h"

#include <string.h>
#include <uv.h>
#include <zmq.h>

#include "base/errbuf.h"
#include "base/host.h"
#include "base/log.h"
#include "base/status.h"
#include "net/net.h"

enum { LIMIT_BYTES = 8 << 20, LINGER_MS = 200, RESEND_MS = 500 };

struct question {
    uv_loop_t loop;
    struct net *net;
    struct net_link *link;
    int done, status;
    struct message *reply; /* NULL: not wanted */
    struct errbuf *err;
    const struct operator_link *to;
};

static void on_reply(void *context, int status, struct message *reply)
{
    struct question *question = context;
    question->done = 1;
    question->status = status;
    if (status == 0 && question->reply && reply) {
        *question->reply = *reply;
        memset(reply, 0, sizeof *reply); /* ours now */
    } else if (status == STATUS_TIMEOUT) {
        errbuf_set(question->err, status, "%s does not answer", question->to->cluster);
    } else if (status != 0) {
        const char *text = reply && reply->envelope && reply->envelope->text ? reply->envelope->text : "";
        errbuf_set(question->err, status, "%s", text[0] ? text : status_text(status));
    }
}

static int ask(struct question *question, Shoal__Envelope *envelope)
{
    const struct operator_link *to = question->to;
    struct net_curve curve;
    int has_curve = to->keys_dir && to->keys_dir[0];
    if (has_curve) {
        int status = net_keys_load(&curve, to->keys_dir, to->key_name, "coordinator", question->err);
        if (status != 0)
            return status;
    }
    struct net_self *self = net_self(question->net);
    self->role = SHOAL__ROLE__OPERATOR;
    self->rank = -1;
    self->incarnation = host_incarnation();
    int status = net_link_open(&question->link, question->net, to->cluster, has_curve ? &curve : NULL, NULL, NULL,
                               question->err);
    if (status != 0)
        return status;
    struct net_call call = {.envelope = envelope,
                            .deadline_ms = to->deadline_ms,
                            .resend_ms = RESEND_MS,
                            .reply = on_reply,
                            .context = question};
    if (net_request(question->link, &call) == 0)
        return errbuf_set(question->err, STATUS_NOMEM, "out of memory");
    while (!question->done)
        uv_run(&question->loop, UV_RUN_ONCE);
    return question->status;
}

int operator_ask(const struct operator_link *link, Shoal__Envelope *envelope, struct message *reply,
                 struct errbuf *err)
{
    struct question question = {.to = link, .reply = reply, .err = err};
    struct log log;
    log_init(&log, "shoal");
    void *zmq = zmq_ctx_new();
    if (!zmq || uv_loop_init(&question.loop) != 0) {
        if (zmq)
            zmq_ctx_term(zmq);
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    }
    question.net = net_create(&question.loop, zmq, &log, LIMIT_BYTES);
    int status = question.net ? ask(&question, envelope) : errbuf_set(err, STATUS_NOMEM, "out of memory");
    net_link_close(question.link);
    if (question.net)
        net_destroy(question.net, LINGER_MS);
    uv_run(&question.loop, UV_RUN_DEFAULT);
    uv_loop_close(&question.loop);
    zmq_ctx_term(zmq);
    return status;
}
