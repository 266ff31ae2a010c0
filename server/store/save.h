/* Writing this server's file of a snapshot, on a pool thread, while the next step is computed. Loop thread only. */
#ifndef SHOAL_STORE_SAVE_H
#define SHOAL_STORE_SAVE_H

#include "envelope.pb-c.h"

struct server;

/* SNAPSHOT came: written as soon as the shard has finished that step; SNAPSHOT_DONE follows. */
void save_begin(struct server *server, const Shoal__Snapshot *snapshot);
/* A step is finished: a save that waited for it begins. */
void save_if_due(struct server *server);
/* Blocks until a save under way is through (its answer is dropped), before the shard goes. */
void save_wait(struct server *server);

#endif
