/* Where the vectors of all ranks lie, agreed once a plan. */
#include "worker/collective/shared.h"

#include <stdlib.h>
#include <string.h>

#include "base/account.h"
#include "base/status.h"

enum { PLAN_CACHE_BYTES = 8 << 20 }; /* a vector beyond it is not found in a cache again */

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
    mine->wholes[k] =
        shared_place(row, k, said->whole.block, said->whole.offset, (size_t)plan_extent(plan) * sizeof(float));
    int right = mine->wholes[k] != NULL;
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

static int64_t plan_pieces(const struct collective_plan *plan, int owner)
{
    int64_t pieces = 0;
    for (int i = plan->owner_first[owner]; i < plan->owner_first[owner + 1]; i++)
        pieces += (plan->segments[plan->by_owner[i]].count + SHARED_PIECE_MAX - 1) / SHARED_PIECE_MAX;
    return pieces;
}

int shared_plan_open(struct collective_plan *plan, struct errbuf *err)
{
    const struct shared *row = plan->group->row;
    size_t world = (size_t)row->world;
    struct shared_plan *mine = calloc(1, sizeof *mine);
    if (!mine)
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    plan->row = mine;
    mine->wholes = calloc(world, sizeof *mine->wholes);
    mine->left_own = calloc((size_t)plan_owned(plan, row->left) + 1, sizeof *mine->left_own);
    mine->pieces = calloc(world, sizeof *mine->pieces);
    mine->cursors = calloc(world, sizeof *mine->cursors);
    mine->sources = calloc(world, sizeof *mine->sources);
    int status = STATUS_OK;
    if (!mine->wholes || !mine->left_own || !mine->pieces || !mine->cursors || !mine->sources)
        status = errbuf_set(err, STATUS_NOMEM, "out of memory");
    for (int k = 0; k < row->world && !status; k++) {
        mine->pieces[k] = plan_pieces(plan, k);
        if (mine->pieces[k] >= 1 << SHARED_COUNT_BITS) /* the same on all ranks */
            status = errbuf_set(err, STATUS_RANGE, "%s has too many segments for one plan", plan->text);
    }
    if (!status)
        status = plan_exchange(plan, err);
    mine->stream = plan_extent(plan) * (int64_t)sizeof(float) > PLAN_CACHE_BYTES;
    if (!status)
        return STATUS_OK;
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
    free(mine->cursors);
    free(mine->sources);
    free(mine);
    plan->row = NULL;
}
