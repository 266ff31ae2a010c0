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

enum { WORKERS = 3, SERVERS = 2, MEMBERS = WORKERS + SERVERS, STEPS = 12, CALLS = 64, FLIGHTS = 4096, WIDTH = 200 };

/* A request that waits for its answer; resent until it comes. */
struct call {
    int used;
    uint64_t request;
    uint8_t *envelope;
    size_t envelope_bytes;
    double frame[64];
    size_t frame_bytes;
    uint8_t flags[64];
    size_t flags_bytes;
    int64_t resend_ns;
};

struct member {
    struct actor actor;
    struct call calls[CALLS];
    uint64_t step; /* worker: being computed */
    int left;
};

struct flight {
    int member, call;
    uint64_t request;
    int64_t at_ns;
};

struct sim {
    struct world world;
    struct member members[MEMBERS];
    struct flight flights[FLIGHTS];
    int flights_count, replies_seen;
    uint64_t random;
    int faulty;
    struct param_table table;
    struct keymap keymap;
    struct world_verdict verdicts[WORKERS][STEPS];
    int verdicts_count[WORKERS];
    double gathered[STEPS];
};

static uint32_t draw(struct sim *sim, uint32_t below)
{
    sim->random = sim->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(sim->random >> 33) % below;
}

static void fly(struct sim *sim, int member, int call)
{
    int copies = !sim->faulty ? 1 : draw(sim, 10) < 2 ? 0 : draw(sim, 10) < 3 ? 2 : 1;
    for (int i = 0; i < copies && sim->flights_count < FLIGHTS; i++) {
        int64_t delay = sim->faulty ? (int64_t)draw(sim, 300) * 1000000 : 1000000;
        sim->flights[sim->flights_count++] =
            (struct flight){member, call, sim->members[member].calls[call].request, sim->world.now_ns + delay};
    }
}

/* A call in the air may be doubled after its slot was used again; the number tells. */
static void ask(struct sim *sim, int index, Shoal__Envelope *envelope, const double *frame, int count,
                 const uint8_t *flags, int flags_count)
{
    struct member *member = &sim->members[index];
    int slot = 0;
    while (slot < CALLS && member->calls[slot].used)
        slot++;
    assert_true(slot < CALLS);
    struct call *call = &member->calls[slot];
    call->used = 1;
    call->request = ++sim->world.requests;
    free(call->envelope);
    call->envelope_bytes = shoal__envelope__get_packed_size(envelope);
    call->envelope = malloc(call->envelope_bytes + 1);
    shoal__envelope__pack(envelope, call->envelope);
    call->frame_bytes = (size_t)count * sizeof *frame;
    if (count > 0)
        memcpy(call->frame, frame, call->frame_bytes);
    call->flags_bytes = (size_t)flags_count;
    if (flags_count > 0)
        memcpy(call->flags, flags, call->flags_bytes);
    call->resend_ns = sim->world.now_ns + 500000000;
    fly(sim, index, slot);
}

static void send_join(struct sim *sim, int index)
{
    struct actor *actor = &sim->members[index].actor;
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
    actor_envelope(&sim->members[index].actor, &envelope, SHOAL__TYPE__AWAIT);
    envelope.sequence = sim->members[index].actor.sequence;
    ask(sim, index, &envelope, NULL, 0, NULL, 0);
}

static void send_register(struct sim *sim, int index)
{
    Shoal__Envelope envelope;
    Shoal__Register body = SHOAL__REGISTER__INIT;
    Shoal__ParamTable table = SHOAL__PARAM_TABLE__INIT;
    Shoal__Tensor tensor = SHOAL__TENSOR__INIT, *tensors[] = {&tensor};
    int64_t shape[] = {WIDTH, 200}, features = 1;
    actor_envelope(&sim->members[index].actor, &envelope, SHOAL__TYPE__REGISTER);
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
    struct member *member = &sim->members[index];
    Shoal__Envelope envelope;
    Shoal__Gather body = SHOAL__GATHER__INIT;
    double value = 1.0 / (double)(member->step + (uint64_t)index);
    actor_envelope(&member->actor, &envelope, SHOAL__TYPE__GATHER);
    envelope.clock = member->step;
    envelope.body_case = SHOAL__ENVELOPE__BODY_GATHER;
    envelope.gather = &body;
    ask(sim, index, &envelope, &value, 1, NULL, 0);
}

static void send_report(struct sim *sim, int index)
{
    struct member *member = &sim->members[index];
    Shoal__Envelope envelope;
    Shoal__Report body = SHOAL__REPORT__INIT;
    double statistics[6] = {4, (double)index, 0.5 * (double)member->step, 3, 0.25 * (double)index, 1};
    actor_envelope(&member->actor, &envelope, SHOAL__TYPE__REPORT);
    envelope.clock = member->step;
    envelope.body_case = SHOAL__ENVELOPE__BODY_REPORT;
    envelope.report = &body;
    body.loss_sum = 1.0 / (double)(member->step + 3 * (uint64_t)index);
    body.counted = body.samples = 4;
    body.micro_batches = 2;
    ask(sim, index, &envelope, statistics, 6, NULL, 0);
}

/* Step 5 has a run that is not finite. */
static void send_prepared(struct sim *sim, int index, uint64_t step)
{
    struct member *member = &sim->members[index];
    for (int i = 0; i < sim->keymap.ranges_count; i++) {
        const struct keymap_range *range = &sim->keymap.ranges[i];
        Shoal__Envelope envelope;
        Shoal__Prepared body = SHOAL__PREPARED__INIT;
        double squares[64];
        uint8_t flags[64];
        if (range->server != member->actor.rank)
            continue;
        assert_true(range->runs <= 64);
        for (int run = 0; run < range->runs; run++) {
            squares[run] = 0.1 * (double)(step * (uint64_t)(range->run_first + run + 1));
            flags[run] = step != 5;
        }
        actor_envelope(&member->actor, &envelope, SHOAL__TYPE__PREPARED);
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
    actor_envelope(&sim->members[index].actor, &envelope, SHOAL__TYPE__EVALUATED);
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
    actor_envelope(&sim->members[index].actor, &envelope, SHOAL__TYPE__SNAPSHOT_DONE);
    envelope.clock = step;
    envelope.body_case = SHOAL__ENVELOPE__BODY_SNAPSHOT;
    envelope.snapshot = &body;
    body.step = step;
    body.file = &file;
    file.owner = (uint32_t)sim->members[index].actor.rank;
    file.name = "x";
    file.sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    ask(sim, index, &envelope, NULL, 0, NULL, 0);
}

static void send_plain(struct sim *sim, int index, Shoal__Type type)
{
    Shoal__Envelope envelope;
    Shoal__Summary summary = SHOAL__SUMMARY__INIT;
    actor_envelope(&sim->members[index].actor, &envelope, type);
    if (type == SHOAL__TYPE__SUMMARY) {
        envelope.body_case = SHOAL__ENVELOPE__BODY_SUMMARY;
        envelope.summary = &summary;
    }
    ask(sim, index, &envelope, NULL, 0, NULL, 0);
}

static void on_verdict(struct sim *sim, int index, const struct world_reply *reply)
{
    struct member *member = &sim->members[index];
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
    member->step = step;
    if (verdict->evaluate)
        send_evaluated(sim, index, step);
    else {
        member->step++;
        send_gather(sim, index);
    }
}

/* The member's part in the play: what it does with an answer. */
static void act(struct sim *sim, int index, const struct world_reply *reply)
{
    struct member *member = &sim->members[index];
    const Shoal__Envelope *envelope = reply->envelope;
    struct actor *actor = &member->actor;
    switch ((int)envelope->type) {
    case SHOAL__TYPE__JOINED:
        actor->rank = envelope->joined->rank;
        actor->term = envelope->term;
        send_await(sim, index);
        return;
    case SHOAL__TYPE__GATHERED:
        sim->gathered[member->step - 1] = *(const double *)reply->frame->data;
        send_report(sim, index);
        return;
    case SHOAL__TYPE__EVALUATION:
        if (member->step == STEPS)
            send_plain(sim, index, SHOAL__TYPE__SUMMARY);
        else {
            member->step++;
            send_gather(sim, index);
        }
        return;
    case SHOAL__TYPE__ACK:
        /* What was still unanswered when LEAVE overtook it comes from nobody any more. */
        if (!(member->left && envelope->status == STATUS_DENIED))
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
        member->left = 1;
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
        member->step = envelope->start->first_step;
        send_gather(sim, index);
    } else if (envelope->type == SHOAL__TYPE__START) {
        send_plain(sim, index, SHOAL__TYPE__READY);
        send_prepared(sim, index, envelope->start->first_step);
    }
}

static void deliver(struct sim *sim, const struct flight *flight)
{
    struct member *member = &sim->members[flight->member];
    struct call *call = &member->calls[flight->call];
    if (call->request != flight->request)
        return; /* its slot serves another; the doubled one was lost */
    Shoal__Envelope *envelope = shoal__envelope__unpack(NULL, call->envelope_bytes, call->envelope);
    actor_resend(&member->actor, envelope, call->request, call->frame_bytes > 0 ? call->frame : NULL,
                 call->frame_bytes, call->flags_bytes > 0 ? call->flags : NULL, call->flags_bytes);
    shoal__envelope__free_unpacked(envelope, NULL);
}

/* Answers that came since: the first one of a call counts, if it is not lost on the way. */
static void take_replies(struct sim *sim)
{
    while (sim->replies_seen < sim->world.replies_count) {
        struct world_reply reply = sim->world.replies[sim->replies_seen++];
        if (sim->faulty && draw(sim, 10) < 2)
            continue;
        for (int m = 0; m < MEMBERS; m++)
            for (int c = 0; c < CALLS; c++)
                if (sim->members[m].calls[c].used && sim->members[m].calls[c].request == reply.request) {
                    sim->members[m].calls[c].used = 0;
                    /* READY of a server reaches the core after its PREPARED at times: refused, asked again. */
                    if (reply.envelope->type == SHOAL__TYPE__ACK && reply.envelope->status == STATUS_PROTOCOL)
                        sim->members[m].calls[c].used = 1;
                    else
                        act(sim, m, &reply);
                }
    }
}

static void resend_overdue(struct sim *sim)
{
    for (int m = 0; m < MEMBERS; m++)
        for (int c = 0; c < CALLS; c++) {
            struct call *call = &sim->members[m].calls[c];
            if (!call->used || call->resend_ns > sim->world.now_ns)
                continue;
            call->resend_ns = sim->world.now_ns + 500000000;
            fly(sim, m, c);
        }
}

static void run(struct sim *sim, uint64_t seed, int faulty)
{
    memset(sim, 0, sizeof *sim);
    world_open(&sim->world, "cluster: {workers: 3, servers: 2}\nevaluate: {every: 3}\nsnapshot: {dir: /s, every: 4}\n",
               1);
    sim->random = seed;
    sim->faulty = faulty;
    world_table(&sim->table, WIDTH);
    assert_int_equal(keymap_init(&sim->keymap, &sim->table,
                                 &(struct keymap_layout){WORKERS, SERVERS, sim->world.job->parallel.message_bytes,
                                                         CANONICAL_PART},
                                 NULL),
                     0);
    assert_int_equal(world_submit(&sim->world, "", 0), 0);
    for (int m = 0; m < MEMBERS; m++) {
        actor_init(&sim->members[m].actor, &sim->world, m < WORKERS ? SHOAL__ROLE__WORKER : SHOAL__ROLE__SERVER, -1);
        send_join(sim, m);
    }
    for (int i = 0; i < 200000 && !sim->world.ended; i++) {
        int due = -1;
        for (int f = 0; f < sim->flights_count; f++)
            if (sim->flights[f].at_ns <= sim->world.now_ns && (due < 0 || draw(sim, 2) == 0))
                due = f;
        if (due >= 0) {
            struct flight flight = sim->flights[due];
            sim->flights[due] = sim->flights[--sim->flights_count];
            deliver(sim, &flight);
        } else {
            sim->world.now_ns += 10000000;
            coordinator_core_tick(sim->world.core, sim->world.now_ns);
            resend_overdue(sim);
        }
        take_replies(sim);
    }
}

static void finish(struct sim *sim)
{
    for (int m = 0; m < MEMBERS; m++)
        for (int c = 0; c < CALLS; c++)
            free(sim->members[m].calls[c].envelope);
    keymap_close(&sim->keymap);
    param_table_close(&sim->table);
    world_close(&sim->world);
}

static void any_network_gives_the_same_verdicts(void **state)
{
    (void)state;
    struct sim *calm = malloc(sizeof *calm), *sim = malloc(sizeof *sim);
    const char *given = getenv("SHOAL_SEED");
    uint64_t first = given != NULL ? strtoull(given, NULL, 0) : 1, last = given != NULL ? first : 200;
    run(calm, 0, 0);
    assert_int_equal(calm->world.ended, 1);
    assert_int_equal(calm->world.end_status, 0);
    assert_int_equal(calm->verdicts_count[0], STEPS);
    assert_int_equal(calm->verdicts[0][4].decision, SHOAL__DECISION__SKIP);
    assert_int_equal(calm->verdicts[0][11].t, 11);
    for (uint64_t seed = first; seed <= last; seed++) {
        run(sim, seed, 1);
        if (!sim->world.ended || sim->world.end_status != 0 ||
            memcmp(sim->gathered, calm->gathered, sizeof calm->gathered) != 0)
            fail_msg("SHOAL_SEED=%llu: ended %d status %d %s", (unsigned long long)seed, sim->world.ended,
                     sim->world.end_status, sim->world.end_text);
        for (int rank = 0; rank < WORKERS; rank++)
            if (sim->verdicts_count[rank] != STEPS ||
                memcmp(sim->verdicts[rank], calm->verdicts[0], sizeof calm->verdicts[0]) != 0)
                fail_msg("SHOAL_SEED=%llu: worker %d saw other verdicts", (unsigned long long)seed, rank);
        if (strcmp(sim->world.committed, calm->world.committed) != 0)
            fail_msg("SHOAL_SEED=%llu: snapshots %s", (unsigned long long)seed, sim->world.committed);
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
