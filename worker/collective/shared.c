/* The operations of the row `shared`; shared.h says how they go together. */
#include "worker/collective/shared.h"

#include <string.h>
#include <sys/mman.h>

#include "base/status.h"
#include "cluster/canonical.h"
#include "tensor/reduce.h"

static int owned_count(const struct collective_plan *plan, int owner)
{
    return plan->owner_first[owner + 1] - plan->owner_first[owner];
}

/* What was moved, booked by form, or apart. */
static void shared_took(const struct collective_plan *plan, int peer, enum shared_kind kind, int64_t bytes)
{
    struct shared *row = plan->group->row;
    const struct shared_plan *mine = plan->row;
    enum shared_kind booked = plan->apart ? SHARED_CONTROL : kind;
    if (mine->small) {
        row->from_images[booked] += bytes;
        return;
    }
    _Atomic int64_t *took = &row->took[peer][booked];
    atomic_store_explicit(took, atomic_load_explicit(took, memory_order_relaxed) + bytes, memory_order_relaxed);
}

/* The group's books: what this rank took, and what the others say they took from it. */
static void shared_settle(struct shared *row)
{
    int64_t sent[SHARED_KINDS], received[SHARED_KINDS];
    memcpy(sent, row->offered, sizeof sent);
    memcpy(received, row->from_images, sizeof received);
    for (int k = 0; k < row->world; k++) {
        for (int kind = 0; kind < SHARED_KINDS && k != row->rank; kind++) {
            sent[kind] += atomic_load_explicit(&row->members[k].took[row->rank][kind], memory_order_relaxed);
            received[kind] += atomic_load_explicit(&row->took[k][kind], memory_order_relaxed);
        }
    }
    struct collective *group = row->group;
    atomic_store_explicit(&group->sent.reduce_scatter, sent[SHARED_REDUCE_SCATTER], memory_order_relaxed);
    atomic_store_explicit(&group->sent.all_gather, sent[SHARED_ALL_GATHER], memory_order_relaxed);
    atomic_store_explicit(&group->received.reduce_scatter, received[SHARED_REDUCE_SCATTER], memory_order_relaxed);
    atomic_store_explicit(&group->received.all_gather, received[SHARED_ALL_GATHER], memory_order_relaxed);
    /* Exchanges and the ring's agreements are booked there too. */
    atomic_fetch_add_explicit(&group->sent.control, sent[SHARED_CONTROL] - row->apart.sent, memory_order_relaxed);
    atomic_fetch_add_explicit(&group->received.control, received[SHARED_CONTROL] - row->apart.received,
                              memory_order_relaxed);
    row->apart.sent = sent[SHARED_CONTROL];
    row->apart.received = received[SHARED_CONTROL];
}

/* --- pieces --- */

struct piece {
    int segment;
    int32_t offset, count; /* elements of the segment */
    int own;               /* number of the segment among its owner's */
};

static struct piece shared_piece(const struct collective_plan *plan, int owner, const struct shared_cursor *cursor,
                                 int32_t piece_max)
{
    int at = plan->owner_first[owner] + cursor->at, segment = plan->by_owner[at];
    int32_t left = plan->segments[segment].count - cursor->offset;
    return (struct piece){.segment = segment, .offset = cursor->offset, .own = cursor->at,
                          .count = left < piece_max ? left : piece_max};
}

static void shared_advance(const struct collective_plan *plan, struct shared_cursor *cursor, const struct piece *piece)
{
    cursor->done++;
    cursor->offset += piece->count;
    if (cursor->offset == plan->segments[piece->segment].count) {
        cursor->offset = 0;
        cursor->at++;
    }
}

static void shared_rewind(struct collective_plan *plan)
{
    struct shared_plan *mine = plan->row;
    memset(mine->cursors, 0, (size_t)plan->group->world * sizeof *mine->cursors);
}

/* The contributions to a piece of this rank, where they are, in canonical order. */
static const float *const *shared_sources(const struct collective_plan *plan, const struct shared_view *view,
                                          const struct piece *piece)
{
    struct shared *row = plan->group->row;
    struct shared_plan *mine = plan->row;
    int64_t begin = plan->segments[piece->segment].begin + piece->offset;
    for (int turn = 0; turn < row->world; turn++) {
        int k = canonical_rank_at(row->world, row->rank, turn);
        mine->sources[turn] = view->wholes[k] + begin;
        if (k != row->rank)
            shared_took(plan, k, SHARED_REDUCE_SCATTER, (int64_t)piece->count * (int64_t)sizeof(float));
    }
    return mine->sources;
}

/* Who gives an owner's pieces to this rank: the left neighbour, which makes what every rank sends Φ - part(r+1) exactly. When
 * all own as much, that is also what every owner sends who gives its own to everybody: of small vectors they come from there,
 * as the way round would cost a switch of processes at each rank. */
static int shared_source(const struct collective_plan *plan, int owner)
{
    const struct shared *row = plan->group->row;
    const struct shared_plan *mine = plan->row;
    return mine->direct ? owner : row->left;
}

/* Pages of others' memory that were read count as this process's; `lean` plans give them back. */
static void shared_drop(const struct collective_plan *plan, const float *from, size_t bytes)
{
    const uintptr_t page = segment_mapped_bytes(1);
    if (!plan->lean)
        return;
    uintptr_t begin = (uintptr_t)from / page * page, end = ((uintptr_t)from + bytes + page - 1) / page * page;
    madvise((void *)begin, end - begin, MADV_DONTNEED); /* a mapping of a file that others hold: nothing is lost */
}

static void shared_drop_sources(const struct collective_plan *plan, const struct piece *piece)
{
    const struct shared *row = plan->group->row;
    const struct shared_plan *mine = plan->row;
    for (int turn = 0; turn + 1 < row->world; turn++) /* the last source is this rank's own */
        shared_drop(plan, mine->sources[turn], (size_t)piece->count * sizeof(float));
}

/* The giver's own pieces lie where they live, others' in its `whole`. */
static void shared_take(struct collective_plan *plan, const struct shared_view *view, int owner,
                        const struct piece *piece)
{
    struct shared *row = plan->group->row;
    int64_t begin = plan->segments[piece->segment].begin;
    const float *from = owner == row->left && view->left_own ? view->left_own[piece->own]
                                                             : view->wholes[shared_source(plan, owner)] + begin;
    size_t bytes = (size_t)piece->count * sizeof(float);
    memcpy(view->whole + begin + piece->offset, from + piece->offset, bytes);
    shared_drop(plan, from + piece->offset, bytes);
    shared_took(plan, row->left, SHARED_ALL_GATHER, (int64_t)bytes);
}

static void shared_copy_piece(float *to, const float *from, const struct piece *piece)
{
    if (to != from)
        memcpy(to, from, (size_t)piece->count * sizeof(float));
}

/* Own pieces also belong into this rank's `whole`. */
static void shared_place_own(struct collective_plan *plan, const struct piece *piece)
{
    shared_copy_piece(plan->whole + plan->segments[piece->segment].begin + piece->offset,
                      plan->own[piece->segment] + piece->offset, piece);
}

/* --- small vectors --- */

/* The view for the operation that comes next. */
static const struct shared_view *shared_view_next(const struct collective_plan *plan)
{
    const struct shared *row = plan->group->row;
    const struct shared_plan *mine = plan->row;
    return mine->small ? &mine->images[(row->sequence + 1) & 1] : &mine->vectors;
}

/* Segments that lie close together, in one go. */
static void shared_copy_vector(const struct collective_plan *plan, float *to, const float *from)
{
    if (plan->segments_count == 0)
        return;
    const struct collective_segment *last = &plan->segments[plan->segments_count - 1];
    int64_t first = plan->segments[0].begin, end = last->begin + last->count;
    const struct shared_plan *mine = plan->row;
    if ((end - first) * (int64_t)sizeof(float) == mine->bytes_all) {
        memcpy(to + first, from + first, (size_t)mine->bytes_all);
        return;
    }
    for (int i = 0; i < plan->segments_count; i++) {
        const struct collective_segment *segment = &plan->segments[i];
        memcpy(to + segment->begin, from + segment->begin, (size_t)segment->count * sizeof *to);
    }
}

static void shared_offer(const struct collective_plan *plan, enum shared_kind kind, int64_t bytes)
{
    struct shared *row = plan->group->row;
    row->offered[plan->apart ? SHARED_CONTROL : kind] += row->world > 1 ? bytes : 0;
}

/* Own segments, from where they live to the image or from there. */
static void shared_copy_own(const struct collective_plan *plan, float *image, int to_image)
{
    int rank = plan->group->rank;
    for (int i = plan->owner_first[rank]; i < plan->owner_first[rank + 1]; i++) {
        int segment = plan->by_owner[i];
        float *own = plan->own[segment], *there = image + plan->segments[segment].begin;
        size_t bytes = (size_t)plan->segments[segment].count * sizeof(float);
        memcpy(to_image ? there : own, to_image ? own : there, bytes);
    }
}

/* --- operations --- */

/* Until every owner has taken its contributions. */
static int shared_await_owners(struct collective_plan *plan, struct errbuf *err)
{
    struct shared *row = plan->group->row;
    int status = STATUS_OK;
    for (int i = 1; i < row->world && !status; i++) {
        int owner = (row->rank + i) % row->world;
        if (owned_count(plan, owner) > 0)
            status = shared_await(row, owner, owner, owned_count(plan, owner), err);
    }
    return status;
}

static int shared_reduce_scatter(struct collective_plan *plan, collective_sink_fn *sink, void *context,
                                 struct errbuf *err)
{
    struct shared *row = plan->group->row;
    struct shared_plan *mine = plan->row;
    struct shared_cursor *own = &mine->cursors[row->rank];
    const struct shared_view *view = shared_view_next(plan);
    shared_rewind(plan);
    if (mine->small)
        shared_copy_vector(plan, view->whole, plan->whole);
    shared_begin(row);
    int status = shared_await_all(row, err);
    for (int i = 0; i < owned_count(plan, row->rank) && !status; i++) {
        struct piece piece = shared_piece(plan, row->rank, own, INT32_MAX);
        const float *const *sources = shared_sources(plan, view, &piece);
        if (sink)
            sink(context, piece.segment, sources, row->world);
        else
            collective_sum(plan, piece.segment, sources, row->world);
        shared_drop_sources(plan, &piece);
        shared_advance(plan, own, &piece);
        if (!mine->small)
            shared_post(row, row->rank, own->done);
    }
    if (mine->small)
        shared_offer(plan, SHARED_REDUCE_SCATTER, mine->bytes_all - mine->bytes[row->rank]);
    else if (!status)
        status = shared_await_owners(plan, err);
    if (!status)
        shared_settle(row);
    return status;
}

/* Until r+1 has taken every piece that is not its own. */
static int shared_await_right(struct collective_plan *plan, const int64_t *pieces, struct errbuf *err)
{
    struct shared *row = plan->group->row;
    int status = STATUS_OK;
    for (int k = 0; k < row->world && !status; k++) {
        int64_t count = pieces ? pieces[k] : owned_count(plan, k);
        if (k != row->right && count > 0)
            status = shared_await(row, row->right, k, count, err);
    }
    return status;
}

/* One owner's segments, each as soon as the left neighbour has it. */
static int gather_from(struct collective_plan *plan, const struct shared_view *view, int owner, struct errbuf *err)
{
    struct shared *row = plan->group->row;
    struct shared_plan *mine = plan->row;
    struct shared_cursor *cursor = &mine->cursors[owner];
    while (cursor->at < owned_count(plan, owner)) {
        struct piece piece = shared_piece(plan, owner, cursor, INT32_MAX);
        int status = shared_await(row, shared_source(plan, owner), owner, cursor->done + 1, err);
        if (status)
            return status;
        shared_take(plan, view, owner, &piece);
        shared_advance(plan, cursor, &piece);
        shared_post(row, owner, cursor->done);
    }
    return STATUS_OK;
}

static int shared_all_gather(struct collective_plan *plan, struct errbuf *err)
{
    struct shared *row = plan->group->row;
    struct shared_plan *mine = plan->row;
    const struct shared_view *view = shared_view_next(plan);
    shared_rewind(plan);
    if (mine->small)
        shared_copy_own(plan, view->whole, 1);
    /* Own pieces are there when this rank comes: who takes them awaits that, since this wakes nobody. */
    atomic_store_explicit(row->have + row->rank, shared_position(row->sequence + 1, owned_count(plan, row->rank)),
                          memory_order_relaxed);
    shared_begin(row);
    int status = mine->direct ? shared_await_all(row, err) : shared_await_begin(row, row->left, err);
    struct shared_cursor *own = &mine->cursors[row->rank];
    while (!mine->small && own->at < owned_count(plan, row->rank)) {
        struct piece piece = shared_piece(plan, row->rank, own, INT32_MAX);
        shared_place_own(plan, &piece);
        shared_advance(plan, own, &piece);
    }
    for (int distance = 1; distance < row->world && !status; distance++)
        status = gather_from(plan, view, (row->rank + row->world - distance) % row->world, err);
    if (!status)
        status = shared_await_all(row, err); /* for the calls: all are here */
    if (mine->small) {
        shared_copy_vector(plan, plan->whole, view->whole);
        shared_offer(plan, SHARED_ALL_GATHER, mine->bytes_all - mine->bytes[row->right]);
    } else if (!status) {
        status = shared_await_right(plan, NULL, err);
    }
    if (!status)
        shared_settle(row);
    return status;
}

/* Sums the next own piece. */
static void reduce_next(struct collective_plan *plan, const struct shared_view *view)
{
    struct shared *row = plan->group->row;
    struct shared_plan *mine = plan->row;
    struct shared_cursor *cursor = &mine->cursors[row->rank];
    struct piece piece = shared_piece(plan, row->rank, cursor, SHARED_PIECE_MAX);
    float *own = mine->small ? view->whole + plan->segments[piece.segment].begin : plan->own[piece.segment];
    reduce_sum_to(own + piece.offset, shared_sources(plan, view, &piece), row->world, piece.count);
    shared_advance(plan, cursor, &piece);
    shared_post(row, row->rank, cursor->done);
    if (!mine->small)
        shared_place_own(plan, &piece);
}

/* Takes the next piece of every owner whose is there; returns how many, and in *missing the first owner whose is not. */
static int take_next(struct collective_plan *plan, const struct shared_view *view, int *missing)
{
    struct shared *row = plan->group->row;
    struct shared_plan *mine = plan->row;
    int taken = 0;
    *missing = -1;
    for (int distance = 1; distance < row->world; distance++) {
        int owner = (row->rank + row->world - distance) % row->world;
        struct shared_cursor *cursor = &mine->cursors[owner];
        if (cursor->done == mine->pieces[owner])
            continue;
        if (!shared_has(row, shared_source(plan, owner), owner, cursor->done + 1)) {
            if (*missing < 0)
                *missing = owner;
            continue;
        }
        struct piece piece = shared_piece(plan, owner, cursor, SHARED_PIECE_MAX);
        shared_take(plan, view, owner, &piece);
        shared_advance(plan, cursor, &piece);
        shared_post(row, owner, cursor->done);
        taken++;
    }
    return taken;
}

/* A sum is taken by the right neighbour soon after it is made, while caches have it: a rank does what can be done, in turns, and
 * waits only when there is nothing. */
static int reduce_and_take(struct collective_plan *plan, const struct shared_view *view, struct errbuf *err)
{
    struct shared *row = plan->group->row;
    struct shared_plan *mine = plan->row;
    struct shared_cursor *own = &mine->cursors[row->rank];
    int status = STATUS_OK;
    while (!status) {
        int missing, reduces = own->done < mine->pieces[row->rank];
        if (reduces)
            reduce_next(plan, view);
        int taken = take_next(plan, view, &missing);
        if (reduces || taken > 0)
            continue;
        if (missing < 0)
            break;
        status = shared_await(row, shared_source(plan, missing), missing, mine->cursors[missing].done + 1, err);
    }
    return status;
}

static int shared_all_reduce(struct collective_plan *plan, struct errbuf *err)
{
    struct shared *row = plan->group->row;
    struct shared_plan *mine = plan->row;
    const struct shared_view *view = shared_view_next(plan);
    shared_rewind(plan);
    if (mine->small)
        shared_copy_vector(plan, view->whole, plan->whole);
    shared_begin(row);
    int status = shared_await_all(row, err);
    if (!status)
        status = reduce_and_take(plan, view, err);
    if (mine->small) {
        shared_copy_vector(plan, plan->whole, view->whole);
        shared_copy_own(plan, view->whole, 0);
        shared_offer(plan, SHARED_REDUCE_SCATTER, mine->bytes_all - mine->bytes[row->rank]);
        shared_offer(plan, SHARED_ALL_GATHER, mine->bytes_all - mine->bytes[row->right]);
    } else if (!status) {
        status = shared_await_right(plan, mine->pieces, err);
    }
    if (!status)
        shared_settle(row);
    return status;
}

static int shared_exchange(struct collective *group, const struct collective_blobs *blobs, struct errbuf *err)
{
    struct shared *row = group->row;
    size_t place = ((row->sequence + 1) & 1) * group->blob_bytes_max;
    memcpy(row->blobs + place, blobs->all + blobs->offsets[row->rank], blobs->sizes[row->rank]);
    shared_begin(row);
    int status = STATUS_OK;
    for (int i = 1; i < row->world && !status; i++) {
        int k = (row->rank + i) % row->world;
        status = shared_await_begin(row, k, err);
        if (!status)
            memcpy(blobs->all + blobs->offsets[k], row->members[k].blobs + place, blobs->sizes[k]);
        atomic_fetch_add_explicit(&group->received.control, (int64_t)blobs->sizes[k], memory_order_relaxed);
        atomic_fetch_add_explicit(&group->sent.control, (int64_t)blobs->sizes[row->rank], memory_order_relaxed);
    }
    return status;
}

/* Any thread. A wait that is about to sleep may miss it, and looks again within a tenth of a second. */
static void shared_wake_up(struct collective *group)
{
    const struct shared *row = group->row;
    for (int k = 0; row && k < row->world; k++)
        doorbell_nudge(&row->members[k].seen->bell, 1u << (row->rank % 32));
}

const struct collective_ops collective_shared = {
    .name = "shared",
    .transport = COLLECTIVE_SHM,
    .open = shared_open,
    .close = shared_close,
    .wake = shared_wake_up,
    .alloc = shared_alloc,
    .free = shared_free,
    .plan_open = shared_plan_open,
    .plan_close = shared_plan_close,
    .reduce_scatter = shared_reduce_scatter,
    .all_gather = shared_all_gather,
    .all_reduce = shared_all_reduce,
    .buffers_max = shared_buffers_max,
    .exchange = shared_exchange,
};
