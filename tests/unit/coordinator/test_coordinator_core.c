#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "cluster.h"

static void a_job_runs_from_submit_to_end(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, "evaluate: {every: 3}\n");
    cluster_join(&c);
    assert_int_equal(world_submit(&c.world, "/jobs", 0), 0);
    assert_int_equal(world_submit(&c.world, "/jobs", 0), STATUS_BUSY);
    cluster_start(&c);
    assert_true(c.world.persisted >= 2);
    assert_non_null(strstr(c.world.said, "batch 12 = 3 workers x 4"));
    double norm = 0;
    for (int i = 0; i < c.keymap.ranges_count; i++)
        for (int run = 0; run < c.keymap.ranges[i].runs; run++)
            norm += 4.0 + i;
    norm = sqrt(norm);
    double rows[3][2][4] = {{{0, 1, 2, 1}, {1, 2, 2, 2}}, {{2, 3, 2, 0}, {3, 4, 2, 2}}, {{4, 5, 1, 0}, {0}}};
    for (uint64_t step = 1; step <= 6; step++) {
        const Shoal__Verdict *verdict = cluster_step(&c, step, 0.5);
        assert_int_equal(verdict->decision, SHOAL__DECISION__APPLY);
        assert_int_equal(verdict->t, step);
        assert_true(verdict->grad_scale == (float)(norm > 4 ? 4 / (norm + 1e-6) : 1));
        assert_true(verdict->lr == 0.1 && verdict->loss == 0.5);
        assert_int_equal(verdict->evaluate, step % 3 == 0);
        assert_int_equal(verdict->last, step == 6);
        uint64_t requests[CLUSTER_WORKERS];
        for (int i = 0; verdict->evaluate && i < CLUSTER_WORKERS; i++)
            requests[i] = actor_evaluated(&c.workers[i], step, "test", rows[i][0], i == 2 ? 1 : 2);
        for (int i = 0; step % 3 == 0 && i < CLUSTER_WORKERS; i++) {
            const struct world_reply *reply = world_answer(&c.world, requests[i]);
            assert_non_null(reply);
            assert_int_equal(reply->envelope->evaluation->counted, 9);
            assert_int_equal(reply->envelope->evaluation->correct, 5);
            assert_true(reply->envelope->evaluation->loss == 15.0 / 9);
            assert_false(reply->envelope->evaluation->stop);
        }
    }
    cluster_finish(&c);
    assert_non_null(strstr(c.world.metrics, "{\"event\":\"step\",\"step\":1,\"loss\":0.5,\"lr\":0.1,\"grad_norm\":"));
    assert_non_null(strstr(c.world.metrics, "{\"event\":\"eval\",\"step\":6,\"loss\":1.66666667,\"accuracy\":0.555555556"));
    assert_non_null(strstr(c.world.metrics, "\"export_sha256\":\"ab\""));
    assert_non_null(strstr(c.world.said, "1,234,567"));
    assert_null(strstr(c.world.said, "<- differs"));
    cluster_close(&c);
}

static void books_that_do_not_balance_fail_the_job(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, "");
    cluster_join(&c);
    assert_int_equal(world_submit(&c.world, "", 0), 0);
    cluster_start(&c);
    for (uint64_t step = 1; step <= 6; step++)
        cluster_step(&c, step, 1);
    c.workers[1].unbooked = 1;
    for (int i = 0; i < CLUSTER_WORKERS; i++)
        actor_summary(&c.workers[i], "");
    cluster_events(&c, SHOAL__TYPE__VERDICT, 0, 1);
    for (int i = 0; i < CLUSTER_SERVERS; i++)
        actor_summary(&c.servers[i], "");
    assert_non_null(strstr(c.world.said, "<- differs"));
    assert_non_null(strstr(c.world.metrics, "\"event\":\"summary\""));
    const struct world_reply *event = cluster_events(&c, SHOAL__TYPE__END, 1, 1);
    assert_int_equal(event->envelope->status, STATUS_CHECKSUM);
    assert_string_equal(event->envelope->text, "the report card has 1 number that differs from its formula");
    cluster_close(&c);
}

static void a_taken_rank_is_refused_with_its_holder(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, "");
    assert_int_equal(world_submit(&c.world, "", 0), 0);
    c.workers[0].wanted = c.workers[1].wanted = 1;
    actor_join(&c.workers[0]);
    assert_int_equal(c.workers[0].rank, 1);
    uint64_t request = actor_join(&c.workers[1]);
    char text[64];
    snprintf(text, sizeof text, "rank 1 is taken by pid %lld on h", (long long)c.workers[0].pid);
    assert_int_equal(world_status(&c.world, request), STATUS_EXISTS);
    assert_string_equal(world_text(&c.world, request), text);
    /* The same process asking again is no clash. */
    actor_join(&c.workers[0]);
    assert_int_equal(c.workers[0].rank, 1);
    c.workers[1].wanted = 7;
    assert_int_equal(world_status(&c.world, actor_join(&c.workers[1])), STATUS_RANGE);
    c.workers[1].wanted = -1;
    actor_join(&c.workers[1]);
    assert_int_equal(c.workers[1].rank, 0);
    actor_join(&c.workers[2]);
    assert_int_equal(c.workers[2].rank, 2);
    struct actor fourth;
    actor_init(&fourth, &c.world, SHOAL__ROLE__WORKER, -1);
    assert_int_equal(world_status(&c.world, actor_join(&fourth)), STATUS_EXISTS);
    cluster_close(&c);
}

static void another_core_type_is_refused_unless_mixed(void **state)
{
    (void)state;
    for (int mixed = 0; mixed < 2; mixed++) {
        struct cluster c;
        cluster_open(&c, mixed ? "cluster: {workers: 3, servers: 2, mixed_processors: true}\n" : "");
        assert_int_equal(world_submit(&c.world, "", 0), 0);
        actor_join(&c.workers[0]);
        c.workers[1].core_type = "Haswell";
        uint64_t request = actor_join(&c.workers[1]);
        assert_int_equal(world_status(&c.world, request), mixed ? 0 : STATUS_INVALID);
        cluster_close(&c);
    }
}

static void strangers_are_told_so(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, "");
    c.workers[0].rank = 0;
    assert_int_equal(world_status(&c.world, actor_await(&c.workers[0])), STATUS_DENIED);
    c.workers[0].term = 99;
    assert_int_equal(world_status(&c.world, actor_await(&c.workers[0])), STATUS_ABORTED);
    c.workers[0].job = 5;
    assert_int_equal(world_status(&c.world, actor_join(&c.workers[0])), STATUS_DENIED);
    c.workers[0].job = 0;
    actor_join(&c.workers[0]);
    assert_int_equal(world_status(&c.world, actor_simple(&c.workers[0], SHOAL__TYPE__READY, 1, 0, "")),
                     STATUS_PROTOCOL);
    assert_int_equal(world_status(&c.world, actor_simple(&c.workers[0], SHOAL__TYPE__HEARTBEAT, 0, 0, "")), 0);
    cluster_close(&c);
}

static void a_step_that_is_not_finite_is_skipped_everywhere(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, "");
    cluster_join(&c);
    assert_int_equal(world_submit(&c.world, "", 0), 0);
    cluster_start(&c);
    cluster_step(&c, 1, 1);
    cluster_feed(&c, 2, NAN, 0);
    const Shoal__Verdict *verdict = cluster_events(&c, SHOAL__TYPE__VERDICT, 1, 1)->envelope->verdict;
    assert_int_equal(verdict->decision, SHOAL__DECISION__SKIP);
    assert_int_equal(verdict->t, 2); /* tried, and again by the next step */
    assert_non_null(strstr(c.world.logged, "step 2: the gradient is not finite: rank 0, key 0 of head.weight"));
    assert_non_null(strstr(c.world.metrics, "\"step\":2,\"loss\":\"NaN\""));
    assert_non_null(strstr(c.world.metrics, "\"skipped\":true"));
    verdict = cluster_step(&c, 3, 1);
    assert_int_equal(verdict->t, 2);
    cluster_close(&c);
}

static void nonfinite_stop_ends_the_job_with_the_place(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, "");
    c.world.job->optimizer.nonfinite = JOB_NONFINITE_STOP;
    cluster_join(&c);
    assert_int_equal(world_submit(&c.world, "", 0), 0);
    cluster_start(&c);
    cluster_feed(&c, 1, 1, 2 + 1);
    const struct world_reply *event = cluster_events(&c, SHOAL__TYPE__END, 1, 1);
    assert_int_equal(event->envelope->status, STATUS_NUMERIC);
    assert_non_null(strstr(event->envelope->text, "step 1"));
    assert_non_null(strstr(event->envelope->text, "rank 1, key 0 of head.weight at server 0"));
    cluster_close(&c);
}

static void early_stop_ends_without_a_further_step(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, "evaluate: {every: 1, early_stop: {metric: accuracy, patience: 2, min_delta: 0}}\n");
    cluster_join(&c);
    assert_int_equal(world_submit(&c.world, "", 0), 0);
    cluster_start(&c);
    int stop = 0;
    uint64_t step = 0;
    while (!stop) {
        step++;
        cluster_step(&c, step, 1);
        double row[3][4] = {{0, 1, 10, step == 1 ? 3 : 2}, {1, 1, 10, 3}, {2, 1, 10, 3}};
        uint64_t request = 0;
        for (int i = 0; i < CLUSTER_WORKERS; i++)
            request = actor_evaluated(&c.workers[i], step, "test", row[i], 1);
        stop = world_answer(&c.world, request)->envelope->evaluation->stop;
        /* asked again, answered the same */
        request = actor_evaluated(&c.workers[0], step, "test", row[0], 1);
        assert_int_equal(world_answer(&c.world, request)->envelope->evaluation->stop, stop);
    }
    assert_int_equal(step, 3);
    /* The sums of a step that had begun are no error: it is forgotten. */
    const struct keymap_range *range = &c.keymap.ranges[0];
    uint64_t late = actor_prepared(&c.servers[range->server], step + 1, range, 4, 1);
    assert_int_equal(world_status(&c.world, late), 0);
    cluster_finish(&c);
    cluster_close(&c);
}

static void gathers_combine_in_order_of_rank(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, "");
    cluster_join(&c);
    assert_int_equal(world_submit(&c.world, "", 0), 0);
    cluster_start(&c);
    double values[3][2] = {{1e16, 1}, {1, 2}, {-1e16, 3}};
    uint64_t requests[3];
    for (int i = 2; i >= 0; i--)
        requests[i] = actor_gather(&c.workers[i], 1, 0, 0, values[i], 2);
    for (int i = 0; i < 3; i++) {
        const double *sum = world_answer(&c.world, requests[i])->frame->data;
        assert_true(sum[0] == (1e16 + 1) - 1e16 && sum[1] == 6);
    }
    /* n, mean, M2 of {1,3}, {5}, {} */
    double stats[3][3] = {{2, 2, 2}, {1, 5, 0}, {0, 0, 0}};
    for (int i = 0; i < 3; i++)
        requests[i] = actor_gather(&c.workers[i], 1, 1, 1, stats[i], 3);
    const double *merged = world_answer(&c.world, requests[2])->frame->data;
    assert_true(merged[0] == 3 && merged[1] == 3 && merged[2] == 8);
    /* Kept for the step and the one after. */
    cluster_step(&c, 1, 1);
    uint64_t again = actor_gather(&c.workers[1], 1, 0, 0, values[1], 2);
    assert_true(((const double *)world_answer(&c.world, again)->frame->data)[1] == 6);
    cluster_step(&c, 2, 1);
    assert_int_equal(world_status(&c.world, actor_gather(&c.workers[1], 1, 0, 0, values[1], 2)), STATUS_RANGE);
    cluster_close(&c);
}

static void running_statistics_are_committed_once_a_step(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, "");
    c.features = 1;
    cluster_join(&c);
    assert_int_equal(world_submit(&c.world, "", 0), 0);
    cluster_start(&c);
    for (int step = 1; step <= 2; step++) {
        /* Three ranks: {1,3}, {5}, {}; mean 3, unbiased variance 4. Step 2 is skipped and commits nothing. */
        double stats[3][3] = {{2, 2, 2}, {1, 5, 0}, {0, 0, 0}};
        for (int i = 0; i < c.keymap.ranges_count; i++)
            actor_prepared(&c.servers[c.keymap.ranges[i].server], (uint64_t)step, &c.keymap.ranges[i], 1, step == 1);
        for (int i = 0; i < CLUSTER_WORKERS; i++) {
            Shoal__Envelope envelope;
            Shoal__Report body = SHOAL__REPORT__INIT;
            actor_envelope(&c.workers[i], &envelope, SHOAL__TYPE__REPORT);
            envelope.clock = (uint64_t)step;
            envelope.body_case = SHOAL__ENVELOPE__BODY_REPORT;
            envelope.report = &body;
            body.counted = body.samples = 1;
            body.micro_batches = 1;
            actor_send(&c.workers[i], &envelope, stats[i], sizeof stats[i], NULL, 0);
        }
        const struct world_reply *event = cluster_events(&c, SHOAL__TYPE__VERDICT, 1, 1);
        const float *running = event->frame->data;
        assert_int_equal(event->frame->bytes, 8);
        assert_true(fabsf(running[0] - 0.3f) < 1e-6f && fabsf(running[1] - 1.3f) < 1e-6f);
    }
    cluster_close(&c);
}

static void snapshots_are_whole_before_the_next_verdict(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, "snapshot: {dir: snap, every: 2}\n");
    cluster_join(&c);
    assert_int_equal(world_submit(&c.world, "/jobs", 0), 0);
    cluster_start(&c);
    cluster_step(&c, 1, 1);
    cluster_step(&c, 2, 1);
    const struct world_reply *event = cluster_events(&c, SHOAL__TYPE__SNAPSHOT, 0, 1);
    (void)event;
    cluster_feed(&c, 3, 1, 1);
    assert_null(actor_event(&c.workers[0])); /* held */
    actor_snapshot_done(&c.servers[1], 2, 0, "");
    actor_snapshot_done(&c.servers[1], 2, 0, "");
    assert_int_equal(c.world.commits, 0);
    actor_snapshot_done(&c.servers[0], 2, 0, "");
    assert_int_equal(c.world.commits, 1);
    assert_string_equal(c.world.committed, "/jobs/snap/step-00000002 ");
    assert_int_equal(c.world.manifest.files_count, 2);
    assert_string_equal(c.world.manifest.files[0].name, "server-0.shard");
    assert_int_equal(c.world.manifest.applied, 2);
    cluster_events(&c, SHOAL__TYPE__VERDICT, 1, 1);
    /* A disk that is full: said with the path, the job goes on. */
    cluster_step(&c, 4, 1);
    cluster_events(&c, SHOAL__TYPE__SNAPSHOT, 0, 1);
    actor_snapshot_done(&c.servers[0], 4, STATUS_IO, "/jobs/snap/step-00000004/server-0.shard: No space left on device");
    actor_snapshot_done(&c.servers[1], 4, 0, "");
    assert_int_equal(c.world.commits, 1);
    assert_string_equal(c.world.discarded, "/jobs/snap/step-00000004");
    assert_non_null(strstr(c.world.said, "server-0.shard: No space left on device"));
    cluster_step(&c, 5, 1);
    assert_true(cluster_step(&c, 6, 1)->last);
    cluster_events(&c, SHOAL__TYPE__SNAPSHOT, 0, 1);
    for (int i = 0; i < CLUSTER_SERVERS; i++)
        actor_snapshot_done(&c.servers[i], 6, 0, "");
    cluster_finish(&c);
    assert_non_null(strstr(c.world.committed, "step-00000006"));
    cluster_close(&c);
}

static void the_best_evaluation_is_kept(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, "snapshot: {dir: snap, every: 0, best: {metric: accuracy, mode: max}}\nevaluate: {every: 1}\n");
    cluster_join(&c);
    assert_int_equal(world_submit(&c.world, "/jobs", 0), 0);
    cluster_start(&c);
    for (uint64_t step = 1; step <= 3; step++) {
        cluster_step(&c, step, 1);
        double row[3][4] = {{0, 1, 10, step == 2 ? 9 : 5}, {1, 1, 10, 3}, {2, 1, 10, 3}};
        for (int i = 0; i < CLUSTER_WORKERS; i++)
            actor_evaluated(&c.workers[i], step, "test", row[i], 1);
        if (step == 3)
            break;
        cluster_events(&c, SHOAL__TYPE__SNAPSHOT, 0, 1);
        for (int i = 0; i < CLUSTER_SERVERS; i++)
            actor_snapshot_done(&c.servers[i], step, 0, "");
    }
    assert_string_equal(c.world.committed, "/jobs/snap/step-00000001 best /jobs/snap/step-00000002 best ");
    cluster_close(&c);
}

static void a_stop_signal_finishes_the_step(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open(&c, "snapshot: {dir: snap, every: 0}\nevaluate: {every: 1}\n");
    cluster_join(&c);
    assert_int_equal(world_submit(&c.world, "/jobs", 0), 0);
    cluster_start(&c);
    coordinator_core_stop(c.world.core, c.world.now_ns);
    const Shoal__Verdict *verdict = cluster_step(&c, 1, 1);
    assert_true(verdict->last && !verdict->evaluate);
    cluster_events(&c, SHOAL__TYPE__SNAPSHOT, 0, 1);
    for (int i = 0; i < CLUSTER_SERVERS; i++)
        actor_snapshot_done(&c.servers[i], 1, 0, "");
    assert_int_equal(c.world.commits, 1);
    assert_int_equal(cluster_events(&c, SHOAL__TYPE__END, 1, 1)->envelope->status, STATUS_STOPPED);
    assert_int_equal(c.world.ended, 0);
    c.world.now_ns += 900000000; /* nobody says good-bye */
    coordinator_core_tick(c.world.core, c.world.now_ns);
    assert_int_equal(c.world.ended, 1);
    assert_int_equal(c.world.end_status, STATUS_STOPPED);
    cluster_close(&c);
}

static void resumes_where_the_snapshot_was(void **state)
{
    (void)state;
    struct cluster c;
    struct manifest saved;
    cluster_open(&c, "snapshot: {dir: snap, every: 0}\n");
    manifest_init(&saved);
    saved.step = 4;
    saved.applied = 3;
    saved.workers = 2;
    saved.servers = 1;
    saved.yaml = job_to_yaml(c.world.job);
    struct manifest_file file = {.owner = 0, .name = "server-0.shard", .bytes = 10,
                                 .sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"};
    assert_int_equal(manifest_add_file(&saved, &file), 0);
    c.world.restore = &saved;
    cluster_join(&c);
    assert_int_equal(world_submit(&c.world, "/jobs", 1), 0);
    cluster_start(&c);
    cluster_feed(&c, 5, 1, 1);
    const Shoal__Verdict *verdict = cluster_events(&c, SHOAL__TYPE__VERDICT, 1, 1)->envelope->verdict;
    assert_int_equal(verdict->t, 4);
    assert_non_null(strstr(c.world.metrics, "{\"event\":\"resume\",\"step\":4}"));
    cluster_close(&c);
    /* A file that nobody has is named. */
    cluster_open(&c, "snapshot: {dir: snap, every: 0}\n");
    saved.files[0].missing = 1;
    c.world.restore = &saved;
    cluster_join(&c);
    assert_int_equal(world_submit(&c.world, "/jobs", 1), 0);
    assert_non_null(strstr(cluster_events(&c, SHOAL__TYPE__END, 1, 1)->envelope->text, "server-0.shard"));
    cluster_close(&c);
    /* Unless a server that is here wrote it in this life, after it had told what it stores. */
    cluster_open(&c, "snapshot: {dir: snap, every: 0}\n");
    c.world.restore = &saved;
    cluster_join(&c);
    char address[64];
    snprintf(address, sizeof address, "tcp://h:%lld", (long long)c.servers[1].pid);
    free(saved.files[0].holder);
    saved.files[0].holder = strdup(address);
    assert_int_equal(world_submit(&c.world, "/jobs", 1), 0);
    cluster_start(&c);
    cluster_close(&c);
    manifest_close(&saved);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_runs_from_submit_to_end),
        cmocka_unit_test(books_that_do_not_balance_fail_the_job),
        cmocka_unit_test(a_taken_rank_is_refused_with_its_holder),
        cmocka_unit_test(another_core_type_is_refused_unless_mixed),
        cmocka_unit_test(strangers_are_told_so),
        cmocka_unit_test(a_step_that_is_not_finite_is_skipped_everywhere),
        cmocka_unit_test(nonfinite_stop_ends_the_job_with_the_place),
        cmocka_unit_test(early_stop_ends_without_a_further_step),
        cmocka_unit_test(gathers_combine_in_order_of_rank),
        cmocka_unit_test(running_statistics_are_committed_once_a_step),
        cmocka_unit_test(snapshots_are_whole_before_the_next_verdict),
        cmocka_unit_test(the_best_evaluation_is_kept),
        cmocka_unit_test(a_stop_signal_finishes_the_step),
        cmocka_unit_test(resumes_where_the_snapshot_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
