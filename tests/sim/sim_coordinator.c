/* The real coordinator core under a network that loses, doubles, delays and reorders requests and answers, from a seed.
 * Whatever it does, workers see the same verdicts and the job ends well. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "lib/core_world.h"
#include "sim/lossy.h"

enum { WORKERS = 3, SERVERS = 2, MEMBERS = WORKERS + SERVERS, STEPS = 12, WIDTH = 200 };

struct sim {
    struct lossy net;
    uint64_t step[MEMBERS]; /* workers: being computed */
    int left[MEMBERS];
    struct param_table table;
    struct keymap keymap;
    struct world_verdict verdicts[WORKERS][STEPS];
    int verdicts_count[WORKERS];
    double gathered[STEPS];
};

static void ask(struct sim *sim, int index, Shoal__Envelope *envelope, const double *values, int values_count,
                const uint8_t *flags, int flags_count)
{
    lossy_ask(&sim->net, index, envelope, &(struct lossy_frames){values, values_count, flags, flags_count});
}

static void send_join(struct sim *sim, int index)
{
    struct actor *actor = &sim->net.members[index].actor;
    Shoal__Envelope envelope;
    Shoal__Join join = SHOAL__JOIN__INIT;
    actor_envelope(actor, &envelope, SHOAL__TYPE__JOIN);
    envelope.body_case = SHOAL__ENVELOPE__BODY_JOIN;
    envelope.join = &join;
    join.address = "tcp://h:1";
    join.host = "h";
    join.pid = actor->pid;
    join.wanted_rank = index < WORKERS ? index : index - WORKERS;
    ask(sim, index, &envelope, NULL, 0, NULL, 0);
}

static void send_await(struct sim *sim, int index)
{
    Shoal__Envelope envelope;
    actor_envelope(&sim->net.members[index].actor, &envelope, SHOAL__TYPE__AWAIT);
    envelope.sequence = sim->net.members[index].actor.sequence;
    ask(sim, index, &envelope, NULL, 0, NULL, 0);
}

static void send_register(struct sim *sim, int index)
{
    Shoal__Envelope envelope;
    Shoal__Register body = SHOAL__REGISTER__INIT;
    Shoal__ParamTable table = SHOAL__PARAM_TABLE__INIT;
    Shoal__Tensor tensor = SHOAL__TENSOR__INIT, *tensors[] = {&tensor};
    int64_t shape[] = {WIDTH, 200}, features = 1;
    actor_envelope(&sim->net.members[index].actor, &envelope, SHOAL__TYPE__REGISTER);
    envelope.body_case = SHOAL__ENVELOPE__BODY_REGISTER_;
    envelope.register_ = &body;
    tensor.name = "head.weight";
    tensor.shape = shape;
    tensor.n_shape = 2;
    table.tensors = tensors;
    table.n_tensors = table.layers = 1;
    body.table = &table;
    body.total_steps = STEPS;
    body.prescaled = 1;
    body.n_norm_features = 1;
    body.norm_features = &features;
    ask(sim, index, &envelope, NULL, 0, NULL, 0);
}

static void send_gather(struct sim *sim, int index)
{
    uint64_t step = sim->step[index];
    Shoal__Envelope envelope;
    Shoal__Gather body = SHOAL__GATHER__INIT;
    double value = 1.0 / (double)(step + (uint64_t)index);
    actor_envelope(&sim->net.members[index].actor, &envelope, SHOAL__TYPE__GATHER);
    envelope.clock = step;
    envelope.body_case = SHOAL__ENVELOPE__BODY_GATHER;
    envelope.gather = &body;
    ask(sim, index, &envelope, &value, 1, NULL, 0);
}

static void send_report(struct sim *sim, int index)
{
    uint64_t step = sim->step[index];
    Shoal__Envelope envelope;
    Shoal__Report body = SHOAL__REPORT__INIT;
    double statistics[6] = {4, (double)index, 0.5 * (double)step, 3, 0.25 * (double)index, 1};
    actor_envelope(&sim->net.members[index].actor, &envelope, SHOAL__TYPE__REPORT);
    envelope.clock = step;
    envelope.body_case = SHOAL__ENVELOPE__BODY_REPORT;
    envelope.report = &body;
    body.loss_sum = 1.0 / (double)(step + 3 * (uint64_t)index);
    body.counted = body.samples = 4;
    body.micro_batches = 2;
    ask(sim, index, &envelope, statistics, 6, NULL, 0);
}

/* Step 5 has a run that is not finite. */
static void send_prepared(struct sim *sim, int index, uint64_t step)
{
    struct actor *actor = &sim->net.members[index].actor;
    for (int i = 0; i < sim->keymap.ranges_count; i++) {
        const struct keymap_range *range = &sim->keymap.ranges[i];
        Shoal__Envelope envelope;
        Shoal__Prepared body = SHOAL__PREPARED__INIT;
        double squares[64];
        uint8_t flags[64];
        if (range->server != actor->rank)
            continue;
        assert_true(range->runs <= 64);
        for (int run = 0; run < range->runs; run++) {
            squares[run] = 0.1 * (double)(step * (uint64_t)(range->run_first + run + 1));
            flags[run] = step != 5;
        }
        actor_envelope(actor, &envelope, SHOAL__TYPE__PREPARED);
        envelope.clock = step;
        envelope.body_case = SHOAL__ENVELOPE__BODY_PREPARED;
        envelope.prepared = &body;
        uint64_t run_first = (uint64_t)range->run_first, runs = (uint64_t)range->runs;
        body.runs_first = &run_first;
        body.runs = &runs;
        body.n_runs_first = body.n_runs = 1;
        body.weight = 12;
        ask(sim, index, &envelope, squares, range->runs, flags, range->runs);
    }
}

static void send_evaluated(struct sim *sim, int index, uint64_t step)
{
    Shoal__Envelope envelope;
    Shoal__Evaluated body = SHOAL__EVALUATED__INIT;
    double row[4] = {index, 1.0 / (double)(step + (uint64_t)index), 10, 3};
    actor_envelope(&sim->net.members[index].actor, &envelope, SHOAL__TYPE__EVALUATED);
    envelope.clock = step;
    envelope.body_case = SHOAL__ENVELOPE__BODY_EVALUATED;
    envelope.evaluated = &body;
    body.set = "test";
    body.blocks = 1;
    ask(sim, index, &envelope, row, 4, NULL, 0);
}

static void send_done(struct sim *sim, int index, uint64_t step)
{
    Shoal__Envelope envelope;
    Shoal__Snapshot body = SHOAL__SNAPSHOT__INIT;
    Shoal__SnapshotFile file = SHOAL__SNAPSHOT_FILE__INIT;
    actor_envelope(&sim->net.members[index].actor, &envelope, SHOAL__TYPE__SNAPSHOT_DONE);
    envelope.clock = step;
    envelope.body_case = SHOAL__ENVELOPE__BODY_SNAPSHOT;
    envelope.snapshot = &body;
    body.step = step;
    body.file = &file;
    file.owner = (uint32_t)sim->net.members[index].actor.rank;
    file.name = "x";
    file.sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    ask(sim, index, &envelope, NULL, 0, NULL, 0);
}

static void send_plain(struct sim *sim, int index, Shoal__Type type)
{
    Shoal__Envelope envelope;
    Shoal__Summary summary = SHOAL__SUMMARY__INIT;
    actor_envelope(&sim->net.members[index].actor, &envelope, type);
    if (type == SHOAL__TYPE__SUMMARY) {
        envelope.body_case = SHOAL__ENVELOPE__BODY_SUMMARY;
        envelope.summary = &summary;
    }
    ask(sim, index, &envelope, NULL, 0, NULL, 0);
}

static void on_verdict(struct sim *sim, int index, const struct world_reply *reply)
{
    const Shoal__Verdict *verdict = reply->envelope->verdict;
    uint64_t step = reply->envelope->clock;
    if (index >= WORKERS) {
        if (verdict->decision == SHOAL__DECISION__DECISION_NONE)
            send_plain(sim, index, SHOAL__TYPE__SUMMARY);
        else if (!verdict->last)
            send_prepared(sim, index, step + 1);
        return;
    }
    struct world_verdict *seen = &sim->verdicts[index][sim->verdicts_count[index]++];
    *seen = (struct world_verdict){step, verdict->decision, verdict->grad_scale, verdict->lr, verdict->next_lr,
                                   verdict->loss, verdict->t, verdict->evaluate, verdict->last, {0}};
    memcpy(seen->running, reply->frame->data, reply->frame->bytes);
    sim->step[index] = step;
    if (verdict->evaluate)
        send_evaluated(sim, index, step);
    else {
        sim->step[index]++;
        send_gather(sim, index);
    }
}

/* The member's part in the play: what it does with an answer. */
static void play(struct sim *sim, int index, const struct world_reply *reply)
{
    const Shoal__Envelope *envelope = reply->envelope;
    struct actor *actor = &sim->net.members[index].actor;
    switch ((int)envelope->type) {
    case SHOAL__TYPE__JOINED:
        actor->rank = envelope->joined->rank;
        actor->term = envelope->term;
        send_await(sim, index);
        return;
    case SHOAL__TYPE__GATHERED:
        sim->gathered[sim->step[index] - 1] = *(const double *)reply->frame->data;
        send_report(sim, index);
        return;
    case SHOAL__TYPE__EVALUATION:
        if (sim->step[index] == STEPS)
            send_plain(sim, index, SHOAL__TYPE__SUMMARY);
        else {
            sim->step[index]++;
            send_gather(sim, index);
        }
        return;
    case SHOAL__TYPE__ACK:
        /* What was still unanswered when LEAVE overtook it comes from nobody any more. */
        if (!(sim->left[index] && envelope->status == STATUS_DENIED))
            assert_int_equal(envelope->status, 0);
        return;
    default:
        break;
    }
    assert_true(envelope->sequence > actor->sequence);
    actor->sequence = envelope->sequence;
    actor->job = envelope->job;
    actor->cluster_epoch = envelope->cluster_epoch;
    if (envelope->type == SHOAL__TYPE__END) {
        assert_int_equal(envelope->status, 0);
        sim->left[index] = 1;
        send_plain(sim, index, SHOAL__TYPE__LEAVE);
        return;
    }
    send_await(sim, index);
    if (envelope->type == SHOAL__TYPE__JOB && index < WORKERS)
        send_register(sim, index);
    else if (envelope->type == SHOAL__TYPE__SNAPSHOT)
        send_done(sim, index, envelope->clock);
    else if (envelope->type == SHOAL__TYPE__VERDICT)
        on_verdict(sim, index, reply);
    else if (envelope->type == SHOAL__TYPE__START && index < WORKERS) {
        sim->step[index] = envelope->start->first_step;
        send_gather(sim, index);
    } else if (envelope->type == SHOAL__TYPE__START) {
        send_plain(sim, index, SHOAL__TYPE__READY);
        send_prepared(sim, index, envelope->start->first_step);
    }
}

static int act(struct lossy *net, int index, Shoal__Type asked, const struct world_reply *reply)
{
    (void)asked;
    struct sim *sim = (struct sim *)net; /* its first member */
    /* READY of a server reaches the core after its PREPARED at times: refused, asked again. */
    if (reply->envelope->type == SHOAL__TYPE__ACK && reply->envelope->status == STATUS_PROTOCOL)
        return 1;
    play(sim, index, reply);
    return 0;
}

static void run(struct sim *sim, uint64_t seed, int faulty)
{
    memset(sim, 0, sizeof *sim);
    world_open(&sim->net.world, "cluster: {workers: 3, servers: 2}\nevaluate: {every: 3}\nsnapshot: {dir: /s, every: 4}\n",
               1);
    lossy_begin(&sim->net, seed, faulty);
    sim->net.act = act;
    sim->net.count = MEMBERS;
    world_table(&sim->table, WIDTH);
    assert_int_equal(keymap_init(&sim->keymap, &sim->table,
                                 &(struct keymap_layout){WORKERS, SERVERS, sim->net.world.job->parallel.message_bytes,
                                                         CANONICAL_PART},
                                 NULL),
                     0);
    assert_int_equal(world_submit(&sim->net.world, "", 0), 0);
    for (int m = 0; m < MEMBERS; m++) {
        actor_init(&sim->net.members[m].actor, &sim->net.world, m < WORKERS ? SHOAL__ROLE__WORKER : SHOAL__ROLE__SERVER, -1);
        send_join(sim, m);
    }
    for (int i = 0; i < 200000 && !sim->net.world.ended; i++)
        lossy_turn(&sim->net);
}

static void finish(struct sim *sim)
{
    keymap_close(&sim->keymap);
    param_table_close(&sim->table);
    lossy_close(&sim->net);
}

static void any_network_gives_the_same_verdicts(void **state)
{
    (void)state;
    struct sim *calm = malloc(sizeof *calm), *sim = malloc(sizeof *sim);
    const char *given = getenv("SHOAL_SEED");
    uint64_t first = given != NULL ? strtoull(given, NULL, 0) : 1, last = given != NULL ? first : 200;
    run(calm, 0, 0);
    assert_int_equal(calm->net.world.ended, 1);
    assert_int_equal(calm->net.world.end_status, 0);
    assert_int_equal(calm->verdicts_count[0], STEPS);
    assert_int_equal(calm->verdicts[0][4].decision, SHOAL__DECISION__SKIP);
    assert_int_equal(calm->verdicts[0][11].t, 11);
    for (uint64_t seed = first; seed <= last; seed++) {
        run(sim, seed, 1);
        if (!sim->net.world.ended || sim->net.world.end_status != 0 ||
            memcmp(sim->gathered, calm->gathered, sizeof calm->gathered) != 0)
            fail_msg("SHOAL_SEED=%llu: ended %d status %d %s", (unsigned long long)seed, sim->net.world.ended,
                     sim->net.world.end_status, sim->net.world.end_text);
        for (int rank = 0; rank < WORKERS; rank++)
            if (sim->verdicts_count[rank] != STEPS ||
                memcmp(sim->verdicts[rank], calm->verdicts[0], sizeof calm->verdicts[0]) != 0)
                fail_msg("SHOAL_SEED=%llu: worker %d saw other verdicts", (unsigned long long)seed, rank);
        if (strcmp(sim->net.world.committed, calm->net.world.committed) != 0)
            fail_msg("SHOAL_SEED=%llu: snapshots %s", (unsigned long long)seed, sim->net.world.committed);
        finish(sim);
    }
    finish(calm);
    free(calm);
    free(sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_network_gives_the_same_verdicts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
