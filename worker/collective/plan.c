#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "tensor/reduce.h"
#include "worker/collective/collective_internal.h"

static uint64_t segments_fingerprint(const struct collective_layout *layout, int world)
{
    uint64_t hash = collective_mix(collective_mix(1, (uint64_t)world), (uint64_t)layout->segments_count);
    for (int i = 0; i < layout->segments_count; i++) {
        const struct collective_segment *segment = &layout->segments[i];
        hash = collective_mix(hash, (uint64_t)segment->begin);
        hash = collective_mix(hash, (uint64_t)(uint32_t)segment->count << 32 | (uint32_t)segment->owner);
    }
    return hash;
}

static int check_layout(const struct collective_layout *layout, int world, struct errbuf *err)
{
    int64_t end = 0;
    for (int i = 0; i < layout->segments_count; i++) {
        const struct collective_segment *segment = &layout->segments[i];
        if (segment->begin < end || segment->begin > INT64_MAX / 8 || segment->count < 1 ||
            segment->count > COLLECTIVE_SEGMENT_MAX || segment->owner < 0 || segment->owner >= world)
            return errbuf_set(err, STATUS_INVALID, "segment %d of \"%s\": elements [%lld, +%d) of rank %d", i,
                              layout->name, (long long)segment->begin, segment->count, segment->owner);
        end = segment->begin + segment->count;
    }
    return STATUS_OK;
}

static void sort_by_owner(struct collective_plan *plan)
{
    int world = plan->group->world;
    for (int i = 0; i < plan->segments_count; i++)
        plan->owner_first[plan->segments[i].owner + 1]++;
    for (int rank = 0; rank < world; rank++)
        plan->owner_first[rank + 1] += plan->owner_first[rank];
    for (int i = 0; i < plan->segments_count; i++)
        plan->by_owner[plan->owner_first[plan->segments[i].owner]++] = i;
    for (int rank = world; rank > 0; rank--) /* each start went on to the next one's */
        plan->owner_first[rank] = plan->owner_first[rank - 1];
    plan->owner_first[0] = 0;
}

static void plan_free(struct collective_plan *plan)
{
    if (!plan)
        return;
    plan->group->plans_count--;
    free(plan->segments);
    free(plan->by_owner);
    free(plan->owner_first);
    free(plan->own);
    free(plan);
}

static struct collective_plan *plan_make(struct collective *group, const struct collective_layout *layout)
{
    size_t count = (size_t)layout->segments_count;
    struct collective_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return NULL;
    group->plans_count++;
    plan->group = group;
    plan->segments_count = layout->segments_count;
    plan->segments = malloc((count + 1) * sizeof *plan->segments);
    plan->by_owner = malloc((count + 1) * sizeof *plan->by_owner);
    plan->owner_first = calloc((size_t)group->world + 1, sizeof *plan->owner_first);
    plan->own = calloc(count + 1, sizeof *plan->own);
    plan->whole = layout->whole;
    plan->apart = layout->apart;
    plan->lean = layout->lean;
    plan->fingerprint = segments_fingerprint(layout, group->world);
    if (!plan->segments || !plan->by_owner || !plan->owner_first || !plan->own) {
        plan_free(plan);
        return NULL;
    }
    int64_t elements = 0;
    for (size_t i = 0; i < count; i++) {
        const struct collective_segment *segment = &layout->segments[i];
        plan->segments[i] = *segment;
        elements += segment->count;
        if (segment->owner == group->rank)
            plan->own[i] = layout->own ? layout->own[i] : layout->whole + segment->begin;
    }
    sort_by_owner(plan);
    snprintf(plan->text, sizeof plan->text, "\"%.48s\" of %d segments, %lld elements",
             layout->name ? layout->name : "", plan->segments_count, (long long)elements);
    return plan;
}

/* What each rank says of its plan. Both numbers little-endian, as everything on the wire. */
struct plan_word {
    uint64_t fingerprint;
    char text[sizeof((struct collective_plan *)0)->text];
};

static int agree_on_plan(const struct collective_plan *plan, struct errbuf *err)
{
    struct collective *group = plan->group;
    struct plan_word mine = {.fingerprint = htole64(plan->fingerprint)};
    struct plan_word *all = malloc((size_t)group->world * sizeof *all);
    if (!all) {
        errbuf_set(err, STATUS_NOMEM, "rank %d has no memory for what %d ranks say", group->rank, group->world);
        return collective_fail(group, STATUS_NOMEM, err);
    }
    memcpy(mine.text, plan->text, sizeof mine.text);
    int status = collective_gather(group, COLLECTIVE_FORM_PLAN, &mine, all, sizeof mine, err);
    for (int rank = 1; !status && rank < group->world; rank++) {
        all[rank].text[sizeof mine.text - 1] = all[0].text[sizeof mine.text - 1] = '\0';
        if (all[rank].fingerprint != all[0].fingerprint)
            status =
                errbuf_set(err, STATUS_SHAPE, "rank 0 plans %s, rank %d %s", all[0].text, rank, all[rank].text);
    }
    free(all);
    return status;
}

int collective_plan_create(struct collective_plan **plan, struct collective *group,
                           const struct collective_layout *layout, struct errbuf *err)
{
    int status = collective_refused(group, err);
    if (!status)
        status = check_layout(layout, group->world, err);
    if (status)
        return status;
    struct collective_plan *made = plan_make(group, layout);
    if (!made) {
        errbuf_set(err, STATUS_NOMEM, "rank %d has no memory for a plan of %d segments", group->rank,
                   layout->segments_count);
        return collective_fail(group, STATUS_NOMEM, err); /* the others wait for it */
    }
    status = agree_on_plan(made, err);
    if (!status && group->ops->plan_open) {
        status = group->ops->plan_open(made, err);
        if (status)
            status = collective_fail(group, status, err);
    }
    if (status) {
        plan_free(made);
        return status;
    }
    *plan = made;
    return STATUS_OK;
}

void collective_plan_destroy(struct collective_plan *plan)
{
    if (plan && plan->group->ops->plan_close)
        plan->group->ops->plan_close(plan);
    plan_free(plan);
}

static int begin_plan(struct collective_plan *plan, uint32_t form, struct errbuf *err)
{
    int status = collective_refused(plan->group, err);
    return status ? status
                  : collective_begin(plan->group, form, collective_mix(plan->fingerprint, form), "%s %s",
                                     collective_form_name(form), plan->text);
}

int collective_reduce_scatter(struct collective_plan *plan, collective_sink_fn *sink, void *context,
                              struct errbuf *err)
{
    struct collective *group = plan->group;
    int status = begin_plan(plan, COLLECTIVE_FORM_REDUCE_SCATTER, err);
    if (!status)
        status = group->ops->reduce_scatter(plan, sink, context, err);
    return status ? collective_fail(group, status, err) : STATUS_OK;
}

int collective_all_gather(struct collective_plan *plan, struct errbuf *err)
{
    struct collective *group = plan->group;
    int status = begin_plan(plan, COLLECTIVE_FORM_ALL_GATHER, err);
    if (!status)
        status = group->ops->all_gather(plan, err);
    return status ? collective_fail(group, status, err) : STATUS_OK;
}

int collective_all_reduce(struct collective_plan *plan, struct errbuf *err)
{
    struct collective *group = plan->group;
    if (!group->ops->all_reduce) {
        int status = collective_reduce_scatter(plan, NULL, NULL, err);
        return status ? status : collective_all_gather(plan, err);
    }
    int status = begin_plan(plan, COLLECTIVE_FORM_ALL_REDUCE, err);
    if (!status)
        status = group->ops->all_reduce(plan, err);
    return status ? collective_fail(group, status, err) : STATUS_OK;
}

void collective_sum(struct collective_plan *plan, int segment, const float *const *sources, int sources_count)
{
    reduce_sum_to(plan->own[segment], sources, sources_count, plan->segments[segment].count);
}
