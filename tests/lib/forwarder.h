/* A relay on 127.0.0.1 between whoever connects and a real port, that a test can cut, close or freeze: what a
 * cable, a switch or a firewall does. It has a thread of its own; every call may come from the test's thread at any
 * time. */
#ifndef SHOAL_TESTS_FORWARDER_H
#define SHOAL_TESTS_FORWARDER_H

#include <stdint.h>

struct forwarder;

/* Listens on a port of its own. Nobody need listen on target_port yet. Fails the test when it cannot be opened. */
struct forwarder *forwarder_open(int target_port);
int forwarder_port(const struct forwarder *forwarder);
/* Drops every connection, in the middle of whatever is on its way; new ones are taken. */
void forwarder_cut(struct forwarder *forwarder);
/* As long as it is closed, connections are dropped and new ones are dropped at once. */
void forwarder_close_door(struct forwarder *forwarder, int closed);
/* As long as it is frozen nothing moves, and nobody is told. */
void forwarder_freeze(struct forwarder *forwarder, int frozen);
/* Bytes relayed, both ways. */
int64_t forwarder_bytes(const struct forwarder *forwarder);
void forwarder_close(struct forwarder *forwarder);

#endif
