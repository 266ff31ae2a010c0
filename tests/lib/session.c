#include "tests/lib/session.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

long session_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

__attribute__((noreturn)) static void become(const char *const *argv, const int *ends)
{
    sigset_t none;
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    dup2(ends[SESSION_OUT], STDOUT_FILENO);
    dup2(ends[SESSION_ERR], STDERR_FILENO);
    execvp(argv[0], (char *const *)argv);
    _exit(127);
}

int session_start(struct session *process, const char *const *argv)
{
    int out[2], err[2];
    *process = (struct session){.pid_fd = -1, .pipes = {-1, -1}};
    process->text[SESSION_OUT] = calloc(1, 1);
    process->text[SESSION_ERR] = calloc(1, 1);
    if (pipe2(out, O_CLOEXEC) != 0)
        return -1;
    if (pipe2(err, O_CLOEXEC) != 0) {
        close(out[0]);
        close(out[1]);
        return -1;
    }
    const int ends[SESSION_STREAMS] = {out[1], err[1]};
    process->pid = fork();
    if (process->pid == 0)
        become(argv, ends);
    close(out[1]);
    close(err[1]);
    process->pipes[SESSION_OUT] = out[0];
    process->pipes[SESSION_ERR] = err[0];
    process->pid_fd = process->pid > 0 ? (int)syscall(SYS_pidfd_open, process->pid, 0) : -1;
    return process->pid_fd >= 0 ? 0 : -1;
}

static void take_output(struct session *process, int stream)
{
    char piece[4096];
    ssize_t got = read(process->pipes[stream], piece, sizeof piece);
    if (got <= 0) {
        close(process->pipes[stream]);
        process->pipes[stream] = -1;
        return;
    }
    size_t bytes = process->bytes[stream] + (size_t)got;
    char *text = realloc(process->text[stream], bytes + 1);
    if (!text)
        abort();
    memcpy(text + process->bytes[stream], piece, (size_t)got);
    text[bytes] = '\0';
    process->text[stream] = text;
    process->bytes[stream] = bytes;
}

/* Takes what comes next; 0 when nothing did by `until`. */
static int take_event(struct session *process, long until)
{
    struct pollfd waits[3] = {{.fd = process->pipes[SESSION_OUT], .events = POLLIN},
                              {.fd = process->pipes[SESSION_ERR], .events = POLLIN},
                              {.fd = process->ended ? -1 : process->pid_fd, .events = POLLIN}};
    long left = until - session_now_ms();
    if (poll(waits, 3, left > 0 ? (int)left : 0) <= 0)
        return 0;
    for (int stream = 0; stream < SESSION_STREAMS; stream++) {
        if (waits[stream].revents)
            take_output(process, stream);
    }
    if (waits[2].revents && waitpid(process->pid, &process->wait_status, WNOHANG) == process->pid)
        process->ended = 1;
    return 1;
}

int session_wait_text(struct session *process, int stream, const char *text, int deadline_ms)
{
    long until = session_now_ms() + deadline_ms;
    while (!strstr(process->text[stream], text)) {
        if (process->pipes[stream] < 0 || !take_event(process, until))
            return 0;
    }
    return 1;
}

int session_wait(struct session *process, int deadline_ms)
{
    long until = session_now_ms() + deadline_ms;
    while (!process->ended) {
        if (!take_event(process, until))
            return -1;
    }
    return WIFSIGNALED(process->wait_status) ? 1000 + WTERMSIG(process->wait_status)
                                             : WEXITSTATUS(process->wait_status);
}

int session_wait_gone(struct session *process, int deadline_ms)
{
    long until = session_now_ms() + deadline_ms;
    while (!process->ended || process->pipes[SESSION_OUT] >= 0 || process->pipes[SESSION_ERR] >= 0) {
        if (!take_event(process, until))
            return 0;
    }
    return 1;
}

/* --- the session ------------------------------------------------------------------------------------------------
 */

static int reads_file(pid_t pid, const char *name, char *out, size_t room, size_t *length)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, out, room - 1) : -1;
    if (fd >= 0)
        close(fd);
    *length = got > 0 ? (size_t)got : 0;
    out[*length] = '\0';
    return got > 0;
}

static int in_session(pid_t pid, pid_t session)
{
    char text[512];
    size_t length;
    int found = 0;
    const char *end = reads_file(pid, "stat", text, sizeof text, &length) ? strrchr(text, ')') : NULL;
    return end && sscanf(end, ") %*c %*d %*d %d", &found) == 1 && found == session;
}

static int command_matches(pid_t pid, const char *program, const char *word, const char *value)
{
    char line[8192];
    size_t length, tail = strlen(program);
    if (!reads_file(pid, "cmdline", line, sizeof line, &length))
        return 0;
    size_t first = strlen(line);
    if (first < tail || strcmp(line + first - tail, program) != 0)
        return 0;
    for (const char *at = line; at < line + length; at += strlen(at) + 1) {
        if (strcmp(at, word) == 0)
            return !value || strcmp(at + strlen(at) + 1, value) == 0;
    }
    return 0;
}

/* Calls for every process of the session until one returns non-zero, which is returned. */
static pid_t each_of_session(pid_t session, pid_t (*visit)(pid_t pid, void *context), void *context)
{
    DIR *folder = opendir("/proc");
    struct dirent *entry;
    pid_t found = 0;
    while (folder && !found && (entry = readdir(folder)) != NULL) {
        pid_t pid = (pid_t)atoi(entry->d_name);
        if (pid > 0 && in_session(pid, session))
            found = visit(pid, context);
    }
    if (folder)
        closedir(folder);
    return found;
}

struct wanted {
    const char *program, *word, *value;
};

static pid_t visit_find(pid_t pid, void *context)
{
    const struct wanted *wanted = context;
    return command_matches(pid, wanted->program, wanted->word, wanted->value) ? pid : 0;
}

static pid_t visit_kill(pid_t pid, void *context)
{
    (void)context;
    kill(pid, SIGKILL);
    return 0;
}

pid_t session_find(const struct session *process, const char *program, const char *word, const char *value)
{
    struct wanted wanted = {program, word, value};
    return each_of_session(process->pid, visit_find, &wanted);
}

void session_close(struct session *process)
{
    if (process->pid > 0) {
        each_of_session(process->pid, visit_kill, NULL);
        if (!process->ended)
            waitpid(process->pid, &process->wait_status, 0);
    }
    for (int stream = 0; stream < SESSION_STREAMS; stream++) {
        if (process->pipes[stream] >= 0)
            close(process->pipes[stream]);
        free(process->text[stream]);
        process->text[stream] = NULL;
    }
    if (process->pid_fd >= 0)
        close(process->pid_fd);
    process->pid = 0;
}

int session_free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int ok = fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
             getsockname(fd, (struct sockaddr *)&address, &length) == 0;
    if (fd >= 0)
        close(fd);
    return ok ? ntohs(address.sin_port) : -1;
}
