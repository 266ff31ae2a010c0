/* update_at: worker. Every worker keeps the optimizer's state of all trainable tensors and updates its own parameters from
 * the summed gradients, with the same update function as a server: the bits are the same. */
#ifndef SHOAL_STRATEGY_LOCAL_UPDATE_H
#define SHOAL_STRATEGY_LOCAL_UPDATE_H

#include <stdint.h>

#include "envelope.pb-c.h"

struct errbuf;
struct strategy;
struct local_update;

int local_update_create(struct local_update **local, const struct strategy *s, struct errbuf *err);
void local_update_destroy(struct local_update *local, const struct strategy *s); /* takes NULL */
int local_update_slots(const struct local_update *local);
/* w <- update(w, g) for every trainable tensor, by the verdict's lr, t and scale. g may be overwritten. */
void local_update_step(struct local_update *local, const struct strategy *s, const Shoal__Verdict *verdict);
/* The same file format as a server's shard, one range a tensor (key numbers as everywhere). */
int local_update_save(const struct local_update *local, const struct strategy *s, const char *path, char sha256[65],
                      uint64_t *bytes, struct errbuf *err);
int local_update_load(struct local_update *local, struct strategy *s, struct errbuf *err);

#endif
