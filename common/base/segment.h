/* Memory that processes of one host share. A segment is a memfd, never a named file, so it is gone with the last process
 * that has it, whatever that one died of. Only its maker writes: it is sealed against shrinking, growing, further seals and
 * later writable mappings, so that a descriptor may be handed to anyone who may read it (net/fd_pass.h), and so that
 * nobody's read can fault because the file became shorter. Any thread; a struct segment is its owner's. */
#ifndef SHOAL_BASE_SEGMENT_H
#define SHOAL_BASE_SEGMENT_H

#include <stddef.h>

struct errbuf;

struct segment {
    void *memory;  /* page-aligned; NULL: none */
    size_t bytes;  /* as asked for */
    size_t mapped; /* whole pages, at least one: what it costs */
    int fd;        /* to hand over; -1: not kept. Close-on-exec */
};

/* `bytes` rounded up to whole pages, at least one. */
size_t segment_mapped_bytes(size_t bytes);
/* Zeroed and present: nothing is left to fault in. The name is for /proc/PID/maps only. STATUS_NOMEM, or STATUS_IO with what
 * the system refused (a kernel before 5.1, a sandbox). */
int segment_create(struct segment *segment, const char *name, size_t bytes, struct errbuf *err);
/* The same memory, to be read only, in a process that was handed `fd`, which stays the caller's (segment->fd is -1).
 * STATUS_FORMAT unless it is sealed as above and exactly as long as segment_create makes it for `bytes`. What is
 * in it is its maker's and may change at any time: copy before checking. */
int segment_map(struct segment *segment, int fd, size_t bytes, struct errbuf *err);
/* Once everybody has the descriptor; the memory stays. */
void segment_close_fd(struct segment *segment);
/* Unmaps and closes; an empty segment ({.fd = -1}) is fine, and one is left. */
void segment_close(struct segment *segment);

#endif
