#include "rank_processes.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/doorbell.h"

/* Where the ranks learn each other's addresses. */
struct rank_processes_meeting {
    doorbell arrived;
    char address[RANK_PROCESSES_MAX][256], socket[RANK_PROCESSES_MAX][128];
};

static void *shared_pages(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        abort();
    return memory;
}

static void meet(struct rank_processes_meeting *meeting, const struct rank_process *rank)
{
    snprintf(meeting->address[rank->rank], sizeof meeting->address[0], "%s", collective_port_address(rank->port));
    snprintf(meeting->socket[rank->rank], sizeof meeting->socket[0], "%s", collective_port_socket(rank->port));
    doorbell_ring(&meeting->arrived, ~0u);
    uint32_t seen;
    while ((seen = atomic_load(&meeting->arrived)) < (uint32_t)rank->world)
        doorbell_wait(&meeting->arrived, seen, 1, INT64_MAX);
}

static int rank_main(struct rank_processes *processes, int number, rank_process_fn *fn)
{
    struct rank_process rank = {.rank = number, .world = processes->world, .board = processes->board};
    struct collective_peer peers[RANK_PROCESSES_MAX];
    log_init(&rank.host.log, "worker");
    rank.host.log.rank = number;
    account_init(&rank.account);
    if (processes->before_port)
        processes->before_port(&rank);
    const struct collective_port_options options = {&rank.host, "tcp://127.0.0.1:1", NULL};
    if (collective_port_open(&rank.port, &options, &rank.err) != 0) {
        fprintf(stderr, "rank %d: %s\n", number, rank.err.text);
        return 99;
    }
    meet(processes->meeting, &rank);
    for (int k = 0; k < rank.world; k++)
        peers[k] = (struct collective_peer){.address = processes->meeting->address[k], .public_key = "",
                                            .socket = processes->meeting->socket[k], .host = "here",
                                            .incarnation = 1 + (uint64_t)k};
    const struct collective_options open = {
        .port = rank.port, .peers = peers, .rank = number, .world = rank.world, .job = 7, .cluster_epoch = 1,
        .transport = processes->transport, .blob_bytes_max = 4096, .timeout_s = processes->timeout_s,
        .account = &rank.account};
    rank.open_status = collective_open(&rank.group, &open, &rank.err);
    int code = fn(&rank);
    if (code) { /* what it holds ends with it */
        fprintf(stderr, "rank %d: %s\n", number, rank.err.text);
        return code;
    }
    collective_close(rank.group);
    collective_port_close(rank.port);
    return code;
}

void rank_processes_start(struct rank_processes *processes, rank_process_fn *fn)
{
    pid_t parent = getpid();
    processes->meeting = shared_pages(sizeof *processes->meeting);
    processes->board = processes->board_bytes ? shared_pages(processes->board_bytes) : NULL;
    for (int i = 0; i < processes->world; i++) {
        processes->pids[i] = fork();
        if (processes->pids[i] < 0)
            abort();
        if (processes->pids[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            _exit(getppid() == parent ? rank_main(processes, i, fn) : 98);
        }
    }
}

int rank_processes_wait(struct rank_processes *processes, int rank)
{
    int status = 0;
    if (waitpid(processes->pids[rank], &status, 0) != processes->pids[rank])
        abort();
    processes->pids[rank] = 0;
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

int rank_processes_end(struct rank_processes *processes)
{
    int failed = 0;
    for (int i = 0; i < processes->world; i++)
        failed += processes->pids[i] && rank_processes_wait(processes, i) != 0;
    munmap(processes->meeting, sizeof *processes->meeting);
    if (processes->board)
        munmap(processes->board, processes->board_bytes);
    return failed;
}
