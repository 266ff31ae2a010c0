#include "net/zsock_watch.h"

#include <assert.h>
#include <stdlib.h>

#include <zmq.h>

struct zsock {
    struct zsock_watch *watch;
    struct zsock *next, *previous;
    void *socket;
    zsock_drain_fn *drain;
    zsock_gone_fn *gone;
    void *context;
    uv_poll_t poll;
    int ready;  /* drain in the next check phase */
    int used;   /* used since it was last found empty: its sign may be consumed */
    int closed;
};

struct zsock_watch {
    uv_loop_t *loop;
    uv_prepare_t prepare;
    uv_check_t check;
    uv_idle_t idle;
    struct zsock *sockets;
    int handles; /* open, of the three */
};

static void wake(uv_poll_t *poll, int status, int events)
{
    (void)events;
    struct zsock *zsock = poll->data;
    zsock->ready = 1;
    (void)status; /* an error of the descriptor shows when the socket is read */
}

static void no_sleep(uv_idle_t *idle)
{
    (void)idle;
}

static int has_input(struct zsock *zsock)
{
    int events = 0;
    size_t bytes = sizeof events;
    return zmq_getsockopt(zsock->socket, ZMQ_EVENTS, &events, &bytes) == 0 && (events & ZMQ_POLLIN);
}

static void on_prepare(uv_prepare_t *prepare)
{
    struct zsock_watch *watch = prepare->data;
    int any = 0;
    for (struct zsock *zsock = watch->sockets; zsock; zsock = zsock->next) {
        if (!zsock->ready && zsock->used) {
            zsock->used = 0;
            zsock->ready = has_input(zsock);
        }
        any |= zsock->ready;
    }
    if (any)
        uv_idle_start(&watch->idle, no_sleep);
}

/* A drain may close sockets: a closed one keeps its `next` until its memory goes, later in this turn. */
static void on_check(uv_check_t *check)
{
    struct zsock_watch *watch = check->data;
    uv_idle_stop(&watch->idle);
    for (struct zsock *zsock = watch->sockets; zsock; zsock = zsock->next) {
        if (zsock->closed || !zsock->ready)
            continue;
        zsock->ready = 0;
        int more = zsock->drain(zsock->context);
        if (!zsock->closed && more)
            zsock->ready = 1;
        /* Nothing more: the receive that said so came after everything the drain sent. */
        if (!zsock->closed && !more)
            zsock->used = 0;
    }
}

struct zsock_watch *zsock_watch_create(uv_loop_t *loop)
{
    struct zsock_watch *watch = calloc(1, sizeof *watch);
    if (!watch)
        return NULL;
    watch->loop = loop;
    uv_prepare_init(loop, &watch->prepare);
    uv_check_init(loop, &watch->check);
    uv_idle_init(loop, &watch->idle);
    watch->prepare.data = watch->check.data = watch->idle.data = watch;
    watch->handles = 3;
    uv_prepare_start(&watch->prepare, on_prepare);
    uv_check_start(&watch->check, on_check);
    return watch;
}

static void watch_handle_gone(uv_handle_t *handle)
{
    struct zsock_watch *watch = handle->data;
    if (--watch->handles == 0)
        free(watch);
}

void zsock_watch_close(struct zsock_watch *watch)
{
    if (!watch)
        return;
    assert(!watch->sockets);
    uv_close((uv_handle_t *)&watch->prepare, watch_handle_gone);
    uv_close((uv_handle_t *)&watch->check, watch_handle_gone);
    uv_close((uv_handle_t *)&watch->idle, watch_handle_gone);
}

struct zsock *zsock_add(struct zsock_watch *watch, void *socket, zsock_drain_fn *drain, zsock_gone_fn *gone,
                        void *context)
{
    struct zsock *zsock = calloc(1, sizeof *zsock);
    int fd = -1;
    size_t bytes = sizeof fd;
    if (!zsock || zmq_getsockopt(socket, ZMQ_FD, &fd, &bytes) || uv_poll_init(watch->loop, &zsock->poll, fd))
        goto fail;
    zsock->watch = watch;
    zsock->socket = socket;
    zsock->drain = drain;
    zsock->gone = gone;
    zsock->context = context;
    zsock->used = 1; /* something may have come before the poll was there */
    zsock->poll.data = zsock;
    uv_poll_start(&zsock->poll, UV_READABLE, wake);
    zsock->next = watch->sockets;
    if (zsock->next)
        zsock->next->previous = zsock;
    watch->sockets = zsock;
    return zsock;
fail:
    free(zsock);
    return NULL;
}

void *zsock_socket(const struct zsock *zsock)
{
    return zsock->socket;
}

void zsock_used(struct zsock *zsock)
{
    zsock->used = 1;
}

static void zsock_gone(uv_handle_t *handle)
{
    struct zsock *zsock = handle->data;
    if (zsock->gone)
        zsock->gone(zsock->context);
    free(zsock);
}

void zsock_close(struct zsock *zsock, int linger_ms)
{
    assert(!zsock->closed);
    zsock->closed = 1;
    if (zsock->previous)
        zsock->previous->next = zsock->next;
    else
        zsock->watch->sockets = zsock->next;
    if (zsock->next)
        zsock->next->previous = zsock->previous;
    /* The descriptor leaves epoll before ZeroMQ closes it. */
    uv_poll_stop(&zsock->poll);
    uv_close((uv_handle_t *)&zsock->poll, zsock_gone);
    zmq_setsockopt(zsock->socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    zmq_close(zsock->socket);
    zsock->socket = NULL;
}
