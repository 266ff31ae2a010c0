/* How far apart workers may be. A controller is pure: who asks, at which clock, against what a range has finished; the
 * answer says whether it is served now, waits, or is refused. One row a consistency (parallel.consistency). */
#ifndef SHOAL_CONSISTENCY_CONTROLLER_H
#define SHOAL_CONSISTENCY_CONTROLLER_H

#include <stdint.h>

enum controller_answer { CONTROLLER_SERVE, CONTROLLER_WAIT, CONTROLLER_REPEAT, CONTROLLER_REFUSE };

struct controller_ops {
    const char *name, *help;
    /* A push of `clock` by a worker to a range that has finished `finished`. */
    enum controller_answer (*push)(uint64_t clock, uint64_t finished);
    /* A pull that wants at least clock `wanted` finished. */
    enum controller_answer (*pull)(uint64_t wanted, uint64_t finished);
};

/* The row of enum job_consistency, or NULL. */
const struct controller_ops *controller_at(int consistency);

#endif
