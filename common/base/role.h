/* What every role (coordinator, server, worker) is given by whoever starts it: a process's main or an embedded run's
 * thread. Borrowed by the role for its life. */
#ifndef SHOAL_BASE_ROLE_H
#define SHOAL_BASE_ROLE_H

#include <stdatomic.h>

#include "base/log.h"

struct role_host {
    void *zmq;            /* context; shared in embedded runs so that inproc:// works */
    _Atomic int stop;     /* set to SIGTERM or SIGINT by anyone, any time; the role looks at least every 100 ms */
    _Atomic int reload;   /* set to 1 on SIGHUP; a role with an allow-list takes it back and reads the list again */
    _Atomic int stop_grace_ms; /* set by a role that knows its job: how long a stop may take; 0: the default */
    int embedded;         /* 1: one of several roles in this process */
    struct log log;
    const char *keys_dir; /* "" or NULL: no CURVE */
    const char *key_name; /* "server", "worker", … : files NAME.public and NAME.secret there */
    int insecure;
    /* Called once when the role can be reached (systemd READY=1, embedded start order); address as bound. NULL ok. */
    void (*ready)(void *context, const char *address);
    /* One status line for systemd's STATUS=; NULL ok. */
    void (*status)(void *context, const char *line);
    /* The watchdog's food: every 100 ms or so from the loop that serves; NULL ok. */
    void (*tick)(void *context);
    void *context;
};

/* What goes with cluster.stop_timeout: the step has that long, leaving the rest of 5 s. */
static inline int role_stop_grace_ms(double stop_timeout_s)
{
    return (int)(stop_timeout_s * 1000) + 800;
}

#endif
