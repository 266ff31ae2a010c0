#include "config/job.h"
#include "worker/strategy/gather.h"
#include "worker/strategy/peer.h"

static const int64_t FLOAT = sizeof(float);

int64_t peer_trainable_layers_bytes(const struct strategy *s)
{
    int64_t elements = 0;
    for (int layer = 0; layer < s->table->layer_count; layer++) {
        elements += bucket_layer_trainable(s->table, layer) ? s->table->layers[layer].count : 0;
    }
    return elements * FLOAT;
}

/* Φ - part(rank), of what is trained. */
static int64_t all_but(const struct strategy *s, int rank)
{
    return (param_table_trainable(s->table) - keymap_rank_elements(s->map, rank, 1)) * FLOAT;
}

int64_t peer_scatter_bytes(const struct strategy *s)
{
    return all_but(s, s->rank);
}

int64_t peer_gather_bytes(const struct strategy *s)
{
    return all_but(s, (s->rank + 1) % s->world);
}

/* What a rank receives in a reduce-scatter depends on how sums are made: partial sums from the left neighbour, or every
 * rank's contributions to the own part. */
static int64_t scatter_received(const struct strategy *s)
{
    if (collective_transport_of(s->group) == COLLECTIVE_SHM) {
        return (s->world - 1) * keymap_rank_elements(s->map, s->rank, 1) * FLOAT;
    }
    return all_but(s, (s->rank + s->world - 1) % s->world);
}

void peer_books(const struct strategy *s, struct strategy_books *books)
{
    const struct peer *peer = peer_of(s);
    int64_t bytes = s->table->count * FLOAT;
    int64_t gathers = peer->owns_all ? s->steps_done : peer->applied_here; /* a skipped step's sums go round, too */
    *books = (struct strategy_books){
        .parameters = peer->gather ? gather_parameter_bytes(peer->gather) : bytes,
        .gradients = peer->sums ? keymap_rank_elements(s->map, s->rank, 1) * FLOAT : peer_trainable_layers_bytes(s),
        .optimizer = owned_slots(peer->owned) * FLOAT *
                     (peer->owns_all ? param_table_trainable(s->table) : keymap_rank_elements(s->map, s->rank, 1))};
    books->buffers_max = collective_buffers_max(s->group) + (peer->gather ? gather_slot_bytes(peer->gather) : 0) +
                         PEER_SLOTS * peer->slot_elements * FLOAT;
    books->sent.reduce_scatter = s->steps_done * peer_scatter_bytes(s);
    books->received.reduce_scatter = s->steps_done * scatter_received(s);
    books->sent.all_gather = peer->gather ? gather_sent_bytes(peer->gather) : gathers * peer_gather_bytes(s);
    books->received.all_gather = peer->gather ? gather_received_bytes(peer->gather) : gathers * all_but(s, s->rank);
}
