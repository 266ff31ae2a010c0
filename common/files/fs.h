/* Files that appear whole or not at all. fs_atomic: write beside (NAME.tmp.PID), fsync, rename, fsync the folder.
 * A table of system calls is passed so that tests can force short writes and failures (fs_real for everyone else). */
#ifndef SHOAL_FILES_FS_H
#define SHOAL_FILES_FS_H

#include <stddef.h>
#include <sys/types.h>

struct errbuf;

struct fs {
    int (*open)(const struct fs *fs, const char *path, int flags, mode_t mode);
    ssize_t (*write)(const struct fs *fs, int fd, const void *data, size_t bytes);
    int (*fsync)(const struct fs *fs, int fd);
    int (*close)(const struct fs *fs, int fd);
    int (*rename)(const struct fs *fs, const char *from, const char *to);
    int (*unlink)(const struct fs *fs, const char *path);
    void *context;
};
extern const struct fs fs_real;

struct fs_file {
    const struct fs *fs;
    int fd;
    char *path, *temporary; /* owned */
};
/* STATUS_IO with path and errno text, STATUS_NOMEM. After an error of any of the three the temporary is gone, the old
 * file is kept and `file` is closed (one exception: when the folder's fsync fails, the new file is in place but may
 * not outlive a power cut). One writer a path and process at a time. */
int fs_create(struct fs_file *file, const struct fs *fs, const char *path, struct errbuf *err);
int fs_write(struct fs_file *file, const void *data, size_t bytes, struct errbuf *err); /* all bytes or an error */
int fs_commit(struct fs_file *file, struct errbuf *err);
void fs_abandon(struct fs_file *file);                   /* takes a closed file too */

/* Whole small file into memory (owned, NUL-terminated, *bytes without the NUL). STATUS_RANGE above limit. */
int fs_read_file(const char *path, size_t limit, char **data, size_t *bytes, struct errbuf *err);
int fs_write_file(const char *path, const void *data, size_t bytes, struct errbuf *err); /* atomically */
int fs_make_folders(const char *path, struct errbuf *err);                               /* mkdir -p */
/* Removes NAME.tmp.* leftovers of dead processes in a folder; name NULL: of every file. Processes of other machines and
 * containers look dead from here: in a folder that is shared with them name a file that nobody else writes. */
void fs_remove_temporaries(const char *folder, const char *name);

#endif
