/* An operator of an embedded cluster: submits a job over inproc and looks at the coordinator's status. Blocks; each call
 * has its own loop. */
#ifndef SHOAL_TESTS_EMBEDDED_SUBMIT_H
#define SHOAL_TESTS_EMBEDDED_SUBMIT_H

#include <stdint.h>

struct job;

struct embedded_submit {
    void *zmq;
    const char *cluster; /* the coordinator's endpoint */
    const struct job *job;
    const char *directory, *export_path, *metrics_path;
    int64_t until_ns; /* of clock_now_ns */
    char text[512];   /* of the last refusal */
};

/* Waits for the job before to end, then submits. 0 or the refusal. */
int embedded_submit_job(struct embedded_submit *submit);
/* Waits until no job runs. */
int embedded_submit_wait(struct embedded_submit *submit);

#endif
