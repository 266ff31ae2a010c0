#include "worker/strategy/zero3.h"

#include "worker/strategy/gather.h"
#include "worker/strategy/peer.h"

static int zero3_start(struct strategy *s, const struct strategy_source *first, struct errbuf *err)
{
    int status = peer_open(s, s->rank, err);
    status = status == 0 ? gather_open(peer_of(s), err) : status;
    status = status == 0 ? peer_grads_parts(peer_of(s), err) : status;
    status = status == 0 ? peer_plan(peer_of(s), peer_reduce, err) : status;
    return status == 0 ? gather_first_values(peer_of(s), first, err) : status;
}

static int zero3_step_finish(struct strategy *s, const Shoal__Verdict *verdict, struct errbuf *err)
{
    int status = peer_finish_parts(s, verdict, err);
    if (status == 0 && verdict->decision == SHOAL__DECISION__APPLY) {
        gather_updated(peer_of(s)->gather);
    }
    return status;
}

const struct strategy_ops strategy_zero3 = {
    .name = "zero3",
    .help = "as zero2, and the parameters of its parts only; layers are gathered for use",
    .start = zero3_start,
    .step_begin = peer_step_begin,
    .layer_acquire = gather_acquire,
    .layer_release = gather_release,
    .grads_ready = peer_grads_ready,
    .step_sent = peer_step_sent,
    .decide = peer_decide,
    .step_finish = zero3_step_finish,
    .reduce = peer_combine,
    .settle = peer_settle,
    .save = peer_save,
    .books = peer_books,
    .close = peer_close,
};
