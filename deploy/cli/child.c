#include "deploy/cli/child.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/errbuf.h"
#include "base/status.h"

void child_init(struct child *child, const char *role, int rank)
{
    *child = (struct child){.role = role, .rank = rank};
    child->argv[child->argc++] = ""; /* the program, by child_start */
}

void child_flag(struct child *child, const char *name)
{
    if (child->argc < CHILD_ARGUMENTS_MAX)
        child->argv[child->argc++] = name;
}

void child_option(struct child *child, const char *name, const char *value)
{
    if (value[0] == '\0')
        return;
    child_flag(child, name);
    child_flag(child, value);
}

void child_number(struct child *child, const char *name, int value)
{
    char *text = child->texts[child->texts_count++];
    snprintf(text, CHILD_TEXT_BYTES, "%d", value);
    child_option(child, name, text);
}

static int beside_this(const char *program, char path[PATH_MAX], struct errbuf *err)
{
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 1);
    if (length <= 0)
        return errbuf_set(err, STATUS_IO, "/proc/self/exe: %s", strerror(errno));
    path[length] = '\0';
    char *slash = strrchr(path, '/');
    size_t room = slash ? (size_t)(path + PATH_MAX - slash - 1) : 0;
    if (!slash || strlen(program) >= room)
        return errbuf_set(err, STATUS_IO, "/proc/self/exe: found \"%.200s\"", path);
    memcpy(slash + 1, program, strlen(program) + 1);
    if (access(path, X_OK) != 0)
        return errbuf_set(err, STATUS_IO, "%.300s: %s", path, strerror(errno));
    return 0;
}

/* Between fork and exec: only what is allowed there. */
__attribute__((noreturn)) static void become(const struct child *child, const char *path, const int *keep,
                                             pid_t parent)
{
    sigset_t none;
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(1);
    signal(SIGTTOU, SIG_IGN); /* a group in the background may write to the terminal */
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing >= 0)
        dup2(nothing, STDIN_FILENO);
    for (int i = 0; keep[i] >= 0; i++)
        fcntl(keep[i], F_SETFD, 0);
    execv(path, (char *const *)child->argv);
    _exit(127);
}

int child_start(struct child *child, const char *program, const int *keep, struct errbuf *err)
{
    char path[PATH_MAX];
    int status = beside_this(program, path, err);
    if (status != 0)
        return status;
    child->argv[0] = path;
    child->argv[child->argc] = NULL;
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0)
        become(child, path, keep, parent);
    child->argv[0] = program;
    if (pid < 0)
        return errbuf_set(err, STATUS_IO, "cannot start %s: %s", program, strerror(errno));
    child->pid = pid;
    return 0;
}

void child_text(const struct child *child, pid_t pid, char *out, size_t out_bytes)
{
    char who[48];
    snprintf(who, sizeof who, child->rank >= 0 ? "%s %d" : "%s", child->role, child->rank);
    if (WIFSIGNALED(child->wait_status))
        snprintf(out, out_bytes, "%s (pid %d) was killed by signal %d (%s)", who, (int)pid,
                 WTERMSIG(child->wait_status), strsignal(WTERMSIG(child->wait_status)));
    else
        snprintf(out, out_bytes, "%s (pid %d) ended with exit code %d", who, (int)pid,
                 WEXITSTATUS(child->wait_status));
}
