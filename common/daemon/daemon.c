#include "daemon/daemon.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/errbuf.h"
#include "base/status.h"

struct daemon {
    struct role_host *host;
    int ready_fd;
    _Atomic int was_ready;
    int signal_fd, end_fd;
    pthread_t thread;
    int64_t watchdog_ns, fed_ns; /* 0: no watchdog; the role's loop thread alone */
};

/* --- the signal thread ---------------------------------------------------------------------------------- */

static void on_signal(struct daemon *daemon, int number, int64_t *deadline_ns)
{
    int grace_ms = atomic_load(&daemon->host->stop_grace_ms);
    switch (number) {
    case SIGTERM:
    case SIGINT:
        if (*deadline_ns != 0)
            break;
        atomic_store(&daemon->host->stop, number);
        *deadline_ns = clock_now_ns() + (int64_t)(grace_ms > 0 ? grace_ms : DAEMON_GRACE_MS) * 1000000;
        sd_notify(0, "STOPPING=1");
        break;
    case SIGHUP:
        atomic_store(&daemon->host->reload, 1);
        break;
    default: /* SIGCHLD, only as process 1 */
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
    }
}

static int wait_ms(int64_t deadline_ns)
{
    if (deadline_ns == 0)
        return -1;
    int64_t left_ns = deadline_ns - clock_now_ns();
    return left_ns <= 0 ? 0 : (int)(left_ns / 1000000) + 1;
}

static void *signal_main(void *argument)
{
    struct daemon *daemon = argument;
    int64_t deadline_ns = 0;
    for (;;) {
        struct pollfd polls[2] = {{.fd = daemon->signal_fd, .events = POLLIN},
                                  {.fd = daemon->end_fd, .events = POLLIN}};
        int ready = poll(polls, 2, wait_ms(deadline_ns));
        if (ready > 0 && polls[1].revents)
            return NULL;
        struct signalfd_siginfo info;
        while (ready > 0 && read(daemon->signal_fd, &info, sizeof info) == sizeof info)
            on_signal(daemon, (int)info.ssi_signo, &deadline_ns);
        if (deadline_ns != 0 && clock_now_ns() >= deadline_ns) {
            int number = atomic_load(&daemon->host->stop);
            log_error(&daemon->host->log, "not ended in time after signal %d, leaving at once", number);
            _exit(128 + number);
        }
    }
}

/* --- what the role calls ---------------------------------------------------------------------------------- */

static void write_address(int fd, const char *address)
{
    char line[512];
    size_t length = strnlen(address, sizeof line - 1), done = 0;
    memcpy(line, address, length);
    line[length++] = '\n';
    while (done < length) {
        ssize_t wrote = write(fd, line + done, length - done);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return; /* whoever asked is gone, and will be noticed in another way */
        done += (size_t)wrote;
    }
}

static void on_ready(void *context, const char *address)
{
    struct daemon *daemon = context;
    atomic_store(&daemon->was_ready, 1);
    sd_notify(0, "READY=1");
    if (daemon->ready_fd >= 0) {
        write_address(daemon->ready_fd, address);
        close(daemon->ready_fd);
        daemon->ready_fd = -1;
    }
}

static void on_status(void *context, const char *line)
{
    (void)context;
    sd_notifyf(0, "STATUS=%.400s", line);
}

/* From the loop that does the work: a loop that hangs feeds nobody. */
static void on_tick(void *context)
{
    struct daemon *daemon = context;
    if (daemon->watchdog_ns == 0)
        return;
    int64_t now_ns = clock_now_ns();
    if (now_ns - daemon->fed_ns >= daemon->watchdog_ns / 4) {
        daemon->fed_ns = now_ns;
        sd_notify(0, "WATCHDOG=1");
    }
}

/* --- opening and closing ---------------------------------------------------------------------------------- */

static int open_signals(struct daemon *daemon, struct errbuf *err)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    if (getpid() == 1)
        sigaddset(&set, SIGCHLD);
    signal(SIGPIPE, SIG_IGN);
    /* What a parent left ignored would never arrive. */
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    daemon->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    daemon->end_fd = eventfd(0, EFD_CLOEXEC);
    if (daemon->signal_fd < 0 || daemon->end_fd < 0)
        return errbuf_set(err, STATUS_IO, "signals: %s", strerror(errno));
    if (pthread_create(&daemon->thread, NULL, signal_main, daemon) != 0)
        return errbuf_set(err, STATUS_NOMEM, "signals: no thread");
    return 0;
}

int daemon_open(struct daemon **out, struct role_host *host, int ready_fd, struct errbuf *err)
{
    struct daemon *daemon = calloc(1, sizeof *daemon);
    if (!daemon)
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    daemon->host = host;
    daemon->ready_fd = ready_fd;
    uint64_t watchdog_us = 0;
    if (sd_watchdog_enabled(0, &watchdog_us) > 0)
        daemon->watchdog_ns = (int64_t)watchdog_us * 1000;
    int status = open_signals(daemon, err);
    if (status != 0) {
        if (daemon->signal_fd >= 0)
            close(daemon->signal_fd);
        if (daemon->end_fd >= 0)
            close(daemon->end_fd);
        free(daemon);
        return status;
    }
    host->ready = on_ready;
    host->status = on_status;
    host->tick = on_tick;
    host->context = daemon;
    *out = daemon;
    return 0;
}

void daemon_close(struct daemon *daemon)
{
    if (!daemon)
        return;
    uint64_t one = 1;
    sd_notify(0, "STOPPING=1");
    if (write(daemon->end_fd, &one, sizeof one) == sizeof one)
        pthread_join(daemon->thread, NULL);
    close(daemon->signal_fd);
    close(daemon->end_fd);
    free(daemon);
}

int daemon_exit_code(const struct daemon *daemon, int status)
{
    int number = atomic_load(&daemon->host->stop);
    if (status == STATUS_STOPPED)
        return 128 + (number ? number : SIGTERM);
    if (status == STATUS_INVALID || status == STATUS_UNKNOWN || status == STATUS_RANGE || status == STATUS_DENIED)
        return atomic_load(&daemon->was_ready) ? 1 : 2;
    return status == 0 ? 0 : 1;
}
