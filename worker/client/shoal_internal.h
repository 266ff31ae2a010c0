/* The inside of libshoal: shoal.c (joining, registration, the end) and shoal_exchange.c (values and steps). A call enters,
 * which takes the lock, and leaves; it gives the lock up only to wait, in shoal_unlock .. shoal_lock. */
#ifndef SHOAL_CLIENT_SHOAL_INTERNAL_H
#define SHOAL_CLIENT_SHOAL_INTERNAL_H

#include <pthread.h>

#include "base/account.h"
#include "base/errbuf.h"
#include "base/role.h"
#include "cluster/keymap.h"
#include "cluster/param_table.h"
#include "worker/client/client.h"
#include "worker/client/shoal.h"

/*  JOINED --JOB--> KNOWN --REGISTER, START--> STARTED */
enum shoal_phase { SHOAL_JOINED, SHOAL_KNOWN, SHOAL_STARTED };

struct shoal_key {
    int64_t count;
    int frozen, initialised, pulling;
    int sent;          /* of the step at hand: given to the loop thread */
    uint64_t pushed;   /* the step it was last pushed in */
    uint64_t named_in; /* number of the call that named it last */
    const float *data; /* pushed and not sent yet */
    float *copy;       /* (count) allocated when first needed */
};

enum shoal_request_kind { SHOAL_NO_REQUEST, SHOAL_PUSH_REQUEST, SHOAL_PULL_REQUEST };
struct shoal_slot {
    enum shoal_request_kind kind;
    uint64_t step;       /* of a push */
    uint32_t generation; /* told apart from earlier requests in this slot */
    int waiting;         /* somebody waits for it: nobody else may */
    int count, one;      /* keys; with count 1 `one` and no array */
    int *many;
    int next_free;
};

struct shoal_client {
    pthread_mutex_t lock; /* everything below */
    pthread_cond_t changed;
    struct role_host host;
    struct account account;
    struct client *client;
    char *cluster, *keys_dir, *key_name;
    int copy;
    enum shoal_phase phase;
    int moving;  /* a thread is on its way to the next phase */
    int inside;  /* calls */
    int closing, clocking;
    char *yaml;  /* the job, once known */
    int last_status;
    int status;  /* the job's, once it failed */
    struct errbuf why, last;
    int world, resumed;
    int neighbours; /* ranks on this host */
    struct param_table table;
    struct keymap map;
    struct message start; /* addresses and keys of the servers are in it */
    struct shoal_key *keys; /* (table.tensor_count), once started */
    float *zeros;           /* as long as the longest key */
    uint64_t step;          /* finished */
    uint64_t calls;
    int send_next;          /* keys before it have left in this step */
    int64_t unflushed;      /* bytes handed over since the loop thread was woken */
    int any_pushed;
    double weight;          /* of the step */
    int values_given;       /* no first values come any more */
    int initialising;       /* calls that wait for first values to be stored */
    struct shoal_slot *slots;
    int slots_count, free_slot;
    uint32_t tag;           /* of this client's requests */
};

int shoal_enter(struct shoal_client *c); /* 0 with the lock held, or a status without it */
int shoal_leave(struct shoal_client *c, int status); /* returns status */
void shoal_unlock(struct shoal_client *c);
void shoal_lock(struct shoal_client *c);
/* Under the lock: waits for news; SHOAL_CLOSED when the client is being closed. */
int shoal_sleep(struct shoal_client *c);
/* Under the lock. A call was refused. */
int shoal_refuse(struct shoal_client *c, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Under the lock. The job is over for this client. */
int shoal_fail(struct shoal_client *c, int status, const struct errbuf *err);
int shoal_started(struct shoal_client *c); /* under the lock: starts if need be; 0 or a status */
/* The next event of a type, for message_close; an END ends the wait. Without the lock. */
int shoal_wait_event(struct client *client, Shoal__Type type, struct message *event, struct errbuf *err);

#endif
