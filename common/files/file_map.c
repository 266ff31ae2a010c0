#include "files/file_map.h"

#include "base/errbuf.h"
#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int file_map_fail(struct errbuf *err, const char *action, const char *path, const char *reason)
{
    return errbuf_set(err, STATUS_IO, "%s %s: %s", action, path, reason);
}

static int file_map_fd(struct file_map *map, int fd, const char *path, struct errbuf *err)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return file_map_fail(err, "stat", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return file_map_fail(err, "open", path, "not a regular file");
    if ((uint64_t)info.st_size > SIZE_MAX)
        return file_map_fail(err, "map", path, strerror(EFBIG));
    if (info.st_size == 0) {
        *map = (struct file_map){(const unsigned char *)"", 0};
        return STATUS_OK;
    }
    void *data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED)
        return file_map_fail(err, "map", path, strerror(errno));
    *map = (struct file_map){data, (size_t)info.st_size};
    return STATUS_OK;
}

int file_map_open(struct file_map *map, const char *path, struct errbuf *err)
{
    *map = (struct file_map){0};
    /* O_NONBLOCK: a FIFO without a writer must be refused, not waited for. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return file_map_fail(err, "open", path, strerror(errno));
    int status = file_map_fd(map, fd, path, err);
    close(fd);
    return status;
}

void file_map_close(struct file_map *map)
{
    if (map->bytes > 0)
        munmap((void *)(uintptr_t)map->data, map->bytes);
    *map = (struct file_map){0};
}

void file_map_forget(const struct file_map *map, const void *data, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)map->data;
    uintptr_t begin = (uintptr_t)data / page * page, end = (uintptr_t)data + bytes;
    if (map->bytes == 0 || bytes == 0 || begin < first || end > first + map->bytes)
        return;
    madvise((void *)begin, end - begin, MADV_DONTNEED); /* advice: what it cannot do costs memory only */
}
