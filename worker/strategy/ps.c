#include "worker/strategy/ps.h"

#include <stdlib.h>
#include <string.h>

#include "base/account.h"
#include "base/errbuf.h"
#include "base/status.h"
#include "config/job.h"
#include "owner/trust.h"
#include "worker/client/client.h"
#include "worker/strategy/bucket.h"
#include "worker/strategy/owned.h"

struct ps {
    float *flat;    /* parameters, N */
    int64_t bucket; /* bytes of gradients that wait for their bucket to be full */
    double weight;  /* of this step's share, for pushing again */
    struct owned *owned; /* update_at: worker, else NULL */
    double *norms, *ratios; /* lamb: (runs, 2) and by tensor; else NULL */
};

static int ps_allocate(struct strategy *s, struct errbuf *err)
{
    const struct param_table *table = s->table;
    struct ps *ps = s->own;
    int status = strategy_alloc_layers(s, err);
    if (status != 0) {
        return status;
    }
    ps->flat = account_alloc(s->account, ACCOUNT_PARAMETERS, (size_t)table->count * sizeof(float));
    if (!ps->flat) {
        return errbuf_set(err, STATUS_NOMEM, "out of memory for %lld parameters", (long long)table->count);
    }
    for (int layer = 0; layer < table->layer_count; layer++) {
        s->w[layer] = ps->flat + table->layers[layer].offset;
        if (bucket_layer_trainable(table, layer)) {
            s->g[layer] = account_alloc(s->account, ACCOUNT_GRADIENTS, (size_t)table->layers[layer].count * sizeof(float));
            if (!s->g[layer]) {
                return errbuf_set(err, STATUS_NOMEM, "out of memory for the gradients of layer %d", layer);
            }
        }
    }
    return 0;
}

static void pull_layer(struct strategy *s, int layer, uint64_t clock, int with_frozen, int into_gradients)
{
    for (int r = s->map->layer_range_first[layer]; r < s->map->layer_range_first[layer + 1]; r++) {
        const struct keymap_range *range = &s->map->ranges[r];
        float *base = into_gradients && !range->frozen ? s->g[layer] : strategy_layer_w(s, layer);
        if (with_frozen || !range->frozen) {
            client_pull(s->client, r, clock, base + range->begin);
        }
    }
}

static void push_layer(struct strategy *s, int layer, enum client_push_kind kind, double weight)
{
    const float *base = kind == CLIENT_INIT ? strategy_layer_w(s, layer) : s->g[layer];
    for (int r = s->map->layer_range_first[layer]; r < s->map->layer_range_first[layer + 1]; r++) {
        const struct keymap_range *range = &s->map->ranges[r];
        if (kind == CLIENT_INIT || !range->frozen) {
            client_push(s->client, kind, r, base + range->begin, weight, kind == CLIENT_INIT ? 0 : (uint64_t)s->step);
        }
    }
}

static int agree_on_values(struct strategy *s, const struct strategy_source *first, struct errbuf *err)
{
    int status = 0;
    for (int layer = 0; first && layer < s->table->layer_count && status == 0; layer++) {
        status = first->layer(first->context, layer, s->w[layer], err);
        if (status == 0) {
            push_layer(s, layer, CLIENT_INIT, 1);
        }
    }
    if (first) {
        client_flush(s->client);
        status = status == 0 ? client_wait_pushes(s->client, err) : status;
    }
    if (status != 0) {
        return status;
    }
    for (int layer = 0; layer < s->table->layer_count; layer++) {
        pull_layer(s, layer, (uint64_t)s->first_step - 1, 1, 0);
    }
    client_flush(s->client);
    return 0;
}

/* update_at: worker. Every worker keeps the optimizer's state of everything. */
static int own_everything(struct strategy *s, struct errbuf *err)
{
    struct ps *ps = s->own;
    struct owned_options options = {.job = s->job, .table = s->table, .map = s->map, .account = s->account,
                                    .pool = s->pool, .rank = -1};
    int status = owned_create(&ps->owned, &options, err);
    if (status != 0) {
        return status;
    }
    int count = 0;
    struct owned_piece *pieces = owned_pieces(ps->owned, &count);
    for (int p = 0; p < count; p++) {
        pieces[p].w = strategy_layer_w(s, pieces[p].layer) + pieces[p].begin;
        pieces[p].g = s->g[pieces[p].layer] + pieces[p].begin;
    }
    if (owned_needs_norms(ps->owned)) {
        ps->norms = calloc(2 * (size_t)s->map->runs_count + 1, sizeof(double));
        ps->ratios = calloc((size_t)s->table->tensor_count + 1, sizeof(double));
        if (!ps->norms || !ps->ratios) {
            return errbuf_set(err, STATUS_NOMEM, "out of memory");
        }
    }
    return 0;
}

/* Where the layers' values are, for owned_save and owned_load; owned. NULL when out of memory. */
static float **layer_values(const struct strategy *s)
{
    float **w = calloc((size_t)s->table->layer_count + 1, sizeof(*w));
    for (int layer = 0; w && layer < s->table->layer_count; layer++) {
        w[layer] = strategy_layer_w(s, layer);
    }
    return w;
}

static int load_everything(struct strategy *s, struct errbuf *err)
{
    struct ps *ps = s->own;
    float **w = layer_values(s);
    struct owned_values values = {.w = w};
    int status = w ? owned_load(ps->owned, &values, s->snapshot_paths, s->snapshot_paths_count, err)
                   : errbuf_set(err, STATUS_NOMEM, "out of memory");
    free(w);
    return status;
}

static int ps_start(struct strategy *s, const struct strategy_source *first, struct errbuf *err)
{
    struct ps *ps = calloc(1, sizeof(*ps));
    s->own = ps;
    int status = ps ? ps_allocate(s, err) : errbuf_set(err, STATUS_NOMEM, "out of memory");
    if (status == 0 && s->job->parallel.update_at == JOB_UPDATE_AT_WORKER) {
        status = own_everything(s, err);
        if (status == 0 && s->snapshot_paths_count > 0) {
            return load_everything(s, err);
        }
    }
    return status == 0 ? agree_on_values(s, first, err) : status;
}

static int ps_step_begin(struct strategy *s, int64_t step)
{
    s->step = step;
    ((struct ps *)s->own)->bucket = 0;
    return 0;
}

static int ps_layer_acquire(struct strategy *s, int layer, enum strategy_pass pass, struct errbuf *err)
{
    return pass == STRATEGY_BACKWARD ? 0 : client_wait_layer(s->client, layer, err);
}

static void ps_layer_release(struct strategy *s, int layer, enum strategy_pass pass)
{
    (void)s;
    (void)layer;
    (void)pass;
}

static int ps_grads_ready(struct strategy *s, int layer, double weight)
{
    struct ps *ps = s->own;
    ps->weight = weight;
    if (s->g[layer]) {
        push_layer(s, layer, CLIENT_PUSH, weight);
        ps->bucket += s->table->layers[layer].count * (int64_t)sizeof(float);
    }
    if (s->job->parallel.update == JOB_UPDATE_EAGER && !ps->owned) {
        pull_layer(s, layer, (uint64_t)s->step, 0, 0); /* its parameters are not used again in this step */
    }
    if (ps->bucket >= s->job->parallel.bucket_bytes || layer == 0) {
        ps->bucket = 0;
        client_flush(s->client);
    }
    return 0;
}

static int ps_step_sent(struct strategy *s, struct errbuf *err)
{
    struct ps *ps = s->own;
    (void)err;
    if (s->job->parallel.update == JOB_UPDATE_EAGER || ps->owned) {
        return 0;
    }
    for (int layer = 0; layer < s->table->layer_count; layer++) {
        pull_layer(s, layer, (uint64_t)s->step, 0, 0);
    }
    client_flush(s->client);
    return 0;
}

static void update_everything(struct ps *ps, const struct strategy *s, const Shoal__Verdict *verdict)
{
    struct owned_step step = {.lr = verdict->lr, .t = (int64_t)verdict->t, .grad_scale = verdict->grad_scale};
    int count = 0;
    owned_pieces(ps->owned, &count);
    if (ps->norms) {
        owned_prepare(ps->owned, &step, ps->norms);
        trust_ratios(s->map, ps->norms, ps->ratios);
        step.ratios = ps->ratios;
    }
    owned_update(ps->owned, 0, count, &step);
}

/* The sums come into the gradients' own memory, once ZeroMQ has let go of it. */
static int update_here(struct strategy *s, const Shoal__Verdict *verdict, struct errbuf *err)
{
    int status = 0;
    for (int layer = 0; layer < s->table->layer_count; layer++) {
        pull_layer(s, layer, (uint64_t)s->step, 0, 1);
    }
    client_flush(s->client);
    for (int layer = 0; layer < s->table->layer_count && status == 0; layer++) {
        status = client_wait_layer(s->client, layer, err);
    }
    if (status == 0 && verdict->decision == SHOAL__DECISION__APPLY) {
        update_everything(s->own, s, verdict);
    }
    return status;
}

static int ps_step_finish(struct strategy *s, const Shoal__Verdict *verdict, struct errbuf *err)
{
    struct ps *ps = s->own;
    if (verdict->decision == SHOAL__DECISION__ABORT) {
        int status = client_wait_pushes(s->client, err);
        for (int layer = s->table->layer_count - 1; layer >= 0 && status == 0; layer--) {
            if (s->g[layer]) {
                push_layer(s, layer, CLIENT_PUSH, ps->weight);
            }
        }
        client_flush(s->client);
        return status;
    }
    s->steps_done++;
    int status = client_wait_pushes(s->client, err);
    return status == 0 && ps->owned ? update_here(s, verdict, err) : status;
}

static int ps_settle(struct strategy *s, struct errbuf *err)
{
    int status = 0;
    for (int layer = 0; layer < s->table->layer_count && status == 0; layer++) {
        status = client_wait_layer(s->client, layer, err);
    }
    return status;
}

static int ps_save(struct strategy *s, const char *path, char sha256[65], uint64_t *bytes, struct errbuf *err)
{
    const struct ps *ps = s->own;
    struct owned_file file = {.path = path, .clock = (uint64_t)s->step};
    float **w = layer_values(s);
    struct owned_values values = {.w = w};
    int status = w ? owned_save(ps->owned, &values, &file, err) : errbuf_set(err, STATUS_NOMEM, "%s: out of memory", path);
    memcpy(sha256, file.sha256, sizeof(file.sha256));
    *bytes = file.bytes;
    free(w);
    return status;
}

static void ps_books(const struct strategy *s, struct strategy_books *books)
{
    const struct ps *ps = s->own;
    int64_t bytes = s->table->count * (int64_t)sizeof(float);
    int64_t trained = param_table_trainable(s->table) * (int64_t)sizeof(float);
    int resumed_here = ps->owned && s->snapshot_paths_count > 0;
    *books = (struct strategy_books){.parameters = bytes, .sent = {.push = s->steps_done * trained},
                                     .received = {.pull = s->steps_done * trained + (resumed_here ? 0 : bytes)},
                                     .init = s->rank == 0 && s->first_step == 1 ? bytes : 0};
    for (int layer = 0; layer < s->table->layer_count; layer++) {
        if (bucket_layer_trainable(s->table, layer)) {
            books->gradients += s->table->layers[layer].count * (int64_t)sizeof(float);
        }
    }
    books->optimizer = ps->owned ? owned_slots(ps->owned) * trained : 0;
}

static void ps_close(struct strategy *s)
{
    struct ps *ps = s->own;
    if (!ps) {
        return;
    }
    owned_destroy(ps->owned);
    free(ps->norms);
    free(ps->ratios);
    for (int layer = 0; s->g && layer < s->table->layer_count; layer++) {
        account_free(s->account, ACCOUNT_GRADIENTS, s->g[layer],
                     s->g[layer] ? (size_t)s->table->layers[layer].count * sizeof(float) : 0);
    }
    account_free(s->account, ACCOUNT_PARAMETERS, ps->flat, ps->flat ? (size_t)s->table->count * sizeof(float) : 0);
    free(s->w);
    free(s->g);
    free(ps);
}

const struct strategy_ops strategy_ps = {
    .name = "ps",
    .help = "servers own parameters and optimizer state",
    .start = ps_start,
    .step_begin = ps_step_begin,
    .layer_acquire = ps_layer_acquire,
    .layer_release = ps_layer_release,
    .grads_ready = ps_grads_ready,
    .step_sent = ps_step_sent,
    .step_finish = ps_step_finish,
    .settle = ps_settle,
    .save = ps_save,
    .books = ps_books,
    .close = ps_close,
};
