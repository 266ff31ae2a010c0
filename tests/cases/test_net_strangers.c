/* Cases P01 and P03 against a serving socket: strangers, and peers whose frames are wrong, while a worker goes on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include "base/status.h"
#include "rig.h"

struct scene {
    struct rig server, worker;
    struct echo echo;
    struct net_link *link;
    int port;
};

static void scene_open(struct scene *scene)
{
    rig_open(&scene->server, NULL, SHOAL__ROLE__SERVER);
    rig_open(&scene->worker, NULL, SHOAL__ROLE__WORKER);
    echo_open(&scene->echo, &scene->server, &(struct net_listen){.endpoint = "tcp://127.0.0.1:0"});
    const char *endpoint = net_router_endpoint(scene->echo.router);
    scene->port = atoi(strrchr(endpoint, ':') + 1);
    assert_int_equal(net_link_open(&scene->link, scene->worker.net, endpoint, NULL, NULL, NULL, &scene->worker.err),
                     STATUS_OK);
}

static void scene_turn(struct scene *scene)
{
    uv_run(&scene->server.loop, UV_RUN_NOWAIT);
    uv_run(&scene->worker.loop, UV_RUN_NOWAIT);
}

/* The worker is served as if nobody else were there. */
static void assert_served(struct scene *scene)
{
    struct answer beat = {0};
    ask(scene->link, SHOAL__TYPE__HEARTBEAT, &beat, 0);
    while (!beat.done)
        scene_turn(scene);
    assert_int_equal(beat.status, STATUS_OK);
}

static void until_refused(struct scene *scene, uint64_t wanted)
{
    while (net_counters(scene->server.net)->refused < wanted)
        scene_turn(scene);
}

static void scene_close(struct scene *scene)
{
    assert_served(scene);
    assert_int_equal(net_counters(scene->worker.net)->resent, 0);
    rig_close(&scene->worker);
    rig_close(&scene->server);
}

static int connect_raw(const struct scene *scene)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)scene->port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static void send_raw(int fd, const void *bytes, size_t count)
{
    while (count > 0) {
        ssize_t sent = send(fd, bytes, count, MSG_NOSIGNAL);
        if (sent <= 0) /* the server hung up, which is its right */
            return;
        bytes = (const char *)bytes + sent;
        count -= (size_t)sent;
    }
}

static void P01_an_http_request_and_noise_are_refused_and_counted(void **state)
{
    (void)state;
    static const char http[] = "GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: a browser of some kind\r\n\r\n";
    struct scene scene;
    scene_open(&scene);
    assert_served(&scene);
    int fd = connect_raw(&scene);
    send_raw(fd, http, sizeof http - 1);
    until_refused(&scene, 1);
    close(fd);
    enum { NOISE = 1 << 20 };
    uint8_t *noise = malloc(NOISE);
    uint32_t x = 12345;
    for (int i = 0; i < NOISE; i++) {
        x = x * 1664525 + 1013904223;
        noise[i] = (uint8_t)(x >> 24);
    }
    fd = connect_raw(&scene);
    send_raw(fd, noise, NOISE);
    until_refused(&scene, 2);
    close(fd);
    /* A real greeting with noise behind it. */
    static const uint8_t greeting[64] = {0xFF, 0, 0, 0, 0, 0, 0, 0, 1, 0x7F, 3, 0, 'N', 'U', 'L', 'L'};
    fd = connect_raw(&scene);
    send_raw(fd, greeting, sizeof greeting);
    send_raw(fd, noise, NOISE);
    until_refused(&scene, 3);
    close(fd);
    free(noise);
    scene_close(&scene);
}

static void P01_connecting_and_closing_200_times_changes_nothing(void **state)
{
    (void)state;
    struct scene scene;
    scene_open(&scene);
    assert_served(&scene);
    for (int i = 0; i < 200; i++)
        close(connect_raw(&scene));
    assert_served(&scene);
    until_refused(&scene, 200);
    scene_close(&scene);
}

static void P01_who_connects_and_says_nothing_is_dropped(void **state)
{
    (void)state;
    struct scene scene;
    scene_open(&scene);
    int fd = connect_raw(&scene);
    assert_served(&scene);
    until_refused(&scene, 1);
    char byte[64];
    ssize_t count;
    do /* the server's greeting, then its end */
        count = recv(fd, byte, sizeof byte, 0);
    while (count > 0);
    close(fd);
    scene_close(&scene);
}

static void P01_sockets_of_other_kinds_never_reach_the_messages(void **state)
{
    (void)state;
    static const int kinds[] = {ZMQ_PUB, ZMQ_PULL, ZMQ_REQ};
    struct scene scene;
    scene_open(&scene);
    void *context = zmq_ctx_new();
    for (int i = 0; i < 3; i++) {
        void *socket = zmq_socket(context, kinds[i]);
        int linger = 0;
        uint64_t before = net_counters(scene.server.net)->refused;
        zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
        zmq_connect(socket, net_router_endpoint(scene.echo.router));
        if (kinds[i] == ZMQ_REQ) /* which a ROUTER does take: it is its message that is wrong */
            zmq_send(socket, "hello", 5, 0);
        until_refused(&scene, before + 1);
        zmq_close(socket);
    }
    zmq_ctx_term(context);
    int served = scene.echo.served;
    assert_int_equal(served, 0);
    scene_close(&scene);
}

/* A DEALER that sends what it likes. */
struct stray {
    void *context, *socket;
};

static void stray_open(struct stray *stray, struct scene *scene)
{
    int linger = 0;
    stray->context = zmq_ctx_new();
    stray->socket = zmq_socket(stray->context, ZMQ_DEALER);
    zmq_setsockopt(stray->socket, ZMQ_LINGER, &linger, sizeof linger);
    zmq_connect(stray->socket, net_router_endpoint(scene->echo.router));
}

static void stray_close(struct stray *stray)
{
    zmq_close(stray->socket);
    zmq_ctx_term(stray->context);
}

static void stray_send(struct stray *stray, uint32_t protocol, Shoal__Type type, int frames)
{
    uint8_t packed[256];
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    envelope.protocol_low = envelope.protocol_high = protocol;
    envelope.type = type;
    envelope.role = SHOAL__ROLE__WORKER;
    envelope.request = 5;
    size_t bytes = shoal__envelope__pack(&envelope, packed);
    zmq_send(stray->socket, packed, bytes, frames > 0 ? ZMQ_SNDMORE : 0);
    for (int i = 0; i < frames; i++)
        zmq_send(stray->socket, "12345678", 8, i + 1 < frames ? ZMQ_SNDMORE : 0);
}

/* The answer's status; its text goes to text. */
static int stray_answer(struct stray *stray, struct scene *scene, char *text, size_t text_bytes)
{
    uint8_t bytes[1024];
    int count;
    while ((count = zmq_recv(stray->socket, bytes, sizeof bytes, ZMQ_DONTWAIT)) < 0)
        scene_turn(scene);
    Shoal__Envelope *envelope = shoal__envelope__unpack(NULL, (size_t)count, bytes);
    assert_non_null(envelope);
    assert_int_equal(envelope->type, SHOAL__TYPE__ACK);
    assert_int_equal(envelope->request, 5);
    int status = envelope->status;
    snprintf(text, text_bytes, "%s", envelope->text);
    shoal__envelope__free_unpacked(envelope, NULL);
    return status;
}

static void P01_a_peer_of_another_protocol_is_answered_with_both_versions(void **state)
{
    (void)state;
    char text[256];
    struct scene scene;
    struct stray stray;
    scene_open(&scene);
    stray_open(&stray, &scene);
    stray_send(&stray, 9, SHOAL__TYPE__HEARTBEAT, 0);
    assert_int_equal(stray_answer(&stray, &scene, text, sizeof text), STATUS_PROTOCOL);
    assert_string_equal(text, "peer speaks protocol 9 to 9, this one speaks 1 to 1");
    stray_close(&stray);
    scene_close(&scene);
}

static void P03_wrong_frames_are_answered_and_counted(void **state)
{
    (void)state;
    char text[256];
    struct scene scene;
    struct stray stray;
    scene_open(&scene);
    stray_open(&stray, &scene);
    stray_send(&stray, 1, SHOAL__TYPE__HEARTBEAT, 1);
    assert_int_equal(stray_answer(&stray, &scene, text, sizeof text), STATUS_FORMAT);
    stray_send(&stray, 1, SHOAL__TYPE__HEARTBEAT, 50);
    assert_int_equal(stray_answer(&stray, &scene, text, sizeof text), STATUS_FORMAT);
    assert_non_null(strstr(text, "50 payload frames"));
    stray_send(&stray, 1, SHOAL__TYPE__JOIN, 0);
    assert_int_equal(stray_answer(&stray, &scene, text, sizeof text), STATUS_FORMAT);
    stray_send(&stray, 1, SHOAL__TYPE__ACK, 0); /* an answer to nobody's question */
    assert_int_equal(stray_answer(&stray, &scene, text, sizeof text), STATUS_FORMAT);
    zmq_send(stray.socket, "", 0, 0);
    zmq_send(stray.socket, "noise", 5, 0);
    until_refused(&scene, 6);
    assert_int_equal(scene.echo.served, 0);
    stray_close(&stray);
    scene_close(&scene);
}

/* Routing ids of a peer's own choice, up to the 255 bytes ZeroMQ allows. */
static void P03_identities_of_any_length_are_survived(void **state)
{
    (void)state;
    char name[255], text[256];
    struct scene scene;
    struct stray stray;
    memset(name, 'n', sizeof name);
    scene_open(&scene);
    for (size_t bytes = 1; bytes <= sizeof name; bytes = bytes * 2 + 1) {
        int linger = 0;
        stray.context = zmq_ctx_new();
        stray.socket = zmq_socket(stray.context, ZMQ_DEALER);
        zmq_setsockopt(stray.socket, ZMQ_LINGER, &linger, sizeof linger);
        zmq_setsockopt(stray.socket, ZMQ_ROUTING_ID, name, bytes);
        zmq_connect(stray.socket, net_router_endpoint(scene.echo.router));
        uint64_t before = net_counters(scene.server.net)->refused;
        stray_send(&stray, 1, SHOAL__TYPE__HEARTBEAT, 1);
        if (bytes <= MESSAGE_IDENTITY_MAX)
            assert_int_equal(stray_answer(&stray, &scene, text, sizeof text), STATUS_FORMAT);
        until_refused(&scene, before + 1);
        stray_close(&stray);
    }
    scene_close(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(P01_an_http_request_and_noise_are_refused_and_counted),
        cmocka_unit_test(P01_connecting_and_closing_200_times_changes_nothing),
        cmocka_unit_test(P01_who_connects_and_says_nothing_is_dropped),
        cmocka_unit_test(P01_sockets_of_other_kinds_never_reach_the_messages),
        cmocka_unit_test(P01_a_peer_of_another_protocol_is_answered_with_both_versions),
        cmocka_unit_test(P03_wrong_frames_are_answered_and_counted),
        cmocka_unit_test(P03_identities_of_any_length_are_survived),
    };
    return cmocka_run_group_tests_name("net_strangers", tests, NULL, NULL);
}
