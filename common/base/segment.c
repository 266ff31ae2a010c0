#include "base/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/errbuf.h"
#include "base/status.h"

enum {
    SEGMENT_SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
    SEGMENT_SEALS_MADE = SEGMENT_SEALS | F_SEAL_FUTURE_WRITE,
};

static const struct segment segment_empty = {.fd = -1};

size_t segment_mapped_bytes(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return bytes ? (bytes + page - 1) / page * page : page;
}

static int segment_refused(struct errbuf *err, const char *what, size_t bytes)
{
    int status = errno == ENOMEM || errno == ENOSPC ? STATUS_NOMEM : STATUS_IO;
    return errbuf_set(err, status, "shared memory of %zu bytes: %s: %s", bytes, what, strerror(errno));
}

/* What may still be had without harm; SIZE_MAX when the system does not say. */
static size_t segment_bytes_available(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    char line[128];
    unsigned long long kilobytes = 0;
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file))
        found = sscanf(line, "MemAvailable: %llu kB", &kilobytes) == 1;
    if (file)
        fclose(file);
    return found && kilobytes < SIZE_MAX / 1024 ? (size_t)kilobytes * 1024 : SIZE_MAX;
}

int segment_create(struct segment *segment, const char *name, size_t bytes, struct errbuf *err)
{
    *segment = segment_empty;
    /* These pages have no limit but the machine's: beyond it the kernel kills instead of refusing. */
    if (bytes > PTRDIFF_MAX / 2 || bytes > segment_bytes_available())
        return errbuf_set(err, STATUS_NOMEM, "shared memory of %zu bytes: more than there is", bytes);
    struct segment made = {.bytes = bytes, .mapped = segment_mapped_bytes(bytes)};
    made.fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (made.fd < 0)
        return segment_refused(err, "memfd_create", bytes);
    /* Room first: a page that cannot be had later is a SIGBUS, not an error. */
    if (fallocate(made.fd, 0, 0, (off_t)made.mapped) != 0) {
        int status = segment_refused(err, "fallocate", bytes);
        close(made.fd);
        return status;
    }
    made.memory = mmap(NULL, made.mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, made.fd, 0);
    if (made.memory == MAP_FAILED) {
        int status = segment_refused(err, "mmap", bytes);
        close(made.fd);
        return status;
    }
    if (fcntl(made.fd, F_ADD_SEALS, SEGMENT_SEALS_MADE) != 0) {
        int status = segment_refused(err, "seals", bytes);
        segment_close(&made);
        return status;
    }
    *segment = made;
    return STATUS_OK;
}

int segment_map(struct segment *segment, int fd, size_t bytes, struct errbuf *err)
{
    *segment = segment_empty;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEGMENT_SEALS) != SEGMENT_SEALS)
        return errbuf_set(err, STATUS_FORMAT, "shared memory of %zu bytes: the descriptor is not a sealed memfd", bytes);
    struct stat info;
    if (fstat(fd, &info) != 0)
        return segment_refused(err, "fstat", bytes);
    size_t mapped = segment_mapped_bytes(bytes);
    if (info.st_size < 0 || (uintmax_t)info.st_size != mapped)
        return errbuf_set(err, STATUS_FORMAT, "shared memory of %zu bytes: the memfd has %jd bytes, not %zu", bytes,
                          (intmax_t)info.st_size, mapped);
    void *memory = mmap(NULL, mapped, PROT_READ, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return segment_refused(err, "mmap", bytes);
    *segment = (struct segment){.memory = memory, .bytes = bytes, .mapped = mapped, .fd = -1};
    return STATUS_OK;
}

void segment_close_fd(struct segment *segment)
{
    if (segment->fd >= 0)
        close(segment->fd);
    segment->fd = -1;
}

void segment_close(struct segment *segment)
{
    if (segment->memory)
        munmap(segment->memory, segment->mapped);
    segment_close_fd(segment);
    *segment = segment_empty;
}
