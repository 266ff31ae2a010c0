/* Shoal's net against a bare DEALER/ROUTER of the same message sizes, in one run with interleaved rounds:
 *   round trip of a request with 4 KiB of payload, one in flight, at the median;
 *   requests with 64 bytes of payload a second, 256 in flight;
 *   push and pull of 16 MiB in messages of 1 MiB both ways, several in flight, in bytes a second both ways together.
 * The serving side is a thread of its own with its own loop; tcp over loopback. Prints both, and the ratio of medians
 * with the smallest and largest ratio of a round.    bench_net [rounds] */
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <uv.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/errbuf.h"
#include "net/net.h"

enum { SMALL = 4096, TRIPS = 2000, PIECE = 1 << 20, PIECES = 16, REPEATS = 20, WINDOW = 4, LIMIT_BYTES = 4 << 20,
       ENVELOPE = 96, ROUNDS_MAX = 64, TINY = 64, TINIES = 40000, TINY_WINDOW = 256 };

static int64_t times[TRIPS];

/* Of all threads of this process: what is left when others take the processors. */
static int64_t processor_ns(void)
{
    struct timespec spent;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
    return (int64_t)spent.tv_sec * 1000000000 + spent.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* --- bare ------------------------------------------------------------------------------------------- */

struct bare {
    void *context, *dealer;
    char endpoint[64];
    uint8_t *source;
    pthread_t thread;
};

static void no_free(void *data, void *hint)
{
    (void)data;
    (void)hint;
}

/* Each request is [envelope][payload?]; the first byte of its envelope says: 'p' payload in, short answer out; 'g'
 * short in, PIECE out; 'q' the end. */
static void *bare_serve(void *argument)
{
    struct bare *bare = argument;
    void *router = zmq_socket(bare->context, ZMQ_ROUTER);
    int zero = 0;
    size_t bytes = sizeof bare->endpoint;
    zmq_setsockopt(router, ZMQ_SNDHWM, &zero, sizeof zero);
    zmq_setsockopt(router, ZMQ_LINGER, &zero, sizeof zero);
    zmq_bind(router, "tcp://127.0.0.1:*");
    zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, bare->endpoint, &bytes);
    void *ready = zmq_socket(bare->context, ZMQ_PAIR);
    zmq_connect(ready, "inproc://ready");
    zmq_send(ready, "", 0, 0);
    zmq_close(ready);
    for (char kind = 0; kind != 'q';) {
        zmq_msg_t identity, envelope, payload, answer;
        zmq_msg_init(&identity);
        zmq_msg_init(&envelope);
        zmq_msg_recv(&identity, router, 0);
        zmq_msg_recv(&envelope, router, 0);
        kind = *(char *)zmq_msg_data(&envelope);
        if (zmq_msg_more(&envelope)) {
            zmq_msg_init(&payload);
            zmq_msg_recv(&payload, router, 0);
            zmq_msg_close(&payload);
        }
        zmq_msg_send(&identity, router, ZMQ_SNDMORE);
        zmq_msg_send(&envelope, router, kind == 'g' ? ZMQ_SNDMORE : 0);
        if (kind == 'g') {
            zmq_msg_init_data(&answer, bare->source, PIECE, no_free, NULL);
            zmq_msg_send(&answer, router, 0);
        }
    }
    zmq_close(router);
    return NULL;
}

static void bare_open(struct bare *bare, uint8_t *source)
{
    int zero = 0;
    bare->context = zmq_ctx_new();
    bare->source = source;
    void *ready = zmq_socket(bare->context, ZMQ_PAIR);
    zmq_bind(ready, "inproc://ready");
    pthread_create(&bare->thread, NULL, bare_serve, bare);
    zmq_recv(ready, NULL, 0, 0);
    zmq_close(ready);
    bare->dealer = zmq_socket(bare->context, ZMQ_DEALER);
    zmq_setsockopt(bare->dealer, ZMQ_SNDHWM, &zero, sizeof zero);
    zmq_setsockopt(bare->dealer, ZMQ_LINGER, &zero, sizeof zero);
    zmq_connect(bare->dealer, bare->endpoint);
}

static void bare_send(struct bare *bare, char kind, size_t payload_bytes)
{
    char envelope[ENVELOPE] = {kind};
    zmq_send(bare->dealer, envelope, sizeof envelope, payload_bytes ? ZMQ_SNDMORE : 0);
    if (payload_bytes > 8192) {
        zmq_msg_t payload;
        zmq_msg_init_data(&payload, bare->source, payload_bytes, no_free, NULL);
        zmq_msg_send(&payload, bare->dealer, 0);
    } else if (payload_bytes) {
        zmq_send(bare->dealer, bare->source, payload_bytes, 0);
    }
}

static void bare_take(struct bare *bare)
{
    zmq_msg_t part;
    int more = 1;
    while (more) {
        zmq_msg_init(&part);
        zmq_msg_recv(&part, bare->dealer, 0);
        more = zmq_msg_more(&part);
        zmq_msg_close(&part);
    }
}

static double bare_trip_us(struct bare *bare)
{
    for (int i = 0; i < TRIPS; i++) {
        int64_t start = clock_now_ns();
        bare_send(bare, 'p', SMALL);
        bare_take(bare);
        times[i] = clock_now_ns() - start;
    }
    qsort(times, TRIPS, sizeof *times, compare);
    return (double)times[TRIPS / 2] / 1000;
}

static double bare_bytes_s(struct bare *bare)
{
    int64_t start = clock_now_ns();
    int total = PIECES * REPEATS, sent = 0;
    for (int done = 0; done < total; done++) {
        for (; sent < total && sent < done + WINDOW; sent++) {
            bare_send(bare, 'p', PIECE);
            bare_send(bare, 'g', 0);
        }
        bare_take(bare);
        bare_take(bare);
    }
    return 2.0 * PIECE * total / ((double)(clock_now_ns() - start) / 1e9);
}

static double bare_requests_s(struct bare *bare)
{
    int64_t start = clock_now_ns();
    for (int done = 0, sent = 0; done < TINIES; done++) {
        for (; sent < TINIES && sent < done + TINY_WINDOW; sent++)
            bare_send(bare, 'p', TINY);
        bare_take(bare);
    }
    return TINIES / ((double)(clock_now_ns() - start) / 1e9);
}

static void bare_close(struct bare *bare)
{
    bare_send(bare, 'q', 0);
    bare_take(bare);
    pthread_join(bare->thread, NULL);
    zmq_close(bare->dealer);
    zmq_ctx_term(bare->context);
}

/* --- net -------------------------------------------------------------------------------------------- */

struct end {
    uv_loop_t loop;
    void *zmq;
    struct net *net;
    struct errbuf err;
};

static void end_open(struct end *end, Shoal__Role role)
{
    uv_loop_init(&end->loop);
    end->zmq = zmq_ctx_new();
    end->net = net_create(&end->loop, end->zmq, NULL, LIMIT_BYTES);
    net_self(end->net)->role = role;
    net_self(end->net)->incarnation = UINT64_C(0x123456789ABCDEF);
}

static void end_close(struct end *end)
{
    net_destroy(end->net, 100);
    uv_run(&end->loop, UV_RUN_DEFAULT);
    uv_loop_close(&end->loop);
    zmq_ctx_term(end->zmq);
}

struct shoal_server {
    struct end end;
    struct net_router *router;
    struct buf *values;
    char endpoint[64];
    uv_sem_t ready;
    pthread_t thread;
    int over;
};

static void serve(void *context, struct net_router *router, struct message *request, const struct net_return *back)
{
    struct shoal_server *server = context;
    Shoal__Envelope reply = SHOAL__ENVELOPE__INIT;
    Shoal__Selector selector = SHOAL__SELECTOR__INIT;
    if (request->envelope->type == SHOAL__TYPE__PULL) {
        selector.end = PIECE / 4;
        reply.type = SHOAL__TYPE__VALUES;
        reply.dtype = SHOAL__DTYPE__F32;
        reply.selector = &selector;
        net_reply(router, back, &reply, &server->values, 1);
        return;
    }
    server->over = request->envelope->type == SHOAL__TYPE__HELLO;
    net_reply_status(router, back, 0, NULL);
}

static void *shoal_serve(void *argument)
{
    struct shoal_server *server = argument;
    end_open(&server->end, SHOAL__ROLE__SERVER);
    struct net_listen listen = {.endpoint = "tcp://127.0.0.1:0", .serve = serve, .context = server};
    if (net_router_open(&server->router, server->end.net, &listen, &server->end.err)) {
        fprintf(stderr, "%s\n", server->end.err.text);
        abort();
    }
    snprintf(server->endpoint, sizeof server->endpoint, "%s", net_router_endpoint(server->router));
    uv_sem_post(&server->ready);
    while (!server->over)
        uv_run(&server->end.loop, UV_RUN_ONCE);
    end_close(&server->end);
    return NULL;
}

struct shoal_client {
    struct end end;
    struct net_link *link;
    struct buf *small, *piece, *tiny;
    int64_t start;
    int trips, sent, answered, wanted;
};

static void shoal_send(struct shoal_client *client, Shoal__Type type, struct buf *payload, net_reply_fn *reply)
{
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    Shoal__Selector selector = SHOAL__SELECTOR__INIT;
    selector.end = PIECE / 4;
    envelope.type = type;
    envelope.dtype = SHOAL__DTYPE__F32;
    envelope.selector = &selector;
    envelope.weight = 32;
    struct net_call call = {.envelope = &envelope, .frames = &payload, .frames_count = payload != NULL,
                            .deadline_ms = 60000, .resend_ms = 20000, .reply = reply, .context = client};
    net_request(client->link, &call);
}

static void on_trip(void *context, int status, struct message *reply)
{
    struct shoal_client *client = context;
    (void)status;
    (void)reply;
    int64_t now = clock_now_ns();
    times[client->trips++] = now - client->start;
    client->start = now;
    if (client->trips < TRIPS)
        shoal_send(client, SHOAL__TYPE__PUSH, client->small, on_trip);
}

static double shoal_trip_us(struct shoal_client *client)
{
    client->trips = 0;
    client->start = clock_now_ns();
    shoal_send(client, SHOAL__TYPE__PUSH, client->small, on_trip);
    while (client->trips < TRIPS)
        uv_run(&client->end.loop, UV_RUN_ONCE);
    qsort(times, TRIPS, sizeof *times, compare);
    return (double)times[TRIPS / 2] / 1000;
}

static void on_piece(void *context, int status, struct message *reply);

static void fill_window(struct shoal_client *client)
{
    for (; client->sent < client->wanted && client->sent < client->answered / 2 + WINDOW; client->sent++) {
        shoal_send(client, SHOAL__TYPE__PUSH, client->piece, on_piece);
        shoal_send(client, SHOAL__TYPE__PULL, NULL, on_piece);
    }
}

static void on_piece(void *context, int status, struct message *reply)
{
    struct shoal_client *client = context;
    (void)status;
    (void)reply;
    client->answered++;
    fill_window(client);
}

static double shoal_bytes_s(struct shoal_client *client)
{
    client->sent = client->answered = 0;
    client->wanted = PIECES * REPEATS;
    int64_t start = clock_now_ns();
    fill_window(client);
    while (client->answered < 2 * client->wanted)
        uv_run(&client->end.loop, UV_RUN_ONCE);
    return 2.0 * PIECE * client->wanted / ((double)(clock_now_ns() - start) / 1e9);
}

static void on_tiny(void *context, int status, struct message *reply)
{
    struct shoal_client *client = context;
    (void)status;
    (void)reply;
    client->answered++;
    for (; client->sent < client->wanted && client->sent < client->answered + TINY_WINDOW; client->sent++)
        shoal_send(client, SHOAL__TYPE__PUSH, client->tiny, on_tiny);
}

static double shoal_requests_s(struct shoal_client *client)
{
    int64_t start = clock_now_ns();
    client->answered = -1;
    client->sent = 0;
    client->wanted = TINIES;
    on_tiny(client, 0, NULL);
    while (client->answered < TINIES)
        uv_run(&client->end.loop, UV_RUN_ONCE);
    return TINIES / ((double)(clock_now_ns() - start) / 1e9);
}

/* --- report ----------------------------------------------------------------------------------------- */

static double median(const double *values, int count)
{
    double sorted[ROUNDS_MAX];
    memcpy(sorted, values, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, compare_double);
    return sorted[count / 2];
}

static void report(const char *what, const char *unit, const double *bare, const double *ours, int rounds)
{
    double low = 1e9, high = 0;
    for (int i = 0; i < rounds; i++) {
        double ratio = ours[i] / bare[i];
        low = ratio < low ? ratio : low;
        high = ratio > high ? ratio : high;
    }
    printf("%-22s bare %8.2f %s  net %8.2f %s  ratio of medians %.3f (rounds %.3f to %.3f)\n", what,
           median(bare, rounds), unit, median(ours, rounds), unit, median(ours, rounds) / median(bare, rounds), low,
           high);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 9;
    rounds = rounds < 1 ? 1 : rounds > ROUNDS_MAX ? ROUNDS_MAX : rounds;
    /* Both sides keep the heap, as the daemons do: fresh pages would be most of what is measured. */
    mallopt(M_MMAP_THRESHOLD, 32 << 20); /* its largest */
    mallopt(M_TRIM_THRESHOLD, 512 << 20);
    mallopt(M_TOP_PAD, 16 << 20);
    static double trip[2][ROUNDS_MAX], cost[2][ROUNDS_MAX], many[2][ROUNDS_MAX], rate[2][ROUNDS_MAX];
    static struct bare bare;
    static struct shoal_server server;
    static struct shoal_client client;
    server.values = buf_create(PIECE);
    client.small = buf_create(SMALL);
    client.piece = buf_create(PIECE);
    client.tiny = buf_create(TINY);
    memset(server.values->data, 1, PIECE);
    memset(client.small->data, 1, SMALL);
    memset(client.tiny->data, 1, TINY);
    memset(client.piece->data, 1, PIECE);
    bare_open(&bare, client.piece->data);
    uv_sem_init(&server.ready, 0);
    pthread_create(&server.thread, NULL, shoal_serve, &server);
    uv_sem_wait(&server.ready);
    end_open(&client.end, SHOAL__ROLE__WORKER);
    if (net_link_open(&client.link, client.end.net, server.endpoint, NULL, NULL, NULL, &client.end.err))
        return 1;
    for (int i = -1; i < rounds; i++) { /* the first is for warming up */
        int slot = i < 0 ? 0 : i;
        int64_t spent = processor_ns();
        trip[0][slot] = bare_trip_us(&bare);
        cost[0][slot] = (double)(processor_ns() - spent) / TRIPS / 1000;
        spent = processor_ns();
        trip[1][slot] = shoal_trip_us(&client);
        cost[1][slot] = (double)(processor_ns() - spent) / TRIPS / 1000;
        many[0][slot] = bare_requests_s(&bare) / 1e3;
        many[1][slot] = shoal_requests_s(&client) / 1e3;
        rate[0][slot] = bare_bytes_s(&bare) / 1e9;
        rate[1][slot] = shoal_bytes_s(&client) / 1e9;
    }
    report("4 KiB round trip", "us", trip[0], trip[1], rounds);
    report("its processor time", "us", cost[0], cost[1], rounds);
    report("64 B requests", "k/s", many[0], many[1], rounds);
    report("1 MiB push + pull", "GB/s", rate[0], rate[1], rounds);
    client.sent = client.answered = client.wanted = 0;
    shoal_send(&client, SHOAL__TYPE__HELLO, NULL, on_piece);
    while (client.answered < 1)
        uv_run(&client.end.loop, UV_RUN_ONCE);
    pthread_join(server.thread, NULL);
    end_close(&client.end);
    bare_close(&bare);
    buf_release(client.small);
    buf_release(client.tiny);
    buf_release(client.piece);
    buf_release(server.values);
    return 0;
}
