#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/account.h"
#include "base/clock.h"
#include "base/host.h"
#include "base/status.h"
#include "net/duct.h"
#include "net/fd_pass.h"
#include "net/local.h"
#include "rig.h"

enum { KEPT_MAX = 64, MIB = 1 << 20 };

/* A serving end that answers at once, or keeps requests with their frames until it is let. */
struct keeper {
    struct net_router *router;
    struct net_return back[KEPT_MAX];
    struct buf *frames[KEPT_MAX];
    int keep, kept, served;
    uint64_t sum;
    struct buf *values;
};

static uint64_t sum_of(const struct buf *buf)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < buf->bytes; i++)
        sum += ((const uint8_t *)buf->data)[i];
    return sum;
}

static void keeper_serve(void *context, struct net_router *router, struct message *request,
                         const struct net_return *back)
{
    struct keeper *keeper = context;
    keeper->served++;
    if (request->envelope->type == SHOAL__TYPE__PULL) {
        Shoal__Envelope values = SHOAL__ENVELOPE__INIT;
        values.type = SHOAL__TYPE__VALUES;
        values.dtype = SHOAL__DTYPE__F32;
        net_reply(router, back, &values, &keeper->values, 1);
        return;
    }
    if (request->frames_count > 0)
        keeper->sum += sum_of(request->frames[0]);
    if (!keeper->keep) {
        net_reply_status(router, back, STATUS_OK, NULL);
        return;
    }
    assert_true(keeper->kept < KEPT_MAX);
    keeper->back[keeper->kept] = *back;
    keeper->frames[keeper->kept] = request->frames_count > 0 ? request->frames[0] : NULL;
    request->frames[0] = NULL;
    keeper->kept++;
}

static void keeper_let(struct keeper *keeper, int which)
{
    net_reply_status(keeper->router, &keeper->back[which], STATUS_OK, NULL);
    buf_release(keeper->frames[which]);
    keeper->frames[which] = NULL;
}

struct scene {
    struct rig server, worker;
    struct keeper keeper;
    struct net_link *link, *plain; /* the other one shares nothing */
    struct account server_account, worker_account;
    int shared, status;
    char why[256];
};

static void on_shared(void *context, int status, const char *why)
{
    struct scene *scene = context;
    scene->shared++;
    scene->status = status;
    snprintf(scene->why, sizeof scene->why, "%s", why);
}

static void keeper_open(struct scene *scene, const char *endpoint)
{
    struct net_listen listen = {.endpoint = endpoint, .serve = keeper_serve, .context = &scene->keeper,
                                .account = &scene->server_account};
    int status;
    do {
        uv_run(&scene->server.loop, UV_RUN_NOWAIT);
        status = net_router_open(&scene->keeper.router, scene->server.net, &listen, &scene->server.err);
    } while (status == STATUS_IO);
    assert_int_equal(status, STATUS_OK);
}

static void turn(struct scene *scene)
{
    uv_run(&scene->server.loop, UV_RUN_NOWAIT);
    uv_run(&scene->worker.loop, UV_RUN_NOWAIT);
}

static void scene_until(struct scene *scene, const int *value, int wanted)
{
    while (*value < wanted)
        turn(scene);
}

static void link_share(struct scene *scene, uint64_t bytes)
{
    struct net_share share = {bytes, bytes, &scene->worker_account, on_shared, scene};
    net_link_share(scene->link, &share);
}

static void scene_open(struct scene *scene, const char *endpoint, uint64_t bytes)
{
    memset(scene, 0, sizeof *scene);
    account_init(&scene->server_account);
    account_init(&scene->worker_account);
    rig_open(&scene->server, NULL, SHOAL__ROLE__SERVER);
    rig_open(&scene->worker, scene->server.zmq, SHOAL__ROLE__WORKER);
    keeper_open(scene, endpoint);
    assert_int_equal(net_link_open(&scene->link, scene->worker.net, net_router_endpoint(scene->keeper.router), NULL, NULL,
                                   NULL, &scene->worker.err), STATUS_OK);
    assert_int_equal(net_link_open(&scene->plain, scene->worker.net, net_router_endpoint(scene->keeper.router), NULL, NULL,
                                   NULL, &scene->worker.err), STATUS_OK);
    link_share(scene, bytes);
    scene_until(scene, &scene->shared, 1);
}

static void scene_close(struct scene *scene)
{
    rig_close(&scene->worker);
    rig_close(&scene->server);
    assert_int_equal(scene->worker_account.bytes[ACCOUNT_BUFFERS], 0);
    assert_int_equal(scene->server_account.bytes[ACCOUNT_BUFFERS], 0);
}

static struct buf *counted(size_t bytes)
{
    struct buf *buf = buf_create(bytes);
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)buf->data)[i] = (uint8_t)(i * 7 + 1);
    return buf;
}

static void ask_pull(struct net_link *link, struct answer *answer)
{
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    Shoal__Selector selector = SHOAL__SELECTOR__INIT;
    selector.end = 4;
    envelope.type = SHOAL__TYPE__PULL;
    envelope.dtype = SHOAL__DTYPE__F32;
    envelope.selector = &selector;
    struct net_call call = {.envelope = &envelope, .reply = answer_take, .context = answer};
    net_request(link, &call);
}

static void payload_goes_both_ways_and_is_booked(void **state)
{
    (void)state;
    struct scene scene;
    struct answer push = {0}, pull = {.keep = 1};
    struct buf *values = counted(MIB);
    scene_open(&scene, "tcp://127.0.0.1:*", 2 * MIB);
    assert_int_equal(scene.status, STATUS_OK);
    assert_true(net_link_is_shared(scene.link));
    int64_t cost = (int64_t)segment_mapped_bytes(duct_segment_bytes(2 * MIB));
    assert_int_equal(scene.worker_account.bytes[ACCOUNT_BUFFERS], cost);
    assert_int_equal(scene.server_account.bytes[ACCOUNT_BUFFERS], cost);
    scene.keeper.values = values;
    ask_push(scene.link, values, 1, &push);
    ask_pull(scene.link, &pull);
    scene_until(&scene, &push.done, 1);
    scene_until(&scene, &pull.done, 1);
    assert_int_equal(push.status, STATUS_OK);
    assert_int_equal(pull.status, STATUS_OK);
    assert_int_equal(scene.keeper.sum, sum_of(values));
    assert_int_equal(pull.frame->bytes, MIB);
    assert_memory_equal(pull.frame->data, values->data, MIB);
    assert_true(buf_is_sole(values)); /* it was copied once, and ZeroMQ never had it */
    uint64_t sent, received;
    net_link_bytes(scene.link, &sent, &received);
    assert_int_equal(sent, MIB);
    assert_int_equal(received, MIB);
    scene_close(&scene);
    assert_int_equal(((const uint8_t *)pull.frame->data)[9], 64); /* a frame outlives its link */
    buf_release(pull.frame);
    buf_release(values);
}

static void what_finds_no_room_waits_and_leaves_when_any_place_is_free(void **state)
{
    (void)state;
    enum { PUSHES = 24, BYTES = 64 << 10 };
    struct scene scene;
    struct answer answers[PUSHES] = {{0}};
    struct buf *values = counted(BYTES);
    scene_open(&scene, "tcp://127.0.0.1:*", 4 * (BYTES + 256));
    scene.keeper.keep = 1;
    for (int i = 0; i < PUSHES; i++)
        ask_push(scene.link, values, (uint64_t)i + 1, &answers[i]);
    for (int first = 0; first < PUSHES; first += 4) {
        scene_until(&scene, &scene.keeper.kept, first + 4);
        for (int i = 0; i < 10; i++)
            turn(&scene);
        assert_int_equal(scene.keeper.kept, first + 4); /* the others wait */
        for (int i = 3; i >= 0; i--)
            keeper_let(&scene.keeper, first + i);
    }
    for (int i = 0; i < PUSHES; i++) {
        scene_until(&scene, &answers[i].done, 1);
        assert_int_equal(answers[i].status, STATUS_OK);
    }
    assert_int_equal(scene.keeper.sum, PUSHES * sum_of(values));
    scene_close(&scene);
    buf_release(values);
}

static void what_is_larger_than_the_room_goes_over_the_connection(void **state)
{
    (void)state;
    struct scene scene;
    struct answer push = {0}, pull = {0};
    struct buf *values = counted(MIB);
    scene_open(&scene, "tcp://127.0.0.1:*", 64 << 10);
    scene.keeper.values = values;
    ask_push(scene.link, values, 1, &push);
    ask_pull(scene.link, &pull);
    scene_until(&scene, &push.done, 1);
    scene_until(&scene, &pull.done, 1);
    assert_int_equal(push.status, STATUS_OK);
    assert_int_equal(pull.bytes, MIB);
    assert_true(net_link_is_shared(scene.link));
    scene_close(&scene);
    buf_release(values);
}

static void both_ends_in_one_process_share_everything_already(void **state)
{
    (void)state;
    struct scene scene;
    scene_open(&scene, "inproc://share", MIB);
    assert_int_equal(scene.status, STATUS_OK);
    assert_false(net_link_is_shared(scene.link));
    scene_close(&scene);
}

static void a_server_that_comes_back_shares_again(void **state)
{
    (void)state;
    struct scene scene;
    struct answer early = {0}, late = {0};
    struct buf *values = counted(100000);
    char endpoint[64];
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%d", rig_free_port());
    scene_open(&scene, endpoint, MIB);
    scene.keeper.keep = 1;
    ask_push(scene.link, values, 1, &early);
    scene_until(&scene, &scene.keeper.kept, 1);
    net_router_close(scene.keeper.router);
    buf_release(scene.keeper.frames[0]); /* of a channel that is closed */
    scene.keeper.kept = scene.keeper.keep = 0;
    while (net_link_is_shared(scene.link))
        turn(&scene);
    keeper_open(&scene, endpoint);
    scene_until(&scene, &early.done, 1); /* sent again, over the connection */
    assert_int_equal(early.status, STATUS_OK);
    while (!net_link_is_shared(scene.link))
        turn(&scene);
    ask_push(scene.link, values, 2, &late);
    scene_until(&scene, &late.done, 1);
    assert_int_equal(late.status, STATUS_OK);
    assert_int_equal(scene.shared, 1); /* told once */
    scene_close(&scene);
    buf_release(values);
}

/* --- guests that misbehave ------------------------------------------------------------------------------ */

/* The answer to a LOCAL, which is kept. */
struct invitation {
    int done, status;
    char host[128], socket[FD_PASS_NAME_BYTES];
    uint8_t nonce[LOCAL_NONCE_BYTES];
};

static void take_invitation(void *context, int status, struct message *reply)
{
    struct invitation *invitation = context;
    invitation->done++;
    invitation->status = status;
    if (status)
        return;
    const Shoal__Local *local = reply->envelope->local;
    snprintf(invitation->host, sizeof invitation->host, "%s", local->host);
    snprintf(invitation->socket, sizeof invitation->socket, "%s", local->socket);
    if (local->nonce.len == LOCAL_NONCE_BYTES)
        memcpy(invitation->nonce, local->nonce.data, LOCAL_NONCE_BYTES);
}

static void invite(struct scene *scene, struct invitation *invitation, const char *host)
{
    Shoal__Local body = SHOAL__LOCAL__INIT;
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    memset(invitation, 0, sizeof *invitation);
    body.host = (char *)(uintptr_t)host;
    envelope.type = SHOAL__TYPE__LOCAL;
    envelope.body_case = SHOAL__ENVELOPE__BODY_LOCAL;
    envelope.local = &body;
    struct net_call call = {.envelope = &envelope, .reply = take_invitation, .context = invitation};
    net_request(scene->plain, &call);
    scene_until(scene, &invitation->done, 1);
    assert_int_equal(invitation->status, STATUS_OK);
}

static void another_host_is_offered_nothing(void **state)
{
    (void)state;
    struct scene scene;
    struct invitation invitation;
    scene_open(&scene, "tcp://127.0.0.1:*", MIB);
    invite(&scene, &invitation, "some other machine");
    assert_string_equal(invitation.socket, "");
    assert_true(invitation.host[0] != '\0');
    scene_close(&scene);
}

/* A guest without the net's code, through the front door. */
struct guest {
    int sock;
    struct segment mine, theirs;
    struct duct duct;
};

static int guest_hello(struct scene *scene, struct guest *guest, const struct local_hello *hello, const char *name)
{
    struct errbuf err;
    guest->theirs = (struct segment){.fd = -1};
    assert_int_equal(fd_pass_connect(&guest->sock, name, clock_now_ns() + 1000000000, &err), STATUS_OK);
    assert_int_equal(fd_pass_send(guest->sock, hello, sizeof *hello, &guest->mine.fd, 1, clock_now_ns() + 1000000000,
                                  &err), STATUS_OK);
    struct local_welcome welcome;
    int fd = -1, status;
    do {
        turn(scene);
        status = fd_pass_receive(guest->sock, &welcome, sizeof welcome, &fd, 1, clock_now_ns() + 100000, &err);
    } while (status == STATUS_TIMEOUT);
    if (status)
        return status;
    assert_int_equal(segment_map(&guest->theirs, fd, duct_segment_bytes(welcome.area_bytes), &err), STATUS_OK);
    close(fd);
    duct_init(&guest->duct, guest->mine.memory, hello->area_bytes, guest->theirs.memory, welcome.area_bytes);
    return STATUS_OK;
}

static struct local_hello hello_of(const struct invitation *invitation)
{
    struct local_hello hello = {LOCAL_MAGIC, LOCAL_VERSION, {0}, MIB, MIB};
    memcpy(hello.nonce, invitation->nonce, sizeof hello.nonce);
    return hello;
}

static void guest_open(struct scene *scene, struct guest *guest)
{
    struct invitation invitation;
    struct errbuf err;
    char host[128];
    host_id(host, sizeof host);
    invite(scene, &invitation, host);
    struct local_hello hello = hello_of(&invitation);
    assert_int_equal(segment_create(&guest->mine, "guest", duct_segment_bytes(MIB), &err), STATUS_OK);
    assert_int_equal(guest_hello(scene, guest, &hello, invitation.socket), STATUS_OK);
}

static void guest_close(struct guest *guest)
{
    close(guest->sock);
    segment_close(&guest->mine);
    segment_close(&guest->theirs);
}

static void only_invited_guests_with_sound_memory_are_let_in(void **state)
{
    (void)state;
    struct scene scene;
    struct invitation invitation;
    struct guest guest;
    struct errbuf err;
    char host[128];
    host_id(host, sizeof host);
    scene_open(&scene, "tcp://127.0.0.1:*", MIB);
    assert_int_equal(segment_create(&guest.mine, "guest", duct_segment_bytes(MIB), &err), STATUS_OK);
    for (int which = 0; which < 7; which++) {
        invite(&scene, &invitation, host);
        struct local_hello hello = hello_of(&invitation);
        uint64_t refused = net_counters(scene.server.net)->refused;
        hello.nonce[3] ^= which == 0;
        hello.version += which == 1;
        hello.area_bytes += which == 2 ? 4096 : 0; /* longer than the memory that comes along */
        hello.area_bytes = which == 3 ? UINT64_MAX - 7 : hello.area_bytes;
        hello.answer_bytes = which == 4 ? UINT64_MAX - 7 : hello.answer_bytes;
        hello.answer_bytes = which == 5 ? 0 : hello.answer_bytes;
        hello.magic ^= which == 6;
        assert_int_equal(guest_hello(&scene, &guest, &hello, invitation.socket), STATUS_CLOSED);
        assert_int_equal(net_counters(scene.server.net)->refused, refused + 1);
        close(guest.sock);
    }
    /* An invitation is for one. */
    invite(&scene, &invitation, host);
    struct local_hello hello = hello_of(&invitation);
    assert_int_equal(guest_hello(&scene, &guest, &hello, invitation.socket), STATUS_OK);
    close(guest.sock);
    segment_close(&guest.theirs);
    assert_int_equal(guest_hello(&scene, &guest, &hello, invitation.socket), STATUS_CLOSED);
    guest_close(&guest);
    scene_close(&scene);
}

static void a_guest_that_lies_loses_its_channel_and_nobody_else(void **state)
{
    (void)state;
    struct scene scene;
    struct guest guest;
    struct errbuf err;
    struct answer push = {0};
    struct buf *values = counted(100000);
    scene_open(&scene, "tcp://127.0.0.1:*", MIB);
    guest_open(&scene, &guest);
    struct message_part part = {"no envelope", 11};
    uint64_t refused = net_counters(scene.server.net)->refused;
    assert_int_equal(duct_write(&guest.duct, &part, 1), STATUS_OK);
    assert_int_equal(duct_write(&guest.duct, &part, 1), STATUS_OK);
    while (net_counters(scene.server.net)->refused < refused + 2) /* refused and counted, and it goes on */
        turn(&scene);
    assert_false(fd_pass_gone(guest.sock));
    assert_int_equal(duct_write(&guest.duct, &part, 1), STATUS_OK);
    guest.duct.mine->ring[2].bytes[0] = 2 * MIB;
    atomic_fetch_add(&guest.duct.mine->published, 1); /* it may be rung: both are past the end */
    guest.duct.mine->ring[3] = guest.duct.mine->ring[2];
    while (!fd_pass_gone(guest.sock))
        turn(&scene);
    guest_close(&guest);
    ask_push(scene.link, values, 1, &push);
    scene_until(&scene, &push.done, 1);
    assert_int_equal(push.status, STATUS_OK);
    assert_true(net_link_is_shared(scene.link));
    (void)err;
    scene_close(&scene);
    buf_release(values);
}

static int shared_maps(void)
{
    char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        count += strstr(line, "memfd:") != NULL;
    fclose(maps);
    return count;
}

static int open_descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

/* The child pushes, and is killed half-way through its next message while the server holds the first. */
static void child_main(int endpoint_pipe)
{
    static struct scene scene;
    char endpoint[64] = "";
    struct answer push = {0};
    if (read(endpoint_pipe, endpoint, sizeof endpoint) <= 0)
        _exit(1);
    rig_open(&scene.worker, NULL, SHOAL__ROLE__WORKER);
    if (net_link_open(&scene.link, scene.worker.net, endpoint, NULL, NULL, NULL, &scene.worker.err))
        _exit(1);
    link_share(&scene, 2 * MIB);
    while (!scene.shared)
        uv_run(&scene.worker.loop, UV_RUN_ONCE);
    ask_push(scene.link, counted(MIB), 1, &push);
    for (;;) /* unanswered: until the parent kills it */
        uv_run(&scene.worker.loop, UV_RUN_ONCE);
}

static void a_peer_that_is_killed_leaves_nothing_behind(void **state)
{
    (void)state;
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork(); /* before ZeroMQ has threads */
    if (child == 0)
        child_main(pipes[0]);
    struct scene scene;
    uv_loop_t loop; /* the first has descriptors that stay */
    uv_loop_init(&loop);
    uv_loop_close(&loop);
    int descriptors = open_descriptors(), maps = shared_maps();
    memset(&scene, 0, sizeof scene);
    account_init(&scene.server_account);
    rig_open(&scene.server, NULL, SHOAL__ROLE__SERVER);
    scene.keeper.keep = 1;
    keeper_open(&scene, "tcp://127.0.0.1:*");
    char endpoint[64] = "";
    snprintf(endpoint, sizeof endpoint, "%s", net_router_endpoint(scene.keeper.router));
    assert_int_equal(write(pipes[1], endpoint, sizeof endpoint), sizeof endpoint);
    rig_until(&scene.server, &scene.keeper.kept, 1);
    assert_true(shared_maps() > maps);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    while (scene.server_account.bytes[ACCOUNT_BUFFERS] > 0) /* it learns of it by itself */
        uv_run(&scene.server.loop, UV_RUN_ONCE);
    struct buf *wanted = counted(MIB);
    assert_int_equal(sum_of(scene.keeper.frames[0]), sum_of(wanted)); /* what it holds is still there */
    buf_release(wanted);
    keeper_let(&scene.keeper, 0);
    assert_int_equal(shared_maps(), maps);
    rig_close(&scene.server);
    close(pipes[0]);
    close(pipes[1]);
    assert_int_equal(open_descriptors(), descriptors - 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_peer_that_is_killed_leaves_nothing_behind), /* first: it forks */
        cmocka_unit_test(payload_goes_both_ways_and_is_booked),
        cmocka_unit_test(what_finds_no_room_waits_and_leaves_when_any_place_is_free),
        cmocka_unit_test(what_is_larger_than_the_room_goes_over_the_connection),
        cmocka_unit_test(both_ends_in_one_process_share_everything_already),
        cmocka_unit_test(a_server_that_comes_back_shares_again),
        cmocka_unit_test(another_host_is_offered_nothing),
        cmocka_unit_test(only_invited_guests_with_sound_memory_are_let_in),
        cmocka_unit_test(a_guest_that_lies_loses_its_channel_and_nobody_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
