#include "deploy/cli/bench_crew.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "deploy/cli/child.h"

struct member {
    struct child child; /* role, rank, pid */
    int line;           /* -1: ended */
    int said;           /* since crew_wait last took it */
};

struct crew {
    struct member *members;
    struct errbuf *why; /* [members_max], shared: a failed member's reason */
    int count, members_max;
};

/* --- the member's side ---------------------------------------------------------------------------------------- */

int crew_say(int line, struct errbuf *err)
{
    char token = 1;
    ssize_t sent;
    do
        sent = send(line, &token, 1, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent == 1 ? 0 : errbuf_set(err, STATUS_CLOSED, "the benchmark has gone");
}

int crew_hear(int line, int *order, struct errbuf *err)
{
    ssize_t got;
    do
        got = recv(line, order, sizeof *order, MSG_WAITALL);
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)sizeof *order ? 0 : errbuf_set(err, STATUS_CLOSED, "the benchmark has gone");
}

__attribute__((noreturn)) static void become(const struct crew *crew, int line, crew_work *work, void *context)
{
    const struct member *self = &crew->members[crew->count];
    struct errbuf *why = &crew->why[crew->count];
    for (int i = 0; i < crew->count; i++) {
        if (crew->members[i].line >= 0)
            close(crew->members[i].line);
    }
    int status = work(line, self->child.rank, context, why);
    if (status != 0 && !why->text[0])
        errbuf_set(why, status, "%s", status_text(status));
    fflush(NULL);
    _exit(status == 0 ? 0 : 1);
}

/* --- the parent's -----------------------------------------------------------------------------------------------
 */

void *crew_share(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void crew_unshare(void *memory, size_t bytes)
{
    if (memory)
        munmap(memory, bytes);
}

int crew_open(struct crew **out, int members_max, struct errbuf *err)
{
    struct crew *crew = calloc(1, sizeof *crew);
    if (crew) {
        crew->members_max = members_max;
        crew->members = calloc((size_t)members_max, sizeof *crew->members);
        crew->why = crew_share((size_t)members_max * sizeof *crew->why);
    }
    *out = crew;
    if (crew && crew->members && crew->why)
        return 0;
    crew_close(crew);
    *out = NULL;
    return errbuf_set(err, STATUS_NOMEM, "out of memory");
}

/* Takes a member's end; fills its wait status. */
static void reap(struct member *member)
{
    while (waitpid(member->child.pid, &member->child.wait_status, 0) < 0 && errno == EINTR) {
    }
    close(member->line);
    member->line = -1;
}

void crew_close(struct crew *crew)
{
    if (!crew)
        return;
    for (int i = 0; i < crew->count; i++) {
        if (crew->members[i].line >= 0)
            kill(crew->members[i].child.pid, SIGKILL);
    }
    for (int i = 0; i < crew->count; i++) {
        if (crew->members[i].line >= 0)
            reap(&crew->members[i]);
    }
    crew_unshare(crew->why, (size_t)crew->members_max * sizeof *crew->why);
    free(crew->members);
    free(crew);
}

int crew_start(struct crew *crew, const char *role, int rank, crew_work *work, void *context, struct errbuf *err)
{
    int ends[2];
    struct member *member = &crew->members[crew->count];
    child_init(&member->child, role, rank);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return errbuf_set(err, STATUS_IO, "socket: %s", strerror(errno));
    fflush(NULL); /* what is buffered would be written twice */
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        close(ends[0]);
        become(crew, ends[1], work, context);
    }
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return errbuf_set(err, STATUS_IO, "cannot start a process: %s", strerror(errno));
    }
    member->child.pid = pid;
    member->line = ends[0];
    crew->count++;
    return 0;
}

static int tell_end(const struct crew *crew, int index, struct errbuf *err)
{
    const struct child *child = &crew->members[index].child;
    char text[160];
    if (crew->why[index].text[0]) {
        if (child->rank < 0)
            return errbuf_set(err, STATUS_ABORTED, "%s: %s", child->role, crew->why[index].text);
        return errbuf_set(err, STATUS_ABORTED, "%s %d: %.450s", child->role, child->rank, crew->why[index].text);
    }
    child_text(child, child->pid, text, sizeof text);
    return errbuf_set(err, STATUS_ABORTED, "%s", text);
}

static int ended_well(const struct member *member)
{
    return WIFEXITED(member->child.wait_status) && WEXITSTATUS(member->child.wait_status) == 0;
}

/* Blocks until at least one member has said something or ended; the number of the one that ended, or -1. */
static int listen_once(struct crew *crew)
{
    struct pollfd waits[crew->count];
    for (int i = 0; i < crew->count; i++)
        waits[i] = (struct pollfd){.fd = crew->members[i].line, .events = POLLIN};
    if (poll(waits, (nfds_t)crew->count, -1) < 0)
        return -1;
    for (int i = 0; i < crew->count; i++) {
        char tokens[64];
        ssize_t got = waits[i].revents ? recv(crew->members[i].line, tokens, sizeof tokens, MSG_DONTWAIT) : -1;
        if (got > 0)
            crew->members[i].said += (int)got;
        if (got == 0 || (waits[i].revents && got < 0 && errno == ECONNRESET)) {
            reap(&crew->members[i]);
            return i;
        }
    }
    return -1;
}

int crew_wait(struct crew *crew, int first, int count, struct errbuf *err)
{
    for (int i = first; i < first + count; i++) {
        while (crew->members[i].said == 0) {
            int gone = crew->members[i].line >= 0 ? listen_once(crew) : i;
            if (gone >= 0)
                return tell_end(crew, gone, err);
        }
        crew->members[i].said--;
    }
    return 0;
}

void crew_tell(struct crew *crew, int first, int count, int order)
{
    for (int i = first; i < first + count; i++) {
        /* One that has gone is found by the next wait. */
        ssize_t sent =
            crew->members[i].line >= 0 ? send(crew->members[i].line, &order, sizeof order, MSG_NOSIGNAL) : 0;
        (void)sent;
    }
}

int crew_finish(struct crew *crew, struct errbuf *err)
{
    for (int i = 0; i < crew->count; i++) {
        while (crew->members[i].line >= 0) {
            int gone = listen_once(crew);
            if (gone >= 0 && !ended_well(&crew->members[gone]))
                return tell_end(crew, gone, err);
        }
    }
    return 0;
}
