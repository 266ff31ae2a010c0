#include "worker/strategy/ddp.h"

#include "worker/strategy/peer.h"

static int ddp_start(struct strategy *s, const struct strategy_source *first, struct errbuf *err)
{
    struct peer_setup setup = {-1, peer_grads_whole, peer_reduce_and_return};
    return peer_start_whole(s, &setup, first, err);
}

const struct strategy_ops strategy_ddp = {
    .name = "ddp",
    .help = "every worker holds everything; gradients are all-reduced",
    .start = ddp_start,
    .step_begin = peer_step_begin,
    .layer_acquire = peer_acquire_whole,
    .layer_release = peer_release,
    .grads_ready = peer_grads_ready,
    .step_sent = peer_step_sent,
    .decide = peer_decide,
    .step_finish = peer_finish_everything,
    .reduce = peer_combine,
    .settle = peer_settle,
    .save = peer_save,
    .books = peer_books,
    .close = peer_close,
};
