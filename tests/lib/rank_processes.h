/* Processes as the ranks of one group, forked from a test or a benchmark that runs no other thread. They share a board with
 * it, whose layout is the caller's, and die with it. */
#ifndef SHOAL_TESTS_LIB_RANK_PROCESSES_H
#define SHOAL_TESTS_LIB_RANK_PROCESSES_H

#include <sys/types.h>

#include "base/account.h"
#include "base/errbuf.h"
#include "base/role.h"
#include "worker/collective/collective.h"

enum { RANK_PROCESSES_MAX = 16 };

struct rank_process {
    int rank, world;
    struct role_host host;
    struct account account;
    struct collective_port *port;
    struct collective *group;
    int open_status;
    struct errbuf err;
    void *board;
};
/* In the child; 0: all went well. Called also when opening failed. */
typedef int rank_process_fn(struct rank_process *rank);

struct rank_processes {
    int world;
    enum collective_transport transport;
    double timeout_s;
    size_t board_bytes;
    void (*before_port)(struct rank_process *rank); /* in the child, first of all; NULL ok */
    void *board; /* zeroed, shared; from rank_processes_start on */
    struct rank_processes_meeting *meeting;
    pid_t pids[RANK_PROCESSES_MAX];
};

void rank_processes_start(struct rank_processes *processes, rank_process_fn *fn);
/* Waits for one of them: its exit code, or -signal. */
int rank_processes_wait(struct rank_processes *processes, int rank);
/* Waits for those that are left and gives the board back; how many of them failed. */
int rank_processes_end(struct rank_processes *processes);

#endif
