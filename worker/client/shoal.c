#include "worker/client/shoal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "base/host.h"
#include "base/status.h"
#include "config/job.h"
#include "net/table_wire.h"
#include "worker/client/shoal_internal.h"

static const double START_S = 120;

_Static_assert((int)SHOAL_NOMEM == STATUS_NOMEM && (int)SHOAL_INVALID == STATUS_INVALID &&
                   (int)SHOAL_SHAPE == STATUS_SHAPE && (int)SHOAL_UNKNOWN == STATUS_UNKNOWN &&
                   (int)SHOAL_EXISTS == STATUS_EXISTS && (int)SHOAL_CLOSED == STATUS_CLOSED &&
                   (int)SHOAL_BUSY == STATUS_BUSY && (int)SHOAL_RANGE == STATUS_RANGE &&
                   (int)SHOAL_ABORTED == STATUS_ABORTED && (int)SHOAL_STOPPED == STATUS_STOPPED &&
                   (int)SHOAL_ROLLED_BACK == STATUS_ROLLED_BACK,
               "the public statuses are the inner ones");
_Static_assert((int)SHOAL_DIMS_MAX == PARAM_DIMS_MAX && (int)SHOAL_NAME_MAX == PARAM_NAME_MAX, "limits of a table");

/* --- entering and leaving ------------------------------------------------------------------------------- */

void shoal_lock(struct shoal_client *c)
{
    pthread_mutex_lock(&c->lock);
}

void shoal_unlock(struct shoal_client *c)
{
    pthread_mutex_unlock(&c->lock);
}

int shoal_refuse(struct shoal_client *c, int status, const char *format, ...)
{
    char text[sizeof(c->last.text)];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    c->last_status = status;
    return errbuf_set(&c->last, status, "%s", text);
}

int shoal_fail(struct shoal_client *c, int status, const struct errbuf *err)
{
    if (c->closing) {
        return shoal_refuse(c, SHOAL_CLOSED, "the client was closed");
    }
    if (c->status == 0) {
        c->status = status;
        errbuf_set(&c->why, status, "%s", err->text);
    }
    pthread_cond_broadcast(&c->changed);
    return shoal_refuse(c, c->status, "%s", c->why.text);
}

int shoal_enter(struct shoal_client *c)
{
    shoal_lock(c);
    int status = 0;
    if (c->closing) {
        status = shoal_refuse(c, SHOAL_CLOSED, "the client was closed");
    } else if (c->status != 0) {
        status = shoal_refuse(c, c->status, "%s", c->why.text);
    }
    if (status != 0) {
        shoal_unlock(c);
        return status;
    }
    c->inside++;
    return 0;
}

int shoal_leave(struct shoal_client *c, int status)
{
    c->inside--;
    if (c->closing) {
        pthread_cond_broadcast(&c->changed);
    }
    shoal_unlock(c);
    return status;
}

int shoal_sleep(struct shoal_client *c)
{
    pthread_cond_wait(&c->changed, &c->lock);
    if (c->closing) {
        return shoal_refuse(c, SHOAL_CLOSED, "the client was closed");
    }
    return c->status != 0 ? shoal_refuse(c, c->status, "%s", c->why.text) : 0;
}

int shoal_error(struct shoal_client *c, char *text, size_t text_bytes)
{
    shoal_lock(c);
    int status = c->last_status;
    if (text && text_bytes > 0) {
        snprintf(text, text_bytes, "%s", c->last.text);
    }
    shoal_unlock(c);
    return status;
}

const char *shoal_status_text(int status)
{
    return status_text(status);
}

/* --- connecting ----------------------------------------------------------------------------------------- */

static void free_client(struct shoal_client *c)
{
    for (int k = 0; c->keys && k < c->table.tensor_count; k++) {
        free(c->keys[k].copy);
    }
    for (int s = 0; s < c->slots_count; s++) {
        free(c->slots[s].many);
    }
    message_close(&c->start);
    keymap_close(&c->map);
    param_table_close(&c->table);
    if (c->host.zmq) {
        zmq_ctx_term(c->host.zmq);
    }
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->changed);
    free(c->slots);
    free(c->keys);
    free(c->zeros);
    free(c->cluster);
    free(c->keys_dir);
    free(c->key_name);
    free(c->yaml);
    free(c);
}

static struct shoal_client *new_client(const struct shoal_options *options)
{
    struct shoal_client *c = calloc(1, sizeof(*c));
    if (!c) {
        return NULL;
    }
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    errbuf_init(&c->why);
    errbuf_init(&c->last);
    account_init(&c->account);
    param_table_init(&c->table);
    c->free_slot = -1;
    c->copy = options->copy;
    c->tag = (uint32_t)(host_incarnation() >> 16 & 0xffff);
    c->cluster = strdup(options->cluster);
    c->keys_dir = strdup(options->keys_dir ? options->keys_dir : "");
    c->key_name = strdup(options->key_name ? options->key_name : "worker");
    c->host.zmq = zmq_ctx_new();
    log_init(&c->host.log, "client");
    if (!options->log) {
        c->host.log.level = (enum log_level)0;
    }
    c->host.keys_dir = c->keys_dir;
    c->host.key_name = c->key_name;
    if (!c->cluster || !c->keys_dir || !c->key_name || !c->host.zmq) {
        free_client(c);
        return NULL;
    }
    return c;
}

static int connect_client(struct shoal_client **out, const struct shoal_options *options, struct errbuf *err)
{
    if (!out || !options || !options->cluster || options->rank < SHOAL_ANY_RANK || !(options->timeout_s >= 0)) {
        return errbuf_set(err, SHOAL_INVALID, "shoal_connect: client, options and options.cluster must be given, rank >= "
                                              "-1, timeout_s >= 0");
    }
    struct shoal_client *c = new_client(options);
    if (!c) {
        return errbuf_set(err, SHOAL_NOMEM, "out of memory");
    }
    struct client_options inner = {.host = &c->host, .cluster = c->cluster, .core_type = "", .rank = options->rank,
                                   .start_s = options->timeout_s > 0 ? options->timeout_s : START_S,
                                   .account = &c->account};
    int status = client_open(&c->client, &inner, err);
    if (status != 0) {
        free_client(c);
        return status;
    }
    *out = c;
    return 0;
}

int shoal_connect(struct shoal_client **client, const struct shoal_options *options, char *error, size_t error_bytes)
{
    struct errbuf err;
    errbuf_init(&err);
    int status = connect_client(client, options, &err);
    if (error && error_bytes > 0) {
        snprintf(error, error_bytes, "%s", status == 0 ? "" : err.text);
    }
    return status;
}

void shoal_close(struct shoal_client *c)
{
    if (!c) {
        return;
    }
    shoal_lock(c);
    c->closing = 1;
    pthread_cond_broadcast(&c->changed);
    client_cancel(c->client);
    while (c->inside > 0) {
        pthread_cond_wait(&c->changed, &c->lock);
    }
    /* What went wrong here is the reason the others hear; what came from there they know. */
    int known = c->status == 0 || c->status == STATUS_ABORTED || c->status == STATUS_STOPPED ||
                c->status == STATUS_TIMEOUT;
    int status = known ? 0 : c->status;
    shoal_unlock(c);
    client_close(c->client, status, status != 0 ? c->why.text : "");
    free_client(c);
}

int shoal_rank(struct shoal_client *c)
{
    return client_rank(c->client);
}

int64_t shoal_step(struct shoal_client *c)
{
    shoal_lock(c);
    int64_t step = (int64_t)c->step;
    shoal_unlock(c);
    return step;
}

/* --- registration --------------------------------------------------------------------------------------- */

int shoal_register(struct shoal_client *c, const char *name, int dims, const int64_t *shape)
{
    int status = shoal_enter(c);
    if (status != 0) {
        return status;
    }
    if (!name || dims < 0 || (dims > 0 && !shape)) {
        return shoal_leave(c, shoal_refuse(c, SHOAL_INVALID, "a key needs a name and a shape"));
    }
    if (c->phase == SHOAL_STARTED || (c->moving && c->phase == SHOAL_KNOWN)) {
        return shoal_leave(c, shoal_refuse(c, SHOAL_INVALID, "key %s: registration is over", name));
    }
    if (c->table.tensor_count == SHOAL_KEYS_MAX) {
        return shoal_leave(c, shoal_refuse(c, SHOAL_RANGE, "key %s: more than %d keys", name, SHOAL_KEYS_MAX));
    }
    struct errbuf err;
    errbuf_init(&err);
    status = param_table_find(&c->table, name) >= 0
                 ? errbuf_set(&err, SHOAL_EXISTS, "key %s is registered already", name)
                 : 0;
    /* Every key is a layer of its own. A layer that an earlier refusal left empty is taken. */
    if (status == 0 && c->table.layer_count == c->table.tensor_count) {
        status = param_table_add_layer(&c->table);
    }
    if (status >= 0) {
        status = param_table_add(&c->table, name, dims, shape, &err);
    }
    if (status < 0) {
        shoal_refuse(c, status, "%s", err.text[0] ? err.text : status_text(status));
    }
    return shoal_leave(c, status);
}

int64_t shoal_count(struct shoal_client *c, int key)
{
    shoal_lock(c);
    int known = key >= 0 && key < c->table.tensor_count;
    int64_t count = known ? c->table.tensors[key].count : shoal_refuse(c, SHOAL_UNKNOWN, "no key %d", key);
    shoal_unlock(c);
    return count;
}

int shoal_wait_event(struct client *client, Shoal__Type type, struct message *event, struct errbuf *err)
{
    for (;;) {
        int status = client_next_event(client, 0, event, err);
        if (status != 0) {
            return status;
        }
        const Shoal__Envelope *e = event->envelope;
        if (e->type == type) {
            return 0;
        }
        if (e->type == SHOAL__TYPE__END) {
            status = errbuf_set(err, e->status == STATUS_STOPPED ? STATUS_STOPPED : STATUS_ABORTED, "%s",
                                e->text[0] ? e->text : "the job is over");
        }
        message_close(event);
        if (status != 0) {
            return status;
        }
    }
}

static int check_job(const struct job *job, struct errbuf *err)
{
    if (job->data.kind != JOB_DATA_NONE || job->model.kind != JOB_MODEL_NONE) {
        return errbuf_set(err, STATUS_INVALID, "job %s trains a model of its own: client programs need data.kind none and "
                                               "model.kind none", job->name);
    }
    if (job->parallel.update_at != JOB_UPDATE_AT_SERVER) {
        return errbuf_set(err, STATUS_INVALID, "job %s: client programs need parallel.update_at server", job->name);
    }
    return 0;
}

static int mark_tensors(struct param_table *table, const struct job *job, struct errbuf *err)
{
    int status = param_table_freeze(table, job->optimizer.freeze.items, job->optimizer.freeze.count, err);
    if (status != 0) {
        return errbuf_prefix(err, status, "optimizer.freeze");
    }
    status = param_table_no_decay(table, job->optimizer.no_decay.items, job->optimizer.no_decay.count, err);
    return status == 0 ? 0 : errbuf_prefix(err, status, "optimizer.no_decay");
}

static int send_register(struct shoal_client *c, struct errbuf *err)
{
    Shoal__Register body = SHOAL__REGISTER__INIT;
    body.table = table_wire_pack(&c->table);
    if (!body.table) {
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    }
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    envelope.type = SHOAL__TYPE__REGISTER;
    envelope.body_case = SHOAL__ENVELOPE__BODY_REGISTER_;
    envelope.register_ = &body;
    int status = client_call(c->client, &envelope, NULL, 0, NULL, err);
    table_wire_free(body.table);
    return status;
}

static int make_keys(struct shoal_client *c)
{
    int64_t longest = 0;
    c->keys = calloc((size_t)c->table.tensor_count + 1, sizeof(*c->keys));
    for (int k = 0; c->keys && k < c->table.tensor_count; k++) {
        const struct param_tensor *tensor = &c->table.tensors[k];
        c->keys[k].count = tensor->count;
        c->keys[k].frozen = tensor->frozen;
        c->keys[k].initialised = tensor->count == 0;
        longest = tensor->count > longest ? tensor->count : longest;
    }
    c->zeros = calloc((size_t)longest + 1, sizeof(float));
    return c->keys && c->zeros ? 0 : STATUS_NOMEM;
}

static int take_start(struct shoal_client *c, const Shoal__Start *start, const struct job *job, struct errbuf *err)
{
    struct client_peers peers = {.addresses = start->servers, .count = (int)start->n_servers,
                                 .neighbours = c->neighbours,
                                 .transport = (enum client_transport)job->parallel.transport,
                                 .keys = start->n_server_keys == start->n_servers ? start->server_keys : NULL};
    if (make_keys(c) != 0) {
        return errbuf_set(err, STATUS_NOMEM, "out of memory for %d keys", c->table.tensor_count);
    }
    c->step = start->first_step - 1;
    c->resumed = start->snapshot_step > 0;
    c->values_given = c->resumed;
    /* Who owns what does not matter to a client: ranges are the same in every placement. */
    struct keymap_layout layout = {.ranks = c->world, .servers = peers.count, .message_bytes = job->parallel.message_bytes,
                                   .placement = CANONICAL_PART};
    int status = keymap_init(&c->map, &c->table, &layout, err);
    return status == 0 ? client_attach(c->client, &c->map, &peers, err) : status;
}

/* Without the lock; `moving` keeps everybody else away. */
static int start_job(struct shoal_client *c, const char *yaml, struct errbuf *err)
{
    struct job *job = NULL;
    struct job_source source = {.text = yaml, .text_name = "job"};
    int status = job_load(&job, &source, err);
    if (status != 0) {
        return status;
    }
    status = check_job(job, err);
    if (status == 0) {
        client_set_dead_after(c->client, job->cluster.timeouts.coordinator_dead, job->cluster.timeouts.server_dead);
        status = mark_tensors(&c->table, job, err);
    }
    if (status == 0) {
        status = send_register(c, err);
    }
    if (status == 0) {
        status = shoal_wait_event(c->client, SHOAL__TYPE__START, &c->start, err);
    }
    if (status == 0) {
        status = take_start(c, c->start.envelope->start, job, err);
    }
    job_destroy(job);
    return status;
}

static int learn_job(struct shoal_client *c, struct errbuf *err)
{
    struct message job = {0};
    int status = shoal_wait_event(c->client, SHOAL__TYPE__JOB, &job, err);
    if (status != 0) {
        return status;
    }
    const Shoal__JobBegin *begin = job.envelope->job_begin;
    c->world = (int)begin->workers;
    size_t mine = (size_t)client_rank(c->client);
    for (size_t r = 0; mine < begin->n_worker_hosts && r < begin->n_worker_hosts; r++) {
        c->neighbours += strcmp(begin->worker_hosts[r], begin->worker_hosts[mine]) == 0;
    }
    c->yaml = strdup(job.envelope->job_begin->yaml);
    message_close(&job);
    return c->yaml ? 0 : errbuf_set(err, STATUS_NOMEM, "out of memory");
}

/* Goes on to the next phase, or waits for the thread that does. */
static int move_on(struct shoal_client *c)
{
    if (c->moving) {
        return shoal_sleep(c);
    }
    struct errbuf err;
    errbuf_init(&err);
    enum shoal_phase from = c->phase;
    c->moving = 1;
    shoal_unlock(c);
    int status = from == SHOAL_JOINED ? learn_job(c, &err) : start_job(c, c->yaml, &err);
    shoal_lock(c);
    c->moving = 0;
    if (status == 0) {
        c->phase = from + 1;
    }
    pthread_cond_broadcast(&c->changed);
    return status == 0 ? 0 : shoal_fail(c, status, &err);
}

static int reach(struct shoal_client *c, enum shoal_phase phase)
{
    int status = 0;
    while (status == 0 && c->phase < phase) {
        status = move_on(c);
    }
    return status;
}

int shoal_started(struct shoal_client *c)
{
    return reach(c, SHOAL_STARTED);
}

int shoal_start(struct shoal_client *c)
{
    int status = shoal_enter(c);
    return status == 0 ? shoal_leave(c, shoal_started(c)) : status;
}

int shoal_world(struct shoal_client *c)
{
    int status = shoal_enter(c);
    if (status != 0) {
        return status;
    }
    status = reach(c, SHOAL_KNOWN);
    return shoal_leave(c, status == 0 ? c->world : status);
}
