#include "lib/ring_world.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/canonical.h"

enum { DELAY_MAX = 40, NAP_MAX = 60 };

uint32_t ring_world_draw(struct ring_world *world, uint32_t below)
{
    world->random = world->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((world->random >> 33) % below);
}

/* What a rank contributes: rounding shows any other order of summation. */
static float value_at(const struct ring_world *world, int rank, int op, int64_t i)
{
    uint64_t mixed = (world->epoch * 31 + (uint64_t)op) * 0x9E3779B97F4A7C15u + (uint64_t)i * 0xBF58476D1CE4E5B9u +
                     (uint64_t)rank * 0x94D049BB133111EBu;
    mixed ^= mixed >> 31;
    return (float)(mixed % 2000003u) * 1e-3f - 700;
}

static float sum_at(const struct ring_world *world, int owner, int op, int64_t i)
{
    float sum = value_at(world, (owner + 1) % world->world, op, i);
    for (int turn = 1; turn < world->world; turn++)
        sum += value_at(world, (owner + 1 + turn) % world->world, op, i);
    return sum;
}

/* --- vectors -------------------------------------------------------------------------------------- */

static void vector_free(struct ring_vector *vector)
{
    free(vector->segments);
    free(vector->by_owner);
    free(vector->owner_first);
    memset(vector, 0, sizeof *vector);
}

static void sort_by_owner(struct ring_vector *vector, int ranks)
{
    int at = 0;
    for (int owner = 0; owner < ranks; owner++) {
        vector->owner_first[owner] = at;
        for (int i = 0; i < vector->count; i++) {
            if (vector->segments[i].owner == owner)
                vector->by_owner[at++] = i;
        }
    }
    vector->owner_first[ranks] = at;
}

void ring_world_vector(struct ring_world *world, int layout, const struct ring_cut *cut)
{
    struct ring_vector *vector = &world->vectors[layout];
    vector_free(vector);
    vector->n = cut->n;
    vector->own_apart = cut->own_apart;
    vector->segments = malloc((size_t)(cut->n + 1) * sizeof *vector->segments);
    vector->by_owner = malloc((size_t)(cut->n + 1) * sizeof *vector->by_owner);
    vector->owner_first = malloc((RING_WORLD_MAX + 1) * sizeof *vector->owner_first);
    assert(vector->segments && vector->by_owner && vector->owner_first);
    for (int64_t at = 0; at < cut->n;) {
        int owner = cut->one_owner >= 0 ? cut->one_owner : canonical_owner(cut->n, world->world, at);
        int64_t end = cut->one_owner >= 0 ? cut->n : canonical_part_end(cut->n, world->world, owner);
        int64_t count = cut->odd ? 1 + (int64_t)ring_world_draw(world, (uint32_t)cut->most) : cut->most;
        if (count > end - at)
            count = end - at;
        vector->segments[vector->count++] = (struct collective_segment){at, (int32_t)count, owner};
        at += count;
    }
    vector->fingerprint = (uint64_t)cut->n * 1000003u + (uint64_t)vector->count * 31u + (uint64_t)layout;
    sort_by_owner(vector, world->world);
}

/* --- results -------------------------------------------------------------------------------------- */

static int rank_of(const struct ring_world *world, const struct ring_node *node)
{
    return (int)(node - world->nodes);
}

static void sink(void *context, int segment, const float *const *sources, int sources_count)
{
    struct ring_node *node = context;
    const struct collective_segment *cut = &node->pass.task.segments[segment];
    float *place = node->own[segment];
    for (int i = 0; i < cut->count; i++) {
        float sum = sources[0][i];
        for (int s = 1; s < sources_count; s++)
            sum += sources[s][i];
        place[i] = sum;
    }
    node->taken++;
}

static void check_sums(const struct ring_world *world, struct ring_node *node, const struct ring_vector *vector)
{
    int rank = rank_of(world, node);
    for (int s = 0; s < vector->count; s++) {
        const struct collective_segment *segment = &vector->segments[s];
        for (int i = 0; segment->owner == rank && i < segment->count; i++) {
            if (node->own[s][i] != sum_at(world, rank, node->op, segment->begin + i))
                node->wrong = "sum";
        }
    }
    if (node->taken != vector->owner_first[rank + 1] - vector->owner_first[rank])
        node->wrong = "number of sums";
}

static void check_gathered(const struct ring_world *world, struct ring_node *node, const struct ring_vector *vector)
{
    for (int s = 0; s < vector->count; s++) {
        const struct collective_segment *segment = &vector->segments[s];
        for (int i = 0; i < segment->count; i++) {
            float right = value_at(world, segment->owner, node->op, segment->begin + i);
            if (node->whole[segment->begin + i] != right)
                node->wrong = "gathered value";
        }
    }
}

static void check_blobs(const struct ring_world *world, struct ring_node *node)
{
    for (int rank = 0; rank < world->world; rank++) {
        for (size_t i = 0; i < node->sizes[rank]; i++) {
            if (node->all[node->offsets[rank] + i] != (uint8_t)(rank * 7 + node->op + (int)i))
                node->wrong = "blob";
        }
    }
}

/* --- operations ----------------------------------------------------------------------------------- */

static void node_forget(struct ring_node *node)
{
    while (node->pass.held > 0) {
        free(node->held[node->held_first]);
        node->held_first = (node->held_first + 1) % RING_LINK_MAX;
        node->pass.held--;
    }
    free(node->whole);
    free(node->own);
    node->whole = NULL;
    node->own = NULL;
}

static void fill(const struct ring_world *world, struct ring_node *node, const struct ring_vector *vector)
{
    int rank = rank_of(world, node);
    /* Own places outside `whole` lie behind it. */
    node->whole = malloc((size_t)(2 * vector->n + 1) * sizeof *node->whole);
    node->own = calloc((size_t)vector->count + 1, sizeof *node->own);
    assert(node->whole && node->own);
    for (int64_t i = 0; i < vector->n; i++)
        node->whole[i] = value_at(world, rank, node->op, i);
    for (int s = 0; s < vector->count; s++) {
        const struct collective_segment *segment = &vector->segments[s];
        if (segment->owner != rank)
            continue;
        node->own[s] = node->whole + segment->begin;
        if (!vector->own_apart)
            continue;
        node->own[s] += vector->n;
        memcpy(node->own[s], node->whole + segment->begin, (size_t)segment->count * sizeof(float));
        if (node->ops[node->op].kind == RING_ALL_GATHER)
            memset(node->whole + segment->begin, 0, (size_t)segment->count * sizeof(float));
    }
}

static void begin_op(struct ring_world *world, struct ring_node *node)
{
    const struct ring_op *op = &node->ops[node->op];
    const struct ring_vector *vector = &world->vectors[op->layout];
    struct ring_task task = {.kind = op->kind, .rank = rank_of(world, node), .world = world->world};
    node->taken = 0;
    fill(world, node, vector);
    if (op->kind == RING_EXCHANGE) {
        size_t at = 0;
        for (int rank = 0; rank < world->world; rank++) {
            node->sizes[rank] = (size_t)((rank * 13 + node->op * 5) % 64);
            node->offsets[rank] = at;
            at += node->sizes[rank];
        }
        for (size_t i = 0; i < node->sizes[task.rank]; i++)
            node->all[node->offsets[task.rank] + i] = (uint8_t)(task.rank * 7 + node->op + (int)i);
        node->blobs = (struct collective_blobs){node->all, node->offsets, node->sizes};
        task.blobs = &node->blobs;
    } else {
        task.segments = vector->segments;
        task.by_owner = vector->by_owner;
        task.owner_first = vector->owner_first;
        task.whole = node->whole;
        task.own = node->own;
        task.sink = sink;
        task.context = node;
    }
    node->pass.task = task; /* a sink that is called at once looks at it */
    ring_pass_begin(&node->pass, &task);
}

static void end_op(struct ring_world *world, struct ring_node *node)
{
    const struct ring_op *op = &node->ops[node->op];
    const struct ring_vector *vector = &world->vectors[op->layout];
    if (op->kind == RING_REDUCE_SCATTER)
        check_sums(world, node, vector);
    else if (op->kind == RING_ALL_GATHER)
        check_gathered(world, node, vector);
    else
        check_blobs(world, node);
    node_forget(node);
    if (++node->op < world->ops_count)
        begin_op(world, node);
}

static int lends(const struct ring_link *link)
{
    for (int i = 0; i < link->count; i++) {
        if (link->flights[(link->first + i) % RING_LINK_MAX].lent)
            return 1;
    }
    return 0;
}

static void land(struct ring_flight *flight)
{
    if (!flight->lent)
        return;
    flight->data = malloc(flight->bytes + 1);
    assert(flight->data);
    if (flight->bytes)
        memcpy(flight->data, flight->lent, flight->bytes);
    flight->lent = NULL;
}

/* The sender's memory goes away. */
static void land_all(struct ring_link *link)
{
    for (int i = 0; i < link->count; i++)
        land(&link->flights[(link->first + i) % RING_LINK_MAX]);
}

/* An operation ends when nothing of its rank's memory is on its way. Operations that need no neighbour are through
 * as soon as they begin. */
static void settle_node(struct ring_world *world, struct ring_node *node)
{
    while (node->op < world->ops_count && ring_pass_done(&node->pass) &&
           !lends(&world->links[rank_of(world, node)]))
        end_op(world, node);
}

static struct ring_header header_of(const struct ring_world *world, const struct ring_node *node, int rank,
                                    uint32_t segment)
{
    const struct ring_op *op = &node->ops[node->op];
    return (struct ring_header){.job = 5,
                                .cluster_epoch = world->epoch,
                                .incarnation = 1,
                                .fingerprint =
                                    op->kind == RING_EXCHANGE ? 0 : world->vectors[op->layout].fingerprint,
                                .sequence = (uint64_t)node->op + 1,
                                .segment = segment,
                                .form = (uint32_t)op->kind + 1,
                                .rank = rank};
}

static int try_send(struct ring_world *world, int rank)
{
    struct ring_node *node = &world->nodes[rank];
    struct ring_link *link = &world->links[rank];
    struct ring_move move;
    enum ring_next next = ring_pass_next_send(&node->pass, &move);
    if ((next != RING_OWN && next != RING_HELD) || link->count == world->queue)
        return 0;
    struct ring_flight *flight = &link->flights[(link->first + link->count) % RING_LINK_MAX];
    const struct ring_header header = header_of(world, node, rank, (uint32_t)move.segment);
    flight->envelope_bytes = ring_wire_pack(&header, flight->envelope);
    flight->bytes = move.bytes;
    flight->at = world->now + ring_world_draw(world, DELAY_MAX);
    flight->data = NULL;
    flight->lent = next == RING_OWN ? move.data : NULL;
    if (next == RING_HELD) {
        flight->data = node->held[node->held_first];
        node->held_first = (node->held_first + 1) % RING_LINK_MAX;
    }
    link->count++;
    node->sent[node->pass.task.kind] += (int64_t)move.bytes;
    ring_pass_sent(&node->pass);
    return 1;
}

static struct ring_flight *take_flight(struct ring_link *link)
{
    struct ring_flight *flight = &link->flights[link->first];
    link->first = (link->first + 1) % RING_LINK_MAX;
    link->count--;
    return flight;
}

static int try_take(struct ring_world *world, int rank)
{
    struct ring_node *node = &world->nodes[rank];
    int left = (rank + world->world - 1) % world->world;
    struct ring_link *link = &world->links[left];
    struct ring_move move;
    struct ring_header came, due;
    if (ring_pass_next_arrival(&node->pass, &move) != RING_TAKE || link->count == 0 ||
        link->flights[link->first].at > world->now)
        return 0;
    struct ring_flight *flight = take_flight(link);
    land(flight);
    const struct message_part parts[2] = {{flight->envelope, flight->envelope_bytes},
                                          {flight->data, flight->bytes}};
    assert(ring_wire_read(&came, parts, 2, 1 << 20, NULL) == 0);
    due = header_of(world, node, left, (uint32_t)move.segment);
    if (came.cluster_epoch != world->epoch || came.rank != left) {
        node->strangers++;
        free(flight->data);
        return 1;
    }
    enum ring_match match = ring_wire_match(&came, flight->bytes, &due, move.bytes);
    if (match != RING_MATCH) {
        node->trouble = match == RING_LOST ? RING_TOLD_LOST : RING_TOLD_OTHER;
        free(flight->data);
        return 1;
    }
    int queued = node->pass.held;
    if (ring_pass_arrived(&node->pass, flight->data)) {
        node->held[(node->held_first + queued) % RING_LINK_MAX] = flight->data;
        if (queued + 1 > node->held_most)
            node->held_most = queued + 1;
    } else {
        free(flight->data);
    }
    return 1;
}

static int can_act(const struct ring_world *world, const struct ring_node *node)
{
    return node->alive && !node->trouble && node->op < world->ops_count && node->asleep_until <= world->now;
}

/* The next moment at which a message arrives or somebody wakes; -1: none. */
static int64_t next_moment(const struct ring_world *world)
{
    int64_t next = -1;
    for (int rank = 0; rank < world->world; rank++) {
        const struct ring_link *link = &world->links[rank];
        int64_t wakes = world->nodes[rank].asleep_until, arrives = link->count ? link->flights[link->first].at : 0;
        if (arrives > world->now && (next < 0 || arrives < next))
            next = arrives;
        if (wakes > world->now && (next < 0 || wakes < next))
            next = wakes;
    }
    return next;
}

int ring_world_turn(struct ring_world *world)
{
    for (;;) {
        int start = (int)ring_world_draw(world, (uint32_t)world->world);
        for (int i = 0; i < world->world; i++) {
            int rank = (start + i) % world->world;
            struct ring_node *node = &world->nodes[rank];
            if (!can_act(world, node))
                continue;
            int first = (int)ring_world_draw(world, 2);
            int moved = first ? try_send(world, rank) || try_take(world, rank)
                              : try_take(world, rank) || try_send(world, rank);
            if (!moved)
                continue;
            settle_node(world, node);
            settle_node(world, &world->nodes[(rank + world->world - 1) % world->world]); /* what it lent is taken */
            if (ring_world_draw(world, 40) == 0)
                node->asleep_until = (int)world->now + (int)ring_world_draw(world, NAP_MAX);
            return 1;
        }
        int64_t next = next_moment(world);
        if (next < 0)
            return 0;
        world->now = next;
    }
}

int ring_world_all_through(const struct ring_world *world)
{
    for (int rank = 0; rank < world->world; rank++) {
        if (world->nodes[rank].op < world->ops_count)
            return 0;
    }
    return 1;
}

/* --- life ----------------------------------------------------------------------------------------- */

void ring_world_open(struct ring_world *world, uint64_t seed, int ranks, int queue)
{
    memset(world, 0, sizeof *world);
    world->random = seed * 0x9E3779B97F4A7C15u + 1;
    world->world = ranks;
    world->queue = queue;
    world->epoch = 1;
    for (int rank = 0; rank < ranks; rank++)
        world->nodes[rank].alive = 1;
}

void ring_world_begin(struct ring_world *world)
{
    for (int rank = 0; rank < world->world; rank++) {
        struct ring_node *node = &world->nodes[rank];
        memcpy(node->ops, world->ops, sizeof node->ops);
        node->op = 0;
        begin_op(world, node);
        settle_node(world, node);
    }
}

void ring_world_kill(struct ring_world *world, int rank)
{
    land_all(&world->links[rank]);
    world->nodes[rank].alive = 0;
}

void ring_world_cut(struct ring_world *world, int rank, int count)
{
    struct ring_link *link = &world->links[rank];
    for (; count > 0 && link->count > 0; count--) {
        link->count--;
        free(link->flights[(link->first + link->count) % RING_LINK_MAX].data);
    }
}

/* Each survivor's right neighbour may be another one now; what was sent to it before stays on its way to it. */
void ring_world_reform(struct ring_world *world)
{
    int ranks = 0;
    for (int rank = 0; rank < world->world; rank++) {
        struct ring_node *node = &world->nodes[rank];
        land_all(&world->links[rank]);
        node_forget(node);
        if (!node->alive)
            ring_world_cut(world, rank, RING_LINK_MAX);
        else if (ranks++ < rank) {
            world->links[ranks - 1] = world->links[rank];
            memset(&world->links[rank], 0, sizeof world->links[rank]);
        }
        memset(node, 0, sizeof *node);
    }
    for (int rank = 0; rank < ranks; rank++)
        world->nodes[rank].alive = 1;
    world->world = ranks;
    world->epoch++;
    world->now += DELAY_MAX;
}

void ring_world_close(struct ring_world *world)
{
    for (int rank = 0; rank < RING_WORLD_MAX; rank++) {
        land_all(&world->links[rank]);
        node_forget(&world->nodes[rank]);
        ring_world_cut(world, rank, RING_LINK_MAX);
    }
    for (int i = 0; i < RING_LAYOUTS; i++)
        vector_free(&world->vectors[i]);
}
