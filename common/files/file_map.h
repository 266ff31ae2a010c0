/* A whole regular file mapped read-only. The file must not shrink while it is mapped. Owned by the caller. */
#ifndef SHOAL_FILES_FILE_MAP_H
#define SHOAL_FILES_FILE_MAP_H

#include <stddef.h>

struct errbuf;

struct file_map {
    const unsigned char *data; /* not NULL, also for an empty file */
    size_t bytes;
};
int file_map_open(struct file_map *map, const char *path, struct errbuf *err); /* STATUS_IO with errno text */
void file_map_close(struct file_map *map);                                     /* takes a closed or zeroed one */
/* Pages of the mapping that hold [data, data + bytes) leave memory; they are read again when touched. */
void file_map_forget(const struct file_map *map, const void *data, size_t bytes);

#endif
