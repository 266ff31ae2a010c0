#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zmq.h>

#include "base/status.h"
#include "net/net_internal.h"

struct monitor {
    struct zsock *zsock;
    void *watched;
    monitor_fn *fn;
    void *context;
    int closed;
};

/* An event is two frames: event (16 bits) and value (32 bits) in the host's order, then the address. */
static int read_event(void *socket, uint16_t *event, uint32_t *value)
{
    uint8_t bytes[6];
    int count = zmq_recv(socket, bytes, sizeof bytes, ZMQ_DONTWAIT);
    if (count < 0)
        return STATUS_BUSY;
    int more = 0;
    size_t size = sizeof more;
    while (zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size) == 0 && more) {
        char address[1];
        zmq_recv(socket, address, sizeof address, 0);
    }
    if (count != (int)sizeof bytes)
        return STATUS_FORMAT;
    memcpy(event, bytes, sizeof *event);
    memcpy(value, bytes + 2, sizeof *value);
    return STATUS_OK;
}

static int monitor_drain(void *context)
{
    struct monitor *monitor = context;
    for (int i = 0; i < ZSOCK_BATCH; i++) {
        uint16_t event = 0;
        uint32_t value = 0;
        int status = read_event(zsock_socket(monitor->zsock), &event, &value);
        if (status == STATUS_BUSY)
            return 0;
        if (!status)
            monitor->fn(monitor->context, event, (int)value);
        if (monitor->closed)
            return 0;
    }
    return 1;
}

struct monitor *monitor_open(struct net *net, void *socket, int events, monitor_fn *fn, void *context)
{
    char endpoint[64];
    struct monitor *monitor = calloc(1, sizeof *monitor);
    if (!monitor)
        return NULL;
    snprintf(endpoint, sizeof endpoint, "inproc://shoal-monitor-%p", (void *)monitor);
    void *pair = zmq_socket(net->zmq, ZMQ_PAIR);
    if (!pair)
        goto free_monitor;
    net_socket_set(pair, ZMQ_RCVHWM, 0); /* else a flood of strangers would stop ZeroMQ's own thread */
    net_socket_set(pair, ZMQ_LINGER, 0);
    if (zmq_socket_monitor(socket, endpoint, events))
        goto close_pair;
    if (zmq_connect(pair, endpoint))
        goto stop;
    monitor->watched = socket;
    monitor->fn = fn;
    monitor->context = context;
    monitor->zsock = zsock_add(net->watch, pair, monitor_drain, free, monitor);
    if (monitor->zsock)
        return monitor;
stop:
    zmq_socket_monitor(socket, NULL, 0);
close_pair:
    zmq_close(pair);
free_monitor:
    free(monitor);
    return NULL;
}

void monitor_close(struct monitor *monitor)
{
    if (!monitor)
        return;
    monitor->closed = 1;
    zmq_socket_monitor(monitor->watched, NULL, 0);
    zsock_close(monitor->zsock, 0);
}
