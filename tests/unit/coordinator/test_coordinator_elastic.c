#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "ring.h"

static void start(struct ring *ring, const char *yaml)
{
    ring_open(ring, "zero2", ", elastic: {min: 2}", yaml);
    ring->world.restore = &ring->world.manifest; /* what was committed last, once it is asked for */
    ring_join(ring);
    assert_int_equal(world_submit(&ring->world, "/jobs", 0), 0);
    ring_start(ring);
}

static void save(struct ring *ring, uint64_t step)
{
    ring_events(ring, SHOAL__TYPE__SNAPSHOT);
    for (int i = 0; i < ring->count; i++)
        actor_snapshot_done(&ring->workers[i], step, 0, "");
}

/* Its launcher saw it; the workers behind it close up. */
static void die(struct ring *ring, int index)
{
    struct actor launcher;
    Shoal__Envelope envelope;
    Shoal__Death death = SHOAL__DEATH__INIT;
    actor_init(&launcher, &ring->world, SHOAL__ROLE__OPERATOR, -1);
    actor_envelope(&launcher, &envelope, SHOAL__TYPE__REPORT_DEATH);
    envelope.body_case = SHOAL__ENVELOPE__BODY_DEATH;
    envelope.death = &death;
    death.host = "h";
    death.pid = ring->workers[index].pid;
    death.text = "was killed by signal 9";
    actor_send(&launcher, &envelope, NULL, 0, NULL, 0);
    memmove(&ring->workers[index], &ring->workers[index + 1],
            (size_t)(RING_WORKERS - index) * sizeof ring->workers[0]);
    ring->count--;
}

/* END of the attempt, JOB of the next with these workers, and START. */
static const Shoal__Start *next_launch(struct ring *ring, const char *text)
{
    const Shoal__Envelope *end = ring_events(ring, SHOAL__TYPE__END)->envelope;
    uint64_t job = end->job, epoch = end->cluster_epoch;
    assert_int_equal(end->status, STATUS_ROLLED_BACK);
    assert_non_null(strstr(end->text, text));
    const Shoal__Envelope *event = ring_events(ring, SHOAL__TYPE__JOB)->envelope;
    assert_true(event->job != job && event->cluster_epoch == epoch + 1);
    assert_int_equal(event->job_begin->workers, ring->count);
    assert_int_equal(event->job_begin->n_worker_incarnations, ring->count);
    for (int i = 0; i < ring->count; i++)
        assert_true(event->job_begin->worker_incarnations[i] == ring->workers[i].incarnation);
    uint64_t requests[RING_WORKERS + 1];
    for (int i = ring->count - 1; i >= 0; i--) {
        ring->workers[i].rank = i;
        requests[i] = actor_register(&ring->workers[i], ring->total_steps, 200, 0);
    }
    for (int i = 0; i < ring->count; i++)
        assert_int_equal(world_status(&ring->world, requests[i]), 0);
    const Shoal__Start *start = ring_events(ring, SHOAL__TYPE__START)->envelope->start;
    assert_int_equal(start->n_peers, ring->count);
    ring->t = start->applied;
    return start;
}

static void a_death_rolls_back_to_the_last_snapshot(void **state)
{
    (void)state;
    struct ring r;
    start(&r, "snapshot: {dir: snap, every: 2}\n");
    ring_step(&r, 1);
    ring_step(&r, 2);
    save(&r, 2);
    ring_step(&r, 3);
    struct actor_vote vote = ring_vote(&r, 4);
    actor_ring_report(&r.workers[0], 4, &vote);
    struct actor before = r.workers[0];
    die(&r, 1);
    const Shoal__Start *start = next_launch(&r, "rolled back to step 2: worker 1 (pid ");
    assert_int_equal(start->first_step, 3);
    assert_int_equal(start->snapshot_step, 2);
    assert_int_equal(start->applied, 2);
    assert_int_equal(start->n_files, 3);
    assert_string_equal(r.world.restored, "/jobs/snap/step-00000002");
    assert_non_null(strstr(r.world.metrics, "{\"event\":\"epoch\",\"cluster_epoch\":2,\"step\":2,\"workers\":2}"));
    assert_non_null(strstr(r.world.metrics, "{\"event\":\"resume\",\"step\":2}"));
    /* What the attempt before still had under way is no part of this one, and no reason to leave it. */
    assert_int_equal(world_status(&r.world, actor_ring_report(&before, 4, &vote)), STATUS_ROLLED_BACK);
    assert_int_equal(world_status(&r.world, actor_snapshot_done(&before, 4, 0, "")), STATUS_ROLLED_BACK);
    for (uint64_t step = 3; step <= 6; step++) {
        ring_step(&r, step);
        if (step % 2 == 0)
            save(&r, step);
    }
    ring_finish(&r);
    assert_non_null(strstr(r.world.said, "began anew 1 times, the last time from step 2 with 2 workers: worker 1 (pid "));
    assert_non_null(strstr(r.world.committed, "step-00000004 /jobs/snap/step-00000006 "));
    ring_close(&r);
}

static void without_a_snapshot_it_begins_again(void **state)
{
    (void)state;
    struct ring r;
    start(&r, "snapshot: {dir: snap, every: 4}\n");
    ring_step(&r, 1);
    actor_simple(&r.workers[0], SHOAL__TYPE__LEAVE, 0, STATUS_IO, "disk on fire");
    memmove(&r.workers[0], &r.workers[1], RING_WORKERS * sizeof r.workers[0]);
    r.count--;
    const Shoal__Start *start = next_launch(&r, "rolled back to step 0: worker 0 (pid ");
    assert_int_equal(start->first_step, 1);
    assert_int_equal(start->snapshot_step, 0);
    assert_int_equal(start->applied, 0);
    assert_string_equal(r.world.restored, "");
    assert_non_null(strstr(r.world.logged, "disk on fire; goes on with 2 workers, there is no snapshot yet: from the beginning"));
    ring_step(&r, 1);
    ring_close(&r);
}

static void below_the_minimum_the_job_ends(void **state)
{
    (void)state;
    struct ring r;
    start(&r, "snapshot: {dir: snap, every: 2}\n");
    ring_step(&r, 1);
    die(&r, 2);
    next_launch(&r, "worker 2");
    die(&r, 0);
    const Shoal__Envelope *end = ring_events(&r, SHOAL__TYPE__END)->envelope;
    assert_int_equal(end->status, STATUS_ABORTED);
    assert_non_null(strstr(end->text, "was killed by signal 9"));
    ring_close(&r);
}

static void without_elastic_a_death_ends_the_job(void **state)
{
    (void)state;
    struct ring r;
    ring_open(&r, "ddp", "", "snapshot: {dir: snap}\n");
    ring_join(&r);
    assert_int_equal(world_submit(&r.world, "/jobs", 0), 0);
    ring_start(&r);
    die(&r, 1);
    assert_int_equal(ring_events(&r, SHOAL__TYPE__END)->envelope->status, STATUS_ABORTED);
    ring_close(&r);
}

/* Nobody has heard of the launch between two deaths. */
static void a_second_death_before_the_launch_is_one_more_rollback(void **state)
{
    (void)state;
    struct ring r;
    ring_open(&r, "zero1", ", elastic: {min: 1}", "snapshot: {dir: snap, every: 2}\n");
    r.world.restore = &r.world.manifest;
    ring_join(&r);
    assert_int_equal(world_submit(&r.world, "/jobs", 0), 0);
    ring_start(&r);
    ring_step(&r, 1);
    die(&r, 0);
    die(&r, 0);
    const Shoal__Start *start = next_launch(&r, "rolled back to step 0: worker 0 (pid ");
    assert_int_equal(start->first_step, 1);
    assert_int_equal(r.count, 1);
    for (uint64_t step = 1; step <= 6; step++) {
        ring_step(&r, step);
        if (step % 2 == 0)
            save(&r, step);
    }
    ring_finish(&r);
    ring_close(&r);
}

/* The worker keeps its old rank until it has read JOB: it is known by its life. */
static void a_moved_worker_is_known_by_its_incarnation(void **state)
{
    (void)state;
    struct ring r;
    start(&r, "snapshot: {dir: snap, every: 2}\n");
    die(&r, 0);
    assert_int_equal(r.workers[1].rank, 2); /* as it knows; it is 1 now */
    assert_int_equal(world_status(&r.world, actor_simple(&r.workers[1], SHOAL__TYPE__HEARTBEAT, 0, 0, "")), 0);
    next_launch(&r, "worker 0");
    ring_step(&r, 1);
    ring_close(&r);
}

static void a_newcomer_is_admitted_after_the_step_at_hand(void **state)
{
    (void)state;
    struct ring r;
    start(&r, "snapshot: {dir: snap, every: 4}\nevaluate: {every: 5}\n");
    struct actor newcomer = r.workers[RING_WORKERS];
    assert_int_equal(world_status(&r.world, actor_join(&newcomer)), STATUS_EXISTS); /* all are in */
    die(&r, 1);
    next_launch(&r, "worker 1");
    ring_step(&r, 1);
    newcomer.wanted = 1; /* a wish that cannot be met any more */
    actor_join(&newcomer);
    assert_int_equal(newcomer.rank, 2);
    ring_events(&r, SHOAL__TYPE__LAST);
    ring_step(&r, 2);
    assert_null(actor_event(&newcomer));
    struct actor_vote vote = ring_vote(&r, 3);
    vote.last = vote.stopped = 1;
    ring_report(&r, 3, &vote);
    save(&r, 3);
    r.workers[2] = newcomer;
    /* The newcomer has no part in what ends. */
    const Shoal__Envelope *end = ring_events(&r, SHOAL__TYPE__END)->envelope;
    assert_int_equal(end->status, STATUS_ROLLED_BACK);
    assert_string_equal(end->text, "rolled back to step 3: 3 workers are here, 2 were");
    r.count = 3;
    const struct world_reply *job = ring_events(&r, SHOAL__TYPE__JOB);
    assert_int_equal(job->envelope->job_begin->workers, 3);
    for (int i = 0; i < 3; i++) {
        r.workers[i].rank = i;
        actor_register(&r.workers[i], r.total_steps, 200, 0);
    }
    const Shoal__Start *start = ring_events(&r, SHOAL__TYPE__START)->envelope->start;
    assert_int_equal(start->first_step, 4);
    r.t = start->applied;
    for (uint64_t step = 4; step <= 6; step++) {
        ring_step(&r, step);
        if (step != 5)
            save(&r, step);
    }
    ring_finish(&r);
    ring_close(&r);
}

/* It came too late for the votes of the last step. */
static void a_job_that_is_through_waits_for_no_newcomer(void **state)
{
    (void)state;
    struct ring r;
    start(&r, "snapshot: {dir: snap, every: 2}\n");
    die(&r, 2);
    next_launch(&r, "worker 2");
    for (uint64_t step = 1; step <= 5; step++) {
        ring_step(&r, step);
        if (step % 2 == 0)
            save(&r, step);
    }
    struct actor newcomer = r.workers[2];
    actor_join(&newcomer);
    ring_events(&r, SHOAL__TYPE__LAST);
    ring_step(&r, 6);
    save(&r, 6);
    for (int i = 0; i < 2; i++)
        actor_summary(&r.workers[i], "");
    assert_int_equal(ring_events(&r, SHOAL__TYPE__END)->envelope->status, 0);
    assert_int_equal(actor_event(&newcomer)->envelope->type, SHOAL__TYPE__END);
    ring_close(&r);
}

static void a_stop_is_stronger_than_a_newcomer(void **state)
{
    (void)state;
    struct ring r;
    start(&r, "snapshot: {dir: snap, every: 2}\n");
    die(&r, 2);
    next_launch(&r, "worker 2");
    actor_join(&r.workers[2]);
    ring_events(&r, SHOAL__TYPE__LAST);
    coordinator_core_stop(r.world.core, r.world.now_ns);
    struct actor_vote vote = ring_vote(&r, 1);
    vote.last = vote.stopped = 1;
    ring_report(&r, 1, &vote);
    save(&r, 1);
    assert_int_equal(ring_events(&r, SHOAL__TYPE__END)->envelope->status, STATUS_STOPPED);
    ring_close(&r);
}

/* A job that kills its workers, and somebody who starts them again. */
static void the_same_step_is_not_tried_for_ever(void **state)
{
    (void)state;
    struct ring r;
    start(&r, "snapshot: {dir: snap, every: 2}\n");
    for (int i = 0; i < 20 && r.world.end_status == 0 && strstr(r.world.logged, "times in a row") == NULL; i++) {
        struct actor again;
        die(&r, 0); /* the newcomer has no part in the launch yet */
        actor_init(&again, &r.world, SHOAL__ROLE__WORKER, -1);
        actor_join(&again);
        r.workers[r.count++] = again;
    }
    assert_non_null(strstr(r.world.logged, "was killed by signal 9; rolled back to step 0 8 times in a row"));
    ring_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_rolls_back_to_the_last_snapshot),
        cmocka_unit_test(without_a_snapshot_it_begins_again),
        cmocka_unit_test(below_the_minimum_the_job_ends),
        cmocka_unit_test(without_elastic_a_death_ends_the_job),
        cmocka_unit_test(a_second_death_before_the_launch_is_one_more_rollback),
        cmocka_unit_test(a_moved_worker_is_known_by_its_incarnation),
        cmocka_unit_test(a_newcomer_is_admitted_after_the_step_at_hand),
        cmocka_unit_test(a_job_that_is_through_waits_for_no_newcomer),
        cmocka_unit_test(a_stop_is_stronger_than_a_newcomer),
        cmocka_unit_test(the_same_step_is_not_tried_for_ever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
