/* Where the vectors of all ranks lie, agreed once a plan. */
#include "worker/collective/shared.h"

#include <stdlib.h>
#include <string.h>

#include "base/account.h"
#include "base/status.h"

struct plan_place { /* as it travels */
    uint64_t block, offset;
};

struct plan_said {
    int32_t status, padding;
    struct plan_place whole;
    struct plan_place own[]; /* one for each segment of this rank */
};

static int plan_owned(const struct collective_plan *plan, int owner)
{
    return plan->owner_first[owner + 1] - plan->owner_first[owner];
}

/* Elements from `whole` that segments reach. */
static int64_t plan_extent(const struct collective_plan *plan)
{
    if (plan->segments_count == 0)
        return 0;
    const struct collective_segment *last = &plan->segments[plan->segments_count - 1];
    return last->begin + last->count;
}

static int plan_say_place(const struct shared *row, struct plan_place *place, const void *memory, size_t bytes)
{
    size_t offset;
    const struct shared_block *block = shared_block_of(row, memory, bytes, &offset);
    if (!block)
        return STATUS_INVALID;
    *place = (struct plan_place){.block = block->number, .offset = offset};
    return STATUS_OK;
}

static void plan_say(const struct collective_plan *plan, struct plan_said *said)
{
    const struct shared *row = plan->group->row;
    int first = plan->owner_first[row->rank];
    if (plan->segments_count > 0)
        said->status = plan_say_place(row, &said->whole, plan->whole, (size_t)plan_extent(plan) * sizeof(float));
    for (int i = 0; i < plan_owned(plan, row->rank) && !said->status; i++) {
        int segment = plan->by_owner[first + i];
        said->status = plan_say_place(row, &said->own[i], plan->own[segment],
                                      (size_t)plan->segments[segment].count * sizeof(float));
    }
}

/* What rank k said is checked against the memory it shares, as mapped here. */
static int plan_hear(struct collective_plan *plan, int k, const struct plan_said *said, struct errbuf *err)
{
    const struct shared *row = plan->group->row;
    struct shared_plan *mine = plan->row;
    if (said->status)
        return errbuf_set(err, STATUS_INVALID, "rank %d: %s is not in memory of collective_alloc", k, plan->text);
    if (plan->segments_count == 0)
        return STATUS_OK;
    mine->vectors.wholes[k] =
        shared_place(row, k, said->whole.block, said->whole.offset, (size_t)plan_extent(plan) * sizeof(float));
    int right = mine->vectors.wholes[k] != NULL;
    for (int i = 0; k == row->left && i < plan_owned(plan, k) && right; i++) {
        int segment = plan->by_owner[plan->owner_first[k] + i];
        mine->left_own[i] = shared_place(row, k, said->own[i].block, said->own[i].offset,
                                         (size_t)plan->segments[segment].count * sizeof(float));
        right = mine->left_own[i] != NULL;
    }
    return right ? STATUS_OK
                 : errbuf_set(err, STATUS_PROTOCOL, "rank %d: %s would lie outside of its shared memory", k, plan->text);
}

static int plan_exchange(struct collective_plan *plan, struct errbuf *err)
{
    struct collective *group = plan->group;
    size_t *offsets = calloc((size_t)group->world, 2 * sizeof *offsets), total = 0;
    if (!offsets)
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    size_t *sizes = offsets + group->world;
    for (int k = 0; k < group->world; k++) {
        offsets[k] = total;
        sizes[k] = sizeof(struct plan_said) + (size_t)plan_owned(plan, k) * sizeof(struct plan_place);
        total += sizes[k];
    }
    struct shared *row = group->row;
    row->plan_bytes_max = total > row->plan_bytes_max ? total : row->plan_bytes_max;
    uint8_t *all = account_alloc(group->account, ACCOUNT_BUFFERS, total);
    int status = all ? STATUS_OK : errbuf_set(err, STATUS_NOMEM, "out of memory");
    if (all) {
        plan_say(plan, (struct plan_said *)(all + offsets[group->rank]));
        status = collective_agree(group, &(struct collective_blobs){all, offsets, sizes}, err);
    }
    for (int k = 0; k < group->world && !status; k++)
        status = plan_hear(plan, k, (const struct plan_said *)(all + offsets[k]), err);
    account_free(group->account, ACCOUNT_BUFFERS, all, total);
    free(offsets);
    return status;
}

/* Pieces and bytes of each owner. */
static int plan_count(struct collective_plan *plan, struct errbuf *err)
{
    struct shared_plan *mine = plan->row;
    for (int owner = 0; owner < plan->group->world; owner++) {
        for (int i = plan->owner_first[owner]; i < plan->owner_first[owner + 1]; i++) {
            int32_t count = plan->segments[plan->by_owner[i]].count;
            mine->pieces[owner] += (count + SHARED_PIECE_MAX - 1) / SHARED_PIECE_MAX;
            mine->bytes[owner] += (int64_t)count * (int64_t)sizeof(float);
        }
        mine->bytes_all += mine->bytes[owner];
        if (mine->pieces[owner] >= 1 << SHARED_COUNT_BITS) /* the same on all ranks */
            return errbuf_set(err, STATUS_RANGE, "%s has too many segments for one plan", plan->text);
    }
    return STATUS_OK;
}

static void plan_views(struct collective_plan *plan)
{
    const struct shared *row = plan->group->row;
    struct shared_plan *mine = plan->row;
    mine->small = mine->direct = plan_extent(plan) <= SHARED_SMALL_MAX;
    for (int k = 1; k < row->world && mine->direct; k++)
        mine->direct = mine->bytes[k] == mine->bytes[0];
    mine->vectors = (struct shared_view){.wholes = mine->wholes, .left_own = mine->left_own, .whole = plan->whole};
    for (int i = 0; i < 2; i++) {
        struct shared_view *image = &mine->images[i];
        size_t place = (size_t)i * SHARED_SMALL_MAX;
        *image = (struct shared_view){.wholes = mine->wholes + (i + 1) * row->world, .whole = row->images + place};
        for (int k = 0; k < row->world; k++)
            image->wholes[k] = row->members[k].images + place;
    }
}

static int plan_allocate(struct collective_plan *plan)
{
    const struct shared *row = plan->group->row;
    struct shared_plan *mine = calloc(1, sizeof *mine);
    size_t world = (size_t)row->world;
    plan->row = mine;
    if (!mine)
        return STATUS_NOMEM;
    mine->wholes = calloc(3 * world, sizeof *mine->wholes);
    mine->left_own = calloc((size_t)plan_owned(plan, row->left) + 1, sizeof *mine->left_own);
    mine->pieces = calloc(world, sizeof *mine->pieces);
    mine->bytes = calloc(world, sizeof *mine->bytes);
    mine->cursors = calloc(world, sizeof *mine->cursors);
    mine->sources = calloc(world, sizeof *mine->sources);
    return mine->wholes && mine->left_own && mine->pieces && mine->bytes && mine->cursors && mine->sources
               ? STATUS_OK
               : STATUS_NOMEM;
}

int shared_plan_open(struct collective_plan *plan, struct errbuf *err)
{
    int status = plan_allocate(plan);
    if (status)
        errbuf_set(err, status, "rank %d has no memory for %s", plan->group->rank, plan->text);
    if (!status)
        status = plan_count(plan, err);
    if (!status) {
        plan_views(plan);
        status = plan_exchange(plan, err);
    }
    if (status)
        shared_plan_close(plan);
    return status;
}

void shared_plan_close(struct collective_plan *plan)
{
    struct shared_plan *mine = plan->row;
    if (!mine)
        return;
    free(mine->wholes);
    free(mine->left_own);
    free(mine->pieces);
    free(mine->bytes);
    free(mine->cursors);
    free(mine->sources);
    free(mine);
    plan->row = NULL;
}
