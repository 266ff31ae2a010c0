/* The inside of the trainer, shared by its files; all of it is the trainer thread's. */
#ifndef SHOAL_TRAINER_INTERNAL_H
#define SHOAL_TRAINER_INTERNAL_H

#include "config/job.h"
#include "worker/client/client.h"
#include "worker/data/dataset.h"
#include "worker/data/sampler.h"
#include "worker/model/model.h"
#include "worker/strategy/strategy.h"
#include "worker/trainer/trainer.h"

enum { EVALUATE_ROWS = 256 }; /* samples a block of an evaluation, whatever the number of workers */
enum { DIGEST_BYTES = 32 };   /* SHA-256 of all parameters */

/* Reduces BatchNorm statistics over the ranks: by the strategy, or through the coordinator. */
struct trainer_reducer {
    struct model_reducer reducer; /* first member */
    struct client *client;
    struct strategy *strategy;
    uint64_t step;
    uint32_t sequence;
};

struct trainer {
    const struct trainer_options *options;
    const Shoal__JobBegin *begin;
    struct client *client;
    struct job *job;
    struct dataset_set data;
    struct model *model;
    struct param_table table; /* as the coordinator said it */
    struct keymap map;
    struct sampler *sampler;
    struct strategy strategy;
    struct collective_port *port; /* rings: where peers reach this rank, and the group */
    struct collective *group;
    struct model_import *import;  /* while first values come from a file */
    struct trace *trace;
    struct pool *pool;
    struct trainer_reducer reducer;
    int64_t rows_max, features;
    int64_t *indices;
    float *x, *targets;
    int32_t *labels;
    double *stats; /* BatchNorm statistics, micro-batch after micro-batch, and room for two more */
    int64_t stats_count;
    int64_t step, total_steps, first_step;
    int rank, world;
    double compute_s, wait_s; /* of the whole job */
    char export_sha256[65];
    uint8_t digest[DIGEST_BYTES]; /* of the last parameters */
    int stop_asked;
    int snapshot_asked; /* by the last evaluation */
    char **snapshot_paths;
    int snapshot_paths_count;
};

/* What a step adds up on this rank. */
struct train_sums {
    double loss_sum, compute_s, wait_s;
    int64_t counted, correct, samples;
    struct sha256 *hash; /* of the parameters, fed as forward acquires them; NULL: not in this step */
    uint8_t digest[DIGEST_BYTES];
    int has_digest;
};

/* train_step.c: forward, backward and exchange of one step up to its report; then the verdict. */
int train_step_compute(struct trainer *trainer, int64_t step, struct train_sums *sums, struct errbuf *err);
/* decision NULL: the coordinator decides, and answers before this returns; else it is told in passing. */
int train_step_report(struct trainer *trainer, const struct train_sums *sums, struct strategy_decision *decision,
                      struct errbuf *err);
int train_step_decide(struct trainer *trainer, const struct ballot_share *mine, struct train_sums *sums,
                      struct strategy_decision *decision, struct errbuf *err);
/* Waits for the verdict of the step at hand; *verdict is taken by the caller. Serves snapshots meanwhile. */
int train_step_verdict(struct trainer *trainer, struct message *verdict, struct errbuf *err);
/* The next event of `type`, taken by the caller; an END with a status ends the wait with it. */
int trainer_wait_event(struct trainer *trainer, Shoal__Type type, struct message *event, struct errbuf *err);
/* Waits for SNAPSHOT of this step and serves it. */
int trainer_wait_snapshot(struct trainer *trainer, uint64_t step, struct errbuf *err);
void trainer_look_for_stop(struct trainer *trainer); /* a signal: tells the coordinator, once */
/* Takes the running statistics that a START or VERDICT carries. */
int train_step_statistics(struct trainer *trainer, const struct message *event, uint64_t applied, struct errbuf *err);

/* evaluate.c: this rank's blocks of the job's sets; *stop is set when the coordinator says that training ends here. */
int trainer_evaluate_sets(struct trainer *trainer, int last, int *stop, struct errbuf *err);

/* ring.c: what is different where the ranks decide among themselves */
static inline int trainer_is_ring(const struct trainer *trainer)
{
    return job_is_ring(trainer->job->parallel.data);
}
int trainer_ring_listen(struct trainer *trainer, struct errbuf *err);
void trainer_ring_describe(const struct trainer *trainer, Shoal__Peer *peer, char *host, size_t host_bytes);
int trainer_ring_open(struct trainer *trainer, const Shoal__Start *start, uint64_t job, uint64_t cluster_epoch,
                      struct errbuf *err);
int trainer_ring_step(struct trainer *trainer, int64_t step, int *over, struct errbuf *err);
/* The job failed here: tells the other ranks of this one's own trouble, and returns the status and text to end with. */
int trainer_ring_failed(struct trainer *trainer, int status, struct errbuf *err);

/* export.c: every rank passes over the layers once; rank 0 writes or hashes what would be exported, each fills digest. */
int trainer_export(struct trainer *trainer, struct errbuf *err);

/* books.c */
int trainer_summary(struct trainer *trainer, struct errbuf *err);

#endif
