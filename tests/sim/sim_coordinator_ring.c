/* Ring jobs under a network that loses, doubles, delays and reorders what the workers and the coordinator say to each other,
 * from a seed; in an elastic one workers die, seen by a launcher or by nobody, and others come. Whatever it does, the job
 * ends, with the state that the steps of its last way through give, and no snapshot is gone back to that is not whole.
 * SHOAL_SEED runs one seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "sim/lossy.h"
#include "step/schedule.h"

enum { WORKERS = 4, LEAST = 2, STEPS = 20, TURNS_MAX = 400000, SEEDS = 300 };

/* Where a worker stands in its step:
 *   OUT -> RING -> DECIDED -> EVALUATING -> WAITING (for SNAPSHOT) -> SAVING -> RING (next) … -> THROUGH -> OUT */
enum place { OUT, RING, DECIDED, EVALUATING, WAITING, SAVING, THROUGH };

struct peer {
    enum place at;
    int alive, counted;
    int world;
    uint64_t step, t, value;
    int stop_asked, stopped, last;
    int report_open;      /* one may be unanswered */
    int asked_snapshot;   /* by an evaluation */
    uint64_t snapshot_of; /* step of the last SNAPSHOT event */
    int64_t wake_ns;      /* its own work takes until then */
};

/* The disk all share. */
struct saved {
    uint64_t job, value, t;
    int files, writers;
};

struct sim {
    struct lossy net;
    struct peer peers[LOSSY_MEMBERS];
    struct saved disk[STEPS + 1];
    int worlds[STEPS + 1]; /* size of the ring that took the step last */
    int rollbacks, deaths, joins;
    int by_stop;
};

static void advance(struct sim *sim, int m);

static struct actor *actor_at(struct sim *sim, int m)
{
    return &sim->net.members[m].actor;
}

/* What actors send goes over the network. */
static uint64_t send_over(struct world *world, struct actor *actor, Shoal__Envelope *envelope,
                          const struct world_frames *frames)
{
    struct sim *sim = (struct sim *)world; /* first member of the first member */
    int m = 0;
    while (actor_at(sim, m) != actor)
        m++;
    struct lossy_frames over = {frames->first, (int)(frames->first_bytes / sizeof(double)), NULL, 0};
    lossy_ask(&sim->net, m, envelope, &over);
    return world->requests;
}

static uint64_t mix(uint64_t value, uint64_t step, int world)
{
    value = (value ^ step * 0x9e3779b97f4a7c15) * 6364136223846793005u + (uint64_t)world;
    return value ^ value >> 29;
}

static void come(struct sim *sim)
{
    int m = sim->net.count++;
    struct peer *peer = &sim->peers[m];
    memset(peer, 0, sizeof *peer);
    peer->alive = 1;
    actor_init(actor_at(sim, m), &sim->net.world, SHOAL__ROLE__WORKER, -1);
    actor_join(actor_at(sim, m));
}

/* --- the ring itself: a step is decided when all ranks of a launch are in it ------------------------------------- */

static int is_in(struct sim *sim, int m, uint64_t job, uint64_t step)
{
    const struct peer *peer = &sim->peers[m];
    return peer->alive && peer->at == RING && actor_at(sim, m)->job == job && peer->step == step;
}

static void enter_ring(struct sim *sim, int m)
{
    struct peer *peer = &sim->peers[m];
    uint64_t job = actor_at(sim, m)->job, step = peer->step;
    int in = 0, stop = 0;
    peer->at = RING;
    for (int other = 0; other < sim->net.count; other++)
        if (is_in(sim, other, job, step)) {
            in++;
            stop |= sim->peers[other].stop_asked;
        }
    if (in < peer->world)
        return;
    sim->worlds[step] = peer->world;
    for (int other = 0; other < sim->net.count; other++) {
        struct peer *one = &sim->peers[other];
        if (!is_in(sim, other, job, step))
            continue;
        one->at = DECIDED;
        one->value = mix(one->value, step, one->world);
        one->t++;
        one->stopped = stop;
        one->last = stop || step == STEPS;
        one->asked_snapshot = 0;
        one->wake_ns = sim->net.world.now_ns + (int64_t)lossy_draw(&sim->net, 200) * 1000000;
    }
}

/* --- a worker's step ------------------------------------------------------------------------------------------------ */

static void save(struct sim *sim, int m)
{
    struct peer *peer = &sim->peers[m];
    struct actor *actor = actor_at(sim, m);
    struct saved *saved = &sim->disk[peer->step];
    int writers = sim->net.world.job->parallel.data == JOB_DDP ? 1 : peer->world;
    if (saved->job != actor->job)
        *saved = (struct saved){.job = actor->job, .value = peer->value, .t = peer->t, .writers = writers};
    assert_true(saved->value == peer->value && saved->t == peer->t);
    saved->files++;
    peer->at = SAVING;
    actor_snapshot_done(actor, peer->step, 0, "");
}

static void after_evaluation(struct sim *sim, int m)
{
    struct peer *peer = &sim->peers[m];
    const struct job *job = sim->net.world.job;
    int due = schedule_saves(job, peer->step, peer->last) || peer->asked_snapshot;
    if (due && schedule_writes(job, actor_at(sim, m)->rank)) {
        peer->at = WAITING;
        if (peer->snapshot_of == peer->step)
            save(sim, m);
        return;
    }
    advance(sim, m);
}

/* The step is behind it. */
static void advance(struct sim *sim, int m)
{
    struct peer *peer = &sim->peers[m];
    if (!peer->last) {
        peer->step++;
        enter_ring(sim, m);
        return;
    }
    peer->at = THROUGH;
    if (!peer->stopped)
        actor_summary(actor_at(sim, m), "");
}

static void report(struct sim *sim, int m)
{
    struct peer *peer = &sim->peers[m];
    int evaluates = schedule_evaluates(sim->net.world.job, peer->step, peer->last, peer->stopped);
    struct actor_vote vote = {.decision = SHOAL__DECISION__APPLY, .grad_scale = 1, .lr = 0.1, .next_lr = 0.1,
                              .loss = (double)(peer->value >> 40), .grad_norm = 1, .t = peer->t, .nonfinite_run = -1,
                              .evaluate = evaluates, .last = peer->last, .stopped = peer->stopped};
    peer->report_open = 1;
    actor_ring_report(actor_at(sim, m), peer->step, &vote);
    if (!evaluates) {
        after_evaluation(sim, m);
        return;
    }
    double row[4] = {actor_at(sim, m)->rank, 1, 10, (double)(peer->value % 7)};
    peer->at = EVALUATING;
    actor_evaluated(actor_at(sim, m), peer->step, "test", row, 1);
}

/* --- what it hears --------------------------------------------------------------------------------------------------- */

static void on_job(struct sim *sim, int m, const Shoal__Envelope *envelope)
{
    const Shoal__JobBegin *begin = envelope->job_begin;
    struct actor *actor = actor_at(sim, m);
    struct peer *peer = &sim->peers[m];
    actor->rank = -1;
    for (size_t rank = 0; rank < begin->n_worker_incarnations; rank++)
        if (begin->worker_incarnations[rank] == actor->incarnation)
            actor->rank = (int)rank;
    assert_true(actor->rank >= 0 && begin->workers == begin->n_worker_incarnations);
    peer->world = (int)begin->workers;
    peer->stop_asked = peer->report_open = 0;
    peer->snapshot_of = 0;
    actor_register(actor, STEPS, 200, 0);
}

static void on_start(struct sim *sim, int m, const Shoal__Start *start)
{
    struct peer *peer = &sim->peers[m];
    uint64_t from = start->snapshot_step;
    assert_int_equal(start->n_peers, peer->world);
    assert_true(start->first_step == from + 1 && from <= STEPS);
    peer->value = 1;
    peer->t = 0;
    if (from > 0) {
        const struct saved *saved = &sim->disk[from];
        assert_int_equal(saved->files, saved->writers); /* whole */
        peer->value = saved->value;
        peer->t = saved->t;
    }
    assert_true(start->applied == peer->t);
    peer->step = start->first_step;
    if (peer->step <= STEPS) {
        enter_ring(sim, m);
        return;
    }
    peer->at = THROUGH;
    actor_summary(actor_at(sim, m), "");
}

static void on_end(struct sim *sim, int m, const Shoal__Envelope *envelope)
{
    struct actor *actor = actor_at(sim, m);
    lossy_forget(&sim->net, m);
    sim->peers[m].at = OUT;
    if (envelope->status == STATUS_ROLLED_BACK) {
        sim->rollbacks += actor->rank == 0;
        actor_await(actor);
    } else {
        actor_simple(actor, SHOAL__TYPE__LEAVE, 0, 0, "");
    }
}

static void on_event(struct sim *sim, int m, const Shoal__Envelope *envelope)
{
    struct peer *peer = &sim->peers[m];
    struct actor *actor = actor_at(sim, m);
    assert_true(envelope->sequence > actor->sequence);
    actor->sequence = envelope->sequence;
    actor->job = envelope->job;
    actor->cluster_epoch = envelope->cluster_epoch;
    if (envelope->type == SHOAL__TYPE__END) {
        on_end(sim, m, envelope);
        return;
    }
    actor_await(actor);
    if (envelope->type == SHOAL__TYPE__JOB)
        on_job(sim, m, envelope);
    else if (envelope->type == SHOAL__TYPE__START)
        on_start(sim, m, envelope->start);
    else if (envelope->type == SHOAL__TYPE__LAST)
        peer->stop_asked = 1;
    else if (envelope->type == SHOAL__TYPE__SNAPSHOT) {
        peer->snapshot_of = envelope->clock;
        if (peer->at == WAITING && peer->step == envelope->clock)
            save(sim, m);
    }
}

static int act(struct lossy *net, int m, Shoal__Type asked, const struct world_reply *reply)
{
    struct sim *sim = (struct sim *)net;
    const Shoal__Envelope *envelope = reply->envelope;
    struct peer *peer = &sim->peers[m];
    struct actor *actor = actor_at(sim, m);
    switch ((int)envelope->type) {
    case SHOAL__TYPE__JOINED:
        actor->rank = envelope->joined->rank;
        actor->term = envelope->term;
        actor_await(actor);
        return 0;
    case SHOAL__TYPE__EVALUATION:
        peer->asked_snapshot = envelope->evaluation->snapshot;
        if (peer->at == EVALUATING)
            after_evaluation(sim, m);
        return 0;
    case SHOAL__TYPE__ACK:
        break;
    default:
        on_event(sim, m, envelope);
        return 0;
    }
    if (asked == SHOAL__TYPE__JOIN) /* full until the death is known; or about to end */
        return envelope->status == STATUS_EXISTS;
    if (asked == SHOAL__TYPE__LEAVE || peer->at == OUT)
        return 0;
    int stopping = coordinator_core_stopping(sim->net.world.core);
    if (envelope->status == STATUS_ROLLED_BACK ||
        (stopping && (envelope->status == STATUS_STOPPED || envelope->status == STATUS_ABORTED))) {
        peer->at = OUT; /* END comes */
        return 0;
    }
    if (envelope->status != 0)
        fail_msg("member %d asked %d: status %d %s", m, asked, envelope->status, envelope->text);
    if (asked == SHOAL__TYPE__REPORT)
        peer->report_open = 0;
    else if (asked == SHOAL__TYPE__SNAPSHOT_DONE)
        advance(sim, m);
    return 0;
}

/* --- a run ------------------------------------------------------------------------------------------------------------- */

static void die(struct sim *sim)
{
    int m = (int)lossy_draw(&sim->net, (uint32_t)sim->net.count), alive = 0;
    for (int other = 0; other < sim->net.count; other++)
        alive += sim->peers[other].alive;
    if (!sim->peers[m].alive || alive <= LEAST)
        return;
    sim->peers[m].alive = 0;
    sim->peers[m].at = OUT;
    lossy_forget(&sim->net, m);
    sim->deaths++;
    if (lossy_draw(&sim->net, 2) == 0)
        return; /* silence tells */
    Shoal__Envelope envelope;
    Shoal__Death death = SHOAL__DEATH__INIT;
    struct actor launcher = {.world = &sim->net.world, .role = SHOAL__ROLE__OPERATOR, .rank = -1};
    actor_envelope(&launcher, &envelope, SHOAL__TYPE__REPORT_DEATH);
    envelope.body_case = SHOAL__ENVELOPE__BODY_DEATH;
    envelope.death = &death;
    death.host = "h";
    death.pid = actor_at(sim, m)->pid;
    death.text = "was killed by signal 9";
    actor_resend(&launcher, &envelope, ++sim->net.world.requests, NULL, 0, NULL, 0);
}

static void trouble(struct sim *sim)
{
    uint32_t what = lossy_draw(&sim->net, 2000);
    if (what == 0 && sim->deaths < 3)
        die(sim);
    else if (what == 1 && sim->net.count < LOSSY_MEMBERS && sim->joins < sim->deaths) {
        sim->joins++;
        come(sim);
    } else if (what == 2 && sim->by_stop) {
        coordinator_core_stop(sim->net.world.core, sim->net.world.now_ns);
    }
}

static void run(struct sim *sim, uint64_t seed, int faulty, int elastic)
{
    static const char *const modes[] = {"ddp", "zero1", "zero3"};
    char yaml[512];
    memset(sim, 0, sizeof *sim);
    snprintf(yaml, sizeof yaml,
             "parallel: {data: %s}\nevaluate: {every: 3}\nsnapshot: {dir: /s, every: 4%s}\n"
             "cluster: {workers: %d, elastic: {min: %d}, timeouts: {worker_dead: 6}}\n",
             modes[seed / 2 % 3], seed % 3 == 0 ? ", best: {metric: accuracy}" : "", WORKERS,
             elastic ? LEAST : 0);
    world_open(&sim->net.world, yaml, 1);
    lossy_begin(&sim->net, seed, faulty);
    sim->net.world.send = send_over;
    sim->net.world.restore = &sim->net.world.manifest;
    sim->net.act = act;
    sim->by_stop = elastic && seed % 8 == 0;
    assert_int_equal(world_submit(&sim->net.world, "", 0), 0);
    for (int i = 0; i < WORKERS; i++)
        come(sim);
    for (int i = 0; i < TURNS_MAX && !sim->net.world.ended; i++) {
        lossy_turn(&sim->net);
        for (int m = 0; m < sim->net.count; m++) {
            const struct peer *peer = &sim->peers[m];
            if (peer->alive && peer->at == DECIDED && !peer->report_open && peer->wake_ns <= sim->net.world.now_ns)
                report(sim, m);
        }
        if (elastic && sim->worlds[1] > 0) /* who dies before all have joined ends the job */
            trouble(sim);
    }
}

static void finish(struct sim *sim)
{
    lossy_close(&sim->net);
}

static void seeds_of(uint64_t *first, uint64_t *last)
{
    const char *given = getenv("SHOAL_SEED");
    *first = given != NULL ? strtoull(given, NULL, 0) : 1;
    *last = given != NULL ? *first : SEEDS;
}

/* Whoever is through holds what the steps give, each taken by a ring of the size it was taken by last. */
static void check_state(const struct sim *sim, uint64_t seed)
{
    uint64_t value = 1;
    for (uint64_t step = 1; step <= STEPS; step++)
        value = mix(value, step, sim->worlds[step]);
    const struct saved *saved = &sim->disk[STEPS];
    if (saved->value != value || saved->t != STEPS || saved->files != saved->writers)
        fail_msg("SHOAL_SEED=%llu: another state", (unsigned long long)seed);
    if (sim->net.world.manifest.step != STEPS)
        fail_msg("SHOAL_SEED=%llu: the last snapshot is of step %llu", (unsigned long long)seed,
                 (unsigned long long)sim->net.world.manifest.step);
}

static void any_network_gives_the_same_ring_job(void **state)
{
    (void)state;
    struct sim *calm = malloc(sizeof *calm), *sim = malloc(sizeof *sim);
    uint64_t first, last;
    seeds_of(&first, &last);
    for (uint64_t seed = first; seed <= last; seed++) {
        run(calm, seed, 0, 0);
        run(sim, seed, 1, 0);
        if (sim->net.world.ended != 1 || sim->net.world.end_status != 0)
            fail_msg("SHOAL_SEED=%llu: ended %d status %d %s", (unsigned long long)seed, sim->net.world.ended,
                     sim->net.world.end_status, sim->net.world.end_text);
        check_state(sim, seed);
        if (strcmp(sim->net.world.committed, calm->net.world.committed) != 0)
            fail_msg("SHOAL_SEED=%llu: snapshots %s", (unsigned long long)seed, sim->net.world.committed);
        finish(sim);
        finish(calm);
    }
    free(calm);
    free(sim);
}

static void an_elastic_job_ends_well_whoever_dies_and_comes(void **state)
{
    (void)state;
    struct sim *sim = malloc(sizeof *sim);
    uint64_t first, last;
    int rollbacks = 0, deaths = 0, joins = 0;
    seeds_of(&first, &last);
    for (uint64_t seed = first; seed <= last; seed++) {
        run(sim, seed, 1, 1);
        /* After a stop nothing is begun again for those who die then. */
        int stopped = coordinator_core_stopping(sim->net.world.core) && sim->net.world.end_status != 0;
        if (sim->net.world.ended != 1 || (sim->net.world.end_status != 0 && !stopped))
            fail_msg("SHOAL_SEED=%llu: ended %d status %d %s", (unsigned long long)seed, sim->net.world.ended,
                     sim->net.world.end_status, sim->net.world.end_text);
        if (!stopped)
            check_state(sim, seed);
        rollbacks += sim->rollbacks;
        deaths += sim->deaths;
        joins += sim->joins;
        finish(sim);
    }
    if (last > first)
        assert_true(deaths > 100 && joins > 50 && rollbacks > deaths); /* it did happen */
    free(sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_network_gives_the_same_ring_job),
        cmocka_unit_test(an_elastic_job_ends_well_whoever_dies_and_comes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
