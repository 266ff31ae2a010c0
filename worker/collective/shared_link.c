/* Set-up: local connections between all pairs of ranks, control segments, and memory of collective_alloc. Every stage ends with
 * an agreement over the ring, so that all ranks go on or all of them give up, with the same words. */
#include "worker/collective/shared.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/account.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/pool.h"
#include "base/role.h"
#include "base/status.h"
#include "net/fd_pass.h"

/* Before a wait sleeps it looks so often, giving the processor away in between. In each look a rank that may have a processor of
 * its own spins, for a few microseconds: a wake costs more. On a busy machine ranks share processors all the same, and a
 * longer spin would keep the very rank from running that it waits for: 2000 turns took ten times as long as 100. */
enum { LINK_LOOKS_ALONE = 16, LINK_LOOKS = 5, LINK_SPINS = 100 };
enum { LINK_TEXT_BYTES = 248 };
#define LINK_STAGE_NS 10000000000ll /* all ranks are there, they come from the ring: what takes longer does not work */
#define LINK_STRANGER_NS 1000000000ll

struct link_said { /* what a rank says at the end of a stage */
    int32_t status, padding;
    char text[LINK_TEXT_BYTES];
};

/* The lowest rank's reason, on all ranks. */
static int link_agree(struct collective *group, int status, struct errbuf *err)
{
    size_t world = (size_t)group->world;
    struct link_said *said = calloc(world, sizeof *said);
    size_t *offsets = calloc(world, 2 * sizeof *offsets);
    int agreed = STATUS_NOMEM;
    if (said && offsets) {
        for (size_t k = 0; k < world; k++) {
            offsets[k] = k * sizeof *said;
            offsets[world + k] = sizeof *said;
        }
        said[group->rank].status = status;
        snprintf(said[group->rank].text, LINK_TEXT_BYTES, "%.*s", LINK_TEXT_BYTES - 1, err && status ? err->text : "");
        agreed = collective_agree(group, &(struct collective_blobs){(uint8_t *)said, offsets, offsets + world}, err);
    } else {
        errbuf_set(err, STATUS_NOMEM, "out of memory");
    }
    for (size_t k = 0; k < world && !agreed; k++) {
        said[k].text[LINK_TEXT_BYTES - 1] = '\0';
        if (said[k].status)
            agreed = errbuf_set(err, said[k].status, "%s", said[k].text);
    }
    free(said);
    free(offsets);
    return agreed;
}

static int64_t link_until(const struct shared *row)
{
    return clock_now_ns() + (row->timeout_ns < LINK_STAGE_NS ? row->timeout_ns : LINK_STAGE_NS);
}

/* --- control segments --- */

static size_t round_up(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static struct shared_layout control_layout(const struct collective *group)
{
    size_t world = (size_t)group->world;
    struct shared_layout layout = {.took = round_up(sizeof(struct shared_control) + world * sizeof(uint64_t))};
    layout.images = round_up(layout.took + world * SHARED_KINDS * sizeof(int64_t));
    layout.blobs = layout.images + 2 * SHARED_SMALL_MAX * sizeof(float);
    layout.bytes = layout.blobs + 2 * group->blob_bytes_max;
    return layout;
}

static struct shared_hello link_hello(const struct collective *group, int from, int to)
{
    return (struct shared_hello){
        .magic = SHARED_MAGIC, .job = group->job, .cluster_epoch = group->cluster_epoch, .from = from, .to = to,
        .from_incarnation = group->members[from].incarnation, .world = group->world,
        .to_incarnation = to >= 0 ? group->members[to].incarnation : 0, .control_bytes = control_layout(group).bytes};
}

/* Where the parts of a control segment are. */
static void control_view(struct shared *row, struct shared_member *member, const void *memory)
{
    struct shared_layout layout = control_layout(row->group);
    const uint8_t *bytes = memory;
    member->seen = memory;
    member->have = member->seen->have;
    member->took = (const _Atomic int64_t(*)[SHARED_KINDS])(const void *)(bytes + layout.took);
    member->images = (const float *)(const void *)(bytes + layout.images);
    member->blobs = bytes + layout.blobs;
}

static int control_create(struct shared *row, struct errbuf *err)
{
    struct collective *group = row->group;
    struct shared_member *own = &row->members[row->rank];
    int status = segment_create(&own->control, "shoal-control", control_layout(group).bytes, err);
    if (status)
        return errbuf_prefix(err, status, "rank %d", row->rank);
    account_add(group->account, ACCOUNT_BUFFERS, (int64_t)own->control.mapped);
    row->control = own->control.memory;
    row->control->head = link_hello(group, row->rank, -1);
    control_view(row, own, row->control);
    row->have = row->control->have;
    struct shared_layout layout = control_layout(group);
    uint8_t *bytes = own->control.memory;
    row->took = (_Atomic int64_t(*)[SHARED_KINDS])(void *)(bytes + layout.took);
    row->images = (float *)(void *)(bytes + layout.images);
    row->blobs = bytes + layout.blobs;
    return STATUS_OK;
}

static int control_map(struct shared *row, int peer, int fd, struct errbuf *err)
{
    struct shared_member *member = &row->members[peer];
    int status = segment_map(&member->control, fd, control_layout(row->group).bytes, err);
    close(fd);
    if (status)
        return errbuf_prefix(err, status, "rank %d cannot map rank %d's memory", row->rank, peer);
    struct shared_hello head, wanted = link_hello(row->group, peer, -1);
    memcpy(&head, member->control.memory, sizeof head);
    if (memcmp(&head, &wanted, sizeof head) != 0)
        return errbuf_set(err, STATUS_PROTOCOL, "rank %d: what rank %d shares is not its control segment", row->rank,
                          peer);
    control_view(row, member, member->control.memory);
    return STATUS_OK;
}

/* --- connections: rank a connects to every b > a --- */

static int link_send_hello(struct shared *row, int peer, int64_t until_ns, struct errbuf *err)
{
    struct shared_hello hello = link_hello(row->group, row->rank, peer);
    return fd_pass_send(row->members[peer].sock, &hello, sizeof hello, &row->members[row->rank].control.fd, 1, until_ns,
                        err);
}

static int link_connect(struct shared *row, struct errbuf *err)
{
    int64_t until_ns = link_until(row);
    int status = STATUS_OK, peer = row->rank + 1;
    for (; peer < row->world && !status; peer++) {
        status = fd_pass_connect(&row->members[peer].sock, row->group->members[peer].socket, until_ns, err);
        if (!status)
            status = link_send_hello(row, peer, until_ns, err);
        if (status)
            return errbuf_prefix(err, status, "rank %d cannot reach rank %d", row->rank, peer);
    }
    return STATUS_OK;
}

/* From a rank of this life of the group, or a stranger: somebody of an earlier life, or a passer-by. */
static int link_is_member(const struct shared *row, const struct shared_hello *hello)
{
    if (hello->from < 0 || hello->from >= row->rank || row->members[hello->from].sock >= 0)
        return 0;
    struct shared_hello wanted = link_hello(row->group, hello->from, row->rank);
    return memcmp(hello, &wanted, sizeof wanted) == 0;
}

/* One connection; strangers are let go. */
static int link_accept_one(struct shared *row, int *accepted, int64_t until_ns, struct errbuf *err)
{
    int sock, fd, listener = collective_port_unix(row->group->port);
    int status = fd_pass_accept(&sock, listener, until_ns, err);
    if (status)
        return status == STATUS_DENIED ? STATUS_OK : status;
    struct shared_hello hello;
    int64_t patience_ns = clock_now_ns() + LINK_STRANGER_NS;
    if (fd_pass_receive(sock, &hello, sizeof hello, &fd, 1, patience_ns < until_ns ? patience_ns : until_ns, NULL)) {
        close(sock);
        return STATUS_OK;
    }
    if (!link_is_member(row, &hello)) {
        close(fd);
        close(sock);
        return STATUS_OK;
    }
    ++*accepted;
    row->members[hello.from].sock = sock;
    status = control_map(row, hello.from, fd, err);
    return status ? status : link_send_hello(row, hello.from, until_ns, err);
}

static int link_accept(struct shared *row, struct errbuf *err)
{
    int64_t until_ns = link_until(row);
    int accepted = 0;
    while (accepted < row->rank) {
        int status = link_accept_one(row, &accepted, until_ns, err);
        if (status == STATUS_TIMEOUT) {
            int missing = 0;
            while (row->members[missing].sock >= 0)
                missing++;
            return errbuf_set(err, status, "rank %d waits in vain for rank %d's local connection", row->rank, missing);
        }
        if (status)
            return status;
    }
    return STATUS_OK;
}

static int link_hear(struct shared *row, struct errbuf *err)
{
    int64_t until_ns = link_until(row);
    for (int peer = row->rank + 1; peer < row->world; peer++) {
        struct shared_hello hello, wanted = link_hello(row->group, peer, row->rank);
        int fd, status = fd_pass_receive(row->members[peer].sock, &hello, sizeof hello, &fd, 1, until_ns, err);
        if (status)
            return errbuf_prefix(err, status, "rank %d hears nothing from rank %d", row->rank, peer);
        if (memcmp(&hello, &wanted, sizeof hello) != 0) {
            close(fd);
            return errbuf_set(err, STATUS_PROTOCOL, "rank %d: what answers is not rank %d of this job", row->rank, peer);
        }
        status = control_map(row, peer, fd, err);
        if (status)
            return status;
    }
    return STATUS_OK;
}

/* --- the row's life --- */

static int link_check_hosts(const struct collective *group, struct errbuf *err)
{
    if (group->world > SHARED_WORLD_MAX)
        return errbuf_set(err, STATUS_PROTOCOL, "more than %d ranks cannot share memory", SHARED_WORLD_MAX);
    for (int k = 0; k < group->world; k++) {
        const struct collective_member *member = &group->members[k];
        if (!*member->host || strcmp(member->host, group->members[0].host) != 0)
            return errbuf_set(err, STATUS_PROTOCOL, "rank %d is not on rank 0's host", k);
        if (!*member->socket && group->world > 1)
            return errbuf_set(err, STATUS_PROTOCOL, "rank %d has no local socket", k);
    }
    return STATUS_OK;
}

static struct shared *link_create(struct collective *group)
{
    struct shared *row = calloc(1, sizeof *row);
    struct shared_member *members = calloc((size_t)group->world, sizeof *members);
    if (!row || !members) {
        free(row);
        free(members);
        return NULL;
    }
    for (int k = 0; k < group->world; k++)
        members[k] = (struct shared_member){.control = {.fd = -1}, .sock = -1};
    int alone = group->world <= pool_available_cores();
    *row = (struct shared){.group = group, .rank = group->rank, .world = group->world, .members = members,
                           .left = (group->rank + group->world - 1) % group->world,
                           .right = (group->rank + 1) % group->world,
                           .looks = alone ? LINK_LOOKS_ALONE : LINK_LOOKS, .spins = alone ? LINK_SPINS : 0,
                           .timeout_ns = group->timeout_s < 1e9 ? (int64_t)(group->timeout_s * 1e9) : INT64_MAX / 4};
    return row;
}

int shared_open(struct collective *group, struct errbuf *err)
{
    int (*const stages[])(struct shared *, struct errbuf *) = {control_create, link_connect, link_accept, link_hear};
    int status = link_check_hosts(group, err); /* the same answer on all ranks */
    if (status)
        return status;
    struct shared *row = link_create(group);
    group->row = row;
    for (size_t i = 0; i < sizeof stages / sizeof stages[0] && !status; i++) {
        int here = row ? stages[i](row, err) : errbuf_set(err, STATUS_NOMEM, "out of memory");
        status = link_agree(group, here, err);
    }
    if (!status) {
        segment_close_fd(&row->members[row->rank].control);
        return STATUS_OK;
    }
    shared_close(group);
    return errbuf_prefix(err, STATUS_PROTOCOL, "shared memory");
}

static void block_destroy(struct shared *row, struct shared_block *block)
{
    for (int k = 0; k < row->world && block->others; k++)
        segment_close(&block->others[k]);
    if (block->own.memory) {
        account_add(row->group->account, block->kind, -(int64_t)block->own.bytes);
        account_add(row->group->account, ACCOUNT_BUFFERS, (int64_t)block->own.bytes - (int64_t)block->own.mapped);
    }
    segment_close(&block->own);
    free(block->others);
    free(block);
}

void shared_close(struct collective *group)
{
    struct shared *row = group->row;
    group->row = NULL;
    if (!row)
        return;
    if (row->control)
        atomic_store(&row->control->closed, 1);
    for (struct shared_block *block = row->blocks, *next; block; block = next) {
        next = block->next;
        block_destroy(row, block);
    }
    if (row->control)
        account_add(group->account, ACCOUNT_BUFFERS, -(int64_t)row->members[row->rank].control.mapped);
    for (int k = 0; k < row->world; k++) {
        segment_close(&row->members[k].control);
        if (row->members[k].sock >= 0)
            close(row->members[k].sock);
    }
    free(row->members);
    free(row);
}

/* --- memory --- */

struct block_message {
    uint64_t number, bytes;
};

static int block_create(struct shared *row, struct shared_block *block, size_t bytes, struct errbuf *err)
{
    int status = segment_create(&block->own, "shoal-segment", bytes, err);
    if (status)
        return status;
    account_add(row->group->account, block->kind, (int64_t)bytes);
    account_add(row->group->account, ACCOUNT_BUFFERS, (int64_t)(block->own.mapped - bytes));
    return STATUS_OK;
}

static int block_send(struct shared *row, struct shared_block *block, struct errbuf *err)
{
    int64_t until_ns = link_until(row);
    struct block_message message = {.number = block->number, .bytes = block->own.bytes};
    int status = STATUS_OK;
    for (int k = 0; k < row->world && !status; k++) {
        if (k != row->rank)
            status = fd_pass_send(row->members[k].sock, &message, sizeof message, &block->own.fd, 1, until_ns, err);
    }
    return status;
}

static int block_receive(struct shared *row, struct shared_block *block, struct errbuf *err)
{
    int64_t until_ns = link_until(row);
    for (int k = 0; k < row->world; k++) {
        struct block_message message;
        int fd;
        if (k == row->rank)
            continue;
        int status = fd_pass_receive(row->members[k].sock, &message, sizeof message, &fd, 1, until_ns, err);
        if (status)
            return errbuf_prefix(err, status, "rank %d hears nothing from rank %d", row->rank, k);
        if (message.number == block->number)
            status = segment_map(&block->others[k], fd, (size_t)message.bytes, err);
        else
            status = errbuf_set(err, STATUS_PROTOCOL, "block %llu instead of %llu", (unsigned long long)message.number,
                                (unsigned long long)block->number);
        close(fd);
        if (status)
            return errbuf_prefix(err, status, "rank %d cannot map rank %d's memory", row->rank, k);
    }
    return STATUS_OK;
}

static struct shared_block *block_new(struct shared *row, enum account_kind kind)
{
    struct shared_block *block = calloc(1, sizeof *block);
    struct segment *others = calloc((size_t)row->world, sizeof *others);
    if (!block || !others) {
        free(block);
        free(others);
        return NULL;
    }
    for (int k = 0; k < row->world; k++)
        others[k].fd = -1;
    *block = (struct shared_block){.own = {.fd = -1}, .others = others, .number = ++row->blocks_made, .kind = kind};
    return block;
}

int64_t shared_buffers_max(const struct collective *group)
{
    const struct shared *row = group->row;
    size_t rounding = segment_mapped_bytes(1); /* of each block, at most */
    return (int64_t)(segment_mapped_bytes(control_layout(group).bytes) + row->blocks_made * rounding + row->plan_bytes_max);
}

void *shared_alloc(struct collective *group, enum account_kind kind, size_t bytes)
{
    struct shared *row = group->row;
    struct errbuf err;
    errbuf_init(&err);
    struct shared_block *block = block_new(row, kind);
    int status = block ? block_create(row, block, bytes, &err) : STATUS_NOMEM;
    status = link_agree(group, status, &err);
    if (!status)
        status = link_agree(group, block_send(row, block, &err), &err);
    if (!status)
        status = link_agree(group, block_receive(row, block, &err), &err);
    if (status) {
        log_error(&collective_port_host(group->port)->log, "shared_memory bytes=%zu error=\"%s\"", bytes, err.text);
        if (block)
            block_destroy(row, block);
        return NULL;
    }
    segment_close_fd(&block->own);
    block->next = row->blocks;
    row->blocks = block;
    return block->own.memory;
}

void shared_free(struct collective *group, enum account_kind kind, void *memory, size_t bytes)
{
    struct shared *row = group->row;
    (void)kind;
    (void)bytes;
    for (struct shared_block **at = &row->blocks; *at && memory; at = &(*at)->next) {
        struct shared_block *block = *at;
        if (block->own.memory != memory)
            continue;
        *at = block->next;
        block_destroy(row, block);
        return;
    }
}

const struct shared_block *shared_block_of(const struct shared *row, const void *memory, size_t bytes, size_t *offset)
{
    for (const struct shared_block *block = row->blocks; block; block = block->next) {
        uintptr_t at = (uintptr_t)memory, begin = (uintptr_t)block->own.memory;
        if (at >= begin && at - begin <= block->own.bytes && bytes <= block->own.bytes - (at - begin)) {
            *offset = at - begin;
            return block;
        }
    }
    return NULL;
}

const void *shared_place(const struct shared *row, int rank, uint64_t number, uint64_t offset, size_t bytes)
{
    for (const struct shared_block *block = row->blocks; block; block = block->next) {
        const struct segment *segment = rank == row->rank ? &block->own : &block->others[rank];
        if (block->number != number)
            continue;
        if (offset > segment->bytes || bytes > segment->bytes - offset || offset % sizeof(float) != 0)
            return NULL;
        return (const uint8_t *)segment->memory + offset;
    }
    return NULL;
}
