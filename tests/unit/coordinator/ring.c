#include "ring.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { WIDTH = 200 };

void ring_open(struct ring *ring, const char *parallel, const char *cluster, const char *yaml)
{
    char text[2048];
    memset(ring, 0, sizeof *ring);
    ring->count = RING_WORKERS;
    ring->total_steps = 6;
    snprintf(text, sizeof text, "parallel: {data: %s}\ncluster: {workers: %d%s}\n%s", parallel, RING_WORKERS, cluster, yaml);
    world_open(&ring->world, text, 1);
    for (int i = 0; i <= RING_WORKERS; i++)
        actor_init(&ring->workers[i], &ring->world, SHOAL__ROLE__WORKER, -1);
}

void ring_close(struct ring *ring)
{
    world_close(&ring->world);
}

void ring_join(struct ring *ring)
{
    for (int i = 0; i < RING_WORKERS; i++) {
        actor_join(&ring->workers[i]);
        assert_int_equal(ring->workers[i].rank, i);
    }
}

const struct world_reply *ring_events(struct ring *ring, Shoal__Type type)
{
    const struct world_reply *event = NULL;
    uint64_t first = 0;
    for (int i = ring->count - 1; i >= 0; i--) {
        event = actor_event(&ring->workers[i]);
        assert_non_null(event);
        assert_int_equal(event->envelope->type, type);
        first = event->request;
    }
    return world_answer(&ring->world, first);
}

const struct world_reply *ring_start(struct ring *ring)
{
    uint64_t requests[RING_WORKERS + 1];
    ring_events(ring, SHOAL__TYPE__JOB);
    for (int i = ring->count - 1; i >= 0; i--)
        requests[i] = actor_register(&ring->workers[i], ring->total_steps, WIDTH, ring->features);
    for (int i = 0; i < ring->count; i++)
        assert_int_equal(world_status(&ring->world, requests[i]), 0);
    const struct world_reply *start = ring_events(ring, SHOAL__TYPE__START);
    ring->t = start->envelope->start->applied;
    return start;
}

struct actor_vote ring_vote(const struct ring *ring, uint64_t step)
{
    return (struct actor_vote){.decision = SHOAL__DECISION__APPLY, .grad_scale = 1, .lr = 0.1, .next_lr = 0.1,
                               .loss = 0.5, .grad_norm = 2, .t = ring->t + 1, .nonfinite_run = -1,
                               .last = step == ring->total_steps};
}

void ring_report(struct ring *ring, uint64_t step, const struct actor_vote *vote)
{
    for (int i = ring->count - 1; i >= 0; i--)
        assert_int_equal(world_status(&ring->world, actor_ring_report(&ring->workers[i], step, vote)), 0);
    ring->t += vote->decision == SHOAL__DECISION__APPLY;
}

void ring_step(struct ring *ring, uint64_t step)
{
    struct actor_vote vote = ring_vote(ring, step);
    ring_report(ring, step, &vote);
}

const Shoal__Evaluation *ring_evaluate(struct ring *ring, uint64_t step, const char *set, double correct)
{
    uint64_t request = 0;
    for (int i = ring->count - 1; i >= 0; i--) {
        double row[4] = {i, 1, 10, correct};
        request = actor_evaluated(&ring->workers[i], step, set, row, 1);
    }
    const struct world_reply *reply = world_answer(&ring->world, request);
    assert_non_null(reply);
    assert_int_equal(reply->envelope->type, SHOAL__TYPE__EVALUATION);
    return reply->envelope->evaluation;
}

void ring_finish(struct ring *ring)
{
    for (int i = 0; i < ring->count; i++)
        assert_int_equal(world_status(&ring->world, actor_summary(&ring->workers[i], i == 0 ? "ab" : "")), 0);
    assert_int_equal(ring_events(ring, SHOAL__TYPE__END)->envelope->status, 0);
    for (int i = 0; i < ring->count; i++)
        actor_simple(&ring->workers[i], SHOAL__TYPE__LEAVE, 0, 0, "");
    assert_int_equal(ring->world.ended, 1);
    assert_int_equal(ring->world.end_status, 0);
}
