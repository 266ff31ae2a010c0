/* The inside of coordinator_core: its state and what its files offer each other. Included by server/coordinator/core_*.c
 * only. One thread.
 *
 *  IDLE -> GATHERING -> REGISTERING -> PREPARING -> RUNNING -> FINISHING -> ENDING -> IDLE
 *          members      tables agree   shards exist  steps      summaries    END is out
 *  Every phase but IDLE may go to ENDING; PREPARING goes to FINISHING when nothing is left to train.
 *
 *  A ring job gathers workers only and passes through PREPARING at once. In RUNNING nobody waits for the coordinator:
 *    worker:       exchange, vote -> REPORT(n) -> [EVALUATED(n) -> EVALUATION] -> [SNAPSHOT(n) -> SNAPSHOT_DONE] -> n + 1
 *    coordinator:  all REPORTs say the same -> metrics, statistics, SNAPSHOT(n) to those who save -> waits for n + 1
 *  A REPORT of n + 1, an EVALUATED(n) and, after the last step, a SUMMARY may come before the last REPORT(n).
 *  LAST asks the workers to vote that the step at hand is the last one; REPORT's verdict says when it was.
 *  An elastic one goes from any phase after GATHERING back to it, when a worker is lost or, the ring standing after LAST and
 *  its snapshot whole, when one has come: END{ROLLED_BACK}, ranks anew, JOB with another id and cluster epoch. */
#ifndef SHOAL_COORDINATOR_CORE_H
#define SHOAL_COORDINATOR_CORE_H

#include "base/errbuf.h"
#include "base/status.h"
#include "cluster/keymap.h"
#include "cluster/param_table.h"
#include "config/job.h"
#include "server/coordinator/coordinator_core.h"
#include "step/step.h"

enum core_phase {
    CORE_IDLE,
    CORE_GATHERING,
    CORE_REGISTERING,
    CORE_PREPARING,
    CORE_RUNNING,
    CORE_FINISHING,
    CORE_ENDING,
    CORE_PHASES
};
enum core_kind { CORE_SERVER, CORE_WORKER, CORE_KINDS };
enum { CORE_RANKS_MAX = 1024, CORE_LINE = 1024, CORE_HEARTBEAT_MS = 1000, CORE_SETS = 2 };

/* A request that waits for its answer. */
struct core_held {
    int held;
    struct net_return back;
};

struct core_member {
    enum core_kind kind;
    int rank;
    int moved; /* its rank is not the one it joined with */
    uint64_t incarnation;
    char *host, *address, *core_type;
    int64_t pid;
    Shoal__Join *join; /* as sent; for what it has stored */
    int64_t heard_ns;
    uint64_t since;    /* events up to here are not for it */
    uint64_t seen;     /* last event it said it has */
    struct core_held await;
    /* of the current job */
    int counted; /* it is one of the job's ranks */
    int registered, ready, left;
    struct core_held registering;
    Shoal__Peer *peer; /* ring: how the other workers reach it */
    Shoal__Summary *summary;
    struct buf *trace;
};

/* Who an event is for. */
enum { AUDIENCE_SERVERS = 1 << CORE_SERVER, AUDIENCE_WORKERS = 1 << CORE_WORKER, AUDIENCE_ALL = 3 };
struct core_event {
    uint64_t sequence;
    int audience;
    int rank; /* -1: all ranks */
    int end;  /* an END: kept for those who come for it late */
    Shoal__Envelope *envelope;
    struct buf *frame;
};

/* What a worker of a ring says the ranks have agreed on. */
struct core_vote {
    Shoal__Decision decision;
    float grad_scale;
    double lr, next_lr, loss, grad_norm;
    uint64_t t;
    int64_t nonfinite_run;
    int nonfinite_rank; /* -1: not known */
    int evaluate, last, stopped;
};

/* One worker's REPORT of a step. */
struct core_report {
    int in;
    double loss_sum;
    int64_t counted, correct, samples;
    uint32_t micro_batches;
    struct buf *statistics;
    uint8_t digest[64];
    size_t digest_bytes;
    struct core_vote vote; /* of a ring */
};

struct core_gather {
    uint64_t step;
    uint32_t sequence;
    int merge;
    int in;               /* ranks whose vector is here */
    int64_t count;        /* doubles */
    struct buf **vectors; /* (workers) */
    struct core_held *held;
    struct buf *result;
    struct core_gather *next;
};

struct core_evaluation {
    uint64_t step; /* 0: none */
    char set[16];
    int in, done;
    uint8_t *arrived; /* (workers) */
    struct core_held *held;
    double *rows; /* (rows_count, 4) block, loss, counted, correct */
    int64_t rows_count;
    double loss, accuracy;
    int64_t counted, correct;
    int stop, snapshot;
};

struct core_snapshot {
    int active, failed, best;
    int evaluating; /* the evaluation of its step is still to come: what it finds belongs into the manifest */
    uint64_t step, applied;
    char *folder;
    int savers[CORE_KINDS]; /* ranks below write a file: servers, or the workers that own the state */
    uint8_t *done[CORE_KINDS]; /* (savers) */
    int waiting;
    struct manifest manifest;
};

/* lamb's second round of the step last applied. */
struct core_trust {
    uint64_t step; /* 0: none yet */
    double *norms; /* (runs, 2) */
    uint8_t *in;   /* (runs) */
    int64_t missing;
};

struct core_job {
    uint64_t id;
    struct coordinator_job spec; /* strings owned */
    struct job *owned;           /* when the job came as YAML */
    const struct job *job;
    char *yaml, *snapshot_dir;
    int ring;             /* the workers own the state, decide every step and need no server */
    int workers, servers; /* of a ring 0 servers */
    int64_t began_ns, phase_ns, said_ns, step_ns, train_ns;
    int start_said;
    /* agreed at registration */
    Shoal__Register *registration;
    uint64_t fingerprint;
    struct param_table table;
    int keymap_built;
    struct keymap keymap;
    int *run_owner;
    int64_t *features;
    int norms;
    int64_t statistics_count, running_count;
    float *running;
    double *merged, *one;
    /* where training starts */
    struct manifest resume;
    char *resume_folder;
    int resumed;
    uint64_t first_step, total_steps; /* total 0: until the clients leave */
    /* the step being collected */
    int stepping;
    struct step step;
    struct core_report *reports, *early; /* early: of the step after it, which a ring begins by itself */
    int64_t applied, samples_seen;
    uint64_t last_step; /* last announced verdict */
    double last_loss, last_lr;
    int last;           /* no step follows */
    int last_asked;     /* ring: LAST was sent */
    int stopped;        /* ring: the last step was voted the last one */
    int regroup;        /* elastic: it stops to go on with one worker more */
    int rollbacks, stuck; /* elastic: so far; in a row to the same step */
    uint64_t rolled_to;
    char rolled_why[CORE_LINE];
    int stop_asked;     /* a member was told to stop: the job ends in order after the step at hand */
    char stop_text[CORE_LINE];
    int64_t stop_ns;    /* at the latest then */
    int asked_summaries;
    struct core_gather *gathers;
    struct core_trust trust;
    struct core_evaluation evaluations[CORE_SETS];
    int evaluations_seen, bad_evaluations, best_known;
    double early_best, best_value;
    uint64_t best_step; /* snapshot.best: 0 none yet */
    struct core_snapshot snapshot;
    uint64_t snapshot_step; /* last whole one */
    char *snapshot_folder;
    uint8_t digest[64];
    size_t digest_bytes;
};

struct coordinator_core {
    struct coordinator_ops ops;
    int once;
    enum core_phase phase;
    int64_t now_ns, tick_ns;
    uint64_t term, cluster_epoch;
    struct core_member *members[CORE_KINDS][CORE_RANKS_MAX];
    int members_limit[CORE_KINDS]; /* ranks above are empty */
    struct core_event *events;
    size_t events_count, events_room;
    uint64_t sequence;
    struct core_job job;
    char stall[CORE_LINE]; /* who is waited for, told to every member with its next heartbeat; "": nobody */
    int stopping;
    int closing;     /* stopping because an operator ends the whole cluster */
    int64_t stop_ns; /* leave by then */
    int ended;       /* ops.ended was called for the current END */
    int end_status;
    char end_text[CORE_LINE];
    int64_t end_ns;
    uint64_t submit_incarnation, submit_request; /* last accepted, for its repeat */
    uint64_t refused;
    char *manifest_folder; /* durable: last whole snapshot */
};

/* --- coordinator_core.c: frame of everything */
void core_set_phase(struct coordinator_core *core, enum core_phase phase);
void core_log(struct coordinator_core *core, enum log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Logs who is waited for and keeps it for the members' heartbeats. */
void core_stall(struct coordinator_core *core, const char *format, ...) __attribute__((format(printf, 2, 3)));
void core_say(struct coordinator_core *core, const char *format, ...) __attribute__((format(printf, 2, 3)));
void core_envelope(const struct coordinator_core *core, Shoal__Envelope *envelope, Shoal__Type type);
void core_answer(struct coordinator_core *core, const struct net_return *back, int status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
const struct job *core_job_of(const struct coordinator_core *core); /* NULL when idle */

/* --- core_members.c */
int core_kind_of(Shoal__Role role); /* -1: neither server nor worker */
const char *core_kind_name(enum core_kind kind);
int core_kind_count(const struct coordinator_core *core, enum core_kind kind); /* of the job */
struct core_member *core_member_at(const struct coordinator_core *core, enum core_kind kind, int rank);
struct core_member *core_member_of(const struct coordinator_core *core, const Shoal__Envelope *envelope);
void core_member_text(const struct core_member *member, char out[CORE_LINE]); /* "worker 2 (pid 7 on h)" */
void core_members_join(struct coordinator_core *core, struct message *message, const struct net_return *back);
void core_members_leave(struct coordinator_core *core, struct message *message, const struct net_return *back);
void core_members_death(struct coordinator_core *core, struct message *message, const struct net_return *back);
void core_members_tick(struct coordinator_core *core);
void core_members_remove(struct coordinator_core *core, struct core_member *member);
void core_members_clear_job(struct coordinator_core *core); /* forgets what belonged to the job */
void core_members_close_ranks(struct coordinator_core *core); /* workers 0, 1, … without gaps, in their order */
int core_members_all_in(const struct coordinator_core *core);
int core_members_left(const struct coordinator_core *core); /* workers of the job that were clients and are through */
int core_members_any(const struct coordinator_core *core);
/* 0, or why the BLAS core types do not go together. */
int core_members_check_types(struct coordinator_core *core, const char *type, char out[CORE_LINE]);
/* Appends " 1, 3" of ranks for which missing() holds: "servers 1; workers 2, 3"; "" when none. */
typedef int core_missing_fn(const struct coordinator_core *core, enum core_kind kind, int rank);
void core_members_list(const struct coordinator_core *core, core_missing_fn *missing, const char *what,
                       char out[CORE_LINE]);

/* --- core_events.c */
void core_events_push(struct coordinator_core *core, int audience, int rank, Shoal__Envelope *envelope,
                      struct buf *frame); /* copies the envelope, shares the frame */
void core_events_await(struct coordinator_core *core, struct core_member *member, struct message *message,
                       const struct net_return *back);
void core_events_begin_job(struct coordinator_core *core); /* drops what belongs to the job before */
void core_events_close(struct coordinator_core *core);

/* --- core_launch.c: from submit to START */
int core_launch_submit(struct coordinator_core *core, const struct coordinator_job *spec, struct errbuf *err);
void core_launch_gathered(struct coordinator_core *core);
void core_launch_register(struct coordinator_core *core, struct core_member *member, struct message *message,
                          const struct net_return *back);
void core_launch_ready(struct coordinator_core *core, struct core_member *member, struct message *message,
                       const struct net_return *back);
void core_launch_tick(struct coordinator_core *core);

/* --- core_start.c: what START says */
int core_start_build(struct coordinator_core *core, struct errbuf *err); /* table, key map, step, running values */
int core_start_restore(struct coordinator_core *core, struct errbuf *err); /* snapshot to resume from */
int core_start_persist(struct coordinator_core *core, struct errbuf *err);
void core_start_announce(struct coordinator_core *core, int audience);
struct buf *core_start_running(const struct coordinator_core *core); /* owned; NULL without norm layers */

/* --- core_job.c: memory of a job */
void core_job_close(struct core_job *job);
void core_job_reopen(struct core_job *job); /* forgets all but what was submitted, and how often it was rolled back */
int core_job_map_servers(const struct core_job *job); /* what the key map is built with: a ring's has one */
void *core_copy(const ProtobufCMessage *message); /* owned; NULL when out of memory */
int core_job_copy_spec(struct core_job *job, const struct coordinator_job *spec);

/* --- core_steps.c */
void core_steps_prepared(struct coordinator_core *core, struct core_member *member, struct message *message,
                         const struct net_return *back);
void core_steps_report(struct coordinator_core *core, struct core_member *member, struct message *message,
                       const struct net_return *back);
/* Runs that a PREPARED or TRUST speaks of, or -1 when its spans do not fit the model. */
int64_t core_steps_spans(const Shoal__Prepared *prepared, int64_t limit);
void core_steps_advance(struct coordinator_core *core); /* announces a verdict that is due */
void core_steps_begin(struct coordinator_core *core, uint64_t number);
void core_steps_tick(struct coordinator_core *core);
double core_steps_lr_at(const void *job, int64_t t); /* of a struct core_job */

/* --- core_ring.c: workers that decide by themselves */
int core_ring_take_vote(const struct core_job *job, const Shoal__Report *report, struct core_vote *vote); /* 0 or a status */
void core_ring_follow(struct coordinator_core *core); /* all reports of a step are in: does what they say */
void core_ring_ask_last(struct coordinator_core *core); /* LAST to the workers, once; they say which step it is */
int core_ring_is_through(const struct core_job *job, int rank); /* its last step is reported */

/* --- core_elastic.c: the same job again with other workers */
int core_elastic_lost(struct coordinator_core *core, const char *why); /* 1: the job goes on without who was removed */
void core_elastic_look(struct coordinator_core *core); /* a worker has joined, or steps have begun */
int core_elastic_regroup(struct coordinator_core *core); /* the ring stands: 1 when it went on with the newcomers */

/* --- core_trust.c */
void core_trust_message(struct coordinator_core *core, struct core_member *member, struct message *message,
                        const struct net_return *back);
void core_trust_close(struct core_job *job);

/* --- core_verdict.c: what a decision means */
void core_verdict_announce(struct coordinator_core *core, const struct step_verdict *verdict);
/* The same for a verdict that the workers of a ring have and nobody is told. */
void core_verdict_follow(struct coordinator_core *core, const struct step_verdict *verdict, const struct core_vote *vote);
void core_verdict_closing(struct coordinator_core *core); /* VERDICT{NONE, last} to servers, once */
int core_verdict_digests(struct coordinator_core *core); /* 0, or the job has been ended */

/* --- core_gather.c */
void core_gather_message(struct coordinator_core *core, struct core_member *member, struct message *message,
                         const struct net_return *back);
void core_gather_forget(struct core_job *job, uint64_t before_step);

/* --- core_evaluation.c */
void core_evaluation_message(struct coordinator_core *core, struct core_member *member, struct message *message,
                             const struct net_return *back);
void core_evaluation_answer(struct coordinator_core *core); /* those that are done and were asked for */
void core_evaluation_advance(struct coordinator_core *core); /* finishes those of the last verdict that are all in */
void core_evaluation_close(struct core_evaluation *evaluation);
const char *core_evaluation_watched(const struct job *job); /* the set that early stop and best look at */

/* --- core_snapshots.c */
int core_snapshots_due(const struct core_job *job); /* of the last announced verdict */
void core_snapshots_after_verdict(struct coordinator_core *core, int evaluating);
void core_snapshots_evaluated(struct coordinator_core *core); /* the evaluation is done, or none comes */
int core_snapshots_follows(const struct coordinator_core *core, int stop); /* one of the last announced step is due or under way */
void core_snapshots_best(struct coordinator_core *core, uint64_t step);
void core_snapshots_final(struct coordinator_core *core); /* of the last step unless it is there */
void core_snapshots_done(struct coordinator_core *core, struct core_member *member, struct message *message,
                         const struct net_return *back);
void core_snapshots_close(struct core_snapshot *snapshot);

/* --- core_ending.c */
int core_ending_wanted(const struct coordinator_core *core); /* somebody got a signal: no further step */
void core_ending_ask(struct coordinator_core *core, const char *who);
void core_ending_summary(struct coordinator_core *core, struct core_member *member, struct message *message,
                         const struct net_return *back);
void core_ending_advance(struct coordinator_core *core); /* FINISHING: END when everything is in */
void core_ending_end(struct coordinator_core *core, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void core_ending_clients(struct coordinator_core *core); /* the last client program has left */
void core_ending_tick(struct coordinator_core *core);

/* --- core_report.c: the report card and the summary line */
int core_report_say(struct coordinator_core *core); /* numbers that differ from their formula */
void core_report_metrics(struct coordinator_core *core);

/* --- core_operators.c */
void core_operators_submit(struct coordinator_core *core, struct message *message, const struct net_return *back);
void core_operators_status(struct coordinator_core *core, struct message *message, const struct net_return *back);
void core_operators_stop(struct coordinator_core *core, struct message *message, const struct net_return *back);

#endif
