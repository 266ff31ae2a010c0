#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "worker/client/shoal_internal.h"

/* The loop thread is woken when this much has been handed over, so that small keys travel together. */
enum { FLUSH_BYTES = 256 << 10 };

/* --- looking at what is asked --------------------------------------------------------------------------- */

enum use { USE_INIT, USE_PUSH, USE_PULL };

static const char *key_name(const struct shoal_client *c, int key)
{
    return c->table.tensors[key].name;
}

static int check_slice(struct shoal_client *c, const struct shoal_slice *slice, enum use use)
{
    if (slice->key < 0 || slice->key >= c->table.tensor_count) {
        return shoal_refuse(c, SHOAL_UNKNOWN, "no key %d: %d are registered", slice->key, c->table.tensor_count);
    }
    struct shoal_key *key = &c->keys[slice->key];
    const char *name = key_name(c, slice->key);
    if (slice->count != (size_t)key->count) {
        return shoal_refuse(c, SHOAL_SHAPE, "key %s (%d): expected %lld floats, given %zu", name, slice->key,
                            (long long)key->count, slice->count);
    }
    if (key->count > 0 && (use == USE_PULL ? !slice->out : !slice->data)) {
        return shoal_refuse(c, SHOAL_INVALID, "key %s (%d): no memory given", name, slice->key);
    }
    if (key->named_in == c->calls) {
        return shoal_refuse(c, SHOAL_EXISTS, "key %s (%d) is named twice in a call", name, slice->key);
    }
    key->named_in = c->calls;
    if (use == USE_PUSH && key->frozen) {
        return shoal_refuse(c, SHOAL_INVALID, "key %s (%d) is frozen (optimizer.freeze)", name, slice->key);
    }
    if (use == USE_PUSH && key->pushed == c->step + 1) {
        return shoal_refuse(c, SHOAL_EXISTS, "key %s (%d) was pushed in step %llu already", name, slice->key,
                            (unsigned long long)c->step + 1);
    }
    if (use == USE_PULL && key->pulling) {
        return shoal_refuse(c, SHOAL_BUSY, "key %s (%d): a pull is under way", name, slice->key);
    }
    if (use == USE_INIT && key->count > 0 && key->initialised) {
        return shoal_refuse(c, SHOAL_EXISTS, "key %s (%d) has its first values", name, slice->key);
    }
    return 0;
}

/* All or nothing: everything is looked at before anything is done. */
static int check_slices(struct shoal_client *c, const struct shoal_slice *slices, size_t count, enum use use)
{
    if (!slices && count > 0) {
        return shoal_refuse(c, SHOAL_INVALID, "no slices given");
    }
    c->calls++;
    for (size_t i = 0; i < count; i++) {
        int status = check_slice(c, &slices[i], use);
        if (status != 0) {
            return status;
        }
    }
    return 0;
}

/* --- first values --------------------------------------------------------------------------------------- */

static void flush_now(struct shoal_client *c)
{
    c->unflushed = 0;
    client_flush(c->client);
}

static void hand_over(struct shoal_client *c, enum client_push_kind kind, int key, const float *data)
{
    for (int r = c->map.layer_range_first[key]; r < c->map.layer_range_first[key + 1]; r++) {
        client_push(c->client, kind, r, data + c->map.ranges[r].begin, kind == CLIENT_INIT ? 1 : c->weight,
                    kind == CLIENT_INIT ? 0 : c->step + 1);
    }
    c->unflushed += c->keys[key].count * (int64_t)sizeof(float);
    if (c->unflushed >= FLUSH_BYTES) {
        flush_now(c);
    }
}

static int gives_values(const struct shoal_client *c)
{
    return client_rank(c->client) == 0 && !c->resumed;
}

/* Waits, without the lock, until what was handed over as first values is stored. */
static int wait_stored(struct shoal_client *c)
{
    struct errbuf err;
    errbuf_init(&err);
    c->initialising++;
    shoal_unlock(c);
    int status = client_wait_pushes(c->client, &err);
    shoal_lock(c);
    c->initialising--;
    pthread_cond_broadcast(&c->changed);
    return status == 0 ? 0 : shoal_fail(c, status, &err);
}

static void give_zeros(struct shoal_client *c, int key)
{
    c->keys[key].initialised = 1;
    hand_over(c, CLIENT_INIT, key, c->zeros);
}

/* Before the first push: rank 0 gives what it has not given, and all of it is stored. */
static int settle_values(struct shoal_client *c)
{
    int status = 0;
    if (!c->values_given) {
        int missing = 0;
        c->values_given = 1;
        for (int key = 0; gives_values(c) && key < c->table.tensor_count; key++) {
            if (!c->keys[key].initialised) {
                give_zeros(c, key);
                missing = 1;
            }
        }
        status = missing ? wait_stored(c) : 0;
    }
    while (status == 0 && c->initialising > 0) {
        status = shoal_sleep(c);
    }
    return status;
}

static int init_slices(struct shoal_client *c, const struct shoal_slice *slices, size_t count)
{
    int status = shoal_started(c);
    if (status == 0 && c->clocking) {
        return shoal_refuse(c, SHOAL_BUSY, "another thread is ending the step");
    }
    if (status == 0) {
        status = check_slices(c, slices, count, USE_INIT);
    }
    if (status == 0 && c->values_given && !c->resumed) {
        return shoal_refuse(c, SHOAL_EXISTS, "first values come before the first push");
    }
    if (status != 0) {
        return status;
    }
    for (size_t i = 0; i < count; i++) {
        c->keys[slices[i].key].initialised = 1;
        if (gives_values(c)) {
            hand_over(c, CLIENT_INIT, slices[i].key, slices[i].data);
        }
    }
    return gives_values(c) && count > 0 ? wait_stored(c) : 0;
}

int shoal_init_many(struct shoal_client *c, const struct shoal_slice *slices, size_t slices_count)
{
    int status = shoal_enter(c);
    return status == 0 ? shoal_leave(c, init_slices(c, slices, slices_count)) : status;
}

int shoal_init(struct shoal_client *c, int key, const float *data, size_t count)
{
    struct shoal_slice slice = {.key = key, .data = data, .count = count};
    return shoal_init_many(c, &slice, 1);
}

/* --- requests ------------------------------------------------------------------------------------------- */

/* A request's number: tag, generation, slot + 1. */
static shoal_request request_number(const struct shoal_client *c, int slot)
{
    return (uint64_t)c->tag << 48 | (uint64_t)(c->slots[slot].generation & 0xffffff) << 24 | (uint64_t)(slot + 1);
}

static struct shoal_slot *find_request(struct shoal_client *c, shoal_request request)
{
    int slot = (int)(request & 0xffffff) - 1;
    if (slot < 0 || slot >= c->slots_count || c->slots[slot].kind == SHOAL_NO_REQUEST || c->slots[slot].waiting ||
        request_number(c, slot) != request) {
        return NULL;
    }
    return &c->slots[slot];
}

static int grow_slots(struct shoal_client *c)
{
    int count = c->slots_count ? c->slots_count * 2 : 64;
    if (count >= 1 << 24) {
        return STATUS_RANGE;
    }
    struct shoal_slot *slots = realloc(c->slots, (size_t)count * sizeof(*slots));
    if (!slots) {
        return STATUS_NOMEM;
    }
    memset(slots + c->slots_count, 0, (size_t)(count - c->slots_count) * sizeof(*slots));
    for (int s = count - 1; s >= c->slots_count; s--) {
        slots[s].next_free = c->free_slot;
        c->free_slot = s;
    }
    c->slots = slots;
    c->slots_count = count;
    return 0;
}

/* The slot of a new request, or a status. Its keys are those of the slices. */
static int new_request(struct shoal_client *c, enum shoal_request_kind kind, const struct shoal_slice *slices,
                       size_t count)
{
    int status = c->free_slot < 0 ? grow_slots(c) : 0;
    if (status != 0) {
        return shoal_refuse(c, status, "too many requests that nobody waited for: %d", c->slots_count);
    }
    int *many = count > 1 ? malloc(count * sizeof(int)) : NULL;
    if (count > 1 && !many) {
        return shoal_refuse(c, SHOAL_NOMEM, "out of memory for a request");
    }
    int s = c->free_slot;
    struct shoal_slot *slot = &c->slots[s];
    c->free_slot = slot->next_free;
    *slot = (struct shoal_slot){.kind = kind, .step = c->step + 1, .generation = slot->generation + 1,
                                .count = (int)count, .one = count == 1 ? slices[0].key : -1, .many = many};
    for (size_t i = 0; many && i < count; i++) {
        many[i] = slices[i].key;
    }
    return s;
}

static void end_request(struct shoal_client *c, int s)
{
    struct shoal_slot *slot = &c->slots[s];
    free(slot->many);
    slot->many = NULL;
    slot->kind = SHOAL_NO_REQUEST;
    slot->next_free = c->free_slot;
    c->free_slot = s;
}

/* --- pushing -------------------------------------------------------------------------------------------- */

static int take_copy(struct shoal_client *c, int k)
{
    struct shoal_key *key = &c->keys[k];
    if (!key->copy && !(key->copy = malloc((size_t)key->count * sizeof(float) + 1))) {
        return shoal_refuse(c, SHOAL_NOMEM, "out of memory for a copy of key %s", key_name(c, k));
    }
    return 0;
}

static void send_key(struct shoal_client *c, int k)
{
    struct shoal_key *key = &c->keys[k];
    key->sent = 1;
    if (!key->frozen && key->count > 0) {
        hand_over(c, CLIENT_PUSH, k, key->pushed == c->step + 1 ? key->data : c->zeros);
    }
}

/* What has no gap before it leaves: all ranks send in one order, or their credits could wait for each other. */
static void send_in_order(struct shoal_client *c)
{
    while (c->send_next < c->table.tensor_count) {
        const struct shoal_key *key = &c->keys[c->send_next];
        if (key->pushed != c->step + 1 && !key->frozen && key->count > 0) {
            return;
        }
        send_key(c, c->send_next++);
    }
}

static int check_push(struct shoal_client *c, const struct shoal_slice *slices, size_t count, double weight)
{
    if (c->clocking) {
        return shoal_refuse(c, SHOAL_BUSY, "another thread is ending the step");
    }
    if (!(weight >= 0) || !isfinite(weight)) {
        return shoal_refuse(c, SHOAL_INVALID, "a push has weight %g, allowed are finite numbers from 0", weight);
    }
    if (c->any_pushed && weight != c->weight) {
        return shoal_refuse(c, SHOAL_INVALID, "a push has weight %g, the others of step %llu have %g", weight,
                            (unsigned long long)c->step + 1, c->weight);
    }
    return check_slices(c, slices, count, USE_PUSH);
}

static int push_slices(struct shoal_client *c, const struct shoal_slice *slices, size_t count, double weight,
                       shoal_request *request)
{
    int status = shoal_started(c);
    if (status == 0) {
        status = check_push(c, slices, count, weight);
    }
    if (status == 0 && (!c->values_given || c->initialising > 0)) {
        status = settle_values(c);
        /* The lock was given up: another thread may have pushed or begun to end the step. */
        status = status == 0 ? check_push(c, slices, count, weight) : status;
    }
    for (size_t i = 0; c->copy && status == 0 && i < count; i++) {
        status = take_copy(c, slices[i].key);
    }
    int slot = status == 0 && request ? new_request(c, SHOAL_PUSH_REQUEST, slices, count) : 0;
    if (status != 0 || slot < 0) {
        return status != 0 ? status : slot;
    }
    c->weight = weight;
    c->any_pushed = 1;
    for (size_t i = 0; i < count; i++) {
        struct shoal_key *key = &c->keys[slices[i].key];
        key->pushed = c->step + 1;
        key->sent = 0;
        key->data = slices[i].data;
        if (c->copy) {
            memcpy(key->copy, slices[i].data, (size_t)key->count * sizeof(float));
            key->data = key->copy;
        }
    }
    send_in_order(c);
    if (request) {
        *request = request_number(c, slot);
    }
    return 0;
}

int shoal_push_many(struct shoal_client *c, const struct shoal_slice *slices, size_t slices_count, double weight,
                    shoal_request *request)
{
    int status = shoal_enter(c);
    return status == 0 ? shoal_leave(c, push_slices(c, slices, slices_count, weight, request)) : status;
}

int shoal_push(struct shoal_client *c, int key, const float *data, size_t count, double weight, shoal_request *request)
{
    struct shoal_slice slice = {.key = key, .data = data, .count = count};
    return shoal_push_many(c, &slice, 1, weight, request);
}

/* --- waiting -------------------------------------------------------------------------------------------- */

static int wait_pulled(struct shoal_client *c, const int *keys, int count)
{
    struct errbuf err;
    errbuf_init(&err);
    shoal_unlock(c);
    int status = 0;
    for (int i = 0; i < count && status == 0; i++) {
        status = client_wait_layer(c->client, keys[i], &err);
    }
    shoal_lock(c);
    for (int i = 0; i < count && status == 0; i++) {
        c->keys[keys[i]].pulling = 0;
    }
    return status == 0 ? 0 : shoal_fail(c, status, &err);
}

/* Frees the memory of a push: what has not left is copied, what has is waited for. All ranks send in one order, so the
 * one that is behind never waits for those ahead, and the others only for it to go on. */
static int wait_pushed(struct shoal_client *c, const int *keys, int count, uint64_t step)
{
    struct errbuf err;
    errbuf_init(&err);
    int status = 0;
    for (int i = 0; i < count && status == 0 && c->step < step; i++) {
        struct shoal_key *key = &c->keys[keys[i]];
        if (key->count == 0) {
            continue;
        }
        if (!key->sent) {
            status = take_copy(c, keys[i]);
            if (status == 0 && key->data != key->copy) {
                memcpy(key->copy, key->data, (size_t)key->count * sizeof(float));
                key->data = key->copy;
            }
            continue;
        }
        if (key->data == key->copy) {
            continue; /* it is the library's own */
        }
        shoal_unlock(c);
        status = client_wait_layer_pushes(c->client, keys[i], &err);
        shoal_lock(c);
        if (status != 0) {
            return shoal_fail(c, status, &err);
        }
    }
    return status;
}

static int wait_request(struct shoal_client *c, shoal_request request)
{
    struct shoal_slot *slot = find_request(c, request);
    if (!slot) {
        return shoal_refuse(c, SHOAL_UNKNOWN, "request %llx is not one of this client's, or was waited for already",
                            (unsigned long long)request);
    }
    int s = (int)(slot - c->slots);
    int *many = slot->many;
    int one = slot->one, count = slot->count;
    uint64_t step = slot->step;
    int pulls = slot->kind == SHOAL_PULL_REQUEST;
    slot->waiting = 1; /* slots may move while the lock is given up; keys stay where they are */
    int status = pulls ? wait_pulled(c, many ? many : &one, count) : wait_pushed(c, many ? many : &one, count, step);
    end_request(c, s);
    return status;
}

int shoal_wait(struct shoal_client *c, shoal_request request)
{
    int status = shoal_enter(c);
    return status == 0 ? shoal_leave(c, wait_request(c, request)) : status;
}

/* --- pulling -------------------------------------------------------------------------------------------- */

/* Rank 0 pulls before it gave first values: they are zeros. */
static int give_before_pull(struct shoal_client *c, const struct shoal_slice *slices, size_t count)
{
    int missing = 0;
    for (size_t i = 0; gives_values(c) && !c->values_given && i < count; i++) {
        if (!c->keys[slices[i].key].initialised) {
            give_zeros(c, slices[i].key);
            missing = 1;
        }
    }
    return missing ? wait_stored(c) : 0;
}

static int pull_slices(struct shoal_client *c, const struct shoal_slice *slices, size_t count, shoal_request *request)
{
    int status = shoal_started(c);
    if (status == 0) {
        status = check_slices(c, slices, count, USE_PULL);
    }
    if (status == 0 && !c->values_given) {
        status = give_before_pull(c, slices, count);
        status = status == 0 ? check_slices(c, slices, count, USE_PULL) : status;
    }
    int slot = status == 0 ? new_request(c, SHOAL_PULL_REQUEST, slices, count) : 0;
    if (status != 0 || slot < 0) {
        return status != 0 ? status : slot;
    }
    for (size_t i = 0; i < count; i++) {
        int key = slices[i].key;
        c->keys[key].pulling = 1;
        for (int r = c->map.layer_range_first[key]; r < c->map.layer_range_first[key + 1]; r++) {
            client_pull(c->client, r, c->step, slices[i].out + c->map.ranges[r].begin);
        }
        c->unflushed += c->keys[key].count * (int64_t)sizeof(float);
    }
    if (!request) {
        return wait_request(c, request_number(c, slot));
    }
    if (c->unflushed >= FLUSH_BYTES) {
        flush_now(c);
    }
    *request = request_number(c, slot);
    return 0;
}

int shoal_pull_many(struct shoal_client *c, const struct shoal_slice *slices, size_t slices_count,
                    shoal_request *request)
{
    int status = shoal_enter(c);
    return status == 0 ? shoal_leave(c, pull_slices(c, slices, slices_count, request)) : status;
}

int shoal_pull(struct shoal_client *c, int key, float *out, size_t count, shoal_request *request)
{
    struct shoal_slice slice = {.key = key, .out = out, .count = count};
    return shoal_pull_many(c, &slice, 1, request);
}

/* --- the end of a step ---------------------------------------------------------------------------------- */

static int send_report(struct shoal_client *c, uint64_t step, double weight, struct errbuf *err)
{
    Shoal__Report report = SHOAL__REPORT__INIT;
    report.samples = weight < 9e18 ? (int64_t)ceil(weight) : INT64_MAX;
    report.counted = report.samples;
    report.micro_batches = 1;
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    envelope.type = SHOAL__TYPE__REPORT;
    envelope.clock = step;
    envelope.body_case = SHOAL__ENVELOPE__BODY_REPORT;
    envelope.report = &report;
    return client_call(c->client, &envelope, NULL, 0, NULL, err);
}

/* The decision on a step, or a status. */
static int wait_verdict(struct shoal_client *c, uint64_t step, struct errbuf *err)
{
    for (;;) {
        struct message event = {0};
        int status = shoal_wait_event(c->client, SHOAL__TYPE__VERDICT, &event, err);
        if (status != 0) {
            return status;
        }
        int decision = event.envelope->clock == step ? (int)event.envelope->verdict->decision : 0;
        message_close(&event);
        if (decision != SHOAL__DECISION__DECISION_NONE) {
            return decision;
        }
    }
}

/* Without the lock. */
static int decide_step(struct shoal_client *c, uint64_t step, double weight, struct errbuf *err)
{
    int status = send_report(c, step, weight, err);
    int decision = status == 0 ? wait_verdict(c, step, err) : status;
    if (decision < 0) {
        return decision;
    }
    status = client_wait_pushes(c->client, err);
    return status == 0 ? decision : status;
}

static int end_step(struct shoal_client *c)
{
    struct errbuf err;
    errbuf_init(&err);
    while (c->send_next < c->table.tensor_count) {
        send_key(c, c->send_next++);
    }
    c->unflushed = 0; /* the report takes everything along */
    uint64_t step = c->step + 1;
    double weight = c->weight;
    shoal_unlock(c);
    int decision = decide_step(c, step, weight, &err);
    shoal_lock(c);
    if (decision < 0) {
        return shoal_fail(c, decision, &err);
    }
    c->send_next = 0;
    c->any_pushed = 0;
    c->weight = 0;
    if (decision == SHOAL__DECISION__ABORT) {
        for (int k = 0; k < c->table.tensor_count; k++) {
            c->keys[k].pushed = 0;
        }
        return shoal_refuse(c, SHOAL_ROLLED_BACK, "step %llu was taken back", (unsigned long long)step);
    }
    c->step = step;
    return decision == SHOAL__DECISION__APPLY ? SHOAL_APPLIED : SHOAL_SKIPPED;
}

int shoal_clock(struct shoal_client *c)
{
    int status = shoal_enter(c);
    if (status != 0) {
        return status;
    }
    status = shoal_started(c);
    if (status == 0 && c->clocking) {
        return shoal_leave(c, shoal_refuse(c, SHOAL_BUSY, "another thread is ending the step"));
    }
    if (status != 0) {
        return shoal_leave(c, status);
    }
    c->clocking = 1;
    status = settle_values(c);
    status = status == 0 ? end_step(c) : status;
    c->clocking = 0;
    return shoal_leave(c, status);
}
