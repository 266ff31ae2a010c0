/* Bytes of a data file, plain or gzip, told apart by content and not by name. From a file or from memory. One
 * thread. Errors name the file. */
#ifndef SHOAL_DATA_SOURCE_H
#define SHOAL_DATA_SOURCE_H

#include <stddef.h>
#include <stdint.h>

struct errbuf;
struct source;

/* STATUS_IO: cannot be opened, or is no regular file. */
int source_open(struct source **source, const char *folder, const char *path, struct errbuf *err);
/* bytes and name borrowed. */
int source_open_memory(struct source **source, const char *name, const void *bytes, size_t count,
                       struct errbuf *err);
void source_close(struct source *source); /* takes NULL */
const char *source_name(const struct source *source);
int source_is_gzip(const struct source *source);
/* Reads until count bytes are there or the content ends; returns how many, or STATUS_IO, STATUS_CHECKSUM (gzip data
 * that are damaged), STATUS_FORMAT (cut short, or followed by something else). */
int64_t source_read(struct source *source, void *out, size_t count, struct errbuf *err);
/* Content left at most: exact for plain files, deflate's limit of 1032:1 for gzip. */
int64_t source_left_max(const struct source *source);
/* All that is left, owned by the caller, with a NUL behind it. */
int source_read_all(struct source *source, char **text, size_t *count, struct errbuf *err);
/* folder/path, or path where it is absolute or folder is empty; owned. NULL: out of memory. */
char *source_resolve(const char *folder, const char *path);

#endif
