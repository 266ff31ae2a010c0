#include "worker/collective/ring_pass.h"

#include <assert.h>
#include <string.h>

#include "tensor/reduce.h"

int ring_pass_held_max(int world)
{
    return world > 2 ? (RING_LAG + 1) * (world - 2) + 1 : 1;
}

/* Whose segments `rank` sends in this round. */
static int round_owner(const struct ring_task *task, int rank, int round)
{
    int owner = rank - round - (task->kind == RING_REDUCE_SCATTER);
    return (owner + 2 * task->world) % task->world;
}

static int64_t owner_count(const struct ring_task *task, int owner)
{
    return task->kind == RING_EXCHANGE ? 1 : task->owner_first[owner + 1] - task->owner_first[owner];
}

/* To the next message from (slot, round) on, this one included. */
static void cursor_settle(struct ring_cursor *cursor, const struct ring_task *task)
{
    for (; cursor->slot < cursor->slots; cursor->slot++, cursor->round = task->world - 2) {
        for (; cursor->round >= 0; cursor->round--) {
            int owner = round_owner(task, cursor->rank, cursor->round);
            int64_t wave = cursor->slot - (int64_t)RING_LAG * cursor->round;
            if (wave < 0 || wave >= owner_count(task, owner))
                continue;
            cursor->segment = task->kind == RING_EXCHANGE ? owner : task->by_owner[task->owner_first[owner] + wave];
            return;
        }
    }
    cursor->segment = -1;
}

static void cursor_begin(struct ring_cursor *cursor, const struct ring_task *task, int rank)
{
    *cursor = (struct ring_cursor){.rank = rank, .round = task->world - 2, .segment = -1};
    for (int round = 0; round < task->world - 1; round++) {
        int64_t count = owner_count(task, round_owner(task, rank, round));
        int64_t end = count ? count + (int64_t)RING_LAG * round : 0;
        if (end > cursor->slots)
            cursor->slots = end;
    }
    cursor_settle(cursor, task);
}

static void cursor_advance(struct ring_cursor *cursor, const struct ring_task *task)
{
    cursor->round--;
    cursor_settle(cursor, task);
}

static size_t segment_bytes(const struct ring_task *task, int segment)
{
    return task->kind == RING_EXCHANGE ? task->blobs->sizes[segment]
                                       : (size_t)task->segments[segment].count * sizeof(float);
}

/* What needs no neighbour, for each segment of this rank. */
static void local_part(const struct ring_task *task)
{
    for (int i = task->owner_first[task->rank]; i < task->owner_first[task->rank + 1]; i++) {
        int number = task->by_owner[i];
        const struct collective_segment *segment = &task->segments[number];
        float *mine = task->whole + segment->begin;
        const float *source = mine;
        if (task->kind == RING_REDUCE_SCATTER)
            task->sink(task->context, number, &source, 1);
        else if (task->own[number] != mine)
            memcpy(mine, task->own[number], (size_t)segment->count * sizeof *mine);
    }
}

void ring_pass_begin(struct ring_pass *pass, const struct ring_task *task)
{
    pass->task = *task;
    pass->held = 0;
    cursor_begin(&pass->sends, task, task->rank);
    cursor_begin(&pass->arrivals, task, (task->rank + task->world - 1) % task->world);
    if (task->kind == RING_ALL_GATHER || (task->kind == RING_REDUCE_SCATTER && task->world == 1))
        local_part(task);
}

enum ring_next ring_pass_next_send(const struct ring_pass *pass, struct ring_move *move)
{
    const struct ring_task *task = &pass->task;
    int segment = pass->sends.segment;
    if (segment < 0)
        return RING_DONE;
    *move = (struct ring_move){.segment = segment, .bytes = segment_bytes(task, segment)};
    if (pass->sends.round > 0)
        return pass->held > 0 ? RING_HELD : RING_WAIT;
    if (task->kind == RING_EXCHANGE)
        move->data = task->blobs->all + task->blobs->offsets[segment];
    else if (task->kind == RING_ALL_GATHER)
        move->data = task->own[segment];
    else
        move->data = task->whole + task->segments[segment].begin;
    return RING_OWN;
}

void ring_pass_sent(struct ring_pass *pass)
{
    assert(pass->sends.segment >= 0 && (pass->sends.round == 0 || pass->held > 0));
    pass->held -= pass->sends.round > 0;
    cursor_advance(&pass->sends, &pass->task);
}

enum ring_next ring_pass_next_arrival(const struct ring_pass *pass, struct ring_move *move)
{
    int segment = pass->arrivals.segment;
    if (segment < 0)
        return RING_DONE;
    *move = (struct ring_move){.segment = segment, .bytes = segment_bytes(&pass->task, segment)};
    return pass->held < ring_pass_held_max(pass->task.world) ? RING_TAKE : RING_WAIT;
}

static void take_contribution(const struct ring_task *task, int number, float *data, int last)
{
    const struct collective_segment *segment = &task->segments[number];
    const float *mine = task->whole + segment->begin;
    if (last)
        task->sink(task->context, number, (const float *const[]){data, mine}, 2);
    else
        reduce_add(data, mine, segment->count);
}

int ring_pass_arrived(struct ring_pass *pass, void *data)
{
    const struct ring_task *task = &pass->task;
    int segment = pass->arrivals.segment, last = pass->arrivals.round == task->world - 2;
    size_t bytes = segment_bytes(task, segment);
    if (task->kind == RING_REDUCE_SCATTER)
        take_contribution(task, segment, data, last);
    else if (task->kind == RING_ALL_GATHER)
        memcpy(task->whole + task->segments[segment].begin, data, bytes);
    else if (bytes)
        memcpy(task->blobs->all + task->blobs->offsets[segment], data, bytes);
    pass->held += !last;
    cursor_advance(&pass->arrivals, task);
    return !last;
}

int ring_pass_done(const struct ring_pass *pass)
{
    return pass->sends.segment < 0 && pass->arrivals.segment < 0;
}
