#include <stdio.h>

#include "base/clock.h"
#include "base/pool.h"
#include "base/status.h"
#include "worker/client/client_internal.h"

/* Shared memory for what is under way, each direction, a worker and a server; and what a message of small ranges needs more. */
enum { SHARED_BYTES = 8 << 20, GATHERED_BYTES = 256 << 10, CLIENT_TEXT = 320, SPIN_NS = 50000 };

static void set_greeted(struct client_server *server)
{
    struct client *client = server->client;
    pthread_mutex_lock(&client->lock);
    client->shared += net_link_is_shared(server->link);
    /* Who waits looks around first, when every worker and server here has a processor of its own. */
    int crowd = client->peers.neighbours + client->shared;
    client->spin_ns = client->shared > 0 && crowd <= pool_available_cores() ? SPIN_NS : 0;
    client->greeted += !server->greeted;
    server->greeted = 1;
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->lock);
}

static void on_shared(void *context, int status, const char *why)
{
    struct client_server *server = context;
    struct client *client = server->client;
    int s = (int)(server - client->servers);
    if (status != 0 && client->peers.transport == CLIENT_SHM) {
        char text[CLIENT_TEXT];
        snprintf(text, sizeof(text), "parallel.transport shm: no memory can be shared with server %d at %.100s: %.150s", s,
                 client->peers.addresses[s], why);
        client_fail(client, status, text);
        return;
    }
    set_greeted(server);
}

/* Room for what may be unanswered: a message at least, never more than the server's keys, or a few messages, since what is
 * used again soon stays in the caches. The rest waits. */
static void share_memory(struct client_server *server)
{
    struct client *client = server->client;
    int s = (int)(server - client->servers);
    uint64_t whole = 0, largest = 0;
    for (int r = 0; r < client->map->ranges_count; r++) {
        uint64_t bytes = client->map->ranges[r].server == s ? exchange_range_bytes(client, r) : 0;
        largest = bytes > largest ? bytes : largest;
        whole += bytes + 256; /* its envelope, and a cache line's rest */
    }
    uint64_t room = whole < SHARED_BYTES ? whole : SHARED_BYTES;
    room = room < largest ? largest : room;
    struct net_share share = {.request_bytes = (room < server->credit ? room : server->credit) + largest + GATHERED_BYTES,
                              .reply_bytes = room + GATHERED_BYTES, .account = client->options.account, .done = on_shared,
                              .context = server};
    net_link_share(server->link, &share);
}

static void on_welcome(void *context, int status, struct message *reply)
{
    struct client_server *server = context;
    struct client *client = server->client;
    if (status == STATUS_CLOSED || status == STATUS_ABORTED) { /* aborted: END comes from the coordinator */
        return;
    }
    if (status != 0) {
        exchange_fail(client, status, reply);
        return;
    }
    server->credit = reply->envelope->credit;
    if (client->peers.transport == CLIENT_TCP) {
        set_greeted(server);
    } else {
        share_memory(server);
    }
}

static void on_link(void *context, int connected)
{
    struct client_server *server = context;
    server->gone_ns = connected ? 0 : clock_now_ns();
}

void exchange_look_for_gone(struct client *client)
{
    char text[CLIENT_TEXT];
    pthread_mutex_lock(&client->lock);
    double limit_s = client->server_dead_s;
    int failed = client->status != 0;
    pthread_mutex_unlock(&client->lock);
    for (int s = 0; s < client->servers_count && !failed; s++) {
        int64_t gone_ns = client->servers[s].gone_ns;
        double seconds = gone_ns ? (double)(clock_now_ns() - gone_ns) / 1e9 : 0;
        if (seconds > limit_s) {
            snprintf(text, sizeof(text), "server %d at %.200s cannot be reached for %.0f s", s, client->peers.addresses[s],
                     seconds);
            client_fail(client, STATUS_TIMEOUT, text);
            failed = 1;
        }
    }
}

void exchange_open_links(struct client *client)
{
    struct errbuf err;
    errbuf_init(&err);
    for (int s = 0; s < client->servers_count; s++) {
        struct client_server *server = &client->servers[s];
        struct net_curve curve = client->curve;
        server->gone_ns = clock_now_ns();
        if (client->has_curve && client->peers.keys) {
            snprintf(curve.server_key, sizeof(curve.server_key), "%s", client->peers.keys[s]);
        }
        int status = net_link_open(&server->link, client->net, client->peers.addresses[s],
                                   client->has_curve ? &curve : NULL, on_link, server, &err);
        if (status != 0) {
            client_fail(client, status, err.text);
            return;
        }
        Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
        envelope.type = SHOAL__TYPE__HELLO;
        struct net_call call = {.envelope = &envelope, .resend_ms = 3000, .reply = on_welcome, .context = server};
        net_request(server->link, &call);
    }
}

void exchange_close_links(struct client *client)
{
    for (int s = 0; client->servers && s < client->servers_count; s++) {
        net_link_close(client->servers[s].link);
        client->servers[s].link = NULL;
    }
}
