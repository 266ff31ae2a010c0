#include "tests/lib/marked.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static const char mark_name[] = "SHOAL_TEST_MARK";
enum { POLL_MS = 1, FIRST_PORT = 20000, PORTS = 12000, WORDS_BYTES = 8192 };

struct marked {
    struct marked_set *set;
    pid_t pid;
    int ended, code;
    char name[64];
    char text[2 * MARKED_TEXT + 2];
};

struct marked_set {
    const char *folder;
    char mark[80];
    struct marked *items[MARKED_MAX];
    int count;
};

double marked_now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

int marked_until(int (*done)(void *context), void *context, double seconds)
{
    double deadline = marked_now_s() + seconds;
    for (;;) {
        if (done(context))
            return 1;
        if (marked_now_s() >= deadline)
            return 0;
        poll(NULL, 0, POLL_MS);
    }
}

/* --- what carries the mark --------------------------------------------------------------------------------------
 */

/* A file of /proc, NUL at its end; the length, 0 when it cannot be read. */
static size_t read_proc(pid_t pid, const char *name, char *out, size_t out_bytes)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t used = 0;
    ssize_t got;
    while (fd >= 0 && used < out_bytes - 1 && (got = read(fd, out + used, out_bytes - 1 - used)) > 0)
        used += (size_t)got;
    if (fd >= 0)
        close(fd);
    out[used] = '\0';
    return used;
}

/* A zombie's environment is empty: it does not count. */
static int is_marked(const struct marked_set *set, pid_t pid)
{
    char *text = malloc(1 << 17);
    size_t length = text ? read_proc(pid, "environ", text, 1 << 17) : 0;
    int found = 0;
    for (size_t at = 0; at < length && !found; at += strlen(text + at) + 1)
        found = strcmp(text + at, set->mark) == 0;
    free(text);
    return found;
}

/* Calls each(pid, context) for every marked process until it answers non-zero; that answer. */
static int for_each_marked(const struct marked_set *set, int (*each)(pid_t pid, void *context), void *context)
{
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    int answer = 0;
    while (proc && answer == 0 && (entry = readdir(proc)) != NULL) {
        pid_t pid = isdigit((unsigned char)entry->d_name[0]) ? (pid_t)atoi(entry->d_name) : 0;
        if (pid > 0 && pid != getpid() && is_marked(set, pid))
            answer = each(pid, context);
    }
    if (proc)
        closedir(proc);
    return answer;
}

struct tally {
    int count, print;
};

static int count_one(pid_t pid, void *context)
{
    struct tally *tally = context;
    char words[WORDS_BYTES];
    tally->count++;
    if (!tally->print)
        return 0;
    size_t length = read_proc(pid, "cmdline", words, sizeof words);
    for (size_t i = 0; i + 1 < length; i++)
        words[i] = words[i] ? words[i] : ' ';
    fprintf(stderr, "still there: pid %d %s\n", (int)pid, words);
    return 0;
}

int marked_set_left(const struct marked_set *processes, int print)
{
    struct tally tally = {.print = print};
    for_each_marked(processes, count_one, &tally);
    return tally.count;
}

static int reap_and_see_none(void *context)
{
    struct marked_set *set = context;
    for (int i = 0; i < set->count; i++)
        marked_wait(set->items[i], 0);
    return marked_set_left(set, 0) == 0;
}

int marked_set_wait_none(const struct marked_set *processes, double seconds)
{
    if (marked_until(reap_and_see_none, (void *)processes, seconds))
        return 0;
    return marked_set_left(processes, 1);
}

struct wanted {
    const char *program, *word, *next;
};

static int is_wanted(pid_t pid, void *context)
{
    const struct wanted *wanted = context;
    char words[WORDS_BYTES];
    size_t length = read_proc(pid, "cmdline", words, sizeof words);
    const char *slash = strrchr(words, '/');
    if (length == 0 || strcmp(slash ? slash + 1 : words, wanted->program) != 0)
        return 0;
    if (!wanted->word)
        return (int)pid;
    for (size_t at = 0; at < length; at += strlen(words + at) + 1) {
        size_t after = at + strlen(words + at) + 1;
        if (strcmp(words + at, wanted->word) == 0 &&
            (!wanted->next || (after < length && strcmp(words + after, wanted->next) == 0)))
            return (int)pid;
    }
    return 0;
}

pid_t marked_set_find(const struct marked_set *processes, const char *program, const char *word, const char *next)
{
    struct wanted wanted = {program, word, next};
    return (pid_t)for_each_marked(processes, is_wanted, &wanted);
}

static int kill_one(pid_t pid, void *context)
{
    (void)context;
    kill(pid, SIGKILL);
    return 0;
}

static int kill_and_see_none(void *context)
{
    struct marked_set *set = context;
    for_each_marked(set, kill_one, NULL);
    return reap_and_see_none(set);
}

/* --- one process ------------------------------------------------------------------------------------------------
 */

struct marked_set *marked_set_create(const char *folder)
{
    static const char *const separator = "=";
    struct marked_set *set = calloc(1, sizeof *set);
    char value[40];
    assert_non_null(set);
    set->folder = folder;
    snprintf(value, sizeof value, "%d-%.6f", (int)getpid(), marked_now_s());
    snprintf(set->mark, sizeof set->mark, "%s%s%s", mark_name, separator, value);
    setenv(mark_name, value, 1);      /* of later children: /proc shows what a program began with */
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* a killed launcher's children become ours */
    return set;
}

void marked_set_destroy(struct marked_set *processes)
{
    if (!processes)
        return;
    if (!marked_until(kill_and_see_none, processes, 10))
        marked_set_left(processes, 1);
    for (int i = 0; i < processes->count; i++)
        free(processes->items[i]);
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
    unsetenv(mark_name);
    free(processes);
}

static int open_output(const struct marked *process, const char *ending, int flags)
{
    char path[MARKED_PATH + 80];
    snprintf(path, sizeof path, "%s/%s.%s", process->set->folder, process->name, ending);
    return open(path, flags | O_CLOEXEC, 0644);
}

__attribute__((noreturn)) static void become(const char *const *argv, int out, int err, pid_t parent)
{
    sigset_t none;
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(126);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int nothing = open("/dev/null", O_RDONLY);
    dup2(nothing, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    execvp(argv[0], (char *const *)argv);
    dprintf(STDERR_FILENO, "%s cannot be started\n", argv[0]);
    _exit(127);
}

struct marked *marked_start(struct marked_set *processes, const char *name, const char *const *argv)
{
    struct marked *process = calloc(1, sizeof *process);
    assert_non_null(process);
    assert_true(processes->count < MARKED_MAX);
    process->set = processes;
    snprintf(process->name, sizeof process->name, "%s", name);
    int out = open_output(process, "out", O_WRONLY | O_CREAT | O_TRUNC);
    int err = open_output(process, "err", O_WRONLY | O_CREAT | O_TRUNC);
    pid_t parent = getpid();
    process->pid = out >= 0 && err >= 0 ? fork() : -1;
    if (process->pid == 0)
        become(argv, out, err, parent);
    close(out);
    close(err);
    if (process->pid < 0) {
        free(process);
        fail_msg("cannot start %s", argv[0]);
    }
    processes->items[processes->count++] = process;
    return process;
}

pid_t marked_pid(const struct marked *process)
{
    return process->pid;
}

static int has_ended(void *context)
{
    struct marked *process = context;
    int status;
    if (!process->ended && waitpid(process->pid, &status, WNOHANG) == process->pid) {
        process->ended = 1;
        process->code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    }
    return process->ended;
}

int marked_wait(struct marked *process, double seconds)
{
    return marked_until(has_ended, process, seconds) ? process->code : -1;
}

static size_t read_tail(const struct marked *process, const char *ending, char *out)
{
    int fd = open_output(process, ending, O_RDONLY);
    if (fd < 0)
        return 0;
    off_t length = lseek(fd, 0, SEEK_END);
    ssize_t got = pread(fd, out, MARKED_TEXT, length > MARKED_TEXT ? length - MARKED_TEXT : 0);
    close(fd);
    return got > 0 ? (size_t)got : 0;
}

const char *marked_text(struct marked *process)
{
    size_t used = read_tail(process, "out", process->text);
    used += read_tail(process, "err", process->text + used);
    process->text[used] = '\0';
    return process->text;
}

int marked_said(struct marked *process, const char *text)
{
    return strstr(marked_text(process), text) != NULL;
}

/* --- files and ports --------------------------------------------------------------------------------------------
 */

int marked_count_lines(const char *path)
{
    char block[4096];
    int lines = 0, fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got;
    while (fd >= 0 && (got = read(fd, block, sizeof block)) > 0) {
        for (ssize_t i = 0; i < got; i++)
            lines += block[i] == '\n';
    }
    if (fd >= 0)
        close(fd);
    return lines;
}

int marked_free_port(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    unsigned pick = (unsigned)getpid() * 7919U + (unsigned)now.tv_nsec / 1000U;
    for (int tries = 0; tries < 200; tries++, pick += 611) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int port = FIRST_PORT + (int)(pick % PORTS), fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        address.sin_port = htons((uint16_t)port);
        int bound = bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
        close(fd);
        if (bound)
            return port;
    }
    fail_msg("no free port");
    return 0;
}

void marked_folder_create(char folder[MARKED_PATH])
{
    const char *base = getenv("TMPDIR");
    snprintf(folder, MARKED_PATH, "%s/shoal-fault-XXXXXX", base && base[0] ? base : "/tmp");
    assert_non_null(mkdtemp(folder));
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *place)
{
    (void)info;
    (void)type;
    (void)place;
    return remove(path);
}

void marked_folder_remove(const char *folder)
{
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
