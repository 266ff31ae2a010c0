/* The inside of a client: client.c (thread, events, calls), exchange.c (pushes and pulls) and
 * exchange_links.c (connections to the servers). */
#ifndef SHOAL_CLIENT_INTERNAL_H
#define SHOAL_CLIENT_INTERNAL_H

#include <pthread.h>
#include <uv.h>

#include "base/errbuf.h"
#include "net/member.h"
#include "worker/client/client.h"

/* A blocking call in flight. Freed by whoever comes last: the caller, or the reply to a call that was given up. */
struct client_request {
    struct client *client;
    Shoal__Envelope *envelope; /* borrowed until sent */
    struct buf *const *frames;
    int frames_count;
    struct message reply;
    struct errbuf err;
    int status, sent, done, given_up;
    int posted; /* nobody waits for it; envelope and frame are its own */
    struct buf *frame;
    struct client_request *next;
};

struct client_event {
    struct message message;
    struct client_event *next;
};

/* What is known of one range of the job. `lock` covers the flags, the rest is handed over by the queues. */
struct client_range {
    struct client *client;
    const struct keymap_range *range;
    const float *push_data;
    float *pull_out;
    double weight;
    uint64_t push_clock, pull_clock;
    int64_t push_ns, pull_ns;
    enum client_push_kind kind;
    int next_push, next_pull; /* range indices in the server's queues, -1: end */
};

struct client_queue {
    int head, tail; /* range indices, -1: empty */
    int of_pulls;   /* which of a range's two links it uses */
};

struct client_server {
    struct client *client;
    struct net_link *link;
    struct client_queue pushes, pulls;
    uint64_t credit, in_flight;
    int64_t gone_ns; /* since when the connection is gone; 0: it is there */
    int greeted;
};

enum client_turner { CLIENT_LOOP_THREAD, CLIENT_LOOP_WANTED, CLIENT_LOOP_PARKED, CLIENT_LOOP_LENT };

struct client {
    struct client_options options;
    struct log log;
    pthread_t thread;
    pthread_mutex_t lock; /* everything below, but for what is the loop thread's own */
    pthread_cond_t changed;
    struct client_request *requests;
    struct client_event *events, **events_tail;
    struct client_queue *new_pushes, *new_pulls; /* by server: what the caller added */
    int *layer_pulls;   /* by layer: pulls under way */
    int *layer_pushes;  /* by layer: pushes under way, and buffers of theirs that ZeroMQ may still read */
    int layer_waiters;  /* threads that wait for one layer's pushes */
    int pushes, pulls;  /* under way */
    int memory_shared;  /* push buffers that ZeroMQ may still read */
    struct client_bytes bytes;
    int status;         /* of the job: 0 while it goes well */
    struct errbuf why;
    int lost;           /* the coordinator is gone for good, or ends the cluster: no job will come */
    int next_job;       /* the last one is behind us: events may come again */
    int joined, rank, closing, stop_asked, loop_over, woken;
    int last_asked;
    int posted;         /* a posted request has no reply yet */
    int leave_status;
    char leave_text[256];
    int64_t offset_ns;
    uint64_t incarnation; /* constant */
    double dead_s, server_dead_s;
    const struct keymap *map;
    struct client_range *ranges;
    struct client_server *servers; /* links are the loop thread's */
    struct client_peers peers;
    int servers_count, attach_wanted, attached, greeted, shared;
    struct trace *trace;
    enum client_turner turner; /* client_loop.c */
    pthread_cond_t parked;     /* where the loop's thread waits while others turn the loop */
    int waiters, recalled, parked_for_long, left;
    uint64_t lent;             /* how often */
    int64_t spin_ns;           /* a caller looks so long for an answer before it sleeps */

    /* of whoever turns the loop */
    uv_loop_t loop;
    uv_async_t wake;
    uv_timer_t timer;
    struct net *net;
    struct member *member;
    struct net_curve curve;
    int has_curve, leaving;
    Shoal__Join join;
    char host_id[128];
};

/* --- client_loop.c: under the lock, but for client_loop_run -------------------------------------------------- */
void client_wake(struct client *client);      /* the loop is turned soon */
void client_wake_once(struct client *client); /* unless it has been woken already */
void client_loop_run(struct client *client);  /* the loop's thread, until the client has left */
/* A wait is begin, one step after another while what is waited for is not there, end. What was handed over before leaves
 * with the first step. */
struct client_waiting {
    int turned;
    int64_t spin_until_ns;
};
void client_wait_begin(struct client *client, struct client_waiting *waiting);
void client_wait_step(struct client *client, struct client_waiting *waiting);
void client_wait_end(struct client *client, struct client_waiting *waiting);
/* client.c: sends what callers have handed over. Whoever turns the loop, without the lock. */
void client_turn(struct client *client);

/* Under the lock: the job has failed; wakes every waiter. The first reason stays. */
void client_fail_locked(struct client *client, int status, const char *text);
void client_fail(struct client *client, int status, const char *text);
/* client_post.c, under the lock: requests leave in the order in which they are added. */
void client_add_request(struct client *client, struct client_request *request);
void client_end_posted(struct client_request *request, int status, const char *text);
void client_free_posted(struct client_request *request);
/* exchange.c, on the loop thread: opens or closes links as asked, sends what may go. */
void exchange_turn(struct client *client);
uint64_t exchange_range_bytes(const struct client *client, int range);
void exchange_fail(struct client *client, int status, const struct message *reply); /* as the reply says */
/* exchange_links.c, on the loop thread. A server that is greeted has shared its memory or has not. */
void exchange_open_links(struct client *client);
void exchange_close_links(struct client *client);
/* A server that the coordinator still hears, but this worker cannot reach, would be waited for without end. */
void exchange_look_for_gone(struct client *client);

#endif
