/* Cases P01 and P03 against a coordinator and a server that have a job of two workers at hand: whoever else talks to their
 * ports changes nothing of the job and is counted. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <zmq.h>

#include "envelope.pb-c.h"
#include "tests/integration/cluster.h"

enum { STEPS = 1000000, REFERENCE_STEPS = 50, ANSWER_MS = 30000, TARGETS = 2, FRAMES_MANY = 50 };

/* A job under way; target 0 is the coordinator, 1 the server. */
struct scene {
    struct cluster cluster;
    char address[TARGETS][128];
    void *zmq;
};
static double reference[REFERENCE_STEPS], losses[CLUSTER_LOSSES];

static void train_reference(void)
{
    struct cluster cluster;
    struct process run;
    cluster_open(&cluster, 2, 1, REFERENCE_STEPS, "");
    process_init(&run, "shoal");
    process_add(&run, "run %s --metrics %s", cluster.job, cluster.metrics);
    assert_int_equal(process_run(&run), 0);
    assert_int_equal(cluster_losses(&cluster, reference, REFERENCE_STEPS), REFERENCE_STEPS);
    process_forget(&run);
    cluster_close(&cluster);
}

static void scene_open(struct scene *scene)
{
    char arguments[4096];
    struct cluster *cluster = &scene->cluster;
    cluster_open(cluster, 2, 1, STEPS, "");
    snprintf(arguments, sizeof arguments, "--once --job %s --metrics %s --set log_every=%d", cluster->job, cluster->metrics,
             REFERENCE_STEPS);
    cluster_coordinate(cluster, arguments);
    cluster_members(cluster, 1, 2, "--once");
    snprintf(scene->address[0], sizeof scene->address[0], "%s", cluster->address);
    cluster_until_step(cluster, 50);
    cluster_server_address(cluster, 0, "", scene->address[1]);
    scene->zmq = zmq_ctx_new();
}

static int port_of(const char *address)
{
    return atoi(strrchr(address, ':') + 1);
}

static unsigned refused_by_coordinator(struct scene *scene)
{
    struct process status;
    process_init(&status, "shoal");
    process_add(&status, "status --timeout 30 --cluster %s", scene->cluster.address);
    assert_int_equal(process_run(&status), 0);
    const char *line = strstr(status.said, "refused messages ");
    unsigned count = line ? (unsigned)atoi(line + 17) : 0;
    process_forget(&status);
    return count;
}

/* Both say so, and both go on: more steps come, in the same trajectory, and the end is an orderly one. */
static void scene_close(struct scene *scene, unsigned refused)
{
    struct cluster *cluster = &scene->cluster;
    while (refused_by_coordinator(scene) < refused) {
    }
    process_until(&cluster->coordinator, "refused at=");
    process_until(&cluster->server[0], "refused at=");
    int lines = 0;
    for (const char *at = cluster->coordinator.said; (at = strstr(at, "step ")) != NULL; at += 5)
        lines++;
    process_until_times(&cluster->coordinator, "step ", lines + 2);
    process_signal(&cluster->coordinator, SIGTERM);
    cluster_expect(cluster, 1, 2, 128 + SIGTERM);
    cluster_expect_s1(cluster, 0);
    assert_true(cluster_losses(cluster, losses, CLUSTER_LOSSES) >= REFERENCE_STEPS);
    for (int i = 0; i < REFERENCE_STEPS; i++)
        assert_true(losses[i] == reference[i]);
    zmq_ctx_term(scene->zmq);
    cluster_close(cluster);
}

/* --- without ZeroMQ ----------------------------------------------------------------------------------------- */

static int connect_raw(const char *address)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)port_of(address))};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static void send_raw(int fd, const void *bytes, size_t count)
{
    while (count > 0) {
        ssize_t sent = send(fd, bytes, count, MSG_NOSIGNAL);
        if (sent <= 0) /* it hung up, which is its right */
            return;
        bytes = (const char *)bytes + sent;
        count -= (size_t)sent;
    }
}

/* Reads until the other end closes. */
static void until_dropped(int fd)
{
    char bytes[256];
    ssize_t got;
    struct timeval limit = {.tv_sec = 60};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    while ((got = recv(fd, bytes, sizeof bytes, 0)) > 0) {
    }
    assert_true(got == 0 || errno == ECONNRESET);
    close(fd);
}

static void P01_http_and_a_megabyte_of_noise(void **state)
{
    (void)state;
    static const char http[] = "GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: a browser of some kind\r\n\r\n";
    enum { NOISE = 1 << 20 };
    struct scene scene;
    scene_open(&scene);
    uint8_t *noise = malloc(NOISE);
    uint32_t x = 12345;
    for (int i = 0; i < NOISE; i++) {
        x = x * 1664525 + 1013904223;
        noise[i] = (uint8_t)(x >> 24);
    }
    for (int t = 0; t < TARGETS; t++) {
        int fd = connect_raw(scene.address[t]);
        send_raw(fd, http, sizeof http - 1);
        until_dropped(fd);
        fd = connect_raw(scene.address[t]);
        send_raw(fd, noise, NOISE);
        until_dropped(fd);
    }
    free(noise);
    scene_close(&scene, 2);
}

static void P01_connecting_and_closing_200_times(void **state)
{
    (void)state;
    struct scene scene;
    scene_open(&scene);
    for (int t = 0; t < TARGETS; t++)
        for (int i = 0; i < 200; i++)
            close(connect_raw(scene.address[t]));
    scene_close(&scene, 200);
}

static void P01_who_connects_and_says_nothing_is_dropped(void **state)
{
    (void)state;
    struct scene scene;
    int fds[TARGETS];
    scene_open(&scene);
    for (int t = 0; t < TARGETS; t++)
        fds[t] = connect_raw(scene.address[t]);
    for (int t = 0; t < TARGETS; t++)
        until_dropped(fds[t]);
    scene_close(&scene, 1);
}

/* --- with ZeroMQ -------------------------------------------------------------------------------------------- */

static void *stray_open(struct scene *scene, int kind, int target)
{
    int linger = 0, wait = ANSWER_MS;
    void *socket = zmq_socket(scene->zmq, kind);
    assert_non_null(socket);
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &wait, sizeof wait);
    zmq_setsockopt(socket, ZMQ_SNDTIMEO, &wait, sizeof wait);
    assert_int_equal(zmq_connect(socket, scene->address[target]), 0);
    return socket;
}

/* Waits for the end of the handshake, whichever it is. */
static void until_refused(struct scene *scene, int kind, int target)
{
    enum { EVENTS = ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_DISCONNECTED };
    int wait = ANSWER_MS, linger = 0;
    void *socket = zmq_socket(scene->zmq, kind), *monitor = zmq_socket(scene->zmq, ZMQ_PAIR);
    char endpoint[64];
    zmq_msg_t event;
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(monitor, ZMQ_RCVTIMEO, &wait, sizeof wait);
    snprintf(endpoint, sizeof endpoint, "inproc://stray-%d-%d", kind, target);
    assert_int_equal(zmq_socket_monitor(socket, endpoint, EVENTS), 0);
    assert_int_equal(zmq_connect(monitor, endpoint), 0);
    assert_int_equal(zmq_connect(socket, scene->address[target]), 0);
    if (kind == ZMQ_REQ) /* a kind that is let in: its message is what is wrong */
        zmq_send(socket, "hello", 5, 0);
    zmq_msg_init(&event);
    if (kind != ZMQ_REQ)
        assert_true(zmq_msg_recv(&event, monitor, 0) >= 0);
    zmq_msg_close(&event);
    zmq_socket_monitor(socket, NULL, 0);
    zmq_close(monitor);
    while (kind == ZMQ_REQ && target == 0 && refused_by_coordinator(scene) == 0) {
    }
    zmq_close(socket);
}

static void P01_sockets_of_other_kinds(void **state)
{
    (void)state;
    static const int kinds[] = {ZMQ_REQ, ZMQ_PUB, ZMQ_PULL};
    struct scene scene;
    scene_open(&scene);
    for (int t = 0; t < TARGETS; t++)
        for (int k = 0; k < 3; k++)
            until_refused(&scene, kinds[k], t);
    scene_close(&scene, 1);
}

static void stray_send(void *socket, uint32_t protocol, Shoal__Type type, int frames)
{
    uint8_t packed[256];
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    envelope.protocol_low = envelope.protocol_high = protocol;
    envelope.type = type;
    envelope.role = SHOAL__ROLE__WORKER;
    envelope.request = 5;
    size_t bytes = shoal__envelope__pack(&envelope, packed);
    zmq_send(socket, packed, bytes, frames > 0 ? ZMQ_SNDMORE : 0);
    for (int i = 0; i < frames; i++)
        zmq_send(socket, "12345678", 8, i + 1 < frames ? ZMQ_SNDMORE : 0);
}

/* The answer refuses, with this in its text. */
static void expect_refusal(void *socket, const char *text)
{
    uint8_t bytes[4096];
    int count = zmq_recv(socket, bytes, sizeof bytes, 0);
    assert_true(count > 0);
    Shoal__Envelope *envelope = shoal__envelope__unpack(NULL, (size_t)count, bytes);
    assert_non_null(envelope);
    assert_int_not_equal(envelope->status, 0);
    if (!strstr(envelope->text, text))
        fail_msg("\"%s\" does not say \"%s\"", envelope->text, text);
    shoal__envelope__free_unpacked(envelope, NULL);
}

static void P01_a_peer_of_another_protocol_reads_both_versions(void **state)
{
    (void)state;
    struct scene scene;
    scene_open(&scene);
    for (int t = 0; t < TARGETS; t++) {
        void *socket = stray_open(&scene, ZMQ_DEALER, t);
        stray_send(socket, 9, SHOAL__TYPE__HEARTBEAT, 0);
        expect_refusal(socket, "peer speaks protocol 9 to 9, this one speaks 1 to 1");
        zmq_close(socket);
    }
    scene_close(&scene, 1);
}

static void P03_extra_frames_missing_bodies_and_empty_messages(void **state)
{
    (void)state;
    struct scene scene;
    scene_open(&scene);
    for (int t = 0; t < TARGETS; t++) {
        void *socket = stray_open(&scene, ZMQ_DEALER, t);
        stray_send(socket, 1, SHOAL__TYPE__HEARTBEAT, 1);
        expect_refusal(socket, "1 payload frame");
        stray_send(socket, 1, SHOAL__TYPE__HEARTBEAT, FRAMES_MANY);
        expect_refusal(socket, "50 payload frames");
        stray_send(socket, 1, t == 0 ? SHOAL__TYPE__JOIN : SHOAL__TYPE__PUSH, 0);
        expect_refusal(socket, t == 0 ? "body" : "PUSH without");
        zmq_send(socket, "", 0, 0);
        zmq_send(socket, "noise", 5, 0);
        stray_send(socket, 1, SHOAL__TYPE__ACK, 0); /* an answer to nobody's question */
        expect_refusal(socket, "");
        zmq_close(socket);
    }
    scene_close(&scene, 6);
}

/* A routing id of no bytes is one that the ROUTER makes up; REQ's empty delimiter makes an empty first frame. */
static void P03_an_empty_identity_and_an_empty_first_frame(void **state)
{
    (void)state;
    struct scene scene;
    scene_open(&scene);
    for (int t = 0; t < TARGETS; t++) {
        void *socket = stray_open(&scene, ZMQ_DEALER, t);
        zmq_send(socket, "", 0, ZMQ_SNDMORE);
        stray_send(socket, 1, SHOAL__TYPE__HEARTBEAT, 0);
        zmq_send(socket, "", 0, ZMQ_SNDMORE);
        zmq_send(socket, "", 0, 0);
        stray_send(socket, 1, SHOAL__TYPE__HEARTBEAT, 1); /* and is answered all the same */
        expect_refusal(socket, "payload frame");
        zmq_close(socket);
    }
    scene_close(&scene, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_teardown(name, processes_end)
        CASE(P01_http_and_a_megabyte_of_noise),
        CASE(P01_connecting_and_closing_200_times),
        CASE(P01_who_connects_and_says_nothing_is_dropped),
        CASE(P01_sockets_of_other_kinds),
        CASE(P01_a_peer_of_another_protocol_reads_both_versions),
        CASE(P03_extra_frames_missing_bodies_and_empty_messages),
        CASE(P03_an_empty_identity_and_an_empty_first_frame),
    };
    train_reference();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
