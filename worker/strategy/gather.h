/* zero3's parameters: every rank holds its parts, and a layer's whole parameters are gathered for their use and dropped after
 * it. While a layer computes, the next `prefetch_layers` in the direction of the pass are gathered into slots of their own:
 * layer l uses slot l mod (prefetch_layers + 1), so that at most so many layers are whole at once.
 *
 *   away --submit--> coming --wait--> here --release--> away
 *
 * Layers of fewer than persistence_threshold elements stay whole and are gathered once after each update. Hooks run on the
 * trainer's thread, gathers on the comm thread. */
#ifndef SHOAL_STRATEGY_GATHER_H
#define SHOAL_STRATEGY_GATHER_H

#include "worker/strategy/peer.h"

struct gather;
/* Allocates parts and slots and makes the plans; binds the own pieces' w. */
int gather_open(struct peer *peer, struct errbuf *err);
void gather_close(struct gather *gather); /* takes NULL */
/* First values, rank 0's or the snapshot's, to the parts. */
int gather_first_values(struct peer *peer, const struct strategy_source *first, struct errbuf *err);
/* Where the own parts lie, by layer. */
void gather_values(const struct gather *gather, struct owned_values *values);

int gather_acquire(struct strategy *s, int layer, enum strategy_pass pass, struct errbuf *err);
void gather_release(struct strategy *s, int layer, enum strategy_pass pass);
/* After an update: layers that stay whole are gathered anew. */
void gather_updated(struct gather *gather);

/* Closed forms: bytes of parameters held, and sent by the training's gathers so far. */
int64_t gather_parameter_bytes(const struct gather *gather);
int64_t gather_sent_bytes(const struct gather *gather);
int64_t gather_received_bytes(const struct gather *gather);
int64_t gather_slot_bytes(const struct gather *gather);

#endif
