/* The coordinator without sockets, files or time: messages and ticks in, actions out through an ops struct. coordinator.c
 * is the loop around it, tests/sim another. One thread; ops are called from inside core calls and must not call back.
 *
 * Every exchange is a request and its one reply, and every request may come twice, late or out of order: the answer is the
 * same again. Events (JOB, START, VERDICT, SNAPSHOT, END) are kept in a list; AWAIT{sequence} is answered with the first
 * one after `sequence` for the asker, now or when there is one. A held request is replaced by its repeat.
 *
 * What members can rely on:
 *  - clock is the step a message belongs to; envelope.job and cluster_epoch are those of the START (or JOB) event.
 *  - PREPARED: spans of its owner's runs, in one message or several; an owner without runs sends none.
 *    Of the finite bytes 1 is finite, 0 not, 2 + r not finite since what rank r sent.
 *  - REPORT.digest of step k is that of the parameters step k started from; SUMMARY.digest that of the end. All ranks
 *    of a step send one or none does.
 *  - VERDICT.frame 1 and START (to workers) frame 1, when the model has norm layers: running values, float32, for each
 *    norm mean[f] then variance[f]. num_batches_tracked is t.
 *  - START with first_step > total_steps: everything was trained already; evaluate, export, SUMMARY.
 *  - VERDICT.evaluate: fetch the step's parameters and send EVALUATED for "validation" when the job has one, else for
 *    "test"; after the last verdict, or an EVALUATION with stop, for "test" too; then SUMMARY. After a stop signal the
 *    last verdict has evaluate 0: no evaluation, no summary, END follows.
 *  - Servers send their SUMMARY when they get VERDICT{decision NONE, last}: it comes after all workers' summaries and
 *    also closes a job that stopped early.
 *  - SNAPSHOT.folder is the snapshot's folder, resolved against the job's directory; an owner with a folder of its own
 *    uses the last component below it. SNAPSHOT_DONE carries file {owner, name, sha256, bytes, holder} or a status.
 *    The verdict after is not announced before all are done.
 *
 * Workers of a ring (parallel.data ddp, zero1, zero2, zero3) can rely on, beyond that:
 *  - REGISTER.peer may differ by rank; START names all peers by rank, JOB and START all workers' incarnations: a worker's rank
 *    is where its own stands, and may be another one than when it joined.
 *  - REPORT{verdict, grad_norm, nonfinite_run} is acknowledged at once; at most one may be unanswered. All ranks must say the
 *    same. There is no PREPARED and no VERDICT. verdict.stopped: a rank voted to stop: no SUMMARY, END follows.
 *  - What follows a step is step/schedule.h's. EVALUATION never waits for a snapshot; with its snapshot set (and by the
 *    schedule) SNAPSHOT of this step comes: to rank 0 in ddp, else to every rank. REPORT(n + 1) comes after the ACK of
 *    SNAPSHOT_DONE(n).
 *  - LAST: vote that the step at hand is the last one.
 *  - END{STATUS_ROLLED_BACK}, or that status for a request: drop everything of this job and ask for the next event: JOB comes
 *    again under another id. */
#ifndef SHOAL_COORDINATOR_COORDINATOR_CORE_H
#define SHOAL_COORDINATOR_COORDINATOR_CORE_H

#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "base/trace.h"
#include "net/net.h"
#include "server/coordinator/durable_state.h"
#include "server/coordinator/manifest.h"
#include "server/coordinator/snapshot_store.h"

struct errbuf;
struct job;

/* A job as submitted; strings may be NULL. */
struct coordinator_job {
    const struct job *job; /* borrowed until the job has ended; NULL: yaml is read */
    const char *yaml;
    const char *directory; /* of the job file, for relative paths */
    const char *init_path, *export_path, *metrics_path, *trace_path;
    const char *resume_path; /* snapshot.dir or one snapshot's folder; "": snapshot.dir */
    int resume;
};

/* After each verdict. */
struct coordinator_progress {
    const struct job *job;
    uint64_t step, total_steps;
    double loss, lr, grad_norm;
    int64_t samples; /* of this step */
    int64_t now_ns;
    int last;
};

struct coordinator_ops {
    /* Answers once; the envelope's type, body, status, sequence and clock are set, the rest is the transport's. */
    void (*reply)(void *context, const struct net_return *back, Shoal__Envelope *envelope, struct buf *const *frames,
                  int frames_count);
    void (*say)(void *context, const char *line); /* for people: header, evaluation, report card */
    void (*log)(void *context, enum log_level level, const char *line);
    void (*metrics)(void *context, const char *json_line);
    void (*progress)(void *context, const struct coordinator_progress *progress);
    /* Synced when it returns; failing ends the job. */
    int (*persist)(void *context, const struct durable_state *state, struct errbuf *err);
    /* Opens the metrics file and looks at snapshot.dir; failing refuses the job. */
    int (*job_begins)(void *context, const struct coordinator_job *job, struct errbuf *err);
    /* The snapshot to resume from, checked: job->resume_path (a folder of snapshots or one snapshot), or `dir` when that
     * is empty. found 0: none there yet, start at the beginning. Files that are not in the folder have missing 1.
     * *folder is the caller's to free. */
    int (*restore)(void *context, const struct coordinator_job *job, const char *dir, struct manifest *manifest,
                   char **folder, int *found, struct errbuf *err);
    int (*snapshot_commit)(void *context, const struct snapshot_commit *commit, struct errbuf *err);
    void (*snapshot_discard)(void *context, const char *folder);
    int (*trace)(void *context, const char *path, const struct trace_track *tracks, size_t count, struct errbuf *err);
    /* The job is over and everyone who lives has learned it. */
    void (*ended)(void *context, int status, const char *text);
    uint64_t (*random)(void *context); /* not 0 */
    void *context;
};

struct coordinator_core;
struct coordinator_core_options {
    const struct coordinator_ops *ops; /* copied */
    const struct durable_state *state; /* what the last life left; NULL: nothing */
    int once;                          /* END waits for members to leave */
    int64_t now_ns;
};
/* Raises and persists the term. NULL with the reason. */
struct coordinator_core *coordinator_core_create(const struct coordinator_core_options *options, struct errbuf *err);
void coordinator_core_destroy(struct coordinator_core *core);

/* Starts a job. STATUS_BUSY when one runs; else why it is refused. */
int coordinator_core_submit(struct coordinator_core *core, int64_t now_ns, const struct coordinator_job *job,
                            struct errbuf *err);
/* A well-formed request. Frames may be taken (set NULL). */
void coordinator_core_message(struct coordinator_core *core, int64_t now_ns, struct message *message,
                              const struct net_return *back);
void coordinator_core_tick(struct coordinator_core *core, int64_t now_ns);
/* The current step is finished, a snapshot written when the job has a folder, then END(STATUS_STOPPED). */
void coordinator_core_stop(struct coordinator_core *core, int64_t now_ns);

int coordinator_core_busy(const struct coordinator_core *core); /* 1: a job is current */
int coordinator_core_stopping(const struct coordinator_core *core); /* 1: no job follows, coordinator_core_stop was called */
void coordinator_core_refused(struct coordinator_core *core, uint64_t refused); /* for STATUS */

#endif
