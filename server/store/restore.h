/* Filling a shard from a snapshot: files that are not in this server's own folder are fetched from the server that has
 * them, checked by their SHA-256, then loaded. Loop thread only. */
#ifndef SHOAL_STORE_RESTORE_H
#define SHOAL_STORE_RESTORE_H

#include "envelope.pb-c.h"

struct server;

/* `done` once: status 0, or why not. */
void restore_start(struct server *server, const Shoal__Start *start,
                   void (*done)(void *context, int status, const char *text), void *context);
void restore_cancel(struct server *server);

#endif
