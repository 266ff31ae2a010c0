/* What follows a step, by the job's rules: coordinator and workers must agree without asking each other. Pure; any thread.
 *
 * In a ring a worker does after step n, in this order: it sends REPORT(n), evaluates when schedule_evaluates says so, and
 * when schedule_saves says so, or the EVALUATION asked for it, those that schedule_writes names wait for SNAPSHOT(n) and
 * answer with SNAPSHOT_DONE. */
#ifndef SHOAL_STEP_SCHEDULE_H
#define SHOAL_STEP_SCHEDULE_H

#include <stdint.h>

struct job;

/* 1: the step is followed by an evaluation: every evaluate.every, and at the end unless somebody stops the run there. */
int schedule_evaluates(const struct job *job, uint64_t step, int last, int stopped);
/* 1: the step is followed by a snapshot, whatever an evaluation says: every snapshot.every, and the last one. */
int schedule_saves(const struct job *job, uint64_t step, int last);
/* 1: in a ring this rank has a file of a snapshot to write: everyone its parts, or rank 0 what all hold alike (ddp). */
int schedule_writes(const struct job *job, int rank);

#endif
