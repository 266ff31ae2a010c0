#include "tests/fault/fault_job.h"

#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/sha256.h"

static const char program_run[] = SHOAL_BINARY_DIR "/bin/shoal";
static const char program_server[] = SHOAL_BINARY_DIR "/bin/shoal-server";
static const char program_worker[] = SHOAL_BINARY_DIR "/bin/shoal-worker";

static const char job_text[] =
    "name: faults\n"
    "seed: 5\n"
    "batch_size: 48\n"
    "data: {kind: synthetic, samples: 480, features: 12, classes: 4, seed: 3, order: shuffled}\n"
    "model: {kind: mlp, hidden: [24, 16], activation: relu, batch_norm: true, dropout: 0.2}\n"
    "optimizer: {kind: adam, lr: 0.01, clip_norm: 1}\n"
    "lr_schedule: {kind: cosine, warmup_steps: 3, total_steps: 60, min_lr: 0.0001}\n";

void fault_who_text(struct fault_who who, char out[32])
{
    static const char *const names[] = {"launcher", "coordinator", "server", "worker"};
    if (who.role == FAULT_LAUNCHER || who.role == FAULT_COORDINATOR)
        snprintf(out, 32, "%s", names[who.role]);
    else
        snprintf(out, 32, "%s %d", names[who.role], who.rank);
}

void fault_fail(struct marked *process, const char *format, ...)
{
    va_list list;
    char reason[512];
    va_start(list, format);
    vsnprintf(reason, sizeof reason, format, list);
    va_end(list);
    if (process)
        fprintf(stderr, "%s\n", marked_text(process)); /* print_error cuts */
    fail_msg("%s", reason);
    abort(); /* cmocka does not come back */
}

/* --- files ------------------------------------------------------------------------------------------------------
 */

int fault_steps_done(const char *folder, const char *name)
{
    char path[MARKED_PATH + 64];
    snprintf(path, sizeof path, "%s/%s.jsonl", folder, name);
    return marked_count_lines(path);
}

struct step_wait {
    const char *folder, *name;
    int step;
};

static int step_is_done(void *context)
{
    const struct step_wait *wait = context;
    return fault_steps_done(wait->folder, wait->name) >= wait->step;
}

int fault_wait_step(const char *folder, const char *name, int step, double seconds)
{
    struct step_wait wait = {folder, name, step};
    return marked_until(step_is_done, &wait, seconds);
}

void fault_sha(const char *folder, const char *name, char sha[FAULT_SHA])
{
    char path[MARKED_PATH + 64];
    snprintf(path, sizeof path, "%s/%s.safetensors", folder, name);
    if (sha256_of_file(path, sha) != 0)
        sha[0] = '\0';
}

int fault_has_snapshot(const char *folder)
{
    char pattern[MARKED_PATH + 64];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/snap/step-*/manifest*", folder);
    int there = glob(pattern, 0, NULL, &found) == 0;
    globfree(&found);
    return there;
}

static void write_job(const char *folder, char path[MARKED_PATH + 16])
{
    snprintf(path, MARKED_PATH + 16, "%s/job.yaml", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(job_text, file);
    fclose(file);
}

/* --- command lines
 * ------------------------------------------------------------------------------------------------ */

enum { WORDS_MAX = 64, WORD_BYTES = MARKED_PATH + 80 };

struct words {
    char text[WORDS_MAX][WORD_BYTES];
    const char *argv[WORDS_MAX + 1];
    int count;
};

__attribute__((format(printf, 2, 3))) static void word(struct words *words, const char *format, ...)
{
    va_list list;
    assert_true(words->count < WORDS_MAX);
    va_start(list, format);
    vsnprintf(words->text[words->count], WORD_BYTES, format, list);
    va_end(list);
    words->argv[words->count] = words->text[words->count];
    words->argv[++words->count] = NULL;
}

/* What `shoal run` and a coordinator take alike. */
static void job_words(struct words *words, const char *folder, const struct fault_run *run)
{
    word(words, "--set");
    word(words, "steps=%d", run->steps ? run->steps : FAULT_STEPS);
    if (run->every > 0) {
        word(words, "--set");
        word(words, "snapshot.dir=%s/snap", folder);
        word(words, "--set");
        word(words, "snapshot.every=%d", run->every);
    }
    for (int i = 0; i < FAULT_SETS && run->sets[i]; i++) {
        word(words, "--set");
        word(words, "%s", run->sets[i]);
    }
    word(words, "--metrics");
    word(words, "%s/%s.jsonl", folder, run->name);
    word(words, "--export");
    word(words, "%s/%s.safetensors", folder, run->name);
    if (run->resume) {
        word(words, "--resume");
        word(words, "%s/snap", folder);
    }
}

struct marked *fault_start(struct marked_set *set, const char *folder, const struct fault_run *run)
{
    struct words *words = calloc(1, sizeof *words);
    char path[MARKED_PATH + 16];
    assert_non_null(words);
    write_job(folder, path);
    word(words, "%s", program_run);
    word(words, "run");
    word(words, "%s", path);
    word(words, "--workers");
    word(words, "%d", run->workers);
    if (run->servers > 0) {
        word(words, "--servers");
        word(words, "%d", run->servers);
    }
    word(words, "--threads");
    word(words, "1");
    job_words(words, folder, run);
    struct marked *process = marked_start(set, run->name, words->argv);
    free(words);
    return process;
}

struct find_wait {
    struct marked_set *set;
    struct marked *launcher;
    struct fault_who who;
    pid_t pid;
};

static int is_found(void *context)
{
    struct find_wait *wait = context;
    char rank[16];
    snprintf(rank, sizeof rank, "%d", wait->who.rank);
    if (wait->who.role == FAULT_LAUNCHER)
        wait->pid = marked_pid(wait->launcher);
    else if (wait->who.role == FAULT_COORDINATOR)
        wait->pid = marked_set_find(wait->set, "shoal-server", "--coordinator", NULL);
    else
        wait->pid = marked_set_find(wait->set, wait->who.role == FAULT_SERVER ? "shoal-server" : "shoal-worker",
                                    "--rank", rank);
    return wait->pid != 0;
}

pid_t fault_find(struct marked_set *set, struct marked *launcher, struct fault_who who, double seconds)
{
    struct find_wait wait = {.set = set, .launcher = launcher, .who = who};
    marked_until(is_found, &wait, seconds);
    return wait.pid;
}

void fault_reference(struct marked_set *set, const char *folder, int workers, int servers, char sha[FAULT_SHA])
{
    char name[32];
    snprintf(name, sizeof name, "whole-%d-%d", workers, servers);
    struct fault_run run = {.name = name, .workers = workers, .servers = servers};
    struct marked *process = fault_start(set, folder, &run);
    int code = marked_wait(process, fault_deadline_s);
    fault_sha(folder, name, sha);
    if (code != 0 || !sha[0])
        fault_fail(process, "the undisturbed run ended with code %d", code);
}

/* --- daemons
 * ------------------------------------------------------------------------------------------------------ */

void fault_daemons_plan(struct fault_daemons *daemons, struct marked_set *set, const char *folder,
                        const struct fault_run *run)
{
    *daemons = (struct fault_daemons){.servers = run->servers,
                                      .workers = run->workers,
                                      .set = set,
                                      .folder = folder,
                                      .run = run,
                                      .coordinator_port = marked_free_port()};
    daemons->via_coordinator = daemons->coordinator_port;
    for (int r = 0; r < run->servers; r++) {
        int taken;
        do {
            daemons->server_port[r] = marked_free_port();
            taken = daemons->server_port[r] == daemons->coordinator_port;
            for (int i = 0; i < r; i++)
                taken |= daemons->server_port[i] == daemons->server_port[r];
        } while (taken);
        daemons->via_server[r] = daemons->server_port[r];
    }
}

static struct words *open_words(const struct fault_daemons *daemons, const char *program)
{
    struct words *words = calloc(1, sizeof *words);
    assert_non_null(words);
    for (int i = 0; daemons->prefix && daemons->prefix[i]; i++)
        word(words, "%s", daemons->prefix[i]);
    word(words, "%s", program);
    word(words, "--once");
    return words;
}

static struct marked *start_words(const struct fault_daemons *daemons, const char *role, int rank,
                                  struct words *words)
{
    char name[32];
    snprintf(name, sizeof name, rank < 0 ? "%s" : "%s-%d", role, rank);
    struct marked *process = marked_start(daemons->set, name, words->argv);
    free(words);
    return process;
}

void fault_daemons_coordinate(struct fault_daemons *daemons)
{
    struct words *words = open_words(daemons, program_server);
    char path[MARKED_PATH + 16];
    write_job(daemons->folder, path);
    word(words, "--coordinator");
    word(words, "--listen");
    word(words, "tcp://127.0.0.1:%d", daemons->coordinator_port);
    word(words, "--job");
    word(words, "%s", path);
    word(words, "--set");
    word(words, "cluster.workers=%d", daemons->workers);
    if (daemons->servers > 0) {
        word(words, "--set");
        word(words, "cluster.servers=%d", daemons->servers);
    }
    job_words(words, daemons->folder, daemons->run);
    daemons->coordinator = start_words(daemons, "coordinator", -1, words);
}

static void member_words(const struct fault_daemons *daemons, int rank, struct words *words)
{
    word(words, "--cluster");
    word(words, "tcp://127.0.0.1:%d", daemons->via_coordinator);
    word(words, "--rank");
    word(words, "%d", rank);
    word(words, "--threads");
    word(words, "1");
}

void fault_daemons_serve(struct fault_daemons *daemons, int rank)
{
    struct words *words = open_words(daemons, program_server);
    member_words(daemons, rank, words);
    word(words, "--listen");
    word(words, "tcp://127.0.0.1:%d", daemons->server_port[rank]);
    word(words, "--advertise");
    word(words, "tcp://127.0.0.1:%d", daemons->via_server[rank]);
    daemons->server[rank] = start_words(daemons, "server", rank, words);
}

void fault_daemons_work(struct fault_daemons *daemons, int rank)
{
    struct words *words = open_words(daemons, program_worker);
    member_words(daemons, rank, words);
    daemons->worker[rank] = start_words(daemons, "worker", rank, words);
}

void fault_daemons_start(struct fault_daemons *daemons)
{
    fault_daemons_coordinate(daemons);
    for (int r = 0; r < daemons->servers; r++)
        fault_daemons_serve(daemons, r);
    for (int r = 0; r < daemons->workers; r++)
        fault_daemons_work(daemons, r);
}

struct marked *fault_daemon_at(const struct fault_daemons *daemons, int i)
{
    if (i == 0)
        return daemons->coordinator;
    if (i <= daemons->servers)
        return daemons->server[i - 1];
    return i <= daemons->servers + daemons->workers ? daemons->worker[i - 1 - daemons->servers] : NULL;
}
