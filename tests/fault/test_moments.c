/* Faults at moments that a seed picks: a process is killed, stands still for a while, stands still for good, or its
 * connections are cut, closed or frozen. A round prints who, what, when and how it ended; it ends in the bits of an
 * undisturbed run or in an error that names the lost one, on every rank, and leaves nothing behind. No round may
 * hang. SHOAL_FAULT_ROUNDS: how many (default 12); SHOAL_FAULT_SEED: the first round's seed, each next one adds 1.
 */
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/rng.h"
#include "tests/fault/fault_job.h"
#include "tests/lib/forwarder.h"
#include "tests/lib/marked.h"

enum kind { KILL, PAUSE, STOP, CUT, CLOSE, FREEZE, LOSE, KINDS };
static const char *const kind_names[] = {"kill -9", "pause",  "stop for good", "cut",
                                         "close",   "freeze", "cut for good"};
/* Out of 20: kills and pauses most, the ones that wait for time-outs least. */
static const int kind_of_draw[20] = {KILL, KILL, KILL, KILL, KILL, KILL,  PAUSE, PAUSE,  PAUSE,  PAUSE,
                                     STOP, STOP, CUT,  CUT,  CUT,  CLOSE, CLOSE, FREEZE, FREEZE, LOSE};
enum { WORKERS_MAX = 3, SERVERS = 2, EVERY = 4, FORWARDERS = SERVERS + 1 };
static const char *const short_timeouts[] = {"cluster.timeouts.worker_dead=3", "cluster.timeouts.server_dead=3",
                                             "cluster.timeouts.coordinator_dead=3", "cluster.timeouts.start=20",
                                             "cluster.timeouts.stall_report=1"};

struct round {
    uint64_t seed;
    enum kind kind;
    int workers, step, offset_us, length_ms, resumes;
    struct fault_who who;
    char outcome[160];
};

struct tally {
    int rounds, exact, resumed, error, over;
};

static char folder[MARKED_PATH];
static struct marked_set *set;
static struct forwarder *forwarders[FORWARDERS]; /* before the coordinator, before each server */
static char shas[WORKERS_MAX + 1][FAULT_SHA];
static struct tally tallies[KINDS];

static void open_all(void)
{
    marked_folder_create(folder);
    set = marked_set_create(folder);
}

static void close_all(void)
{
    marked_set_destroy(set);
    set = NULL;
    for (int i = 0; i < FORWARDERS; i++) {
        forwarder_close(forwarders[i]);
        forwarders[i] = NULL;
    }
    marked_folder_remove(folder);
}

static int open_group(void **state)
{
    (void)state;
    open_all();
    return 0;
}

static int close_group(void **state)
{
    (void)state;
    close_all();
    return 0;
}

static int pick(const struct round *round, uint64_t index, int count)
{
    return (int)(rng_uniform(round->seed, 2, 0, index) * (float)count);
}

static struct round draw(uint64_t seed)
{
    struct round round = {.seed = seed};
    round.kind = kind_of_draw[pick(&round, 0, 20)];
    round.workers = 1 + pick(&round, 1, WORKERS_MAX);
    /* Step 0: while they start and join. The last ones: while they evaluate, export and leave. */
    round.step = pick(&round, 2, 6) == 0 ? 0 : 1 + pick(&round, 3, FAULT_STEPS);
    round.offset_us = round.step == 0 ? pick(&round, 4, 800000) : pick(&round, 4, 12000);
    round.length_ms = 300 + pick(&round, 5, 2200);
    if (round.kind == PAUSE)
        round.length_ms = 1000 + pick(&round, 5, 2000);
    round.resumes = pick(&round, 6, 2);
    int all = round.kind >= CUT ? 1 + SERVERS : 2 + SERVERS + round.workers, who = pick(&round, 7, all);
    if (who < SERVERS)
        round.who = (struct fault_who){FAULT_SERVER, who};
    else if (who == SERVERS)
        round.who = (struct fault_who){FAULT_COORDINATOR, 0};
    else if (who == SERVERS + 1)
        round.who = (struct fault_who){FAULT_LAUNCHER, 0};
    else
        round.who = (struct fault_who){FAULT_WORKER, who - SERVERS - 2};
    return round;
}

__attribute__((format(printf, 2, 3))) static void say(struct round *round, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(round->outcome, sizeof round->outcome, format, list);
    va_end(list);
}

/* The seed's part of a step: where in it the fault falls, not a wait for something. */
static void wait_moment(const struct round *round)
{
    struct timespec part = {.tv_sec = round->offset_us / 1000000, .tv_nsec = round->offset_us % 1000000 * 1000L};
    nanosleep(&part, NULL);
}

static void last(int ms)
{
    poll(NULL, 0, ms);
}

static void check_sha(const struct round *round, struct marked *process, const char *name)
{
    char sha[FAULT_SHA];
    fault_sha(folder, name, sha);
    if (strcmp(sha, shas[round->workers]) != 0)
        fault_fail(process, "seed %llu: found %s, undisturbed %s", (unsigned long long)round->seed, sha,
                   shas[round->workers]);
}

/* Exit code; who waits is said when the deadline is over. */
static int end_of(const struct round *round, struct marked *process)
{
    int code = marked_wait(process, fault_deadline_s);
    if (code < 0) {
        marked_set_left(set, 1);
        fault_fail(process, "seed %llu hangs", (unsigned long long)round->seed);
    }
    return code;
}

static void check_none_left(const struct round *round, struct marked *process, double seconds)
{
    int left = marked_set_wait_none(set, seconds);
    if (left != 0)
        fault_fail(process, "seed %llu: %d processes are left", (unsigned long long)round->seed, left);
}

/* --- rounds on `shoal run` --------------------------------------------------------------------------------------
 */

static void resume(struct round *round, struct fault_run run)
{
    run.name = "resumed";
    run.resume = 1;
    for (int i = 0; i < FAULT_SETS; i++)
        run.sets[i] = NULL;
    struct marked *launcher = fault_start(set, folder, &run);
    int code = end_of(round, launcher);
    if (code != 0)
        fault_fail(launcher, "seed %llu: the resumed run ended with code %d", (unsigned long long)round->seed,
                   code);
    check_sha(round, launcher, "resumed");
    check_none_left(round, launcher, 2);
    tallies[round->kind].resumed++;
    strncat(round->outcome, "; resumed, same sha256", sizeof round->outcome - strlen(round->outcome) - 1);
}

/* Who stands still before it has joined is missing; a coordinator has not said where it listens. */
static int said_start_failed(struct marked *launcher)
{
    return marked_said(launcher, "not there within 20 s") ||
           marked_said(launcher, "the coordinator does not start");
}

/* After a loss: an error that names who was lost, or everything was done before. */
static void check_lost(struct round *round, struct marked *launcher, const char *line, int wanted_code)
{
    int code = end_of(round, launcher);
    struct tally *tally = &tallies[round->kind];
    check_none_left(round, launcher, wanted_code == 1 ? 2 : 15);
    if (code == 0) {
        check_sha(round, launcher, "run");
        say(round, "all was done before, same sha256");
        tally->over++;
        return;
    }
    if (code != wanted_code || !(marked_said(launcher, line) || (round->step == 0 && said_start_failed(launcher))))
        fault_fail(launcher, "seed %llu: exit code %d, expected %d and \"%s\"", (unsigned long long)round->seed,
                   code, wanted_code, line);
    if (line[0])
        say(round, "exit %d, \"%.90s\"", code, line);
    else
        say(round, "exit %d, nothing left", code);
    tally->error++;
}

static void kill_round(struct round *round, struct marked *launcher, pid_t pid, const struct fault_run *run)
{
    char who[32], line[80];
    int is_launcher = round->who.role == FAULT_LAUNCHER;
    fault_who_text(round->who, who);
    snprintf(line, sizeof line, "%s (pid %d) was killed by signal 9", who, (int)pid);
    kill(pid, SIGKILL);
    check_lost(round, launcher, is_launcher ? "" : line, is_launcher ? 128 + SIGKILL : 1);
    if (round->resumes && fault_has_snapshot(folder))
        resume(round, *run);
}

static void pause_round(struct round *round, struct marked *launcher, pid_t pid)
{
    kill(pid, SIGSTOP);
    last(round->length_ms);
    kill(pid, SIGCONT);
    int code = end_of(round, launcher);
    if (code != 0)
        fault_fail(launcher, "seed %llu: exit code %d after a pause", (unsigned long long)round->seed, code);
    check_sha(round, launcher, "run");
    check_none_left(round, launcher, 2);
    say(round, "same sha256");
    tallies[round->kind].exact++;
}

static int only_launcher_left(void *context)
{
    (void)context;
    return marked_set_left(set, 0) <= 1;
}

/* A launcher that stands still holds nobody up: all others end, it with them when it goes on. */
static void stop_launcher_round(struct round *round, struct marked *launcher, pid_t pid)
{
    kill(pid, SIGSTOP);
    int alone = marked_until(only_launcher_left, NULL, fault_deadline_s);
    kill(pid, SIGCONT);
    int code = end_of(round, launcher);
    if (!alone || (code != 0 && round->step > 0))
        fault_fail(launcher, "seed %llu: exit code %d%s", (unsigned long long)round->seed, code,
                   alone ? "" : ", and the others did not end");
    check_none_left(round, launcher, 2);
    if (code == 0)
        check_sha(round, launcher, "run");
    say(round, code == 0 ? "others ended, then it: same sha256" : "others ended, then it: exit %d", code);
    *(code == 0 ? &tallies[round->kind].exact : &tallies[round->kind].error) += 1;
}

static void stop_round(struct round *round, struct marked *launcher, pid_t pid)
{
    char who[32], line[80];
    fault_who_text(round->who, who);
    kill(pid, SIGSTOP);
    if (round->who.role == FAULT_COORDINATOR)
        snprintf(line, sizeof line, "silent for 3 s");
    else
        snprintf(line, sizeof line, "%s (pid %d on ", who, (int)pid);
    check_lost(round, launcher, line, 1);
}

static void on_launcher(struct round *round)
{
    struct fault_run run = {.name = "run", .workers = round->workers, .servers = SERVERS, .every = EVERY};
    int found_before_end = 1;
    for (int i = 0; round->kind == STOP && i < 5; i++)
        run.sets[i] = short_timeouts[i];
    struct marked *launcher = fault_start(set, folder, &run);
    if (!fault_wait_step(folder, "run", round->step, fault_deadline_s))
        fault_fail(launcher, "seed %llu: step %d never came", (unsigned long long)round->seed, round->step);
    wait_moment(round);
    pid_t pid = fault_find(set, launcher, round->who, round->step == 0 ? 30 : 0.05);
    found_before_end = pid != 0;
    if (!found_before_end) {
        check_lost(round, launcher, "", 1);
    } else if (round->kind == KILL) {
        kill_round(round, launcher, pid, &run);
    } else if (round->kind == PAUSE) {
        pause_round(round, launcher, pid);
    } else if (round->who.role == FAULT_LAUNCHER) {
        stop_launcher_round(round, launcher, pid);
    } else {
        stop_round(round, launcher, pid);
    }
}

/* --- rounds on daemons behind forwarders ------------------------------------------------------------------------
 */

static void disturb(const struct round *round, struct forwarder *forwarder)
{
    switch (round->kind) {
    case CUT:
        forwarder_cut(forwarder);
        break;
    case CLOSE:
        forwarder_close_door(forwarder, 1);
        last(round->length_ms);
        forwarder_close_door(forwarder, 0);
        break;
    case FREEZE:
        forwarder_freeze(forwarder, 1);
        last(round->length_ms);
        if (round->resumes) /* what was held is lost, too */
            forwarder_cut(forwarder);
        forwarder_freeze(forwarder, 0);
        break;
    default:
        forwarder_close_door(forwarder, 1);
    }
}

/* Every daemon ended well, or every one with an error of its own. */
static void check_daemons(struct round *round, const struct fault_daemons *daemons)
{
    struct marked *process;
    int failed = 0, count = 0;
    for (int i = 0; (process = fault_daemon_at(daemons, i)) != NULL; i++, count++) {
        int code = end_of(round, process);
        if (code != 0 && (round->kind != LOSE || code != 1 || !marked_said(process, " error ")))
            fault_fail(process, "seed %llu: process %d ended with code %d", (unsigned long long)round->seed, i,
                       code);
        failed += code != 0;
    }
    check_none_left(round, daemons->coordinator, 2);
    if (round->kind == LOSE && failed > 0) {
        say(round, "%d of %d ended with an error of their own", failed, count);
        tallies[round->kind].error++;
        return;
    }
    check_sha(round, daemons->coordinator, "run");
    say(round, "same sha256");
    tallies[round->kind].exact++;
}

static void on_daemons(struct round *round)
{
    struct fault_run run = {.name = "run", .workers = round->workers, .servers = SERVERS, .every = EVERY};
    struct fault_daemons daemons;
    for (int i = 0; round->kind == LOSE && i < 5; i++)
        run.sets[i] = short_timeouts[i];
    fault_daemons_plan(&daemons, set, folder, &run);
    forwarders[0] = forwarder_open(daemons.coordinator_port);
    for (int r = 0; r < SERVERS; r++) {
        forwarders[1 + r] = forwarder_open(daemons.server_port[r]);
        daemons.via_server[r] = forwarder_port(forwarders[1 + r]);
    }
    daemons.via_coordinator = forwarder_port(forwarders[0]);
    fault_daemons_start(&daemons);
    /* A member whose coordinator is never there waits for it the start time-out of its own, 120 s: not in these
     * rounds. */
    if (round->kind == LOSE && round->step == 0)
        round->step = 1;
    if (!fault_wait_step(folder, "run", round->step, fault_deadline_s))
        fault_fail(daemons.coordinator, "seed %llu: step %d never came", (unsigned long long)round->seed,
                   round->step);
    wait_moment(round);
    disturb(round, forwarders[round->who.role == FAULT_SERVER ? 1 + round->who.rank : 0]);
    check_daemons(round, &daemons);
}

/* --- all rounds -------------------------------------------------------------------------------------------------
 */

static void play(uint64_t seed)
{
    struct round round = draw(seed);
    char who[32], when[64];
    open_all();
    double began = marked_now_s();
    fault_who_text(round.who, who);
    if (round.kind >= CUT)
        strncat(who, "'s link", sizeof who - strlen(who) - 1);
    snprintf(when, sizeof when, "step %d + %d us", round.step, round.offset_us);
    print_message("%-6llu P=%d  %-18s %-13s %-20s ", (unsigned long long)seed, round.workers, who,
                  kind_names[round.kind], when);
    tallies[round.kind].rounds++;
    if (round.kind >= CUT)
        on_daemons(&round);
    else
        on_launcher(&round);
    print_message("%s  (%.1f s)\n", round.outcome, marked_now_s() - began);
    close_all();
}

static void faults_at_picked_moments_heal_or_end_clearly(void **state)
{
    (void)state;
    const char *rounds_text = getenv("SHOAL_FAULT_ROUNDS"), *seed_text = getenv("SHOAL_FAULT_SEED");
    int rounds = rounds_text && *rounds_text ? atoi(rounds_text) : 12;
    uint64_t seed = seed_text && *seed_text ? strtoull(seed_text, NULL, 10) : 1;
    for (int workers = 1; workers <= WORKERS_MAX; workers++)
        fault_reference(set, folder, workers, SERVERS, shas[workers]);
    close_all();
    print_message("seed   who                     what          when                 outcome\n");
    for (int i = 0; i < rounds; i++)
        play(seed + (uint64_t)i);
    print_message("%-14s rounds  same sha256  clear error  done before  of errors resumed\n", "what");
    for (int k = 0; k < KINDS; k++)
        print_message("%-14s %6d %12d %12d %12d %18d\n", kind_names[k], tallies[k].rounds, tallies[k].exact,
                      tallies[k].error, tallies[k].over, tallies[k].resumed);
    open_all(); /* the teardown's */
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(faults_at_picked_moments_heal_or_end_clearly, open_group, close_group),
    };
    return cmocka_run_group_tests_name("faults at picked moments", tests, NULL, NULL);
}
