#include "worker/collective/collective.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "worker/collective/collective_internal.h"
#include "worker/collective/port.h"
#include "worker/collective/ring.h"

/* Rows that move payload in another way than the ring, tried in this order. */
static const struct collective_ops *const other_rows[] = {&collective_shared, NULL};

const char *collective_form_name(uint32_t form)
{
    static const char *const names[] = {
        [COLLECTIVE_FORM_REDUCE_SCATTER] = "reduce_scatter",
        [COLLECTIVE_FORM_ALL_GATHER] = "all_gather",
        [COLLECTIVE_FORM_EXCHANGE] = "exchange",
        [COLLECTIVE_FORM_PLAN] = "plan",
        [COLLECTIVE_FORM_OPEN] = "open",
        [COLLECTIVE_FORM_BARRIER] = "barrier",
        [COLLECTIVE_FORM_POISON] = "poison",
        [COLLECTIVE_FORM_ALL_REDUCE] = "all_reduce",
        [COLLECTIVE_FORM_ROW] = "agreement",
    };
    return form < sizeof names / sizeof names[0] ? names[form] : NULL;
}

uint64_t collective_mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 29;
}

static uint64_t sizes_fingerprint(uint32_t form, const size_t *sizes, int world)
{
    uint64_t hash = collective_mix(2, form);
    for (int rank = 0; rank < world; rank++)
        hash = collective_mix(hash, sizes[rank]);
    return hash;
}

/* --- one operation after another ------------------------------------------------------------------ */

static int cancel_text(struct collective *group, struct errbuf *err)
{
    pthread_mutex_lock(&group->cancel_lock);
    int status = errbuf_set(err, atomic_load(&group->cancelled), "%s", group->cancel_text);
    pthread_mutex_unlock(&group->cancel_lock);
    return status;
}

int collective_fail(struct collective *group, int status, struct errbuf *err)
{
    struct errbuf text;
    errbuf_init(&text);
    if (err)
        text = *err;
    if (atomic_load(&group->cancelled)) {
        status = cancel_text(group, &text);
        if (group->ring)
            ring_part(group->ring, STATUS_ABORTED, text.text);
    } else if (group->ring) {
        status = ring_settle(group->ring, status, &text);
    }
    if (!group->status) {
        group->status = status;
        group->failure = text;
    }
    return errbuf_set(err, group->status, "%s", group->failure.text);
}

int collective_begin(struct collective *group, uint32_t form, uint64_t fingerprint, const char *format, ...)
{
    va_list arguments;
    group->call.sequence++;
    group->call.form = form;
    group->call.fingerprint = fingerprint;
    va_start(arguments, format);
    vsnprintf(group->call.text, sizeof group->call.text, format, arguments);
    va_end(arguments);
    return atomic_load(&group->cancelled) ? STATUS_ABORTED : STATUS_OK;
}

int collective_refused(const struct collective *group, struct errbuf *err)
{
    return group->status ? errbuf_set(err, group->status, "%s", group->failure.text) : STATUS_OK;
}

typedef int exchange_fn(struct collective *group, const struct collective_blobs *blobs, struct errbuf *err);

static int exchange_as(struct collective *group, uint32_t form, exchange_fn *exchange,
                       const struct collective_blobs *blobs, struct errbuf *err)
{
    int status = collective_refused(group, err);
    if (status)
        return status;
    size_t bytes = 0;
    for (int rank = 0; rank < group->world; rank++)
        bytes += blobs->sizes[rank];
    uint64_t fingerprint = sizes_fingerprint(form, blobs->sizes, group->world);
    status = bytes
                 ? collective_begin(group, form, fingerprint, "%s of %zu bytes", collective_form_name(form), bytes)
                 : collective_begin(group, form, fingerprint, "%s", collective_form_name(form));
    if (!status)
        status = exchange(group, blobs, err);
    return status ? collective_fail(group, status, err) : STATUS_OK;
}

int collective_exchange(struct collective *group, const struct collective_blobs *blobs, struct errbuf *err)
{
    for (int rank = 0; rank < group->world; rank++) {
        if (blobs->sizes[rank] > group->blob_bytes_max)
            return errbuf_set(err, STATUS_RANGE, "exchange of %zu bytes from rank %d, at most %zu",
                              blobs->sizes[rank], rank, group->blob_bytes_max);
    }
    return exchange_as(group, COLLECTIVE_FORM_EXCHANGE, group->ops->exchange, blobs, err);
}

int collective_barrier(struct collective *group, struct errbuf *err)
{
    uint8_t none = 0; /* copies of no bytes want an address too */
    const struct collective_blobs nothing = {&none, group->zeros, group->zeros};
    return exchange_as(group, COLLECTIVE_FORM_BARRIER, group->ops->exchange, &nothing, err);
}

int collective_agree(struct collective *group, const struct collective_blobs *blobs, struct errbuf *err)
{
    return exchange_as(group, COLLECTIVE_FORM_ROW, ring_exchange, blobs, err);
}

int collective_gather(struct collective *group, uint32_t form, const void *mine, void *all, size_t bytes,
                      struct errbuf *err)
{
    size_t world = (size_t)group->world, *numbers = malloc(2 * world * sizeof *numbers);
    if (!numbers)
        return errbuf_set(err, STATUS_NOMEM, "no memory for what %d ranks say", group->world);
    for (size_t rank = 0; rank < world; rank++) {
        numbers[rank] = rank * bytes;
        numbers[world + rank] = bytes;
    }
    memcpy((uint8_t *)all + (size_t)group->rank * bytes, mine, bytes);
    const struct collective_blobs blobs = {all, numbers, numbers + world};
    int status = exchange_as(group, form, ring_exchange, &blobs, err);
    free(numbers);
    return status;
}

/* --- groups --------------------------------------------------------------------------------------- */

static void members_free(struct collective *group)
{
    for (int rank = 0; group->members && rank < group->world; rank++) {
        free(group->members[rank].address);
        free(group->members[rank].public_key);
        free(group->members[rank].socket);
        free(group->members[rank].host);
    }
    free(group->members);
}

static char *copy_text(const char *text)
{
    return strdup(text ? text : "");
}

static int members_copy(struct collective *group, const struct collective_peer *peers)
{
    group->members = calloc((size_t)group->world, sizeof *group->members);
    if (!group->members)
        return STATUS_NOMEM;
    for (int rank = 0; rank < group->world; rank++) {
        struct collective_member *member = &group->members[rank];
        member->address = copy_text(peers[rank].address);
        member->public_key = copy_text(peers[rank].public_key);
        member->socket = copy_text(peers[rank].socket);
        member->host = copy_text(peers[rank].host);
        member->incarnation = peers[rank].incarnation;
        if (!member->address || !member->public_key || !member->socket || !member->host)
            return STATUS_NOMEM;
    }
    return STATUS_OK;
}

static const char *const transport_names[] = {
    [COLLECTIVE_AUTO] = "auto", [COLLECTIVE_TCP] = "tcp", [COLLECTIVE_SHM] = "shm"};

/* Every rank must want the same transport, or they would wait for each other in different places. */
static int agree_on_transport(struct collective *group, struct errbuf *err)
{
    uint8_t mine = (uint8_t)group->wanted, *all = malloc((size_t)group->world);
    if (!all)
        return errbuf_set(err, STATUS_NOMEM, "no memory for %d ranks", group->world);
    int status = collective_gather(group, COLLECTIVE_FORM_OPEN, &mine, all, sizeof mine, err);
    for (int rank = 1; !status && rank < group->world; rank++) {
        if (all[rank] != all[0])
            status = errbuf_set(err, STATUS_INVALID, "rank 0 wants transport %s, rank %d %s",
                                transport_names[all[0] % 3], rank, transport_names[all[rank] % 3]);
    }
    free(all);
    return status;
}

static int choose_row(struct collective *group, struct errbuf *err)
{
    int status = STATUS_PROTOCOL;
    if (group->wanted == COLLECTIVE_TCP)
        return STATUS_OK;
    for (size_t i = 0; other_rows[i] && status == STATUS_PROTOCOL; i++) {
        status = other_rows[i]->open(group, err);
        if (!status)
            group->ops = other_rows[i];
    }
    if (status != STATUS_PROTOCOL || group->wanted != COLLECTIVE_AUTO)
        return status;
    if (group->rank == 0)
        log_info(&collective_port_host(group->port)->log, "transport=tcp reason=\"%s\"", err ? err->text : "");
    return STATUS_OK;
}

static int connect_ranks(struct collective *group, struct errbuf *err)
{
    int status = ring_open(group, err);
    if (!status)
        status = agree_on_transport(group, err);
    return status ? status : choose_row(group, err);
}

static struct collective *group_create(const struct collective_options *options)
{
    struct collective *group = calloc(1, sizeof *group);
    if (!group)
        return NULL;
    group->ops = &collective_ring;
    group->port = options->port;
    group->account = options->account;
    group->rank = options->rank;
    group->world = options->world;
    group->job = options->job;
    group->cluster_epoch = options->cluster_epoch;
    group->wanted = options->transport;
    group->blob_bytes_max = options->blob_bytes_max;
    group->timeout_s = options->timeout_s;
    group->zeros = calloc((size_t)options->world, sizeof *group->zeros);
    pthread_mutex_init(&group->cancel_lock, NULL);
    if (group->zeros && members_copy(group, options->peers) == STATUS_OK)
        return group;
    collective_close(group);
    return NULL;
}

static int check_options(const struct collective_options *options, struct errbuf *err)
{
    if (options->world < 1 || options->rank < 0 || options->rank >= options->world)
        return errbuf_set(err, STATUS_INVALID, "rank %d of %d", options->rank, options->world);
    if (options->blob_bytes_max > PORT_FRAME_MAX)
        return errbuf_set(err, STATUS_RANGE, "an exchange of %zu bytes a rank, at most %d", options->blob_bytes_max,
                          PORT_FRAME_MAX);
    if (options->world > 1 && options->port->members)
        return errbuf_set(err, STATUS_BUSY, "the port serves another group");
    return STATUS_OK;
}

int collective_open(struct collective **group, const struct collective_options *options, struct errbuf *err)
{
    int status = check_options(options, err);
    if (status)
        return status;
    struct collective *made = group_create(options);
    if (!made)
        return errbuf_set(err, STATUS_NOMEM, "no memory for a group of %d ranks", options->world);
    if (options->world > 1)
        status = connect_ranks(made, err);
    if (status) {
        collective_close(made);
        return status;
    }
    *group = made;
    return STATUS_OK;
}

void collective_close(struct collective *group)
{
    if (!group)
        return;
    assert(group->plans_count == 0);
    if (group->ring && atomic_load(&group->cancelled) && !group->status)
        collective_fail(group, STATUS_ABORTED, NULL);
    if (group->ops->close)
        group->ops->close(group);
    ring_close(group);
    pthread_mutex_destroy(&group->cancel_lock);
    members_free(group);
    free(group->zeros);
    free(group);
}

void collective_cancel(struct collective *group, int status, const char *text)
{
    pthread_mutex_lock(&group->cancel_lock);
    if (!atomic_load(&group->cancelled)) {
        snprintf(group->cancel_text, sizeof group->cancel_text, "%s", text ? text : status_text(status));
        atomic_store(&group->cancelled, status ? status : STATUS_STOPPED);
    }
    pthread_mutex_unlock(&group->cancel_lock);
    collective_ring.wake(group);
    if (group->ops != &collective_ring)
        group->ops->wake(group);
}

int collective_told(struct collective *group, struct errbuf *err)
{
    struct ring_arrival arrival;
    int status = STATUS_OK;
    if (atomic_load(&group->cancelled))
        return STATUS_ABORTED;
    port_answer_keys(group->port);
    while (!status && group->port->early_count < PORT_EARLY_MAX && ring_receive_new(group->ring, &arrival) == 0) {
        if (arrival.header.form != COLLECTIVE_FORM_POISON) {
            ring_put_aside(group->ring, &arrival); /* a neighbour that is ahead and calls the ring */
            continue;
        }
        status = ring_hear(group->ring, &arrival.header, err);
        ring_arrival_close(&arrival);
    }
    return status;
}

enum collective_transport collective_transport_of(const struct collective *group)
{
    return group->ops->transport;
}

int64_t collective_buffers_max(const struct collective *group)
{
    int64_t ring = group->ring ? collective_ring.buffers_max(group) : 0;
    return ring + (group->ops != &collective_ring ? group->ops->buffers_max(group) : 0);
}

int collective_status(const struct collective *group)
{
    return group->status;
}

int collective_rank(const struct collective *group)
{
    return group->rank;
}

int collective_world(const struct collective *group)
{
    return group->world;
}

static void read_counters(const struct collective_counters *counters, struct collective_bytes *bytes)
{
    bytes->reduce_scatter = atomic_load_explicit(&counters->reduce_scatter, memory_order_relaxed);
    bytes->all_gather = atomic_load_explicit(&counters->all_gather, memory_order_relaxed);
    bytes->control = atomic_load_explicit(&counters->control, memory_order_relaxed);
}

void collective_sent(const struct collective *group, struct collective_bytes *bytes)
{
    read_counters(&group->sent, bytes);
}

void collective_received(const struct collective *group, struct collective_bytes *bytes)
{
    read_counters(&group->received, bytes);
}

void *collective_alloc(struct collective *group, enum account_kind kind, size_t bytes)
{
    return group->status ? NULL : group->ops->alloc(group, kind, bytes);
}

void collective_free(struct collective *group, enum account_kind kind, void *memory, size_t bytes)
{
    if (memory)
        group->ops->free(group, kind, memory, bytes);
}
