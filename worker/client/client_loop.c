#include <time.h>

#include "base/clock.h"
#include "worker/client/client_internal.h"

/* Who turns the loop:
 *
 *   THREAD --a caller waits--> WANTED --end of the turn--> PARKED --the caller takes it--> LENT
 *     ^                          |                          |  ^                            |
 *     |<--the wait is over-------+                          |  +--------one turn later------+
 *     +<--recalled, or nobody took it for LEASE_NS----------+
 *
 * A caller that waits for an answer would have to wake the loop's thread and be woken by it; instead it turns the loop
 * itself, and while it waits again and again, in between nobody does. */
enum { LEASE_NS = 500000 };

void client_wake(struct client *client)
{
    uv_async_send(&client->wake);
    if (client->turner == CLIENT_LOOP_PARKED) {
        client->recalled = 1;
        pthread_cond_signal(&client->parked);
    }
}

void client_wake_once(struct client *client)
{
    if (!client->woken) {
        client->woken = 1;
        client_wake(client);
    }
}

static int sleep_for_lease(struct client *client)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += LEASE_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    return pthread_cond_timedwait(&client->parked, &client->lock, &until) != 0;
}

/* The loop's thread, under the lock. */
static void park(struct client *client)
{
    uint64_t lent = client->lent;
    client->turner = CLIENT_LOOP_PARKED;
    client->recalled = 0;
    pthread_cond_broadcast(&client->changed);
    while (client->turner == CLIENT_LOOP_LENT || !client->recalled) {
        int late = sleep_for_lease(client);
        if (late && client->turner == CLIENT_LOOP_LENT) {
            client->parked_for_long = 1; /* a long wait: whoever has the loop says when it is over */
            pthread_cond_wait(&client->parked, &client->lock);
            client->parked_for_long = 0;
        } else if (late && client->lent == lent) {
            break;
        }
        lent = client->lent;
    }
    client->turner = CLIENT_LOOP_THREAD;
}

void client_loop_run(struct client *client)
{
    for (int over = 0; !over;) {
        uv_run(&client->loop, UV_RUN_DEFAULT);
        pthread_mutex_lock(&client->lock);
        if (client->turner == CLIENT_LOOP_WANTED) {
            park(client);
        }
        over = client->left;
        pthread_mutex_unlock(&client->lock);
    }
}

void client_wait_begin(struct client *client, struct client_waiting *waiting)
{
    *waiting = (struct client_waiting){0};
    client->waiters++;
}

static void turn_once(struct client *client, struct client_waiting *waiting)
{
    client->turner = CLIENT_LOOP_LENT;
    client->lent++;
    pthread_mutex_unlock(&client->lock);
    if (!waiting->turned) {
        client_turn(client); /* what was handed over leaves */
        waiting->spin_until_ns = client->spin_ns > 0 ? clock_now_ns() + client->spin_ns : 0;
    } else {
        int spins = waiting->spin_until_ns != 0 && clock_now_ns() < waiting->spin_until_ns;
        uv_run(&client->loop, spins ? UV_RUN_NOWAIT : UV_RUN_ONCE);
    }
    waiting->turned = 1;
    pthread_mutex_lock(&client->lock);
    client->turner = CLIENT_LOOP_PARKED;
}

void client_wait_step(struct client *client, struct client_waiting *waiting)
{
    if (client->turner == CLIENT_LOOP_PARKED) {
        turn_once(client, waiting);
        return;
    }
    if (client->turner == CLIENT_LOOP_THREAD) {
        client->turner = CLIENT_LOOP_WANTED;
        client_wake(client);
    } else {
        client_wake_once(client);
    }
    pthread_cond_wait(&client->changed, &client->lock);
}

void client_wait_end(struct client *client, struct client_waiting *waiting)
{
    client->waiters--;
    if (client->turner == CLIENT_LOOP_WANTED && client->waiters == 0) {
        client->turner = CLIENT_LOOP_THREAD;
    }
    if (client->turner != CLIENT_LOOP_PARKED || !waiting->turned) {
        return;
    }
    int busy = client->pushes > 0 || client->pulls > 0 || client->requests || client->waiters > 0;
    if (busy || client->left) {
        client->recalled = 1;
    }
    if (client->recalled || client->parked_for_long) { /* after a long wait the lease begins anew */
        pthread_cond_signal(&client->parked);
    }
    if (client->waiters > 0) {
        pthread_cond_broadcast(&client->changed);
    }
}
