#include "net/link_internal.h"

#include "base/host.h"
#include "base/log.h"
#include "base/status.h"

/*  wanted --connected--> asked (LOCAL) --invited--> asked (hello) --welcome--> open
 *    ^                                                                          |
 *    +---------- the connection is cut; a lost or refused channel only then ----+ */
enum { SHARE_ANSWER_MS = 5000 };

static void done(struct net_link *link, int status, const char *why)
{
    void (*fn)(void *, int, const char *) = link->share.done;
    link->share.done = NULL;
    link->welcome_at = 0;
    if (status && link->net->log)
        log_info(link->net->log, "no shared memory with %s: %s", link->endpoint.text, why);
    if (fn)
        fn(link->share.context, status, why);
}

static void on_opened(void *context, int status, const char *why)
{
    done(context, status, why);
}

static void on_message(void *context, struct message *message, int status, struct errbuf *err)
{
    link_take(context, message, status, err);
}

static void on_lost(void *context, const char *why)
{
    struct net_link *link = context;
    if (link->net->log)
        log_warning(link->net->log, "shared memory with %s lost: %s", link->endpoint.text, why);
    if (link->connected)
        link_send_all(link);
}

static void on_invited(void *context, int status, struct message *reply)
{
    struct net_link *link = context;
    struct errbuf err;
    errbuf_init(&err);
    link->share_request = 0;
    if (link->closed || status == STATUS_CLOSED)
        return;
    if (status) {
        errbuf_set(&err, status, "%s", reply ? reply->envelope->text : status_text(status));
    } else if (reply->envelope->type != SHOAL__TYPE__LOCAL) {
        status = errbuf_set(&err, STATUS_PROTOCOL, "an answer of another type");
    } else {
        struct local_call *call = &link->call;
        call->net = link->net;
        call->ops = (struct local_call_ops){on_opened, on_message, on_lost, link};
        call->request_bytes = link->share.request_bytes;
        call->reply_bytes = link->share.reply_bytes;
        call->account = link->share.account;
        status = local_call_connect(call, reply->envelope->local, &err);
    }
    if (status)
        done(link, status, err.text);
    else
        link_plan(link, &link->welcome_at, SHARE_ANSWER_MS);
}

void link_share_connected(struct net_link *link)
{
    if (!link->share_wanted || link->share_asked)
        return;
    link->share_asked = 1;
    if (link->endpoint.kind == ENDPOINT_INPROC) {
        done(link, STATUS_OK, ""); /* one process: payload lies in memory of both as it is */
        return;
    }
    char host[128];
    host_id(host, sizeof host);
    Shoal__Local body = SHOAL__LOCAL__INIT;
    body.host = host;
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    envelope.type = SHOAL__TYPE__LOCAL;
    envelope.body_case = SHOAL__ENVELOPE__BODY_LOCAL;
    envelope.local = &body;
    struct net_call call = {.envelope = &envelope, .deadline_ms = SHARE_ANSWER_MS, .reply = on_invited, .context = link};
    link->share_request = net_request(link, &call);
    if (link->share_request == 0)
        done(link, STATUS_NOMEM, "out of memory");
}

void link_share_cut(struct net_link *link)
{
    if (link->share_request != 0)
        return; /* it is sent again with everything else */
    local_call_close(&link->call);
    link->welcome_at = 0;
    link->share_asked = 0;
}

void link_share_on_time(struct net_link *link, int64_t now_ms)
{
    if (link->welcome_at == 0 || now_ms < link->welcome_at)
        return;
    local_call_close(&link->call);
    done(link, STATUS_TIMEOUT, "its local socket does not answer");
}

static uint64_t clamp_area(uint64_t bytes)
{
    uint64_t least = bytes < LOCAL_AREA_MIN ? LOCAL_AREA_MIN : bytes;
    return least > LOCAL_AREA_MAX ? LOCAL_AREA_MAX : least;
}

void net_link_share(struct net_link *link, const struct net_share *share)
{
    link->share = *share;
    link->share.request_bytes = clamp_area(share->request_bytes);
    link->share.reply_bytes = clamp_area(share->reply_bytes);
    link->share_wanted = 1;
    if (link->connected)
        link_share_connected(link);
}

int net_link_is_shared(const struct net_link *link)
{
    return link->call.open;
}
