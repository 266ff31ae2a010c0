#include "base/cores.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CORES_PATH_BYTES = 4096, CORES_LINE_BYTES = 3 * 4096 };

int cores_by_affinity(void)
{
    /* Large machines need a larger mask than cpu_set_t; the kernel answers EINVAL until it is large enough. */
    for (int processors = CPU_SETSIZE; processors <= 1 << 17; processors *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)processors);
        if (!set)
            return 1;
        size_t bytes = CPU_ALLOC_SIZE((size_t)processors);
        int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (count > 0)
            return count;
    }
    return 1;
}

/* First line of folder/name without its newline. */
static int cores_read_line(const char *folder, const char *name, char *line, size_t bytes)
{
    char path[CORES_PATH_BYTES + 64];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path)
        return 0;
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    int read = fgets(line, (int)bytes, file) != NULL;
    fclose(file);
    if (read)
        line[strcspn(line, "\n")] = '\0';
    return read;
}

static int cores_divide(long long quota, long long period)
{
    if (quota <= 0 || period <= 0)
        return 0;
    long long cores = quota / period + (quota % period != 0);
    return cores > INT_MAX ? INT_MAX : (int)cores;
}

static int cores_of_folder(const char *folder, int version)
{
    char quota[64], period[64], *end;
    if (version == 2) {
        if (!cores_read_line(folder, "cpu.max", quota, sizeof quota))
            return 0;
        long long value = strtoll(quota, &end, 10); /* "max 100000" gives 0 */
        return cores_divide(value, strtoll(end, NULL, 10));
    }
    if (!cores_read_line(folder, "cpu.cfs_quota_us", quota, sizeof quota) ||
        !cores_read_line(folder, "cpu.cfs_period_us", period, sizeof period))
        return 0;
    return cores_divide(strtoll(quota, NULL, 10), strtoll(period, NULL, 10));
}

static int cores_smaller(int a, int b)
{
    if (a <= 0)
        return b;
    return b > 0 && b < a ? b : a;
}

/* From mount/path up to mount itself. */
static int cores_walk(const char *mount, const char *path, int version)
{
    char folder[CORES_PATH_BYTES];
    size_t mount_length = strlen(mount);
    int length = snprintf(folder, sizeof folder, "%s%s", mount, path);
    if (length < 0 || (size_t)length >= sizeof folder)
        return cores_of_folder(mount, version);
    int cores = 0;
    for (;;) {
        cores = cores_smaller(cores, cores_of_folder(folder, version));
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < mount_length || slash == folder)
            return cores;
        *slash = '\0';
    }
}

/* mountinfo writes blank, tab, newline and backslash as three octal digits. */
static void cores_decode(char *text)
{
    char *to = text;
    for (const char *from = text; *from; to++) {
        int octal = from[0] == '\\' && from[1] >= '0' && from[1] <= '3' && from[2] >= '0' && from[2] <= '7' &&
                    from[3] >= '0' && from[3] <= '7';
        *to = octal ? (char)((from[1] - '0') * 64 + (from[2] - '0') * 8 + (from[3] - '0')) : *from;
        from += octal ? 4 : 1;
    }
    *to = '\0';
}

static int cores_has_word(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',') {
        if (strncmp(at, word, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return 1;
    }
    return 0;
}

/* This process' path in the hierarchy of that version: a line "id:controllers:path"; version 2 has id 0. */
static int cores_find_path(const char *cgroup_path, int version, char *path, size_t bytes)
{
    FILE *file = fopen(cgroup_path, "re");
    if (!file)
        return 0;
    char line[CORES_LINE_BYTES];
    int found = 0;
    while (!found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *controllers++ = '\0';
        *group++ = '\0';
        int matches = version == 2 ? strcmp(line, "0") == 0 && !*controllers : cores_has_word(controllers, "cpu");
        found = matches && (size_t)snprintf(path, bytes, "%s", group) < bytes;
    }
    fclose(file);
    return found;
}

struct cores_mount {
    char *root, *point;
    const char *type, *options;
};

/* "36 35 98:0 /root /point rw shared:1 - cgroup cgroup rw,cpu"; cuts line in place. */
static int cores_parse_mount(char *line, struct cores_mount *mount)
{
    char *fields[5], *at = line, *dash = strstr(line, " - ");
    if (!dash)
        return 0;
    *dash = '\0';
    for (int i = 0; i < 5; i++) {
        fields[i] = strsep(&at, " ");
        if (!fields[i])
            return 0;
    }
    at = dash + 3;
    mount->root = fields[3];
    mount->point = fields[4];
    mount->type = strsep(&at, " ");
    strsep(&at, " ");
    mount->options = at ? at : "";
    cores_decode(mount->root);
    cores_decode(mount->point);
    return 1;
}

static int cores_of_mount(const struct cores_mount *mount, const char *group, int version)
{
    /* The mount may show a part of the hierarchy; a group outside of it, or one named relative to another
     * namespace ("/.."), is out of sight, and the mount's own limits are the nearest. */
    size_t root_length = strcmp(mount->root, "/") == 0 ? 0 : strlen(mount->root);
    const char *rest = group + root_length;
    if (strncmp(group, mount->root, root_length) != 0 || (*rest != '/' && *rest != '\0') || strstr(group, "/.."))
        rest = "";
    if (strcmp(rest, "/") == 0)
        rest = "";
    return cores_walk(mount->point, rest, version);
}

static int cores_by_version(const char *cgroup_path, const char *mountinfo_path, int version)
{
    char group[CORES_PATH_BYTES], line[CORES_LINE_BYTES];
    if (!cores_find_path(cgroup_path, version, group, sizeof group))
        return 0;
    FILE *file = fopen(mountinfo_path, "re");
    if (!file)
        return 0;
    int cores = 0;
    while (fgets(line, sizeof line, file)) {
        struct cores_mount mount;
        line[strcspn(line, "\n")] = '\0';
        if (!cores_parse_mount(line, &mount))
            continue;
        int matches = version == 2 ? strcmp(mount.type, "cgroup2") == 0
                                   : strcmp(mount.type, "cgroup") == 0 && cores_has_word(mount.options, "cpu");
        if (matches)
            cores = cores_smaller(cores, cores_of_mount(&mount, group, version));
    }
    fclose(file);
    return cores;
}

int cores_by_cgroup(const char *cgroup_path, const char *mountinfo_path)
{
    return cores_smaller(cores_by_version(cgroup_path, mountinfo_path, 1),
                         cores_by_version(cgroup_path, mountinfo_path, 2));
}
