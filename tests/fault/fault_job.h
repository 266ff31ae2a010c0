/* The small job that the fault tests run on real processes, with what a recovery could get wrong: BatchNorm's
 * running statistics, dropout, Adam's state, clipping, shuffled data. Started through `shoal run` or as separate
 * daemons. */
#ifndef SHOAL_TESTS_FAULT_JOB_H
#define SHOAL_TESTS_FAULT_JOB_H

#include <stdint.h>

#include "tests/lib/marked.h"

enum { FAULT_SETS = 8, FAULT_SHA = 65, FAULT_RANKS = 4, FAULT_STEPS = 40 };
/* No run takes longer, on however busy a machine: after that it hangs. */
static const double fault_deadline_s = 120;

enum fault_role { FAULT_LAUNCHER, FAULT_COORDINATOR, FAULT_SERVER, FAULT_WORKER };

struct fault_who {
    enum fault_role role;
    int rank; /* of servers and workers */
};

struct fault_run {
    const char *name;                   /* stem of its files */
    int workers, servers, steps, every; /* servers 0: a ring; steps 0: FAULT_STEPS; every 0: no snapshots */
    int resume;
    const char *sets[FAULT_SETS]; /* NULL ends them */
};

/* "server 1". */
void fault_who_text(struct fault_who who, char out[32]);
/* Lines of the run's metrics file so far: steps and what follows them. */
int fault_steps_done(const char *folder, const char *name);
int fault_wait_step(const char *folder, const char *name, int step, double seconds);
/* SHA-256 of the run's export; "" when there is none. */
void fault_sha(const char *folder, const char *name, char sha[FAULT_SHA]);
/* Whether snap/ has a snapshot with a manifest, which is written last. */
int fault_has_snapshot(const char *folder);

/* `shoal run`. The job file is written to the folder. */
struct marked *fault_start(struct marked_set *set, const char *folder, const struct fault_run *run);
/* One of the run's processes once it is there; 0: not before `seconds`. */
pid_t fault_find(struct marked_set *set, struct marked *launcher, struct fault_who who, double seconds);
/* Runs to the end undisturbed and without snapshots, then its SHA-256; fails the test with all that was said. */
void fault_reference(struct marked_set *set, const char *folder, int workers, int servers, char sha[FAULT_SHA]);

struct fault_daemons {
    struct marked *coordinator, *server[FAULT_RANKS], *worker[FAULT_RANKS];
    int servers, workers, coordinator_port, server_port[FAULT_RANKS]; /* where they listen */
    int via_coordinator, via_server[FAULT_RANKS]; /* the ports that others are told, a forwarder's perhaps */
    const char *const *prefix;                    /* words before each command line, NULL ends them; NULL: none */
    struct marked_set *set;
    const char *folder;
    const struct fault_run *run;
};

/* The parts one by one. Ports are picked here, to be told as they are until the caller says otherwise; set, folder
 * and run are borrowed. */
void fault_daemons_plan(struct fault_daemons *daemons, struct marked_set *set, const char *folder,
                        const struct fault_run *run);
void fault_daemons_coordinate(struct fault_daemons *daemons);
void fault_daemons_serve(struct fault_daemons *daemons, int rank);
void fault_daemons_work(struct fault_daemons *daemons, int rank);
void fault_daemons_start(struct fault_daemons *daemons); /* all of them */
/* The i-th of all, NULL after the last. */
struct marked *fault_daemon_at(const struct fault_daemons *daemons, int i);

/* Fails with the process's output; say what was expected. */
void fault_fail(struct marked *process, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));

#endif
