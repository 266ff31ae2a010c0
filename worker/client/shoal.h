/* libshoal: the parameter service for C programs with a training loop of their own. A program joins a cluster as a
 * worker, registers its tensors (keys), gives first values, and then in every step pushes contributions, ends the step
 * with shoal_clock and pulls the new values. The servers combine what the ranks pushed and update by the optimizer of
 * the job file. The job of client programs says `data: {kind: none}` and `model: {kind: none}`.
 *
 *     struct shoal_client *client;
 *     struct shoal_options options = {.cluster = "tcp://127.0.0.1:7070", .rank = SHOAL_ANY_RANK};
 *     shoal_connect(&client, &options, error, sizeof error);
 *     int w = shoal_register(client, "w", 2, (int64_t[]){128, 10});
 *     shoal_init(client, w, first, 1280);
 *     shoal_pull(client, w, values, 1280, NULL);
 *     for (...) {
 *         shoal_push(client, w, gradient, 1280, samples, NULL);
 *         shoal_clock(client);
 *         shoal_pull(client, w, values, 1280, NULL);
 *     }
 *     shoal_close(client);
 *
 * Order. All ranks register the same keys in the same order, then use them: the first call that needs the cluster
 * (init, push, pull, clock, world) or shoal_start ends registration and waits until every rank has done the same. Two
 * clients of one job in one process therefore need two threads.
 *
 * Shapes. A key holds float32 numbers in the order of its shape, outermost first; a `count` is a number of floats and
 * must be the key's (SHOAL_SHAPE says key, expected and given). Keys of no elements are allowed: nothing travels.
 * Limits: SHOAL_KEYS_MAX keys, SHOAL_KEY_ELEMENTS_MAX floats a key, refused by shoal_register.
 *
 * Steps (clocks). Steps are counted from 1. In a step a rank pushes any of its keys, each once; a key it does not push
 * counts as a gradient of zero. A pull gives the values after the last step that shoal_clock returned. All pushes of a
 * rank in a step carry one weight: the samples behind them (a step without pushes: 0). By default (parallel.aggregate:
 * mean) the gradient is sum(weight x pushed) / sum(weight) over the ranks; with `sum` it is the plain sum, in which only
 * a weight of 0 on all ranks means something: the step is skipped.
 *
 * Memory. A buffer given to shoal_push or shoal_pull is the library's until the request is waited for (shoal_wait), or,
 * for pushes, until shoal_clock returned 0: nothing is copied. With options.copy pushed memory is free when shoal_push
 * returns. shoal_wait on a push does not wait for other ranks that are behind: what has not left yet is copied then.
 * Pushes leave in the order of registration, so keys are best registered in the order in which they are pushed.
 * After an error of shoal_wait or shoal_clock (other than SHOAL_UNKNOWN and SHOAL_BUSY) the memory of requests under way
 * is free only after shoal_close.
 *
 * Errors. Calls return 0 (or a number as described), or a negative enum shoal_status; shoal_error tells the reason. A
 * call that is refused (SHOAL_INVALID, SHAPE, UNKNOWN, EXISTS, BUSY, RANGE) has changed nothing, with many keys too.
 * Other errors end the job for this client: every later call returns the same status. A job ends by itself when the
 * coordinator is silent for cluster.timeouts.coordinator_dead or a rank dies; nothing waits for ever.
 *
 * Threads. Any thread may call any function at any time; calls on one client are serialised but for their waiting. Only
 * one thread may be inside shoal_start or shoal_clock, and none may push or give first values then: SHOAL_BUSY.
 * shoal_close wakes threads that wait inside the client with SHOAL_CLOSED and returns when they are out; the handle is
 * gone afterwards. Clients are independent of each other. There are no callbacks. Signals are left alone. */
#ifndef SHOAL_H
#define SHOAL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHOAL_API __attribute__((visibility("default")))

enum shoal_status {
    SHOAL_OK = 0,
    SHOAL_NOMEM = -1,
    SHOAL_INVALID = -2,      /* an argument, or a job, that cannot be used */
    SHOAL_SHAPE = -3,        /* a count that is not the key's */
    SHOAL_UNKNOWN = -4,      /* no such key or request */
    SHOAL_EXISTS = -5,       /* name or rank taken; pushed, initialised or named already */
    SHOAL_IO = -6,
    SHOAL_FORMAT = -7,
    SHOAL_CHECKSUM = -8,
    SHOAL_PROTOCOL = -9,
    SHOAL_TIMEOUT = -10,
    SHOAL_CLOSED = -11,      /* closed by another thread while this one waited */
    SHOAL_BUSY = -12,        /* another thread is ending the step, or a pull of the key is under way */
    SHOAL_RANGE = -13,       /* beyond a limit */
    SHOAL_ABORTED = -14,     /* the job ended; shoal_error says why */
    SHOAL_DENIED = -15,
    SHOAL_STOPPED = -16,     /* the cluster was stopped in order */
    SHOAL_NUMERIC = -17,
    SHOAL_ROLLED_BACK = -18  /* shoal_clock: the step was taken back and is open again; push again */
};

enum {
    SHOAL_ANY_RANK = -1,
    SHOAL_DIMS_MAX = 8,
    SHOAL_NAME_MAX = 255,
    SHOAL_KEYS_MAX = 65535
};
#define SHOAL_KEY_ELEMENTS_MAX (INT64_C(1) << 40)

struct shoal_client;
typedef uint64_t shoal_request; /* a number, nothing to free; 0 is none */

struct shoal_options {
    const char *cluster;  /* the coordinator: "tcp://host:7070" */
    int rank;             /* wanted; SHOAL_ANY_RANK: the lowest that is free */
    const char *keys_dir; /* folder of keys when the cluster uses CURVE; NULL or "": plain */
    const char *key_name; /* this program's key there; NULL: "worker" */
    double timeout_s;     /* give up joining after it; 0: 120 */
    int copy;             /* 1: pushed memory is free when shoal_push returns */
    int log;              /* 1: the library's log lines go to stderr; 0: it is silent */
};

/* Joins. Blocks until the rank is known or the time is over. *client is for shoal_close. error (may be NULL): the
 * reason, cut to error_bytes. SHOAL_TIMEOUT, SHOAL_EXISTS (rank taken), SHOAL_RANGE, SHOAL_DENIED, SHOAL_NOMEM, ... */
SHOAL_API int shoal_connect(struct shoal_client **client, const struct shoal_options *options, char *error,
                            size_t error_bytes);
/* Leaves in order and frees everything, requests included; open steps are forgotten. The job goes on until its last rank
 * has left; a rank that then ends a step is told SHOAL_ABORTED. Takes NULL. */
SHOAL_API void shoal_close(struct shoal_client *client);

SHOAL_API int shoal_rank(struct shoal_client *client);
/* Number of ranks. Blocks until the whole cluster is there; does not end registration. Negative: a status. */
SHOAL_API int shoal_world(struct shoal_client *client);
/* Finished steps: 0 at first, more when the job was resumed from a snapshot. */
SHOAL_API int64_t shoal_step(struct shoal_client *client);

/* A tensor of the job. Its key (0, 1, 2, ... in order of registration) or SHOAL_EXISTS (name taken), SHOAL_RANGE
 * (limits), SHOAL_INVALID (name or shape missing, too late), SHOAL_NOMEM. dims 0: one number. The name is copied. */
SHOAL_API int shoal_register(struct shoal_client *client, const char *name, int dims, const int64_t *shape);
/* Ends registration; blocks until every rank has. A second call does nothing. SHOAL_ABORTED when the ranks' tables
 * differ. */
SHOAL_API int shoal_start(struct shoal_client *client);
SHOAL_API int64_t shoal_count(struct shoal_client *client, int key); /* floats of a key, or SHOAL_UNKNOWN */

/* First values, before the first step. Rank 0's count and have reached the servers on return; on other ranks, and when
 * the job was resumed, the call only checks. All ranks may call it at once. What rank 0 has not given before its own
 * first push or clock starts at zero; so does a key that it pulls first. SHOAL_EXISTS the second time. */
SHOAL_API int shoal_init(struct shoal_client *client, int key, const float *data, size_t count);

/* Contribution of this rank to the step at hand. request NULL: nothing to wait for, see Memory. weight >= 0, finite.
 * SHOAL_EXISTS: pushed in this step already. SHOAL_INVALID: frozen, another weight than the step's, NULL data. */
SHOAL_API int shoal_push(struct shoal_client *client, int key, const float *data, size_t count, double weight,
                         shoal_request *request);
/* Values of a key into out. request NULL: waits. SHOAL_BUSY: a pull of this key is under way. */
SHOAL_API int shoal_pull(struct shoal_client *client, int key, float *out, size_t count, shoal_request *request);

/* Many keys in one call, in any order, all or nothing. SHOAL_EXISTS: a key is named twice. */
struct shoal_slice {
    int key;
    const float *data; /* init, push */
    float *out;        /* pull */
    size_t count;
};
SHOAL_API int shoal_init_many(struct shoal_client *client, const struct shoal_slice *slices, size_t slices_count);
SHOAL_API int shoal_push_many(struct shoal_client *client, const struct shoal_slice *slices, size_t slices_count,
                              double weight, shoal_request *request);
SHOAL_API int shoal_pull_many(struct shoal_client *client, const struct shoal_slice *slices, size_t slices_count,
                              shoal_request *request);

/* Waits for a request and forgets it. SHOAL_UNKNOWN: waited for already, or another client's. A request that nobody
 * waits for is kept until shoal_close. */
SHOAL_API int shoal_wait(struct shoal_client *client, shoal_request request);

enum shoal_outcome {
    SHOAL_APPLIED = 0,
    SHOAL_SKIPPED = 1 /* nothing was counted, or a number was not finite: the step counts, the values stay */
};
/* Ends the step: waits until all ranks have ended it and the decision is known. An outcome, SHOAL_ROLLED_BACK, or an
 * error. The step's pushes are through and their memory is free. */
SHOAL_API int shoal_clock(struct shoal_client *client);

/* Reason of the last call that failed on this client, whichever thread made it. Returns its status. */
SHOAL_API int shoal_error(struct shoal_client *client, char *text, size_t text_bytes);
SHOAL_API const char *shoal_status_text(int status); /* short English text, constant */

#ifdef __cplusplus
}
#endif

#endif
