#include "base/log.h"

#include "base/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LOG_LINE_BYTES = 2048 };

static const char *log_level_name(enum log_level level)
{
    switch (level) {
    case LOG_ERROR:
        return "error";
    case LOG_WARNING:
        return "warning";
    case LOG_INFO:
        return "info";
    default:
        return "debug";
    }
}

void log_init(struct log *log, const char *role)
{
    static const enum log_level levels[] = {LOG_ERROR, LOG_WARNING, LOG_INFO, LOG_DEBUG};
    *log = (struct log){.level = LOG_INFO, .role = role, .rank = -1, .fd = 2};
    const char *wanted = getenv("SHOAL_LOG");
    for (size_t i = 0; wanted && i < sizeof levels / sizeof *levels; i++) {
        if (strcmp(wanted, log_level_name(levels[i])) == 0)
            log->level = levels[i];
    }
    log->syslog_prefix = getenv("JOURNAL_STREAM") != NULL;
}

/* Appends to line at *used and never past LOG_LINE_BYTES - 1; a text that does not fit is cut. */
static void log_append(char *line, size_t *used, const char *format, va_list arguments)
{
    size_t room = LOG_LINE_BYTES - *used;
    int length = vsnprintf(line + *used, room, format, arguments);
    if (length > 0)
        *used += (size_t)length < room ? (size_t)length : room - 1;
}

__attribute__((format(printf, 3, 4))) static void log_print(char *line, size_t *used, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    log_append(line, used, format, arguments);
    va_end(arguments);
}

static void log_print_time(char *line, size_t *used)
{
    int64_t now_ns = clock_realtime_ns();
    time_t seconds = (time_t)(now_ns / 1000000000);
    struct tm utc = {0};
    gmtime_r(&seconds, &utc);
    log_print(line, used, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ ", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
              utc.tm_hour, utc.tm_min, utc.tm_sec, (int)(now_ns / 1000000 % 1000));
}

static void log_write(int fd, const char *line, size_t bytes)
{
    ssize_t written;
    do {
        written = write(fd, line, bytes);
    } while (written < 0 && errno == EINTR);
    /* A log that cannot be written has nobody to be reported to. */
}

void log_line(const struct log *log, enum log_level level, const char *format, ...)
{
    if (!log || level > log->level)
        return;
    char line[LOG_LINE_BYTES];
    size_t used = 0;
    if (log->syslog_prefix)
        log_print(line, &used, "<%d>", (int)level);
    else
        log_print_time(line, &used);
    log_print(line, &used, "%s %s", log_level_name(level), log->role);
    if (log->rank >= 0)
        log_print(line, &used, "=%d", log->rank);
    if (log->cluster_epoch)
        log_print(line, &used, " epoch=%" PRIu64, log->cluster_epoch);
    log_print(line, &used, " ");
    va_list arguments;
    va_start(arguments, format);
    log_append(line, &used, format, arguments);
    va_end(arguments);
    /* A peer's text must not be able to start a line of its own. */
    for (size_t i = 0; i < used; i++) {
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = ' ';
    }
    line[used] = '\n'; /* over the NUL, which write does not need */
    log_write(log->fd, line, used + 1);
}
