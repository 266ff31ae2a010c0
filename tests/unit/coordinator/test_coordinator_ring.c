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
#include "ring.h"

static const int64_t second_ns = 1000000000;

static void tick(struct ring *ring, double seconds)
{
    ring->world.now_ns += (int64_t)(seconds * 1e9);
    coordinator_core_tick(ring->world.core, ring->world.now_ns);
}

static void start(struct ring *ring, const char *mode, const char *yaml)
{
    ring_open(ring, mode, "", yaml);
    ring_join(ring);
    assert_int_equal(world_submit(&ring->world, "/jobs", 0), 0);
    ring_start(ring);
}

static void a_ring_job_runs_without_servers(void **state)
{
    (void)state;
    struct ring r;
    struct actor server;
    ring_open(&r, "zero2", "", "evaluate: {every: 3}\n");
    actor_init(&server, &r.world, SHOAL__ROLE__SERVER, -1);
    actor_join(&server); /* a daemon that waits for a job of its kind */
    assert_int_equal(server.rank, 0);
    ring_join(&r);
    assert_int_equal(world_submit(&r.world, "/jobs", 0), 0);
    assert_null(actor_event(&server));
    const Shoal__Start *start = ring_start(&r)->envelope->start;
    assert_int_equal(start->n_servers, 0);
    assert_int_equal(start->n_peers, 3);
    assert_int_equal(start->n_worker_incarnations, 3);
    for (int i = 0; i < 3; i++) {
        char address[32];
        snprintf(address, sizeof address, "tcp://h:%lld", (long long)r.workers[i].pid);
        assert_string_equal(start->peers[i]->address, address);
        assert_true(start->worker_incarnations[i] == r.workers[i].incarnation);
    }
    assert_non_null(strstr(r.world.said, "ring of 3 workers, no servers"));
    for (uint64_t step = 1; step <= 6; step++) {
        struct actor_vote vote = ring_vote(&r, step);
        vote.evaluate = step % 3 == 0;
        ring_report(&r, step, &vote);
        assert_null(actor_event(&r.workers[0])); /* nobody is told what the ring decided */
        if (vote.evaluate)
            assert_false(ring_evaluate(&r, step, "test", 5)->snapshot);
    }
    for (int i = 0; i < 3; i++)
        actor_summary(&r.workers[i], i == 0 ? "ab" : "");
    assert_int_equal(ring_events(&r, SHOAL__TYPE__END)->envelope->status, 0);
    assert_int_equal(actor_event(&server)->envelope->type, SHOAL__TYPE__END);
    assert_non_null(strstr(r.world.metrics, "{\"event\":\"step\",\"step\":6,\"loss\":0.5,\"lr\":0.1,\"grad_norm\":2,\"samples\":12"));
    assert_non_null(strstr(r.world.metrics, "{\"event\":\"eval\",\"step\":6"));
    assert_non_null(strstr(r.world.metrics, "\"export_sha256\":\"ab\""));
    assert_non_null(strstr(r.world.said, "report card"));
    ring_close(&r);
}

static void a_server_that_comes_during_a_ring_job_waits(void **state)
{
    (void)state;
    struct ring r;
    struct actor server;
    start(&r, "ddp", "");
    actor_init(&server, &r.world, SHOAL__ROLE__SERVER, -1);
    actor_join(&server);
    assert_int_equal(server.rank, 0);
    actor_simple(&server, SHOAL__TYPE__LEAVE, 0, 0, "");
    ring_step(&r, 1);
    assert_int_equal(r.world.ended, 0);
    ring_close(&r);
}

static void a_worker_without_an_address_is_refused(void **state)
{
    (void)state;
    struct ring r;
    ring_open(&r, "ddp", "", "");
    ring_join(&r);
    assert_int_equal(world_submit(&r.world, "/jobs", 0), 0);
    ring_events(&r, SHOAL__TYPE__JOB);
    Shoal__Envelope envelope;
    Shoal__Register body = SHOAL__REGISTER__INIT;
    Shoal__ParamTable table = SHOAL__PARAM_TABLE__INIT;
    body.table = &table;
    actor_envelope(&r.workers[1], &envelope, SHOAL__TYPE__REGISTER);
    envelope.body_case = SHOAL__ENVELOPE__BODY_REGISTER_;
    envelope.register_ = &body;
    actor_send(&r.workers[1], &envelope, NULL, 0, NULL, 0);
    const struct world_reply *end = ring_events(&r, SHOAL__TYPE__END);
    assert_int_equal(end->envelope->status, STATUS_PROTOCOL);
    assert_non_null(strstr(end->envelope->text, "worker 1"));
    ring_close(&r);
}

static void a_missing_file_of_the_snapshot_is_named(void **state)
{
    (void)state;
    struct ring r;
    struct manifest saved;
    struct manifest_file file = {.owner = 1, .name = "worker-1.safetensors", .bytes = 10, .missing = 1,
                                 .sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"};
    ring_open(&r, "ddp", "", "snapshot: {dir: snap, every: 0}\n");
    manifest_init(&saved);
    saved.step = saved.applied = 4;
    saved.workers = 2;
    saved.yaml = job_to_yaml(r.world.job);
    assert_int_equal(manifest_add_file(&saved, &file), 0);
    r.world.restore = &saved;
    ring_join(&r);
    assert_int_equal(world_submit(&r.world, "/jobs", 1), 0);
    const Shoal__Envelope *end = ring_events(&r, SHOAL__TYPE__END)->envelope;
    assert_int_equal(end->status, STATUS_UNKNOWN);
    assert_non_null(strstr(end->text, "worker-1.safetensors is not there, where the workers of a ring read it"));
    ring_close(&r);
    manifest_close(&saved);
}

static void a_rank_may_be_a_step_ahead(void **state)
{
    (void)state;
    struct ring r;
    start(&r, "ddp", "");
    struct actor_vote vote = ring_vote(&r, 1), next = ring_vote(&r, 2);
    next.t = 2;
    next.loss = 0.25;
    for (int i = 1; i < 3; i++) {
        assert_int_equal(world_status(&r.world, actor_ring_report(&r.workers[i], 1, &vote)), 0);
        assert_int_equal(world_status(&r.world, actor_ring_report(&r.workers[i], 2, &next)), 0);
        assert_int_equal(world_status(&r.world, actor_ring_report(&r.workers[i], 2, &next)), 0);
    }
    /* Two steps ahead nobody can be. */
    assert_int_equal(world_status(&r.world, actor_ring_report(&r.workers[1], 3, &next)), STATUS_RANGE);
    assert_null(strstr(r.world.metrics, "\"step\":1"));
    actor_ring_report(&r.workers[0], 1, &vote);
    assert_non_null(strstr(r.world.metrics, "\"step\":1,\"loss\":0.5"));
    assert_null(strstr(r.world.metrics, "\"step\":2"));
    actor_ring_report(&r.workers[0], 1, &vote); /* a repeat */
    actor_ring_report(&r.workers[0], 2, &next);
    assert_non_null(strstr(r.world.metrics, "\"step\":2,\"loss\":0.25"));
    r.t = 2;
    for (uint64_t step = 3; step <= 6; step++)
        ring_step(&r, step);
    ring_finish(&r);
    ring_close(&r);
}

/* Rank 0's last report was lost: the others evaluate and are through before it comes again. */
static void evaluations_and_summaries_may_overtake_the_last_report(void **state)
{
    (void)state;
    struct ring r;
    start(&r, "zero1", "");
    for (uint64_t step = 1; step <= 5; step++)
        ring_step(&r, step);
    struct actor_vote vote = ring_vote(&r, 6);
    vote.evaluate = 1;
    double row[3][4] = {{0, 1, 10, 5}, {1, 1, 10, 5}, {2, 1, 10, 5}};
    uint64_t requests[3];
    for (int i = 0; i < 3; i++) {
        if (i > 0)
            actor_ring_report(&r.workers[i], 6, &vote);
        requests[i] = actor_evaluated(&r.workers[i], 6, "test", row[i], 1);
        assert_int_equal(world_status(&r.world, requests[i]), 1);
    }
    actor_ring_report(&r.workers[0], 6, &vote);
    for (int i = 0; i < 3; i++)
        assert_int_equal(world_answer(&r.world, requests[i])->envelope->evaluation->correct, 15);
    ring_finish(&r);
    ring_close(&r);
    /* Without a set to evaluate only the report is behind. */
    start(&r, "zero1", "");
    for (uint64_t step = 1; step <= 5; step++)
        ring_step(&r, step);
    vote = ring_vote(&r, 6);
    assert_int_equal(world_status(&r.world, actor_summary(&r.workers[1], "")), STATUS_PROTOCOL);
    for (int i = 1; i < 3; i++) {
        actor_ring_report(&r.workers[i], 6, &vote);
        assert_int_equal(world_status(&r.world, actor_summary(&r.workers[i], "")), 0);
    }
    actor_ring_report(&r.workers[0], 6, &vote);
    actor_summary(&r.workers[0], "");
    assert_int_equal(ring_events(&r, SHOAL__TYPE__END)->envelope->status, 0);
    ring_close(&r);
}

/* Rank 0's reports are slow: the others have evaluated step 6 before its report of step 5 comes. */
static void an_evaluation_may_overtake_a_report_of_the_step_before(void **state)
{
    (void)state;
    struct ring r;
    start(&r, "ddp", "");
    for (uint64_t step = 1; step <= 4; step++)
        ring_step(&r, step);
    struct actor_vote vote = ring_vote(&r, 5), last = ring_vote(&r, 6);
    last.t = vote.t + 1;
    last.evaluate = 1;
    double row[3][4] = {{0, 1, 10, 5}, {1, 1, 10, 5}, {2, 1, 10, 5}};
    uint64_t requests[3];
    for (int i = 2; i >= 0; i--) {
        assert_int_equal(world_status(&r.world, actor_ring_report(&r.workers[i], 5, &vote)), 0);
        assert_int_equal(world_status(&r.world, actor_ring_report(&r.workers[i], 6, &last)), 0);
        requests[i] = actor_evaluated(&r.workers[i], 6, "test", row[i], 1);
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(world_answer(&r.world, requests[i])->envelope->evaluation->correct, 15);
    ring_finish(&r);
    ring_close(&r);
}

static void disagreeing_verdicts_end_the_job(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        struct ring r;
        start(&r, "ddp", "");
        ring_step(&r, 1);
        struct actor_vote vote = ring_vote(&r, 2), other = vote;
        other.decision = kind == 0 ? SHOAL__DECISION__SKIP : vote.decision;
        other.grad_norm = kind == 1 ? nextafter(vote.grad_norm, 3) : vote.grad_norm;
        other.lr = kind == 2 ? 0.2 : vote.lr;
        other.last = kind == 3;
        actor_ring_report(&r.workers[0], 2, &vote);
        actor_ring_report(&r.workers[2], 2, &other);
        actor_ring_report(&r.workers[1], 2, &vote);
        const struct world_reply *end = ring_events(&r, SHOAL__TYPE__END);
        assert_int_equal(end->envelope->status, STATUS_CHECKSUM);
        assert_non_null(strstr(end->envelope->text, "rank 2 disagrees with rank 0 about step 2: "));
        ring_close(&r);
    }
    /* All the same, and not what has been so far. */
    struct ring r;
    start(&r, "ddp", "");
    struct actor_vote vote = ring_vote(&r, 1);
    vote.t = 7;
    ring_report(&r, 1, &vote);
    assert_non_null(strstr(ring_events(&r, SHOAL__TYPE__END)->envelope->text, "the workers are at update 7"));
    ring_close(&r);
}

static void a_step_that_is_not_finite_is_skipped_or_ends_the_job(void **state)
{
    (void)state;
    for (int stops = 0; stops < 2; stops++) {
        struct ring r;
        start(&r, "zero3", stops ? "" : "evaluate: {every: 2}\n");
        r.world.job->optimizer.nonfinite = stops ? JOB_NONFINITE_STOP : JOB_NONFINITE_SKIP;
        ring_step(&r, 1);
        struct actor_vote vote = ring_vote(&r, 2), loud = vote;
        vote.decision = SHOAL__DECISION__SKIP;
        vote.grad_norm = vote.loss = NAN;
        vote.nonfinite_run = 0;
        loud = vote;
        for (int i = 0; i < 3; i++) {
            /* The sum is not a number on any rank; whose share it was shows in the shares. */
            Shoal__Envelope envelope;
            Shoal__Report body = SHOAL__REPORT__INIT;
            Shoal__Verdict verdict;
            actor_envelope(&r.workers[i], &envelope, SHOAL__TYPE__REPORT);
            envelope.clock = 2;
            envelope.body_case = SHOAL__ENVELOPE__BODY_REPORT;
            envelope.report = &body;
            body.loss_sum = i == 1 ? NAN : 1;
            body.counted = body.samples = 4;
            actor_fill_vote(&body, &verdict, &loud);
            actor_send(&r.workers[i], &envelope, NULL, 0, NULL, 0);
        }
        static const char text[] = "step 2: the gradient is not finite: rank 1, key 0 of head.weight";
        if (stops) {
            const struct world_reply *end = ring_events(&r, SHOAL__TYPE__END);
            assert_int_equal(end->envelope->status, STATUS_NUMERIC);
            assert_non_null(strstr(end->envelope->text, text));
            assert_null(strstr(end->envelope->text, "server"));
        } else {
            assert_non_null(strstr(r.world.logged, text));
            assert_non_null(strstr(r.world.metrics, "\"skipped\":true"));
            ring_step(&r, 3); /* the same update again */
            assert_int_equal(r.t, 2);
            assert_int_equal(r.world.ended, 0);
            assert_null(actor_event(&r.workers[0]));
        }
        ring_close(&r);
    }
}

static void the_workers_that_own_state_save_it(void **state)
{
    (void)state;
    static const char *const modes[] = {"ddp", "zero3"};
    for (int mode = 0; mode < 2; mode++) {
        struct ring r;
        start(&r, modes[mode], "snapshot: {dir: snap, every: 2}\n");
        ring_step(&r, 1);
        ring_step(&r, 2);
        int savers = mode == 0 ? 1 : 3;
        for (int i = 0; i < 3; i++) {
            const struct world_reply *event = actor_event(&r.workers[i]);
            assert_int_equal(event != NULL, i < savers);
            assert_true(event == NULL || event->envelope->type == SHOAL__TYPE__SNAPSHOT);
            assert_true(event == NULL || event->envelope->snapshot->step == 2);
        }
        for (int i = savers - 1; i >= 0; i--) {
            assert_int_equal(r.world.commits, 0);
            actor_snapshot_done(&r.workers[i], 2, 0, "");
            actor_snapshot_done(&r.workers[i], 2, 0, "");
        }
        assert_int_equal(r.world.commits, 1);
        assert_int_equal(r.world.manifest.files_count, savers);
        assert_int_equal(r.world.manifest.servers, 0);
        assert_string_equal(r.world.manifest.files[0].name, "worker-0.shard");
        assert_string_equal(r.world.manifest.files[0].holder, "h");
        ring_step(&r, 3);
        assert_non_null(strstr(r.world.metrics, "\"step\":3"));
        ring_close(&r);
    }
}

/* An EVALUATION does not wait for the snapshot, and says that one follows. */
static void workers_evaluate_and_then_save(void **state)
{
    (void)state;
    struct ring r;
    start(&r, "zero1", "evaluate: {every: 1}\nsnapshot: {dir: snap, every: 0, best: {metric: accuracy, mode: max}}\n");
    for (uint64_t step = 1; step <= 3; step++) {
        struct actor_vote vote = ring_vote(&r, step);
        vote.evaluate = 1;
        ring_report(&r, step, &vote);
        int best = step != 3;
        assert_int_equal(ring_evaluate(&r, step, "test", step == 3 ? 1 : (double)step)->snapshot, best);
        if (!best)
            break;
        ring_events(&r, SHOAL__TYPE__SNAPSHOT);
        for (int i = 0; i < 3; i++)
            actor_snapshot_done(&r.workers[i], step, 0, "");
    }
    assert_string_equal(r.world.committed, "/jobs/snap/step-00000001 best /jobs/snap/step-00000002 best ");
    assert_int_equal(r.world.manifest.watched, 2);
    ring_close(&r);
}

static void early_stop_saves_the_last_step(void **state)
{
    (void)state;
    struct ring r;
    start(&r, "zero2", "evaluate: {every: 1, early_stop: {metric: accuracy, patience: 1}}\nsnapshot: {dir: snap}\n");
    for (uint64_t step = 1; step <= 2; step++) {
        struct actor_vote vote = ring_vote(&r, step);
        vote.evaluate = 1;
        ring_report(&r, step, &vote);
        const Shoal__Evaluation *evaluation = ring_evaluate(&r, step, "test", 5);
        assert_int_equal(evaluation->stop, step == 2);
        assert_int_equal(evaluation->snapshot, step == 2);
    }
    ring_events(&r, SHOAL__TYPE__SNAPSHOT);
    for (int i = 0; i < 3; i++)
        actor_snapshot_done(&r.workers[i], 2, 0, "");
    assert_string_equal(r.world.committed, "/jobs/snap/step-00000002 ");
    ring_finish(&r);
    ring_close(&r);
}

static void a_stop_asks_the_ring_for_its_last_step(void **state)
{
    (void)state;
    for (int by_worker = 0; by_worker < 2; by_worker++) {
        struct ring r;
        start(&r, "zero1", "snapshot: {dir: snap}\nevaluate: {every: 4}\n");
        ring_step(&r, 1);
        for (int again = 0; again < 2; again++) {
            if (by_worker)
                actor_simple(&r.workers[2], SHOAL__TYPE__LEAVE, 0, STATUS_STOPPED, "");
            else
                coordinator_core_stop(r.world.core, r.world.now_ns);
        }
        ring_events(&r, SHOAL__TYPE__LAST);
        assert_null(actor_event(&r.workers[0])); /* once */
        ring_step(&r, 2); /* its ballots were under way */
        struct actor_vote vote = ring_vote(&r, 3);
        vote.last = vote.stopped = 1;
        ring_report(&r, 3, &vote);
        ring_events(&r, SHOAL__TYPE__SNAPSHOT);
        for (int i = 0; i < 3; i++)
            actor_snapshot_done(&r.workers[i], 3, 0, "");
        assert_string_equal(r.world.committed, "/jobs/snap/step-00000003 ");
        const struct world_reply *end = ring_events(&r, SHOAL__TYPE__END);
        assert_int_equal(end->envelope->status, STATUS_STOPPED);
        ring_close(&r);
    }
}

/* A worker that voted before it could say so. */
static void a_vote_to_stop_ends_the_job_in_order(void **state)
{
    (void)state;
    struct ring r;
    start(&r, "ddp", "");
    struct actor_vote vote = ring_vote(&r, 1);
    vote.last = vote.stopped = 1;
    ring_report(&r, 1, &vote);
    const struct world_reply *end = ring_events(&r, SHOAL__TYPE__END);
    assert_int_equal(end->envelope->status, STATUS_STOPPED);
    assert_string_equal(end->envelope->text, "a worker was stopped by signal after step 1");
    ring_close(&r);
}

static void a_lost_worker_ends_the_job(void **state)
{
    (void)state;
    struct ring r;
    start(&r, "zero3", "");
    ring_step(&r, 1);
    struct actor_vote vote = ring_vote(&r, 2);
    actor_ring_report(&r.workers[0], 2, &vote);
    for (int i = 0; i < 11; i++) {
        r.world.now_ns += second_ns;
        for (int w = 0; w < 2; w++)
            actor_simple(&r.workers[w], SHOAL__TYPE__HEARTBEAT, 0, 0, "");
        coordinator_core_tick(r.world.core, r.world.now_ns);
    }
    assert_non_null(strstr(r.world.logged, "step 2: waiting for the reports of workers 1, 2"));
    assert_non_null(strstr(r.world.logged, "nothing heard from workers 2"));
    for (int i = 0; i < 60; i++) {
        for (int w = 0; w < 2; w++)
            actor_simple(&r.workers[w], SHOAL__TYPE__HEARTBEAT, 0, 0, "");
        tick(&r, 1);
    }
    r.count = 2;
    const struct world_reply *end = ring_events(&r, SHOAL__TYPE__END);
    assert_int_equal(end->envelope->status, STATUS_TIMEOUT);
    assert_non_null(strstr(end->envelope->text, "worker 2"));
    ring_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ring_job_runs_without_servers),
        cmocka_unit_test(a_server_that_comes_during_a_ring_job_waits),
        cmocka_unit_test(a_worker_without_an_address_is_refused),
        cmocka_unit_test(a_missing_file_of_the_snapshot_is_named),
        cmocka_unit_test(a_rank_may_be_a_step_ahead),
        cmocka_unit_test(evaluations_and_summaries_may_overtake_the_last_report),
        cmocka_unit_test(an_evaluation_may_overtake_a_report_of_the_step_before),
        cmocka_unit_test(disagreeing_verdicts_end_the_job),
        cmocka_unit_test(a_step_that_is_not_finite_is_skipped_or_ends_the_job),
        cmocka_unit_test(the_workers_that_own_state_save_it),
        cmocka_unit_test(workers_evaluate_and_then_save),
        cmocka_unit_test(early_stop_saves_the_last_step),
        cmocka_unit_test(a_stop_asks_the_ring_for_its_last_step),
        cmocka_unit_test(a_vote_to_stop_ends_the_job_in_order),
        cmocka_unit_test(a_lost_worker_ends_the_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
