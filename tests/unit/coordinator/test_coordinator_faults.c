#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "cluster.h"

/* Time passes in ticks of a second; the members listed keep their heartbeat. */
static void pass(struct cluster *c, int seconds, int silent_worker)
{
    for (int s = 0; s < seconds; s++) {
        c->world.now_ns += 1000000000;
        for (int i = 0; i < CLUSTER_WORKERS; i++)
            if (i != silent_worker && c->workers[i].rank >= 0)
                actor_simple(&c->workers[i], SHOAL__TYPE__HEARTBEAT, 0, 0, "");
        for (int i = 0; i < CLUSTER_SERVERS; i++)
            if (c->servers[i].rank >= 0)
                actor_simple(&c->servers[i], SHOAL__TYPE__HEARTBEAT, 0, 0, "");
        coordinator_core_tick(c->world.core, c->world.now_ns);
    }
}

static void missing_members_are_named_and_end_the_job(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, "");
    assert_int_equal(world_submit(&c.world, "", 0), 0);
    actor_join(&c.workers[0]);
    actor_join(&c.servers[0]);
    pass(&c, 11, -1);
    assert_non_null(strstr(c.world.logged, "waiting for servers 1; workers 1, 2 for 10 s"));
    pass(&c, 110, -1);
    const struct world_reply *event = actor_event(&c.workers[0]);
    assert_non_null(event);
    assert_int_equal(event->envelope->type, SHOAL__TYPE__END);
    assert_int_equal(event->envelope->status, STATUS_TIMEOUT);
    assert_non_null(strstr(event->envelope->text, "servers 1; workers 1, 2"));
    pass(&c, 4, -1);
    assert_int_equal(c.world.ended, 1);
    assert_int_equal(c.world.end_status, STATUS_TIMEOUT);
    cluster_close(&c);
}

static void a_stalled_step_says_who_is_missing_for_what(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, "");
    cluster_join(&c);
    assert_int_equal(world_submit(&c.world, "", 0), 0);
    cluster_start(&c);
    cluster_step(&c, 1, 1);
    for (int i = 0; i < c.keymap.ranges_count; i++)
        if (c.keymap.ranges[i].server == 1)
            actor_prepared(&c.servers[1], 2, &c.keymap.ranges[i], 1, 1);
    actor_report(&c.workers[0], 2, 1, 4);
    actor_report(&c.workers[1], 2, 1, 4);
    pass(&c, 30, 2); /* worker 2 stopped for 30 s */
    assert_non_null(strstr(c.world.logged, "step 2: waiting for the reports of workers 2; the sums of servers 0 for 10 s"));
    assert_non_null(strstr(c.world.logged, " for 10 s, nothing heard from workers 2"));
    assert_int_equal(c.world.end_status, 0);
    /* and goes on */
    for (int i = 0; i < c.keymap.ranges_count; i++)
        if (c.keymap.ranges[i].server == 0)
            actor_prepared(&c.servers[0], 2, &c.keymap.ranges[i], 1, 1);
    actor_report(&c.workers[2], 2, 1, 4);
    cluster_events(&c, SHOAL__TYPE__VERDICT, 1, 1);
    cluster_step(&c, 3, 1);
    pass(&c, 59, 2);
    assert_null(actor_event(&c.workers[0]));
    pass(&c, 2, 2);
    const struct world_reply *event = actor_event(&c.workers[0]);
    assert_non_null(event);
    assert_int_equal(event->envelope->type, SHOAL__TYPE__END);
    assert_int_equal(event->envelope->status, STATUS_TIMEOUT);
    char text[64];
    snprintf(text, sizeof text, "worker 2 (pid %lld on h) silent for 60 s", (long long)c.workers[2].pid);
    assert_string_equal(event->envelope->text, text);
    cluster_close(&c);
}

static void its_own_pause_blames_nobody(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, "");
    cluster_join(&c);
    assert_int_equal(world_submit(&c.world, "", 0), 0);
    cluster_start(&c);
    pass(&c, 1, -1);
    c.world.now_ns += 300000000000;
    coordinator_core_tick(c.world.core, c.world.now_ns);
    assert_null(actor_event(&c.workers[0]));
    cluster_step(&c, 1, 1);
    cluster_close(&c);
}

static uint64_t report_death(struct cluster *c, int64_t pid)
{
    struct actor launcher;
    Shoal__Envelope envelope;
    Shoal__Death death = SHOAL__DEATH__INIT;
    actor_init(&launcher, &c->world, SHOAL__ROLE__OPERATOR, -1);
    actor_envelope(&launcher, &envelope, SHOAL__TYPE__REPORT_DEATH);
    envelope.body_case = SHOAL__ENVELOPE__BODY_DEATH;
    envelope.death = &death;
    death.host = "h";
    death.pid = pid;
    death.text = "killed by signal 9";
    return actor_send(&launcher, &envelope, NULL, 0, NULL, 0);
}

static void a_reported_death_ends_the_job_at_once(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, "");
    cluster_join(&c);
    assert_int_equal(world_submit(&c.world, "", 0), 0);
    cluster_start(&c);
    uint64_t held = actor_await(&c.workers[0]);
    assert_int_equal(world_answers(&c.world, held), 0);
    assert_int_equal(world_status(&c.world, report_death(&c, 1)), 0); /* nobody's pid */
    assert_int_equal(world_answers(&c.world, held), 0);
    report_death(&c, c.servers[1].pid);
    const struct world_reply *event = world_answer(&c.world, held);
    assert_non_null(event);
    assert_int_equal(event->envelope->type, SHOAL__TYPE__END);
    assert_int_equal(event->envelope->status, STATUS_ABORTED);
    char text[64];
    snprintf(text, sizeof text, "server 1 (pid %lld on h) killed by signal 9", (long long)c.servers[1].pid);
    assert_string_equal(event->envelope->text, text);
    /* What comes late is told the same. */
    uint64_t late = actor_report(&c.workers[1], 1, 1, 4);
    assert_int_equal(world_status(&c.world, late), STATUS_ABORTED);
    assert_non_null(strstr(world_text(&c.world, late), "server 1"));
    cluster_close(&c);
}

static void a_death_before_joining_ends_the_wait(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, "");
    assert_int_equal(world_submit(&c.world, "", 0), 0);
    actor_join(&c.workers[0]);
    report_death(&c, 4711);
    const struct world_reply *event = actor_event(&c.workers[0]);
    assert_non_null(event);
    assert_non_null(strstr(event->envelope->text, "pid 4711 on h ended before it joined: killed by signal 9"));
    cluster_close(&c);
}

static void an_error_of_a_member_ends_the_job_with_its_text(void **state)
{
    (void)state;
    for (int orderly = 0; orderly < 2; orderly++) {
        struct cluster c;
        cluster_open(&c, "");
        cluster_join(&c);
        assert_int_equal(world_submit(&c.world, "", 0), 0);
        cluster_start(&c);
        Shoal__Envelope envelope;
        actor_envelope(&c.workers[1], &envelope, SHOAL__TYPE__LEAVE);
        envelope.status = orderly ? 0 : STATUS_IO;
        envelope.text = "data: file x: No such file";
        uint64_t request = actor_send(&c.workers[1], &envelope, NULL, 0, NULL, 0);
        actor_resend(&c.workers[1], &envelope, request, NULL, 0, NULL, 0);
        assert_int_equal(world_answers(&c.world, request), 2);
        assert_int_equal(world_status(&c.world, request), 0);
        const struct world_reply *event = actor_event(&c.servers[0]);
        assert_non_null(event);
        assert_int_equal(event->envelope->status, orderly ? STATUS_ABORTED : STATUS_IO);
        assert_non_null(strstr(event->envelope->text, "worker 1"));
        assert_non_null(strstr(event->envelope->text, orderly ? "left in the middle" : "No such file"));
        cluster_close(&c);
    }
}

static void ranks_that_disagree_are_named(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        struct cluster c;
        cluster_open(&c, "");
        cluster_join(&c);
        assert_int_equal(world_submit(&c.world, "", 0), 0);
        cluster_events(&c, SHOAL__TYPE__JOB, 1, 1);
        actor_register(&c.workers[0], 6, 200, 0);
        actor_register(&c.workers[1], 6, 200, 0);
        actor_register(&c.workers[2], kind == 0 ? 7 : 6, kind == 1 ? 201 : 200, 0);
        const struct world_reply *event = actor_event(&c.workers[0]);
        assert_non_null(event);
        assert_int_equal(event->envelope->type, SHOAL__TYPE__END);
        assert_string_equal(event->envelope->text, kind == 0
                                                       ? "worker 2's total steps differ from worker 0's"
                                                       : "worker 2's parameter tables differ from worker 0's");
        cluster_close(&c);
    }
}

static void N14_digests_that_differ_name_the_rank(void **state)
{
    (void)state;
    for (int same = 0; same < 2; same++) {
        struct cluster c;
        cluster_open(&c, "");
        cluster_join(&c);
        assert_int_equal(world_submit(&c.world, "", 0), 0);
        cluster_start(&c);
        for (int i = 0; i < c.keymap.ranges_count; i++)
            actor_prepared(&c.servers[c.keymap.ranges[i].server], 1, &c.keymap.ranges[i], 1, 1);
        for (int i = 0; i < CLUSTER_WORKERS; i++)
            actor_report_digest(&c.workers[i], 1, 1, i == 1 && !same ? "abd" : "abc");
        if (same) {
            cluster_events(&c, SHOAL__TYPE__VERDICT, 1, 1);
            assert_non_null(strstr(c.world.said, "digest of step 0 616263, the same on 3 workers"));
        } else {
            const struct world_reply *event = cluster_events(&c, SHOAL__TYPE__END, 1, 1);
            assert_non_null(strstr(event->envelope->text, "worker 1 and worker 0 differ"));
        }
        cluster_close(&c);
    }
}

static void a_state_that_cannot_be_stored_is_not_announced(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, "");
    cluster_join(&c);
    assert_int_equal(world_submit(&c.world, "", 0), 0);
    cluster_events(&c, SHOAL__TYPE__JOB, 1, 1);
    c.world.persist_fails = 1;
    for (int i = 0; i < CLUSTER_WORKERS; i++)
        actor_register(&c.workers[i], 6, 200, 0);
    const struct world_reply *event = cluster_events(&c, SHOAL__TYPE__END, 1, 1);
    assert_non_null(strstr(event->envelope->text, "No space left on device"));
    cluster_close(&c);
    /* Nor is a cluster epoch: JOB is the first to carry it. */
    cluster_open(&c, "");
    c.world.persist_fails = 1;
    cluster_join(&c);
    assert_int_equal(world_submit(&c.world, "", 0), 0);
    event = cluster_events(&c, SHOAL__TYPE__END, 1, 1);
    assert_non_null(strstr(event->envelope->text, "No space left on device"));
    cluster_close(&c);
}

static void F06_a_manifest_that_cannot_be_written_leaves_the_job_going(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, "snapshot: {dir: /snap, every: 1}\n");
    cluster_join(&c);
    assert_int_equal(world_submit(&c.world, "", 0), 0);
    cluster_start(&c);
    c.world.commit_fails = 1;
    cluster_step(&c, 1, 1);
    cluster_events(&c, SHOAL__TYPE__SNAPSHOT, 0, 1);
    for (int i = 0; i < CLUSTER_SERVERS; i++)
        actor_snapshot_done(&c.servers[i], 1, 0, "");
    assert_non_null(strstr(c.world.said, "/snap/step-00000001/manifest.json: No space left on device"));
    cluster_step(&c, 2, 1);
    cluster_close(&c);
}

static void a_step_that_cannot_end_does_not_hold_a_stop_signal(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, "");
    cluster_join(&c);
    assert_int_equal(world_submit(&c.world, "", 0), 0);
    cluster_start(&c);
    coordinator_core_stop(c.world.core, c.world.now_ns);
    pass(&c, 3, -1);
    assert_int_equal(c.world.ended, 0);
    pass(&c, 2, -1);
    assert_int_equal(c.world.ended, 1);
    assert_int_equal(c.world.end_status, STATUS_STOPPED);
    cluster_close(&c);
}

static void a_stop_signal_in_idleness_tells_members(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, "");
    cluster_join(&c);
    coordinator_core_stop(c.world.core, c.world.now_ns);
    assert_int_equal(cluster_events(&c, SHOAL__TYPE__END, 1, 1)->envelope->status, STATUS_STOPPED);
    for (int i = 0; i < CLUSTER_WORKERS; i++)
        actor_simple(&c.workers[i], SHOAL__TYPE__LEAVE, 0, 0, "");
    for (int i = 0; i < CLUSTER_SERVERS; i++)
        actor_simple(&c.servers[i], SHOAL__TYPE__LEAVE, 0, 0, "");
    assert_int_equal(c.world.ended, 1);
    cluster_close(&c);
}

static uint64_t operator_stop(struct actor *operator)
{
    Shoal__Envelope envelope;
    actor_envelope(operator, &envelope, SHOAL__TYPE__STOP);
    return actor_send(operator, &envelope, NULL, 0, NULL, 0);
}

static void an_operators_stop_that_comes_twice_ends_the_members_too(void **state)
{
    (void)state;
    struct cluster c;
    struct actor operator;
    cluster_open(&c, "");
    cluster_join(&c);
    actor_init(&operator, &c.world, SHOAL__ROLE__OPERATOR, -1);
    assert_int_equal(world_submit(&c.world, "", 0), 0);
    cluster_start(&c);
    for (int i = 0; i < 2; i++)
        assert_int_equal(world_status(&c.world, operator_stop(&operator)), 0);
    assert_int_equal(coordinator_core_stopping(c.world.core), 1);
    assert_int_equal(cluster_step(&c, 1, 1)->last, 1);
    const struct world_reply *end = cluster_events(&c, SHOAL__TYPE__END, 1, 1);
    assert_int_equal(end->envelope->status, STATUS_STOPPED);
    assert_int_equal(end->envelope->closing, 1);
    cluster_close(&c);
}

/* The second of two jobs on one cluster, submitted as text by an operator; members stay. */
static void jobs_follow_one_another(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, "");
    coordinator_core_destroy(c.world.core);
    struct errbuf err;
    errbuf_init(&err);
    struct coordinator_core_options options = {&c.world.ops, NULL, 0, c.world.now_ns};
    c.world.core = coordinator_core_create(&options, &err);
    cluster_join(&c);
    struct actor operator;
    actor_init(&operator, &c.world, SHOAL__ROLE__OPERATOR, -1);
    char *yaml = job_to_yaml(c.world.job);
    for (int round = 0; round < 2; round++) {
        Shoal__Envelope envelope;
        Shoal__Submit submit = SHOAL__SUBMIT__INIT;
        actor_envelope(&operator, &envelope, SHOAL__TYPE__SUBMIT);
        envelope.body_case = SHOAL__ENVELOPE__BODY_SUBMIT;
        envelope.submit = &submit;
        submit.yaml = yaml;
        uint64_t request = actor_send(&operator, &envelope, NULL, 0, NULL, 0);
        assert_int_equal(world_status(&c.world, request), 0);
        actor_resend(&operator, &envelope, request, NULL, 0, NULL, 0);
        assert_int_equal(world_status(&c.world, request), 0);
        assert_int_equal(world_status(&c.world, actor_send(&operator, &envelope, NULL, 0, NULL, 0)), STATUS_BUSY);
        cluster_start(&c);
        for (uint64_t step = 1; step <= 6; step++)
            cluster_step(&c, step, 1);
        for (int i = 0; i < CLUSTER_WORKERS; i++)
            actor_summary(&c.workers[i], "");
        cluster_events(&c, SHOAL__TYPE__VERDICT, 0, 1);
        for (int i = 0; i < CLUSTER_SERVERS; i++)
            actor_summary(&c.servers[i], "");
        assert_int_equal(c.world.ended, round + 1);
        cluster_events(&c, SHOAL__TYPE__END, 1, 1);
        Shoal__Envelope status;
        actor_envelope(&operator, &status, SHOAL__TYPE__STATUS);
        request = actor_send(&operator, &status, NULL, 0, NULL, 0);
        const Shoal__Status *report = world_answer(&c.world, request)->envelope->status_report;
        assert_string_equal(report->phase, "idle");
        assert_int_equal(report->n_members, 5);
    }
    free(yaml);
    cluster_close(&c);
}

static void a_repeated_request_gets_the_same_answer(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, "");
    cluster_join(&c);
    assert_int_equal(world_submit(&c.world, "", 0), 0);
    cluster_start(&c);
    cluster_feed(&c, 1, 1, 1);
    /* An AWAIT that was answered, and its late repeat while a newer one is held. */
    uint64_t before = c.workers[0].sequence;
    const struct world_reply *first = actor_event(&c.workers[0]);
    assert_int_equal(first->envelope->type, SHOAL__TYPE__VERDICT);
    uint64_t sequence = first->envelope->sequence;
    uint64_t held = actor_await(&c.workers[0]);
    c.workers[0].sequence = before;
    actor_await(&c.workers[0]);
    c.workers[0].sequence = sequence;
    cluster_feed(&c, 1, 7, 0); /* step 1 again, with other numbers */
    cluster_feed(&c, 2, 1, 1);
    const struct world_reply *second = world_answer(&c.world, held);
    assert_non_null(second);
    assert_int_equal(second->envelope->clock, 2);
    assert_int_equal(second->envelope->verdict->decision, SHOAL__DECISION__APPLY);
    assert_true(second->envelope->verdict->loss == 1);
    assert_int_equal(world_answers(&c.world, held), 1);
    assert_int_equal(world_status(&c.world, actor_register(&c.workers[2], 6, 200, 0)), 0);
    assert_int_equal(world_status(&c.world, actor_simple(&c.servers[0], SHOAL__TYPE__READY, 0, 0, "")), 0);
    c.workers[1].cluster_epoch--;
    assert_int_equal(world_status(&c.world, actor_report(&c.workers[1], 3, 1, 4)), STATUS_ABORTED);
    cluster_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_members_are_named_and_end_the_job),
        cmocka_unit_test(a_stalled_step_says_who_is_missing_for_what),
        cmocka_unit_test(its_own_pause_blames_nobody),
        cmocka_unit_test(a_reported_death_ends_the_job_at_once),
        cmocka_unit_test(a_death_before_joining_ends_the_wait),
        cmocka_unit_test(an_error_of_a_member_ends_the_job_with_its_text),
        cmocka_unit_test(ranks_that_disagree_are_named),
        cmocka_unit_test(N14_digests_that_differ_name_the_rank),
        cmocka_unit_test(a_state_that_cannot_be_stored_is_not_announced),
        cmocka_unit_test(F06_a_manifest_that_cannot_be_written_leaves_the_job_going),
        cmocka_unit_test(a_step_that_cannot_end_does_not_hold_a_stop_signal),
        cmocka_unit_test(a_stop_signal_in_idleness_tells_members),
        cmocka_unit_test(an_operators_stop_that_comes_twice_ends_the_members_too),
        cmocka_unit_test(jobs_follow_one_another),
        cmocka_unit_test(a_repeated_request_gets_the_same_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
