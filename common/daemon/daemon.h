/* What a role's process owes its surroundings: signals, systemd, the address for whoever started it, exit codes.
 *
 * Signals are blocked everywhere and read by one thread of the daemon's own: SIGTERM and SIGINT set host->stop,
 * once; if the process is still there after host->stop_grace_ms, it is ended with 128 + signal. SIGHUP sets
 * host->reload. SIGPIPE is ignored. As process 1 children that others left behind are reaped. One struct daemon a
 * process. */
#ifndef SHOAL_DAEMON_DAEMON_H
#define SHOAL_DAEMON_DAEMON_H

#include "base/role.h"

struct errbuf;

enum { DAEMON_GRACE_MS = 4800 }; /* of a stop, when the job says nothing else: gone within 5 s */

struct daemon;
/* Before any other thread is started. Fills host's ready, status, tick and context; host outlives the daemon.
 * ready_fd: the bound address and a newline are written there once, then it is closed; -1: none. */
int daemon_open(struct daemon **daemon, struct role_host *host, int ready_fd, struct errbuf *err);
void daemon_close(struct daemon *daemon); /* says STOPPING; takes NULL */

/* A configuration that cannot be used ends with 2, if the role never was ready; a stop with 128 + signal. */
int daemon_exit_code(const struct daemon *daemon, int status);

#endif
