/* An operator of an embedded cluster: submits a job over inproc and looks at the coordinator's status. Blocks; the loop is
 * the operator's own and lives from open to close, which comes when every role has ended: the thread sanitizer would take
 * a descriptor that a role gets again for a race. */
#ifndef SHOAL_TESTS_EMBEDDED_SUBMIT_H
#define SHOAL_TESTS_EMBEDDED_SUBMIT_H

#include <stdint.h>

#include <uv.h>

#include "base/log.h"

struct job;
struct net;
struct net_link;

struct embedded_submit {
    void *zmq;
    const char *cluster; /* the coordinator's endpoint */
    const struct job *job;
    const char *directory, *export_path, *metrics_path;
    int64_t until_ns; /* of clock_now_ns */
    char text[512];   /* of the last refusal */
    uv_loop_t loop;
    struct log log;
    struct net *net; /* NULL: not open */
    struct net_link *link;
};

/* The fields up to until_ns are set. 0 or why not. */
int embedded_submit_open(struct embedded_submit *submit);
void embedded_submit_close(struct embedded_submit *submit); /* takes one that is not open */

/* Waits for the job before to end, then submits. 0 or the refusal. */
int embedded_submit_job(struct embedded_submit *submit);
/* Waits until no job runs. */
int embedded_submit_wait(struct embedded_submit *submit);

#endif
