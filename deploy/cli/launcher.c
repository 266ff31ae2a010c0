#include "deploy/cli/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/errbuf.h"
#include "base/host.h"
#include "base/log.h"
#include "base/status.h"
#include "config/job.h"
#include "deploy/cli/child.h"
#include "deploy/cli/operator.h"
#include "deploy/cli/run_plan.h"

enum {
    START_MS = 30000,    /* for the coordinator to listen */
    REPORT_MS = 1000,    /* for it to take a report of a death */
    LEAVE_MS = 3000,     /* for the others when it has ended */
    STOPPED_MS = 200,    /* the same after a signal; who has not joined yet would wait for it */
    ABORT_MS = 10000,    /* for it to end a job that lost a rank */
    TERMINATE_MS = 4500, /* from SIGTERM to SIGKILL */
    ADDRESS_BYTES = 256
};

/*  running --coordinator ended--> leaving --LEAVE_MS--> terminating (SIGTERM to all) --TERMINATE_MS--> SIGKILL
 *     |--a child died--> reported --ABORT_MS--> terminating
 *     '--SIGTERM, SIGINT--> forwarded to the coordinator --stop_ms--> SIGKILL */
struct launcher {
    const struct run_plan *plan;
    struct log log;
    struct child *children; /* coordinator, servers, workers */
    int count, alive;
    int signal_fd, job_fd;
    char address[ADDRESS_BYTES];
    int stop;                            /* the signal that stops the run */
    int failed;                          /* a child ended as it should not */
    int killed;                          /* SIGKILL was sent */
    int coordinator_code;                /* -1: still there */
    int64_t terminate_at_ns, kill_at_ns; /* 0: never */
};

static int64_t in_ms(int ms)
{
    return clock_now_ns() + (int64_t)ms * 1000000;
}

static int is_coordinator(const struct launcher *launcher, const struct child *child)
{
    return child == launcher->children;
}

static void signal_all(struct launcher *launcher, int number)
{
    for (int i = 0; i < launcher->count; i++) {
        if (launcher->children[i].pid > 0)
            kill(launcher->children[i].pid, number);
    }
}

static void terminate_all(struct launcher *launcher)
{
    launcher->terminate_at_ns = 0;
    if (launcher->kill_at_ns == 0)
        launcher->kill_at_ns = in_ms(TERMINATE_MS);
    signal_all(launcher, SIGTERM);
}

static void kill_all(struct launcher *launcher)
{
    for (int i = 0; i < launcher->count && !launcher->killed; i++) {
        const struct child *child = &launcher->children[i];
        if (child->pid > 0)
            log_error(&launcher->log, "%s rank=%d pid=%d has not ended in time, killing it", child->role,
                      child->rank, (int)child->pid);
    }
    launcher->killed = 1;
    launcher->kill_at_ns = 0;
    signal_all(launcher, SIGCONT);
    signal_all(launcher, SIGKILL);
}

/* --- a child ended -------------------------------------------------------------------------------------------- */

static void report_death(struct launcher *launcher, pid_t pid, const char *text)
{
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    Shoal__Death death = SHOAL__DEATH__INIT;
    struct operator_link link = {.cluster = launcher->address, .deadline_ms = REPORT_MS};
    struct errbuf err;
    char host[128];
    errbuf_init(&err);
    host_id(host, sizeof host);
    death.host = host;
    death.pid = pid;
    death.text = (char *)text;
    envelope.type = SHOAL__TYPE__REPORT_DEATH;
    envelope.body_case = SHOAL__ENVELOPE__BODY_DEATH;
    envelope.death = &death;
    if (operator_ask(&link, &envelope, NULL, &err) != 0)
        log_debug(&launcher->log, "report not taken: %s", err.text);
}

static void on_coordinator_gone(struct launcher *launcher, const struct child *child)
{
    int was_killed = WIFSIGNALED(child->wait_status);
    launcher->coordinator_code = was_killed ? 128 + WTERMSIG(child->wait_status) : WEXITSTATUS(child->wait_status);
    if (was_killed && !launcher->killed) {
        launcher->failed = 1;
        terminate_all(launcher);
    } else {
        launcher->terminate_at_ns = in_ms(launcher->stop ? STOPPED_MS : LEAVE_MS);
    }
}

static void on_member_gone(struct launcher *launcher, const struct child *child, pid_t pid, const char *text)
{
    const char *reason = strchr(text, ')');
    /* What then comes of an elastic job is the coordinator's answer. */
    int may_go_on = launcher->plan->elastic && strcmp(child->role, "worker") == 0;
    launcher->failed |= !may_go_on;
    if (launcher->coordinator_code >= 0 || launcher->stop || !launcher->address[0])
        return;
    report_death(launcher, pid, reason ? reason + 2 : text);
    if (launcher->terminate_at_ns == 0 && !may_go_on)
        launcher->terminate_at_ns = in_ms(ABORT_MS);
}

static int ended_well(const struct child *child)
{
    int code = WIFEXITED(child->wait_status) ? WEXITSTATUS(child->wait_status) : -1;
    return code == 0 || code == 128 + SIGTERM || code == 128 + SIGINT;
}

static void on_gone(struct launcher *launcher, struct child *child, int wait_status)
{
    char text[160];
    pid_t pid = child->pid;
    child->pid = 0;
    child->wait_status = wait_status;
    launcher->alive--;
    child_text(child, pid, text, sizeof text);
    int was_killed = WIFSIGNALED(wait_status) && !launcher->killed;
    /* After the first failure the others end with an error of their own: that is no news. */
    if (was_killed || (!ended_well(child) && !launcher->failed && launcher->coordinator_code < 0 &&
                       !is_coordinator(launcher, child)))
        log_error(&launcher->log, "%s", text);
    if (is_coordinator(launcher, child))
        on_coordinator_gone(launcher, child);
    else if (!ended_well(child) && !launcher->killed)
        on_member_gone(launcher, child, pid, text);
}

static void reap(struct launcher *launcher)
{
    int wait_status;
    pid_t pid;
    while ((pid = waitpid(-1, &wait_status, WNOHANG)) > 0) {
        for (int i = 0; i < launcher->count; i++) {
            if (launcher->children[i].pid == pid)
                on_gone(launcher, &launcher->children[i], wait_status);
        }
    }
}

/* --- signals and deadlines ------------------------------------------------------------------------------------ */

static void on_stop(struct launcher *launcher, int number)
{
    if (launcher->stop) {
        if (number == SIGINT)
            kill_all(launcher); /* Ctrl-C again: at once */
        return;
    }
    launcher->stop = number;
    launcher->kill_at_ns = in_ms(launcher->plan->stop_ms);
    if (launcher->coordinator_code < 0)
        kill(launcher->children[0].pid, number); /* it ends the job in order, and with it the rest */
    else
        signal_all(launcher, SIGTERM);
}

static void take_signals(struct launcher *launcher)
{
    struct signalfd_siginfo info;
    while (read(launcher->signal_fd, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT)
            on_stop(launcher, (int)info.ssi_signo);
    }
    reap(launcher);
}

static int next_wait_ms(const struct launcher *launcher)
{
    int64_t at_ns = launcher->terminate_at_ns;
    if (at_ns == 0 || (launcher->kill_at_ns != 0 && launcher->kill_at_ns < at_ns))
        at_ns = launcher->kill_at_ns;
    if (at_ns == 0)
        return -1;
    int64_t left_ns = at_ns - clock_now_ns();
    return left_ns <= 0 ? 0 : (int)(left_ns / 1000000) + 1;
}

static void watch(struct launcher *launcher)
{
    while (launcher->alive > 0) {
        struct pollfd wait = {.fd = launcher->signal_fd, .events = POLLIN};
        poll(&wait, 1, next_wait_ms(launcher));
        take_signals(launcher);
        int64_t now_ns = clock_now_ns();
        if (launcher->terminate_at_ns != 0 && now_ns >= launcher->terminate_at_ns)
            terminate_all(launcher);
        if (launcher->kill_at_ns != 0 && now_ns >= launcher->kill_at_ns)
            kill_all(launcher);
    }
}

/* --- starting ------------------------------------------------------------------------------------------------- */

static int open_job(struct launcher *launcher, struct errbuf *err)
{
    char *yaml = job_to_yaml(launcher->plan->job);
    if (!yaml)
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    size_t length = strlen(yaml), done = 0;
    launcher->job_fd = memfd_create("job.yaml", MFD_CLOEXEC);
    while (launcher->job_fd >= 0 && done < length) {
        ssize_t wrote = write(launcher->job_fd, yaml + done, length - done);
        if (wrote <= 0)
            break;
        done += (size_t)wrote;
    }
    free(yaml);
    return done == length ? 0 : errbuf_set(err, STATUS_IO, "job in memory: %s", strerror(errno));
}

static int open_signals(struct launcher *launcher, struct errbuf *err)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGCHLD);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_DFL); /* an ignored one would take our children's ends away */
    sigprocmask(SIG_BLOCK, &set, NULL);
    launcher->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return launcher->signal_fd >= 0 ? 0 : errbuf_set(err, STATUS_IO, "signals: %s", strerror(errno));
}

static int start_child(struct launcher *launcher, struct child *child, const char *program, const int *keep,
                       struct errbuf *err)
{
    int status = child_start(child, program, keep, err);
    if (status == 0)
        launcher->alive++;
    return status;
}

static int start_coordinator(struct launcher *launcher, int ready_fd, struct errbuf *err)
{
    const struct run_plan *plan = launcher->plan;
    struct child *child = &launcher->children[0];
    char job_path[40], state[4096] = "";
    child_init(child, "coordinator", -1);
    snprintf(job_path, sizeof job_path, "/proc/self/fd/%d", launcher->job_fd);
    if (plan->state[0])
        snprintf(state, sizeof state, "%s/coordinator", plan->state);
    child_flag(child, "--coordinator");
    child_flag(child, "--once");
    child_option(child, "--listen", "tcp://127.0.0.1:0");
    child_option(child, "--job", job_path);
    child_option(child, "--job-dir", plan->job_dir);
    child_option(child, "--init", plan->init);
    child_option(child, "--export", plan->export_path);
    child_option(child, "--metrics", plan->metrics);
    child_option(child, "--trace", plan->trace);
    child_option(child, "--resume", plan->resume);
    child_option(child, "--state", state);
    child_number(child, "--ready-fd", ready_fd);
    const int keep[] = {launcher->job_fd, ready_fd, -1};
    return start_child(launcher, child, "shoal-server", keep, err);
}

static int start_members(struct launcher *launcher, struct errbuf *err)
{
    const struct run_plan *plan = launcher->plan;
    const int keep[] = {-1};
    int status = 0;
    for (int i = 1; i < launcher->count && status == 0; i++) {
        int is_server = i <= plan->servers;
        int rank = is_server ? i - 1 : i - 1 - plan->servers;
        char state[4096] = "";
        struct child *child = &launcher->children[i];
        child_init(child, is_server ? "server" : "worker", rank);
        child_flag(child, "--once");
        child_option(child, "--cluster", launcher->address);
        child_number(child, "--rank", rank);
        child_number(child, "--threads", is_server ? plan->server_threads : plan->worker_threads);
        if (is_server && plan->state[0])
            snprintf(state, sizeof state, "%s/server-%d", plan->state, rank);
        child_option(child, "--state", state);
        child_option(child, "--data", is_server ? "" : plan->data);
        status = start_child(launcher, child, is_server ? "shoal-server" : "shoal-worker", keep, err);
    }
    return status;
}

/* Until the coordinator has written its address, or is gone, or takes too long. */
static int wait_address(struct launcher *launcher, int fd, struct errbuf *err)
{
    size_t used = 0;
    int64_t deadline_ns = in_ms(START_MS);
    while (clock_now_ns() < deadline_ns && !launcher->stop && launcher->alive > 0) {
        struct pollfd waits[2] = {{.fd = fd, .events = POLLIN}, {.fd = launcher->signal_fd, .events = POLLIN}};
        poll(waits, 2, (int)((deadline_ns - clock_now_ns()) / 1000000) + 1);
        if (waits[1].revents)
            take_signals(launcher);
        if (!waits[0].revents)
            continue;
        ssize_t got = read(fd, launcher->address + used, sizeof launcher->address - 1 - used);
        if (got <= 0) {
            launcher->address[0] = '\0';
            return STATUS_CLOSED; /* it ends, and has said why */
        }
        used += (size_t)got;
        launcher->address[used] = '\0';
        char *end = strchr(launcher->address, '\n');
        if (end) {
            *end = '\0';
            return 0;
        }
    }
    launcher->address[0] = '\0';
    return launcher->stop || launcher->alive == 0
               ? STATUS_CLOSED
               : errbuf_set(err, STATUS_TIMEOUT, "the coordinator does not start");
}

static int start_all(struct launcher *launcher, struct errbuf *err)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return errbuf_set(err, STATUS_IO, "pipe: %s", strerror(errno));
    int status = start_coordinator(launcher, ends[1], err);
    close(ends[1]);
    if (status == 0)
        status = wait_address(launcher, ends[0], err);
    close(ends[0]);
    return status == 0 ? start_members(launcher, err) : status;
}

static int exit_code(const struct launcher *launcher)
{
    int code = launcher->coordinator_code;
    if (launcher->stop)
        return code == 0 || code == 1 || code == 2 ? code : 128 + launcher->stop;
    if (launcher->failed || code < 0 || code == 127)
        return 1;
    return code;
}

int launcher_run(const struct run_plan *plan)
{
    struct launcher launcher = {.plan = plan,
                                .count = 1 + plan->servers + plan->workers,
                                .signal_fd = -1,
                                .job_fd = -1,
                                .coordinator_code = -1};
    struct errbuf err;
    errbuf_init(&err);
    log_init(&launcher.log, "shoal");
    launcher.children = calloc((size_t)launcher.count, sizeof *launcher.children);
    int status =
        launcher.children ? open_signals(&launcher, &err) : errbuf_set(&err, STATUS_NOMEM, "out of memory");
    if (status == 0)
        status = open_job(&launcher, &err);
    if (status == 0)
        status = start_all(&launcher, &err);
    if (status != 0 && err.text[0])
        log_error(&launcher.log, "%s", err.text);
    if (status != 0 && status != STATUS_CLOSED) {
        launcher.failed = 1;
        terminate_all(&launcher);
    }
    watch(&launcher);
    free(launcher.children);
    if (launcher.job_fd >= 0)
        close(launcher.job_fd);
    if (launcher.signal_fd >= 0)
        close(launcher.signal_fd);
    return exit_code(&launcher);
}
