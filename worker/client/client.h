/* A worker's end of the wire: one loop thread that owns the sockets, and blocking or asynchronous calls for one other
 * thread (the trainer, or libshoal under its lock). What is asynchronous (push, pull) runs under compute; the waits name
 * what they wait for. When the job is aborted or the coordinator is gone, every wait returns with that status. */
#ifndef SHOAL_CLIENT_CLIENT_H
#define SHOAL_CLIENT_CLIENT_H

#include <stdint.h>

#include "base/role.h"
#include "cluster/keymap.h"
#include "wire/message.h"

struct account;
struct errbuf;
struct trace;

struct client_options {
    struct role_host *host; /* zmq context, keys, log; borrowed */
    const char *cluster;    /* coordinator's endpoint */
    const char *core_type;  /* "" when BLAS is not used */
    int rank;               /* wanted, -1: any */
    double start_s;         /* give up joining */
    struct account *account;
};

struct client;
/* Starts the loop thread and joins; blocks until the rank is known. */
int client_open(struct client **client, const struct client_options *options, struct errbuf *err);
/* Leaves (status 0) or says why it goes, closes everything; takes NULL. */
void client_close(struct client *client, int status, const char *text);
/* Every wait, now or later, returns STATUS_CLOSED; for a client_close while other threads wait. */
void client_cancel(struct client *client);
/* What an END with a status means here: STATUS_STOPPED, STATUS_ROLLED_BACK (the same job comes again, from an earlier step),
 * else STATUS_ABORTED. */
int client_end_status(int status);
int client_rank(const struct client *client);
uint64_t client_incarnation(const struct client *client); /* this member's life */
int64_t client_clock_offset_ns(struct client *client);
/* From the job: how long the coordinator may be silent, and a server's connection be gone, before the job fails with
 * STATUS_TIMEOUT. */
void client_set_dead_after(struct client *client, double coordinator_s, double server_s);
void client_set_trace(struct client *client, struct trace *trace); /* between jobs */

/* The next event of the job (JOB, START, VERDICT, SNAPSHOT, END), taken by the caller (message_close). Blocks. A
 * failed END is returned as an event first and as that status from every later call of the job. STATUS_STOPPED when
 * host->stop is set and no job runs (`idle` != 0). */
int client_next_event(struct client *client, int idle, struct message *event, struct errbuf *err);
/* A request to the coordinator and its reply (NULL: only its status). Blocks. */
int client_call(struct client *client, Shoal__Envelope *envelope, struct buf *const *frames, int frames_count,
                struct message *reply, struct errbuf *err);
/* The same without waiting: the envelope is copied, the frame (NULL: none) shared. One may be under way: a second one waits for
 * the first one's reply. A bad reply fails the job. */
int client_post(struct client *client, Shoal__Envelope *envelope, struct buf *frame, struct errbuf *err);
/* 0, or why the job has failed as far as this client knows. Any thread. */
int client_status(struct client *client, struct errbuf *err);
/* Waits until the job has failed as far as this client knows, at most `seconds`: 0, or why. */
int client_wait_failure(struct client *client, double seconds, struct errbuf *err);
/* 1 once the coordinator has asked for an end after the step at hand (LAST). */
int client_last_asked(struct client *client);
/* Says that this member wants the job to stop in order (signal). Asynchronous. */
void client_ask_stop(struct client *client);

/* --- exchange with the servers of one job ------------------------------------------------------------ */

/* Opens a link to every server and greets it. map is borrowed until client_detach. Blocks. */
enum client_transport { CLIENT_AUTO, CLIENT_TCP, CLIENT_SHM }; /* parallel.transport */
struct client_peers {
    char *const *addresses; /* by server rank; borrowed until client_detach */
    char *const *keys;      /* CURVE public keys by server rank; NULL without CURVE */
    int count;
    int neighbours; /* workers of the job on this host, this one included */
    enum client_transport transport; /* shm: STATUS_UNKNOWN or what else is in the way, with the server that cannot share */
};
int client_attach(struct client *client, const struct keymap *map, const struct client_peers *peers,
                  struct errbuf *err);
void client_detach(struct client *client);

enum client_push_kind { CLIENT_INIT, CLIENT_PUSH };
/* Sends a range's floats; data stays untouched until client_wait_pushes. One push a range may be under way. */
void client_push(struct client *client, enum client_push_kind kind, int range, const float *data, double weight,
                 uint64_t clock);
/* Fetches a range that has finished at least `clock` into out. One pull a range may be under way. */
void client_pull(struct client *client, int range, uint64_t clock, float *out);
/* Small ranges are gathered into one message while the caller adds more; this lets the last ones go. So does a wait. */
void client_flush(struct client *client);
int client_wait_layer(struct client *client, int layer, struct errbuf *err); /* its pulls are in */
/* The pushes of one layer (or first values) are acknowledged and their memory is free to write. */
int client_wait_layer_pushes(struct client *client, int layer, struct errbuf *err);
/* Every push is acknowledged and its memory free to write. */
int client_wait_pushes(struct client *client, struct errbuf *err);
struct client_bytes {
    int64_t push, init, pull; /* payload, first sendings only */
};
void client_bytes(struct client *client, struct client_bytes *bytes);

#endif
