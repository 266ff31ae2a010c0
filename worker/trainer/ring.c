#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/host.h"
#include "base/status.h"
#include "cluster/norm_stats.h"
#include "step/schedule.h"
#include "worker/collective/collective.h"
#include "worker/strategy/ballot.h"
#include "worker/trainer/trainer_internal.h"

int trainer_ring_listen(struct trainer *trainer, struct errbuf *err)
{
    struct collective_port_options options = {.host = trainer->options->host, .cluster = trainer->options->cluster,
                                              .advertise = trainer->options->advertise};
    return collective_port_open(&trainer->port, &options, err);
}

void trainer_ring_describe(const struct trainer *trainer, Shoal__Peer *peer, char *host, size_t host_bytes)
{
    host_id(host, host_bytes);
    peer->address = (char *)collective_port_address(trainer->port);
    peer->socket = (char *)collective_port_socket(trainer->port);
    peer->public_key = (char *)collective_port_public_key(trainer->port);
    peer->host = host;
}

/* A collective failed. What the coordinator knows of it (who died, and whether the others go on without) says more than
 * what a neighbour sees, and comes soon; an elastic job's survivors must not leave for it. */
static int peers_failed(struct trainer *trainer, int status, struct errbuf *err)
{
    const struct job *job = trainer->job;
    double patience = job->cluster.elastic_min > 0 ? job->cluster.timeouts.worker_dead + 5 : 2;
    struct errbuf why;
    errbuf_init(&why);
    int known = client_wait_failure(trainer->client, patience, &why);
    return known != 0 ? errbuf_set(err, known, "%s", why.text) : status;
}

int trainer_ring_failed(struct trainer *trainer, int status, struct errbuf *err)
{
    if (!trainer->group) {
        return status;
    }
    if (collective_status(trainer->group) != 0) {
        return peers_failed(trainer, status, err);
    }
    if (client_status(trainer->client, NULL) == 0 && status != STATUS_STOPPED) {
        collective_cancel(trainer->group, status, err->text); /* the others need not wait until this rank is late */
    }
    return status;
}

int trainer_ring_open(struct trainer *trainer, const Shoal__Start *start, uint64_t job, uint64_t cluster_epoch,
                      struct errbuf *err)
{
    size_t world = (size_t)trainer->world;
    if (start->n_peers != world || start->n_worker_incarnations < world) {
        return errbuf_set(err, STATUS_PROTOCOL, "START names %zu peers for %zu workers", start->n_peers, world);
    }
    struct collective_peer *peers = calloc(world, sizeof(*peers));
    if (!peers) {
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    }
    for (size_t k = 0; k < world; k++) {
        const Shoal__Peer *from = start->peers[k];
        peers[k] = (struct collective_peer){from->address, from->public_key, from->socket, from->host,
                                            start->worker_incarnations[k]};
    }
    const struct job *options = trainer->job;
    struct collective_options group = {
        .port = trainer->port, .peers = peers, .rank = trainer->rank, .world = trainer->world, .job = job,
        .cluster_epoch = cluster_epoch, .transport = (enum collective_transport)options->parallel.transport,
        .blob_bytes_max = ballot_bytes_max(&trainer->map, trainer->stats_count * options->accumulate),
        .timeout_s = options->cluster.timeouts.worker_dead, .account = trainer->options->account};
    int status = collective_open(&trainer->group, &group, err);
    free(peers);
    return status == 0 ? 0 : peers_failed(trainer, status, err);
}

/* Statistics of the whole mini-batch: rank by rank, micro-batch by micro-batch, one commit a step. */
static void commit_statistics(struct trainer *trainer, const struct strategy_decision *decision)
{
    struct model_buffers *buffers = model_buffers(trainer->model);
    const int64_t *features = NULL;
    int norms = model_norms(trainer->model, &features);
    if (norms == 0 || decision->verdict.decision != SHOAL__DECISION__APPLY) {
        return;
    }
    size_t count = (size_t)trainer->stats_count;
    double *merged = trainer->stats + (size_t)trainer->job->accumulate * count; /* room for two more there */
    memset(merged, 0, count * sizeof(double));
    for (int rank = 0; rank < trainer->world; rank++) {
        const char *from = ballot_statistics(decision->ballot, rank);
        for (int64_t micro = 0; micro < trainer->job->accumulate; micro++) {
            memcpy(merged + count, from + (size_t)micro * count * sizeof(double), count * sizeof(double));
            norm_stats_merge(features, norms, merged, merged + count);
        }
    }
    norm_stats_commit(features, norms, merged, buffers->values);
    buffers->num_batches_tracked = (int64_t)decision->verdict.t;
}

/* The coordinator says the reason, in its own words, to everybody; `otherwise` if it gives none. */
static int wait_for_end(struct trainer *trainer, int otherwise, struct errbuf *err)
{
    struct message end = {0};
    int status = trainer_wait_event(trainer, SHOAL__TYPE__END, &end, err);
    if (status == 0) {
        status = errbuf_set(err, otherwise, "the job ended after step %lld", (long long)trainer->step);
    }
    message_close(&end);
    return status;
}

static double mean_loss(const struct trainer *trainer, const struct ballot *ballot)
{
    double loss = 0;
    int64_t counted = 0;
    for (int rank = 0; rank < trainer->world; rank++) {
        loss += ballot->shares[rank].loss_sum;
        counted += ballot->shares[rank].counted;
    }
    return counted > 0 ? loss / (double)counted : 0;
}

/* Evaluation and snapshot that follow a step. *over: no step comes after it. */
static int after_step(struct trainer *trainer, int last, int stopped, int *over, struct errbuf *err)
{
    uint64_t step = (uint64_t)trainer->step;
    int status = 0;
    *over = last;
    trainer->snapshot_asked = 0;
    if (schedule_evaluates(trainer->job, step, last, stopped)) {
        status = trainer_evaluate_sets(trainer, last, over, err);
    }
    if (status == 0 && schedule_writes(trainer->job, trainer->rank) &&
        (schedule_saves(trainer->job, step, last) || trainer->snapshot_asked)) {
        status = trainer_wait_snapshot(trainer, step, err);
    }
    return status;
}

int trainer_ring_step(struct trainer *trainer, int64_t step, int *over, struct errbuf *err)
{
    struct strategy *strategy = &trainer->strategy;
    struct train_sums sums;
    struct strategy_decision decision;
    int status = train_step_compute(trainer, step, &sums, err);
    trainer_look_for_stop(trainer);
    struct ballot_share mine = {.loss_sum = sums.loss_sum, .counted = sums.counted, .correct = sums.correct,
                                .samples = sums.samples, .stop = client_last_asked(trainer->client)};
    if (status == 0) {
        status = train_step_decide(trainer, &mine, &sums, &decision, err);
    }
    trainer->compute_s += sums.compute_s;
    trainer->wait_s += sums.wait_s;
    if (status != 0) {
        return status;
    }
    int stopped = decision.stop_asked;
    int last = stopped || step >= trainer->total_steps;
    decision.verdict.last = last;
    decision.verdict.stopped = stopped;
    decision.verdict.loss = mean_loss(trainer, decision.ballot);
    decision.verdict.evaluate = schedule_evaluates(trainer->job, (uint64_t)step, last, stopped);
    decision.verdict.snapshot = schedule_saves(trainer->job, (uint64_t)step, last);
    commit_statistics(trainer, &decision);
    if (!decision.stop_job) {
        status = strategy->ops->step_finish(strategy, &decision.verdict, err);
    }
    if (status == 0) {
        status = train_step_report(trainer, &sums, &decision, err);
    }
    if (status == 0 && decision.stop_job) {
        return wait_for_end(trainer, STATUS_NUMERIC, err);
    }
    if (status == 0) {
        status = after_step(trainer, last, stopped, over, err);
    }
    return status == 0 && stopped ? wait_for_end(trainer, STATUS_STOPPED, err) : status;
}
