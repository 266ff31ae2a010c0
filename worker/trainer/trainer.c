#include "worker/trainer/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/account.h"
#include "base/errbuf.h"
#include "base/pool.h"
#include "base/role.h"
#include "base/status.h"
#include "base/trace.h"
#include "net/table_wire.h"
#include "worker/collective/collective.h"
#include "worker/trainer/trainer_internal.h"

enum { TRACE_EVENTS = 1 << 17, TEXT_MAX = 512, HOST_MAX = 128 };

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* --- getting ready ------------------------------------------------------------------------------------ */

static int load_data(struct trainer *trainer, struct errbuf *err)
{
    char note[TEXT_MAX] = "";
    int status = dataset_load(&trainer->data, trainer->job, trainer->begin->directory, trainer->options->data_dir,
                              trainer->options->account, note, sizeof(note), err);
    if (status == 0 && note[0] && trainer->rank == 0) {
        log_info(trainer->options->log, "data %s", note);
    }
    return status;
}

static int make_model(struct trainer *trainer, struct errbuf *err)
{
    const struct job *job = trainer->job;
    trainer->features = dataset_features(trainer->data.train);
    int64_t outputs = job->model.loss == JOB_LOSS_SOFTMAX_CROSS_ENTROPY ? trainer->data.transform.classes : 1;
    trainer->rows_max = ceil_div(ceil_div(job->batch_size, trainer->world), job->accumulate);
    if (trainer->rows_max < EVALUATE_ROWS) {
        trainer->rows_max = EVALUATE_ROWS;
    }
    int status = model_create(&trainer->model, job, trainer->features, outputs, trainer->rows_max,
                              trainer->pool, trainer->options->account, err);
    if (status != 0) {
        return status;
    }
    trainer->stats_count = model_stats_collect(trainer->model, NULL);
    size_t rows = (size_t)trainer->rows_max;
    struct account *account = trainer->options->account;
    trainer->x = account_alloc(account, ACCOUNT_DATA, rows * (size_t)trainer->features * sizeof(float));
    trainer->indices = calloc(rows, sizeof(*trainer->indices));
    trainer->labels = calloc(rows, sizeof(*trainer->labels));
    trainer->targets = calloc(rows, sizeof(*trainer->targets));
    trainer->stats = calloc((size_t)(trainer->stats_count * (job->accumulate + 2)) + 1, sizeof(double));
    trainer->sampler = sampler_create(dataset_rows(trainer->data.train), job->batch_size,
                                      job->data.order == JOB_ORDER_SHUFFLED, (int)job->data.last_batch, job->seed);
    if (!trainer->x || !trainer->indices || !trainer->labels || !trainer->targets || !trainer->stats || !trainer->sampler) {
        return errbuf_set(err, STATUS_NOMEM, "out of memory for a batch of %lld rows", (long long)trainer->rows_max);
    }
    int64_t an_epoch = sampler_steps_per_epoch(trainer->sampler);
    if (an_epoch == 0) {
        return errbuf_set(err, STATUS_RANGE, "%lld training rows make no batch of %lld",
                          (long long)dataset_rows(trainer->data.train), (long long)job->batch_size);
    }
    trainer->total_steps = job->steps > 0 ? job->steps : job->epochs * an_epoch;
    return 0;
}

static int send_register(struct trainer *trainer, struct errbuf *err)
{
    const int64_t *features = NULL;
    Shoal__Register body = SHOAL__REGISTER__INIT;
    body.table = table_wire_pack(model_params(trainer->model));
    if (!body.table) {
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    }
    body.total_steps = (uint64_t)trainer->total_steps;
    body.train_rows = (uint64_t)dataset_rows(trainer->data.train);
    body.n_norm_features = (size_t)model_norms(trainer->model, &features);
    body.norm_features = (int64_t *)features;
    body.prescaled = 1;
    Shoal__Peer peer = SHOAL__PEER__INIT;
    char host[HOST_MAX];
    if (trainer->port) {
        trainer_ring_describe(trainer, &peer, host, sizeof(host));
        body.peer = &peer;
    }
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    envelope.type = SHOAL__TYPE__REGISTER;
    envelope.body_case = SHOAL__ENVELOPE__BODY_REGISTER_;
    envelope.register_ = &body;
    int status = client_call(trainer->client, &envelope, NULL, 0, NULL, err);
    table_wire_free(body.table);
    return status;
}

static int value_of_layer(void *context, int layer, float *w, struct errbuf *err)
{
    struct trainer *trainer = context;
    (void)err;
    if (trainer->import) {
        model_import_layer(trainer->import, layer, w);
    } else {
        model_init_layer(trainer->model, layer, w);
    }
    return 0;
}

/* Rank 0's first values, layer by layer: from the seed, or from a file. */
static int start_strategy(struct trainer *trainer, int resumed, struct errbuf *err)
{
    const char *path = trainer->begin->init_path;
    struct strategy_source first = {value_of_layer, trainer};
    int gives = trainer->rank == 0 && !resumed;
    int status = gives && path[0] ? model_import_open(&trainer->import, trainer->model, path, err) : 0;
    if (trainer->import) {
        model_import_buffers(trainer->import);
    }
    if (status == 0) {
        status = trainer->strategy.ops->start(&trainer->strategy, gives ? &first : NULL, err);
    }
    model_import_close(trainer->import);
    trainer->import = NULL;
    return status;
}

static int list_snapshot(struct trainer *trainer, const Shoal__Start *start)
{
    trainer->snapshot_paths = calloc(start->n_files + 1, sizeof(char *));
    for (size_t f = 0; trainer->snapshot_paths && f < start->n_files; f++) {
        char path[4096];
        snprintf(path, sizeof(path), "%s/%s", start->snapshot_folder, start->files[f]->name);
        trainer->snapshot_paths[f] = strdup(path);
        trainer->snapshot_paths_count += trainer->snapshot_paths[f] != NULL;
    }
    return trainer->snapshot_paths && trainer->snapshot_paths_count == (int)start->n_files ? 0 : STATUS_NOMEM;
}

/* Workers of this job on this host. */
static int neighbours(const struct trainer *trainer)
{
    const Shoal__JobBegin *begin = trainer->begin;
    const char *mine = (size_t)trainer->rank < begin->n_worker_hosts ? begin->worker_hosts[trainer->rank] : "";
    int count = 0;
    for (size_t rank = 0; rank < begin->n_worker_hosts; rank++) {
        count += strcmp(begin->worker_hosts[rank], mine) == 0;
    }
    return count > 0 ? count : 1;
}

static int open_peers(struct trainer *trainer, const struct message *event, struct errbuf *err)
{
    const Shoal__Start *start = event->envelope->start;
    if (trainer_is_ring(trainer)) {
        return trainer_ring_open(trainer, start, event->envelope->job, event->envelope->cluster_epoch, err);
    }
    struct client_peers peers = {.addresses = start->servers, .count = (int)start->n_servers,
                                 .neighbours = neighbours(trainer),
                                 .transport = (enum client_transport)trainer->job->parallel.transport,
                                 .keys = start->n_server_keys == start->n_servers ? start->server_keys : NULL};
    return client_attach(trainer->client, &trainer->map, &peers, err);
}

static int take_layout(struct trainer *trainer, const Shoal__Start *start, struct errbuf *err)
{
    struct keymap_layout layout = {.ranks = trainer->world,
                                   .servers = trainer_is_ring(trainer) ? 1 : (int)start->n_servers,
                                   .message_bytes = trainer->job->parallel.message_bytes,
                                   .placement = (int)trainer->job->parallel.placement};
    int status = table_wire_unpack(&trainer->table, start->table, err);
    return status == 0 ? keymap_init(&trainer->map, &trainer->table, &layout, err) : status;
}

static void make_strategy(struct trainer *trainer, const Shoal__Envelope *envelope)
{
    const Shoal__Start *start = envelope->start;
    trainer->first_step = (int64_t)start->first_step;
    trainer->strategy = (struct strategy){
        .ops = strategy_at((int)trainer->job->parallel.data), .job = trainer->job, .table = &trainer->table,
        .map = &trainer->map, .client = trainer->client, .group = trainer->group,
        .account = trainer->options->account, .pool = trainer->pool, .trace = trainer->trace,
        .rank = trainer->rank, .world = trainer->world, .cluster_epoch = envelope->cluster_epoch,
        .first_step = trainer->first_step, .applied = (int64_t)start->applied,
        .total_steps = start->total_steps > 0 ? (int64_t)start->total_steps : trainer->total_steps,
        .next_lr = start->next_lr, .statistics = trainer->stats_count * trainer->job->accumulate,
        .snapshot_paths = (const char *const *)trainer->snapshot_paths,
        .snapshot_paths_count = trainer->snapshot_paths_count};
}

static int take_start(struct trainer *trainer, const struct message *event, struct errbuf *err)
{
    const Shoal__Start *start = event->envelope->start;
    int status = take_layout(trainer, start, err);
    if (status == 0) {
        status = open_peers(trainer, event, err);
    }
    if (status == 0 && start->snapshot_step > 0) {
        status = list_snapshot(trainer, start);
    }
    if (status == 0) {
        status = train_step_statistics(trainer, event, start->applied, err);
    }
    if (status != 0) {
        return status;
    }
    make_strategy(trainer, event->envelope);
    return start_strategy(trainer, start->snapshot_step > 0, err);
}

/* --- training ------------------------------------------------------------------------------------------ */

static int one_step(struct trainer *trainer, int64_t step, int *over, struct errbuf *err)
{
    if (trainer->strategy.ops->decide) {
        return trainer_ring_step(trainer, step, over, err);
    }
    struct train_sums sums;
    struct message verdict = {0};
    int status = train_step_compute(trainer, step, &sums, err);
    if (status == 0) {
        status = train_step_report(trainer, &sums, NULL, err);
    }
    trainer->compute_s += sums.compute_s;
    trainer->wait_s += sums.wait_s;
    int decided = 0;
    while (status == 0 && !decided) {
        status = train_step_verdict(trainer, &verdict, err);
        if (status != 0) {
            break;
        }
        const Shoal__Verdict *v = verdict.envelope->verdict;
        decided = v->decision != SHOAL__DECISION__ABORT;
        status = trainer->strategy.ops->step_finish(&trainer->strategy, v, err);
        if (status == 0 && decided) {
            uint64_t applied = v->decision == SHOAL__DECISION__APPLY ? v->t : v->t - 1;
            status = train_step_statistics(trainer, &verdict, applied, err);
        }
        *over = v->last;
        if (status == 0 && decided && v->evaluate) {
            status = trainer_evaluate_sets(trainer, v->last, over, err);
        }
        message_close(&verdict);
    }
    return status;
}

static int finish(struct trainer *trainer, struct errbuf *err)
{
    int status = trainer->strategy.ops->settle(&trainer->strategy, err);
    if (status == 0) {
        status = trainer_export(trainer, err);
    }
    if (status == 0) {
        status = trainer_summary(trainer, err);
    }
    struct message end = {0};
    if (status == 0) {
        status = trainer_wait_event(trainer, SHOAL__TYPE__END, &end, err);
        message_close(&end);
    }
    return status;
}

static int reduce_statistics(struct model_reducer *self, int merge, double *values, int64_t count, struct errbuf *err)
{
    struct trainer_reducer *reducer = (struct trainer_reducer *)self;
    struct strategy *strategy = reducer->strategy;
    if (strategy->ops->reduce) {
        return strategy->ops->reduce(strategy, merge, values, count, err);
    }
    size_t bytes = (size_t)count * sizeof(double);
    struct buf *frame = buf_create(bytes);
    if (!frame) {
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    }
    memcpy(frame->data, values, bytes);
    Shoal__Gather body = SHOAL__GATHER__INIT;
    body.sequence = reducer->sequence++;
    body.merge = merge;
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    envelope.type = SHOAL__TYPE__GATHER;
    envelope.clock = reducer->step;
    envelope.dtype = SHOAL__DTYPE__F64;
    envelope.body_case = SHOAL__ENVELOPE__BODY_GATHER;
    envelope.gather = &body;
    struct message reply = {0};
    int status = client_call(reducer->client, &envelope, &frame, 1, &reply, err);
    buf_release(frame);
    if (status == 0 && (reply.frames_count != 1 || reply.frames[0]->bytes != bytes)) {
        status = errbuf_set(err, STATUS_SHAPE, "statistics of another length came back");
    } else if (status == 0) {
        memcpy(values, reply.frames[0]->data, bytes);
    }
    message_close(&reply);
    return status;
}

static void trainer_close(struct trainer *trainer)
{
    client_detach(trainer->client);
    client_set_trace(trainer->client, NULL);
    if (trainer->strategy.ops) {
        trainer->strategy.ops->close(&trainer->strategy);
    }
    collective_close(trainer->group);
    collective_port_close(trainer->port);
    size_t rows = (size_t)trainer->rows_max;
    account_free(trainer->options->account, ACCOUNT_DATA, trainer->x,
                 trainer->x ? rows * (size_t)trainer->features * sizeof(float) : 0);
    free(trainer->indices);
    free(trainer->labels);
    free(trainer->targets);
    free(trainer->stats);
    for (int f = 0; f < trainer->snapshot_paths_count; f++) {
        free(trainer->snapshot_paths[f]);
    }
    free(trainer->snapshot_paths);
    keymap_close(&trainer->map);
    param_table_close(&trainer->table);
    sampler_destroy(trainer->sampler);
    model_destroy(trainer->model);
    dataset_set_close(&trainer->data);
    trace_destroy(trainer->trace);
    pool_destroy(trainer->pool);
    job_destroy(trainer->job);
}

/* The number of threads never changes a bit of the result. */
static int make_pool(struct trainer *trainer, struct errbuf *err)
{
    int threads = trainer->options->threads;
    if (threads == 0) {
        threads = (int)trainer->job->parallel.threads;
    }
    if (threads == 0) {
        threads = pool_available_cores() / neighbours(trainer);
    }
    trainer->pool = pool_create(threads > 0 ? threads : 1, 0);
    log_info(trainer->options->log, "job name=%s threads=%d", trainer->job->name, threads > 0 ? threads : 1);
    return trainer->pool ? 0 : errbuf_set(err, STATUS_NOMEM, "cannot start %d threads", threads);
}

static int trainer_steps(struct trainer *trainer, struct errbuf *err)
{
    struct message start = {0};
    int status = make_pool(trainer, err);
    if (status == 0) {
        status = load_data(trainer, err);
    }
    if (status == 0) {
        status = make_model(trainer, err);
    }
    if (status == 0 && trainer_is_ring(trainer)) {
        status = trainer_ring_listen(trainer, err);
    }
    if (status == 0) {
        status = send_register(trainer, err);
    }
    if (status == 0) {
        status = trainer_wait_event(trainer, SHOAL__TYPE__START, &start, err);
    }
    if (status == 0) {
        status = take_start(trainer, &start, err);
    }
    int over = 0;
    for (int64_t step = trainer->first_step; status == 0 && !over && step <= trainer->total_steps; step++) {
        status = one_step(trainer, step, &over, err);
    }
    if (status == 0) {
        status = finish(trainer, err);
    }
    message_close(&start);
    return status != 0 && trainer_is_ring(trainer) ? trainer_ring_failed(trainer, status, err) : status;
}

int trainer_run(const struct trainer_options *options, const struct message *job, struct errbuf *err)
{
    struct trainer trainer = {.options = options, .client = options->client, .begin = job->envelope->job_begin};
    struct job_source source = {.text = trainer.begin->yaml, .text_name = "job"};
    trainer.rank = client_rank(options->client);
    trainer.world = (int)trainer.begin->workers;
    for (size_t k = 0; k < trainer.begin->n_worker_incarnations; k++) {
        if (trainer.begin->worker_incarnations[k] == client_incarnation(options->client)) {
            trainer.rank = (int)k; /* ranks close up when an elastic job loses one */
        }
    }
    trainer.reducer = (struct trainer_reducer){.reducer = {reduce_statistics}, .client = options->client,
                                               .strategy = &trainer.strategy};
    param_table_init(&trainer.table);
    account_forget_peaks(options->account);
    int status = job_load(&trainer.job, &source, err);
    if (status != 0) {
        return status;
    }
    client_set_dead_after(options->client, trainer.job->cluster.timeouts.coordinator_dead,
                          trainer.job->cluster.timeouts.server_dead);
    atomic_store(&options->host->stop_grace_ms, role_stop_grace_ms(trainer.job->cluster.stop_timeout));
    if (trainer.begin->trace) {
        trainer.trace = trace_create(TRACE_EVENTS);
        client_set_trace(options->client, trainer.trace);
    }
    status = trainer_steps(&trainer, err);
    trainer_close(&trainer);
    return status;
}
