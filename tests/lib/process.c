#include "tests/lib/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"

/* All that run: a wait for one reads the pipes of all, so that nobody stands still at a full one. */
static struct process *running;

void process_init(struct process *process, const char *program)
{
    memset(process, 0, sizeof *process);
    if (strchr(program, '/'))
        snprintf(process->words[0], PROCESS_WORD, "%s", program);
    else
        snprintf(process->words[0], PROCESS_WORD, "%s/bin/%s", SHOAL_BINARY_DIR, program);
    process->count = 1;
    process->output = -1;
}

void process_word(struct process *process, const char *word)
{
    assert_true(process->count < PROCESS_WORDS - 1);
    snprintf(process->words[process->count++], PROCESS_WORD, "%s", word);
}

void process_add(struct process *process, const char *format, ...)
{
    char line[2 * PROCESS_WORD], *rest = line;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    for (char *word; (word = strsep(&rest, " ")) != NULL;)
        if (*word)
            process_word(process, word);
}

void process_set(struct process *process, const char *format, ...)
{
    assert_true(process->variables_count < PROCESS_VARIABLES);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(process->variables[process->variables_count++], PROCESS_WORD, format, arguments);
    va_end(arguments);
}

/* In the child. */
static void become(struct process *process, int output)
{
    char *argv[PROCESS_WORDS + 1] = {NULL};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    for (int i = 0; i < process->variables_count; i++)
        putenv(process->variables[i]); /* without '=' it takes the variable away */
    for (int i = 0; i < process->count; i++)
        argv[i] = process->words[i];
    execv(argv[0], argv);
    _exit(127);
}

void process_start(struct process *process)
{
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    free(process->said);
    process->said = calloc(1, 1);
    process->said_bytes = 0;
    process->pid = fork();
    assert_true(process->pid >= 0);
    if (process->pid == 0)
        become(process, ends[1]);
    close(ends[1]);
    process->output = ends[0];
    process->next = running;
    running = process;
}

/* 0: the program's end of the pipe is closed. */
static int take(struct process *process)
{
    char bytes[16384];
    ssize_t got;
    while ((got = read(process->output, bytes, sizeof bytes)) > 0) {
        process->said = realloc(process->said, process->said_bytes + (size_t)got + 1);
        assert_non_null(process->said);
        memcpy(process->said + process->said_bytes, bytes, (size_t)got);
        process->said_bytes += (size_t)got;
        process->said[process->said_bytes] = '\0';
    }
    return got < 0 && (errno == EAGAIN || errno == EINTR);
}

static void leave_list(struct process *process)
{
    struct process **at = &running;
    while (*at && *at != process)
        at = &(*at)->next;
    if (*at)
        *at = process->next;
}

/* It has closed its output, so its end is near. */
static void reap(struct process *process)
{
    int status = 0;
    while (waitpid(process->pid, &status, 0) < 0 && errno == EINTR) {
    }
    process->code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    process->pid = 0;
    close(process->output);
    process->output = -1;
    leave_list(process);
}

/* Reads whatever came, for at most wait_ms. */
static void turn(int wait_ms)
{
    struct pollfd polls[64];
    struct process *of[64];
    int count = 0;
    for (struct process *p = running; p && count < 64; p = p->next) {
        polls[count] = (struct pollfd){.fd = p->output, .events = POLLIN};
        of[count++] = p;
    }
    if (poll(polls, (nfds_t)count, wait_ms) <= 0)
        return;
    for (int i = 0; i < count; i++)
        if (polls[i].revents && !take(of[i]))
            reap(of[i]);
}

static void tell(const struct process *process)
{
    print_error("--- %s", process->words[0]);
    for (int i = 1; i < process->count; i++)
        print_error(" %s", process->words[i]);
    print_error("\n%s\n--- %s %d\n", process->said ? process->said : "", process->pid ? "pid" : "ended with",
                process->pid ? (int)process->pid : process->code);
}

static void tell_all(const struct process *ended)
{
    if (ended && ended->pid == 0)
        tell(ended);
    for (const struct process *p = running; p; p = p->next)
        tell(p);
}

static int times(const char *said, const char *text, const char **last)
{
    int count = 0;
    for (const char *at = said; (at = strstr(at, text)) != NULL; at += strlen(text)) {
        count++;
        *last = at;
    }
    return count;
}

static const char *until(struct process *process, const char *text, int wanted, int whole)
{
    int64_t deadline_ns = clock_now_ns() + (int64_t)PROCESS_DEADLINE_S * 1000000000;
    const char *last = NULL;
    while (times(process->said, text, &last) < wanted || (whole && !strchr(last, '\n'))) {
        if (process->pid == 0 || clock_now_ns() > deadline_ns) {
            tell_all(process);
            fail_msg("%s has not said \"%s\" %d times", process->words[0], text, wanted);
        }
        turn(200);
    }
    return last;
}

const char *process_until(struct process *process, const char *text)
{
    return until(process, text, 1, 0);
}

const char *process_until_line(struct process *process, const char *text)
{
    return until(process, text, 1, 1);
}

void process_until_times(struct process *process, const char *text, int count)
{
    until(process, text, count, 0);
}

int process_wait(struct process *process, double seconds)
{
    int64_t deadline_ns = clock_now_ns() + (int64_t)(seconds * 1e9);
    while (process->pid != 0) {
        if (clock_now_ns() > deadline_ns) {
            tell_all(process);
            fail_msg("%s has not ended within %.0f s", process->words[0], seconds);
        }
        turn(200);
    }
    return process->code;
}

void process_expect(struct process *process, int code, double seconds)
{
    if (process_wait(process, seconds) == code)
        return;
    tell_all(process);
    fail_msg("%s ended with %d, not %d", process->words[0], process->code, code);
}

void process_expect_said(struct process *process, const char *text)
{
    if (process->said && strstr(process->said, text))
        return;
    tell_all(process);
    fail_msg("%s has not said \"%s\"", process->words[0], text);
}

void process_signal(struct process *process, int number)
{
    assert_true(process->pid > 0);
    kill(process->pid, number);
}

int process_lines(const struct process *process)
{
    const char *last = NULL;
    return times(process->said, "\n", &last);
}

int process_run(struct process *process)
{
    process_start(process);
    return process_wait(process, PROCESS_DEADLINE_S);
}

void process_forget(struct process *process)
{
    if (process->pid > 0) {
        kill(process->pid, SIGCONT);
        kill(process->pid, SIGKILL);
        reap(process);
    }
    free(process->said);
    process->said = NULL;
}

int processes_end(void **state)
{
    (void)state;
    while (running)
        process_forget(running);
    return 0;
}
