#include "worker/strategy/zero2.h"

#include "worker/strategy/peer.h"

static int zero2_start(struct strategy *s, const struct strategy_source *first, struct errbuf *err)
{
    struct peer_setup setup = {s->rank, peer_grads_parts, peer_reduce};
    return peer_start_whole(s, &setup, first, err);
}

const struct strategy_ops strategy_zero2 = {
    .name = "zero2",
    .help = "as zero1, and the gradient sums of its parts only",
    .start = zero2_start,
    .step_begin = peer_step_begin,
    .layer_acquire = peer_acquire_slots,
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
