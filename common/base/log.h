/* One line an event, key=value, to stderr: "info worker=2 epoch=1 joined address=tcp://…".
 * Under systemd (JOURNAL_STREAM set) each line starts with its syslog prefix <3>..<7> instead of a time.
 * A struct log is passed in contexts; its functions are thread-safe (one write(2) a line). */
#ifndef SHOAL_BASE_LOG_H
#define SHOAL_BASE_LOG_H

#include <stdint.h>

enum log_level { LOG_ERROR = 3, LOG_WARNING = 4, LOG_INFO = 6, LOG_DEBUG = 7 };

struct log {
    enum log_level level;   /* lines above it are dropped */
    const char *role;       /* "worker", "server", "coordinator", "client", "shoal"; borrowed */
    int rank;               /* -1: not known yet */
    uint64_t cluster_epoch; /* 0: not known yet */
    int fd;                 /* 2 unless a test says otherwise */
    int syslog_prefix;      /* 1 under systemd */
};

/* Level from SHOAL_LOG (error|warning|info|debug, default info); fd 2. */
void log_init(struct log *log, const char *role);
void log_line(const struct log *log, enum log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define log_error(log, ...) log_line((log), LOG_ERROR, __VA_ARGS__)
#define log_warning(log, ...) log_line((log), LOG_WARNING, __VA_ARGS__)
#define log_info(log, ...) log_line((log), LOG_INFO, __VA_ARGS__)
#define log_debug(log, ...) log_line((log), LOG_DEBUG, __VA_ARGS__)

#endif
