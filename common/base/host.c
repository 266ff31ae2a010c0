#include "base/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"

static int host_read_line(const char *path, char *line, size_t bytes)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    int read = fgets(line, (int)bytes, file) != NULL;
    fclose(file);
    if (read)
        line[strcspn(line, "\n")] = '\0';
    return read && *line;
}

void host_name(char *name, size_t bytes)
{
    if (gethostname(name, bytes) != 0 || !*name)
        snprintf(name, bytes, "unknown");
    name[bytes - 1] = '\0'; /* gethostname need not end a name that it cut */
}

void host_id(char *id, size_t bytes)
{
    char line[128];
    if (host_read_line("/proc/sys/kernel/random/boot_id", line, sizeof line) ||
        host_read_line("/etc/machine-id", line, sizeof line))
        snprintf(id, bytes, "%s", line);
    else
        host_name(id, bytes);
}

/* A line "VmHWM:   123 kB" of /proc/self/status. */
static int64_t host_status_bytes(const char *name)
{
    FILE *file = fopen("/proc/self/status", "re");
    if (!file)
        return 0;
    char line[256];
    size_t length = strlen(name);
    int64_t bytes = 0;
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, name, length) == 0 && line[length] == ':')
            bytes = strtoll(line + length + 1, NULL, 10) * 1024;
    }
    fclose(file);
    return bytes;
}

int64_t host_peak_rss_bytes(void)
{
    return host_status_bytes("VmHWM");
}

int64_t host_rss_bytes(void)
{
    return host_status_bytes("VmRSS");
}

uint64_t host_incarnation(void)
{
    uint64_t life = 0;
    if (getrandom(&life, sizeof(life), 0) != (ssize_t)sizeof(life)) {
        life = (uint64_t)clock_realtime_ns() ^ (uint64_t)getpid() << 40;
    }
    return life ? life : 1;
}
