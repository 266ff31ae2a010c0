#include "files/fs.h"

#include "base/errbuf.h"
#include "base/status.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int fs_real_open(const struct fs *fs, const char *path, int flags, mode_t mode)
{
    (void)fs;
    int fd;
    do {
        fd = open(path, flags | O_CLOEXEC, mode);
    } while (fd < 0 && errno == EINTR);
    return fd;
}

static ssize_t fs_real_write(const struct fs *fs, int fd, const void *data, size_t bytes)
{
    (void)fs;
    return write(fd, data, bytes);
}

static int fs_real_fsync(const struct fs *fs, int fd)
{
    (void)fs;
    int failed;
    do {
        failed = fsync(fd);
    } while (failed && errno == EINTR);
    return failed;
}

static int fs_real_close(const struct fs *fs, int fd)
{
    (void)fs;
    return close(fd);
}

static int fs_real_rename(const struct fs *fs, const char *from, const char *to)
{
    (void)fs;
    return rename(from, to);
}

static int fs_real_unlink(const struct fs *fs, const char *path)
{
    (void)fs;
    return unlink(path);
}

const struct fs fs_real = {
    .open = fs_real_open,
    .write = fs_real_write,
    .fsync = fs_real_fsync,
    .close = fs_real_close,
    .rename = fs_real_rename,
    .unlink = fs_real_unlink,
};

static int fs_error(struct errbuf *err, const char *action, const char *path)
{
    return errbuf_set(err, STATUS_IO, "%s %s: %s", action, path, strerror(errno));
}

static void fs_forget(struct fs_file *file)
{
    free(file->path);
    free(file->temporary);
    *file = (struct fs_file){.fd = -1};
}

int fs_create(struct fs_file *file, const struct fs *fs, const char *path, struct errbuf *err)
{
    *file = (struct fs_file){.fs = fs, .fd = -1};
    file->path = strdup(path);
    if (!file->path || asprintf(&file->temporary, "%s.tmp.%ld", path, (long)getpid()) < 0) {
        file->temporary = NULL; /* asprintf leaves it undefined */
        fs_forget(file);
        return errbuf_set(err, STATUS_NOMEM, "create %s: out of memory", path);
    }
    file->fd = fs->open(fs, file->temporary, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file->fd >= 0)
        return STATUS_OK;
    int status = fs_error(err, "create", file->temporary);
    fs_forget(file);
    return status;
}

void fs_abandon(struct fs_file *file)
{
    if (!file->temporary)
        return;
    if (file->fd >= 0)
        file->fs->close(file->fs, file->fd);
    file->fs->unlink(file->fs, file->temporary);
    fs_forget(file);
}

int fs_write(struct fs_file *file, const void *data, size_t bytes, struct errbuf *err)
{
    if (file->fd < 0)
        return errbuf_set(err, STATUS_CLOSED, "write to a closed file");
    const char *at = data;
    while (bytes > 0) {
        size_t part = bytes < (size_t)1 << 30 ? bytes : (size_t)1 << 30;
        ssize_t written = file->fs->write(file->fs, file->fd, at, part);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0) {
            if (written == 0)
                errno = EIO;
            int status = fs_error(err, "write", file->path);
            fs_abandon(file);
            return status;
        }
        at += written;
        bytes -= (size_t)written;
    }
    return STATUS_OK;
}

/* Makes a rename last. Some file systems cannot sync a folder and say EINVAL; there is nothing better to do. */
static int fs_sync_folder(const struct fs *fs, const char *path, struct errbuf *err)
{
    char *folder = strdup(path);
    if (!folder)
        return errbuf_set(err, STATUS_NOMEM, "fsync the folder of %s: out of memory", path);
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = '\0'; /* "/name" lies in "/" */
    const char *name = slash ? folder : ".";
    int status = STATUS_OK;
    int fd = fs->open(fs, name, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) {
        status = fs_error(err, "open folder", name);
    } else {
        if (fs->fsync(fs, fd) != 0 && errno != EINVAL && errno != ENOTSUP)
            status = fs_error(err, "fsync folder", name);
        fs->close(fs, fd);
    }
    free(folder);
    return status;
}

int fs_commit(struct fs_file *file, struct errbuf *err)
{
    if (file->fd < 0)
        return errbuf_set(err, STATUS_CLOSED, "commit of a closed file");
    const struct fs *fs = file->fs;
    int status = STATUS_OK, fd = file->fd;
    if (fs->fsync(fs, fd) != 0) {
        status = fs_error(err, "fsync", file->path);
        goto abandon;
    }
    file->fd = -1;
    if (fs->close(fs, fd) != 0) {
        status = fs_error(err, "close", file->path);
        goto abandon;
    }
    if (fs->rename(fs, file->temporary, file->path) != 0) {
        status = fs_error(err, "rename to", file->path);
        goto abandon;
    }
    status = fs_sync_folder(fs, file->path, err);
    fs_forget(file);
    return status;
abandon:
    fs_abandon(file);
    return status;
}

int fs_write_file(const char *path, const void *data, size_t bytes, struct errbuf *err)
{
    struct fs_file file;
    int status = fs_create(&file, &fs_real, path, err);
    if (!status)
        status = fs_write(&file, data, bytes, err);
    if (!status)
        status = fs_commit(&file, err);
    return status;
}

/* Grows *data until the end of file; reads one byte past the limit to know that there is more. */
static int fs_read_all(int fd, size_t limit, char **data, size_t *bytes)
{
    struct stat info;
    size_t capacity = 4096;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0)
        capacity = (size_t)info.st_size < limit ? (size_t)info.st_size + 1 : limit + 1;
    size_t used = 0;
    char *text = malloc(capacity + 1);
    while (text) {
        ssize_t got = read(fd, text + used, capacity - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            free(text);
            return STATUS_IO;
        }
        used += (size_t)got;
        if (used > limit) {
            free(text);
            return STATUS_RANGE;
        }
        if (got == 0) {
            text[used] = '\0';
            *data = text;
            *bytes = used;
            return STATUS_OK;
        }
        if (used == capacity) {
            capacity *= 2;
            char *larger = realloc(text, capacity + 1);
            if (!larger)
                free(text);
            text = larger;
        }
    }
    return STATUS_NOMEM;
}

int fs_read_file(const char *path, size_t limit, char **data, size_t *bytes, struct errbuf *err)
{
    *data = NULL;
    *bytes = 0;
    int fd = fs_real_open(NULL, path, O_RDONLY, 0);
    if (fd < 0)
        return fs_error(err, "open", path);
    int status = fs_read_all(fd, limit, data, bytes);
    if (status == STATUS_IO)
        fs_error(err, "read", path);
    else if (status == STATUS_RANGE)
        errbuf_set(err, status, "read %s: larger than %zu bytes", path, limit);
    else if (status)
        errbuf_set(err, status, "read %s: %s", path, status_text(status));
    close(fd);
    return status;
}

int fs_make_folders(const char *path, struct errbuf *err)
{
    char *folder = strdup(path);
    if (!folder)
        return errbuf_set(err, STATUS_NOMEM, "make folder %s: out of memory", path);
    int status = STATUS_OK;
    for (char *at = folder; !status && *at; at++) {
        int last = at[1] == '\0';
        if ((*at != '/' && !last) || (*at == '/' && at == folder && !last))
            continue;
        char kept = *at;
        if (*at == '/' && !last)
            *at = '\0';
        struct stat info;
        if (mkdir(folder, 0755) != 0 && errno != EEXIST) {
            status = fs_error(err, "make folder", folder);
        } else if (stat(folder, &info) != 0 || !S_ISDIR(info.st_mode)) {
            errno = ENOTDIR;
            status = fs_error(err, "make folder", folder);
        }
        *at = kept;
    }
    free(folder);
    return status;
}

/* "name.tmp.123" of a process that is gone; of `of` only unless it is NULL. */
static int fs_is_leftover(const char *name, const char *of)
{
    const char *mark = strrchr(name, '.');
    if (!mark || mark - name < 5 || strncmp(mark - 4, ".tmp", 4) != 0 || mark[1] < '1' || mark[1] > '9')
        return 0;
    size_t length = (size_t)(mark - 4 - name);
    if (of && (strlen(of) != length || strncmp(name, of, length) != 0))
        return 0;
    char *end;
    errno = 0;
    long pid = strtol(mark + 1, &end, 10);
    if (*end || errno || pid <= 0 || (long)(pid_t)pid != pid)
        return 0;
    return kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}

void fs_remove_temporaries(const char *folder, const char *name)
{
    DIR *listing = opendir(folder);
    if (!listing)
        return;
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        if (fs_is_leftover(entry->d_name, name))
            unlinkat(dirfd(listing), entry->d_name, 0);
    }
    closedir(listing);
}
