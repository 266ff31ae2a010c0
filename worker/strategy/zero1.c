#include "worker/strategy/zero1.h"

#include "worker/strategy/peer.h"

static int zero1_start(struct strategy *s, const struct strategy_source *first, struct errbuf *err)
{
    struct peer_setup setup = {s->rank, peer_grads_whole, peer_reduce};
    return peer_start_whole(s, &setup, first, err);
}

const struct strategy_ops strategy_zero1 = {
    .name = "zero1",
    .help = "as ddp, but each worker holds the optimizer state of its parts only",
    .start = zero1_start,
    .step_begin = peer_step_begin,
    .layer_acquire = peer_acquire_whole,
    .layer_release = peer_release,
    .grads_ready = peer_grads_ready,
    .step_sent = peer_step_sent,
    .decide = peer_decide,
    .step_finish = peer_finish_parts,
    .reduce = peer_combine,
    .settle = peer_settle,
    .save = peer_save,
    .books = peer_books,
    .close = peer_close,
};
