#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/account.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/trace.h"
#include "worker/client/client_internal.h"

/* Ranges up to SMALL_BYTES travel several in one message of at most GATHER_BYTES; larger ones alone and without a copy. */
enum { SMALL_BYTES = 16 << 10, GATHER_BYTES = 256 << 10, RESEND_MS = 10000 };

/* The ranges of one PUSH or PULL under way. */
struct exchange_message {
    struct client_server *server;
    uint64_t bytes;
    int count;
    int ranges[];
};

uint64_t exchange_range_bytes(const struct client *client, int range)
{
    return (uint64_t)keymap_range_elements(&client->map->ranges[range]) * sizeof(float);
}

/* --- queues ---------------------------------------------------------------------------------------------- */

static int *next_of(struct client *client, const struct client_queue *queue, int range)
{
    struct client_range *r = &client->ranges[range];
    return queue->of_pulls ? &r->next_pull : &r->next_push;
}

static void queue_put(struct client *client, struct client_queue *queue, int range)
{
    *next_of(client, queue, range) = -1;
    if (queue->head < 0) {
        queue->head = range;
    } else {
        *next_of(client, queue, queue->tail) = range;
    }
    queue->tail = range;
}

static int queue_take(struct client *client, struct client_queue *queue)
{
    int range = queue->head;
    queue->head = *next_of(client, queue, range);
    return range;
}

/* Moves what the caller added behind what waits. */
static void queue_append(struct client *client, struct client_queue *to, struct client_queue *from)
{
    while (from->head >= 0) {
        queue_put(client, to, queue_take(client, from));
    }
}

/* How many ranges from the head go into one message. */
static int gather_count(struct client *client, struct client_queue *queue, uint64_t *bytes)
{
    int range = queue->head;
    int count = 1;
    *bytes = exchange_range_bytes(client, range);
    if (*bytes > SMALL_BYTES) {
        return 1;
    }
    int last = range;
    for (int next = *next_of(client, queue, range); next >= 0; next = *next_of(client, queue, next)) {
        uint64_t more = exchange_range_bytes(client, next);
        const struct client_range *a = &client->ranges[last];
        const struct client_range *b = &client->ranges[next];
        int alike = queue->of_pulls ? a->pull_clock == b->pull_clock
                                    : a->push_clock == b->push_clock && a->kind == b->kind && a->weight == b->weight;
        if (more > SMALL_BYTES || *bytes + more > GATHER_BYTES || !alike || next < last) {
            break;
        }
        *bytes += more;
        count++;
        last = next;
    }
    return count;
}

/* --- pushes ---------------------------------------------------------------------------------------------- */

static void release_shared(struct buf *buf, void *context)
{
    (void)buf;
    struct client_range *range = context;
    struct client *client = range->client;
    pthread_mutex_lock(&client->lock);
    client->layer_pushes[range->range->layer]--;
    if (--client->memory_shared == 0 || client->layer_waiters > 0) {
        pthread_cond_broadcast(&client->changed);
    }
    pthread_mutex_unlock(&client->lock);
}

static struct buf *push_payload(struct client *client, const struct exchange_message *message)
{
    if (message->count == 1 && message->bytes > SMALL_BYTES) {
        struct client_range *range = &client->ranges[message->ranges[0]];
        pthread_mutex_lock(&client->lock);
        client->memory_shared++;
        client->layer_pushes[range->range->layer]++;
        pthread_mutex_unlock(&client->lock);
        struct buf *shared = buf_wrap((void *)range->push_data, message->bytes, release_shared, range);
        if (!shared) {
            release_shared(NULL, range);
        }
        return shared;
    }
    struct buf *buf = buf_create(message->bytes);
    char *at = buf ? buf->data : NULL;
    for (int i = 0; buf && i < message->count; i++) {
        size_t bytes = exchange_range_bytes(client, message->ranges[i]);
        memcpy(at, client->ranges[message->ranges[i]].push_data, bytes);
        at += bytes;
    }
    return buf;
}

void exchange_fail(struct client *client, int status, const struct message *reply)
{
    const char *text = reply && reply->envelope && reply->envelope->text ? reply->envelope->text : "";
    client_fail(client, status, text[0] ? text : status_text(status));
}

static void on_pushed(void *context, int status, struct message *reply)
{
    struct exchange_message *message = context;
    struct client_server *server = message->server;
    struct client *client = server->client;
    server->in_flight -= message->bytes;
    /* STATUS_ABORTED: the step was taken back; the strategy pushes again when it hears the verdict. */
    if (status != 0 && status != STATUS_CLOSED && status != STATUS_ABORTED) {
        exchange_fail(client, status, reply);
    }
    const struct client_range *first = &client->ranges[message->ranges[0]];
    trace_add(client->trace, TRACE_PUSH, 1, "push", (int64_t)first->push_clock, first->range->layer, first->push_ns,
              clock_now_ns());
    pthread_mutex_lock(&client->lock);
    client->pushes -= message->count;
    for (int i = 0; i < message->count; i++) {
        client->layer_pushes[client->ranges[message->ranges[i]].range->layer]--;
    }
    if (client->pushes == 0 || client->layer_waiters > 0) {
        pthread_cond_broadcast(&client->changed);
    }
    pthread_mutex_unlock(&client->lock);
    free(message);
    if (status == 0) {
        exchange_turn(client);
    }
}

static struct exchange_message *message_take(struct client_server *server, struct client_queue *queue, int count,
                                             uint64_t bytes)
{
    struct exchange_message *message = calloc(1, sizeof(*message) + (size_t)count * sizeof(int));
    if (!message) {
        client_fail(server->client, STATUS_NOMEM, "out of memory for a message");
        return NULL;
    }
    message->server = server;
    message->bytes = bytes;
    message->count = count;
    for (int i = 0; i < count; i++) {
        message->ranges[i] = queue_take(server->client, queue);
    }
    return message;
}

/* Names the ranges: one by its keys, several by their first keys (ids: room for message->count). */
static void fill_selector(const struct client *client, const struct exchange_message *message,
                          Shoal__Selector *selector, uint64_t *ids)
{
    const struct keymap_range *first = &client->map->ranges[message->ranges[0]];
    if (message->count == 1) {
        selector->begin = (uint64_t)first->key_first;
        selector->end = (uint64_t)first->key_end;
        return;
    }
    for (int i = 0; i < message->count; i++) {
        ids[i] = (uint64_t)client->map->ranges[message->ranges[i]].key_first;
    }
    selector->n_ids = (size_t)message->count;
    selector->ids = ids;
}

static void send_push(struct client_server *server, struct exchange_message *message)
{
    struct client *client = server->client;
    const struct client_range *first = &client->ranges[message->ranges[0]];
    uint64_t ids[message->count];
    Shoal__Selector selector = SHOAL__SELECTOR__INIT;
    fill_selector(client, message, &selector, ids);
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    envelope.type = first->kind == CLIENT_INIT ? SHOAL__TYPE__INIT : SHOAL__TYPE__PUSH;
    envelope.clock = first->push_clock;
    envelope.weight = first->weight;
    envelope.dtype = SHOAL__DTYPE__F32;
    envelope.selector = &selector;
    struct buf *payload = push_payload(client, message);
    struct net_call call = {.envelope = &envelope, .frames = &payload, .frames_count = 1, .resend_ms = RESEND_MS,
                            .reply = on_pushed, .context = message};
    server->in_flight += message->bytes;
    pthread_mutex_lock(&client->lock);
    *(first->kind == CLIENT_INIT ? &client->bytes.init : &client->bytes.push) += (int64_t)message->bytes;
    pthread_mutex_unlock(&client->lock);
    if (!payload || net_request(server->link, &call) == 0) {
        client_fail(client, STATUS_NOMEM, "out of memory for a push");
        free(message);
    }
    buf_release(payload);
}

static void send_pushes(struct client_server *server)
{
    while (server->pushes.head >= 0) {
        uint64_t bytes = 0;
        int count = gather_count(server->client, &server->pushes, &bytes);
        if (server->in_flight > 0 && server->in_flight + bytes > server->credit) {
            return;
        }
        struct exchange_message *message = message_take(server, &server->pushes, count, bytes);
        if (!message) {
            return;
        }
        send_push(server, message);
    }
}

/* --- pulls ----------------------------------------------------------------------------------------------- */

static void values_in(struct client *client, const struct exchange_message *message, const struct message *reply)
{
    const char *at = reply->frames[0]->data;
    for (int i = 0; i < message->count; i++) {
        struct client_range *range = &client->ranges[message->ranges[i]];
        size_t bytes = exchange_range_bytes(client, message->ranges[i]);
        memcpy(range->pull_out, at, bytes);
        at += bytes;
    }
    int64_t now = clock_now_ns();
    const struct client_range *first = &client->ranges[message->ranges[0]];
    trace_add(client->trace, TRACE_PULL, 1, "pull", (int64_t)first->pull_clock + 1, first->range->layer, first->pull_ns,
              now);
    pthread_mutex_lock(&client->lock);
    client->bytes.pull += (int64_t)message->bytes;
    for (int i = 0; i < message->count; i++) {
        struct client_range *range = &client->ranges[message->ranges[i]];
        client->layer_pulls[range->range->layer]--;
    }
    client->pulls -= message->count;
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->lock);
}

static void on_pulled(void *context, int status, struct message *reply)
{
    struct exchange_message *message = context;
    struct client *client = message->server->client;
    if (status == 0 && (reply->frames_count != 1 || reply->frames[0]->bytes != message->bytes)) {
        client_fail(client, STATUS_SHAPE, "values of another length than the range");
    } else if (status == 0) {
        values_in(client, message, reply);
    } else if (status != STATUS_CLOSED && status != STATUS_ABORTED) {
        /* STATUS_ABORTED: the server has heard END first; the coordinator's own, which says why, ends the wait. */
        exchange_fail(client, status, reply);
    }
    free(message);
}

static void send_pulls(struct client_server *server)
{
    struct client *client = server->client;
    while (server->pulls.head >= 0) {
        uint64_t bytes = 0;
        int count = gather_count(client, &server->pulls, &bytes);
        struct exchange_message *message = message_take(server, &server->pulls, count, bytes);
        if (!message) {
            return;
        }
        uint64_t ids[count];
        Shoal__Selector selector = SHOAL__SELECTOR__INIT;
        fill_selector(client, message, &selector, ids);
        Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
        envelope.type = SHOAL__TYPE__PULL;
        envelope.dtype = SHOAL__DTYPE__F32;
        envelope.clock = client->ranges[message->ranges[0]].pull_clock;
        envelope.selector = &selector;
        struct net_call call = {.envelope = &envelope, .resend_ms = RESEND_MS, .reply = on_pulled, .context = message};
        if (net_request(server->link, &call) == 0) {
            client_fail(client, STATUS_NOMEM, "out of memory for a pull");
            free(message);
        }
    }
}

/* --- attaching ---------------------------------------------------------------------------------------- */

/* Follows attach_wanted; the caller of attach and detach waits for `attached` to become the same. */
static void follow_attachment(struct client *client)
{
    pthread_mutex_lock(&client->lock);
    int wanted = client->attach_wanted;
    int is = client->attached;
    pthread_mutex_unlock(&client->lock);
    if (wanted == is) {
        return;
    }
    if (wanted) {
        exchange_open_links(client);
    } else {
        exchange_close_links(client);
    }
    pthread_mutex_lock(&client->lock);
    client->attached = wanted;
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->lock);
}

void exchange_turn(struct client *client)
{
    follow_attachment(client);
    if (!client->attached || client->leaving) {
        return;
    }
    exchange_look_for_gone(client);
    pthread_mutex_lock(&client->lock);
    for (int s = 0; s < client->servers_count; s++) {
        queue_append(client, &client->servers[s].pushes, &client->new_pushes[s]);
        queue_append(client, &client->servers[s].pulls, &client->new_pulls[s]);
    }
    pthread_mutex_unlock(&client->lock);
    for (int s = 0; s < client->servers_count; s++) {
        if (client->servers[s].greeted) {
            send_pulls(&client->servers[s]); /* first: they are small, and their answers come while pushes leave */
            send_pushes(&client->servers[s]);
        }
    }
}

/* --- the caller's side ------------------------------------------------------------------------------------ */

static int wait_for(struct client *client, const int *value, int wanted, struct errbuf *err)
{
    pthread_mutex_lock(&client->lock);
    struct client_waiting waiting;
    client_wait_begin(client, &waiting);
    while (*value != wanted && client->status == 0 && !client->loop_over) {
        client_wait_step(client, &waiting);
    }
    client_wait_end(client, &waiting);
    int status = 0;
    if (*value != wanted) {
        status = errbuf_set(err, client->status ? client->status : STATUS_CLOSED, "%s",
                            client->status ? client->why.text : "the client is closed");
    }
    pthread_mutex_unlock(&client->lock);
    return status;
}

static void free_exchange(struct client *client)
{
    free(client->ranges);
    free(client->servers);
    free(client->new_pushes);
    free(client->new_pulls);
    free(client->layer_pulls);
    free(client->layer_pushes);
    client->ranges = NULL;
    client->servers = NULL;
    client->new_pushes = NULL;
    client->new_pulls = NULL;
    client->layer_pulls = NULL;
    client->layer_pushes = NULL;
    client->servers_count = 0;
    client->map = NULL;
}

static int allocate_exchange(struct client *client, const struct keymap *map, int servers)
{
    client->ranges = calloc((size_t)map->ranges_count + 1, sizeof(*client->ranges));
    client->servers = calloc((size_t)servers + 1, sizeof(*client->servers));
    client->new_pushes = calloc((size_t)servers + 1, sizeof(*client->new_pushes));
    client->new_pulls = calloc((size_t)servers + 1, sizeof(*client->new_pulls));
    client->layer_pulls = calloc((size_t)map->table->layer_count + 1, sizeof(int));
    client->layer_pushes = calloc((size_t)map->table->layer_count + 1, sizeof(int));
    if (!client->ranges || !client->servers || !client->new_pushes || !client->new_pulls || !client->layer_pulls ||
        !client->layer_pushes) {
        return STATUS_NOMEM;
    }
    for (int r = 0; r < map->ranges_count; r++) {
        client->ranges[r].client = client;
        client->ranges[r].range = &map->ranges[r];
    }
    static const struct client_queue no_pushes = {-1, -1, 0};
    static const struct client_queue no_pulls = {-1, -1, 1};
    for (int s = 0; s < servers; s++) {
        client->servers[s] = (struct client_server){.client = client, .pushes = no_pushes, .pulls = no_pulls};
        client->new_pushes[s] = no_pushes;
        client->new_pulls[s] = no_pulls;
    }
    return 0;
}

int client_attach(struct client *client, const struct keymap *map, const struct client_peers *peers,
                  struct errbuf *err)
{
    pthread_mutex_lock(&client->lock);
    int status = allocate_exchange(client, map, peers->count);
    if (status != 0) {
        free_exchange(client);
        pthread_mutex_unlock(&client->lock);
        return errbuf_set(err, status, "client: out of memory for %d ranges", map->ranges_count);
    }
    client->map = map;
    client->peers = *peers;
    client->servers_count = peers->count;
    client->greeted = client->shared = 0;
    client->pushes = client->pulls = 0;
    memset(&client->bytes, 0, sizeof(client->bytes));
    client->attach_wanted = 1;
    pthread_mutex_unlock(&client->lock);
    return wait_for(client, &client->greeted, peers->count, err);
}

void client_detach(struct client *client)
{
    pthread_mutex_lock(&client->lock);
    client->attach_wanted = 0;
    client_wake(client);
    while ((client->attached || client->memory_shared > 0) && !client->loop_over) {
        pthread_cond_wait(&client->changed, &client->lock);
    }
    free_exchange(client);
    pthread_mutex_unlock(&client->lock);
}

void client_push(struct client *client, enum client_push_kind kind, int range, const float *data, double weight,
                 uint64_t clock)
{
    struct client_range *r = &client->ranges[range];
    r->kind = kind;
    r->push_data = data;
    r->weight = weight;
    r->push_clock = clock;
    r->push_ns = clock_now_ns();
    pthread_mutex_lock(&client->lock);
    client->pushes++;
    client->layer_pushes[r->range->layer]++;
    queue_put(client, &client->new_pushes[r->range->server], range);
    pthread_mutex_unlock(&client->lock);
}

void client_pull(struct client *client, int range, uint64_t clock, float *out)
{
    struct client_range *r = &client->ranges[range];
    r->pull_out = out;
    r->pull_clock = clock;
    r->pull_ns = clock_now_ns();
    pthread_mutex_lock(&client->lock);
    client->layer_pulls[r->range->layer]++;
    client->pulls++;
    queue_put(client, &client->new_pulls[r->range->server], range);
    pthread_mutex_unlock(&client->lock);
}

void client_flush(struct client *client)
{
    pthread_mutex_lock(&client->lock);
    client_wake_once(client);
    pthread_mutex_unlock(&client->lock);
}

int client_wait_layer(struct client *client, int layer, struct errbuf *err)
{
    return wait_for(client, &client->layer_pulls[layer], 0, err);
}

int client_wait_layer_pushes(struct client *client, int layer, struct errbuf *err)
{
    pthread_mutex_lock(&client->lock);
    client->layer_waiters++;
    pthread_mutex_unlock(&client->lock);
    int status = wait_for(client, &client->layer_pushes[layer], 0, err);
    pthread_mutex_lock(&client->lock);
    client->layer_waiters--;
    pthread_mutex_unlock(&client->lock);
    return status;
}

int client_wait_pushes(struct client *client, struct errbuf *err)
{
    int status = wait_for(client, &client->pushes, 0, err);
    return status == 0 ? wait_for(client, &client->memory_shared, 0, err) : status;
}

void client_bytes(struct client *client, struct client_bytes *bytes)
{
    pthread_mutex_lock(&client->lock);
    *bytes = client->bytes;
    pthread_mutex_unlock(&client->lock);
}
