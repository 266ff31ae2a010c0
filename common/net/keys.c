#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zmq.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "net/net.h"

enum { KEY_CHARS = 40, PATH_MAX_BYTES = 4096 };

static int key_path(char path[PATH_MAX_BYTES], const char *folder, const char *name, const char *ending,
                    struct errbuf *err)
{
    if (!name[0] || name[0] == '.' || strchr(name, '/'))
        return errbuf_set(err, STATUS_INVALID, "%s is not a name for a key", name);
    int count = snprintf(path, PATH_MAX_BYTES, "%s/%s.%s", folder, name, ending);
    if (count < 0 || count >= PATH_MAX_BYTES)
        return errbuf_set(err, STATUS_INVALID, "the path of key %s is too long", name);
    return STATUS_OK;
}

static int write_key(const char *path, const char *key, mode_t mode, struct errbuf *err)
{
    char line[KEY_CHARS + 2];
    snprintf(line, sizeof line, "%s\n", key);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    if (fd < 0)
        return errbuf_set(err, errno == EEXIST ? STATUS_EXISTS : STATUS_IO, "key %s: %s", path, strerror(errno));
    int failed = fchmod(fd, mode) || write(fd, line, strlen(line)) != (ssize_t)strlen(line) || fsync(fd);
    int cause = errno;
    explicit_bzero(line, sizeof line);
    if (close(fd) && !failed) {
        failed = 1;
        cause = errno;
    }
    if (!failed)
        return STATUS_OK;
    unlink(path);
    return errbuf_set(err, STATUS_IO, "key %s: %s", path, strerror(cause));
}

int net_keys_generate(const char *folder, const char *name, struct errbuf *err)
{
    char public_path[PATH_MAX_BYTES], secret_path[PATH_MAX_BYTES], public_key[KEY_CHARS + 1],
        secret_key[KEY_CHARS + 1];
    int status = key_path(public_path, folder, name, "public", err);
    if (!status)
        status = key_path(secret_path, folder, name, "secret", err);
    if (status)
        return status;
    if (mkdir(folder, 0755) && errno != EEXIST)
        return errbuf_set(err, STATUS_IO, "folder of keys %s: %s", folder, strerror(errno));
    if (access(public_path, F_OK) == 0)
        return errbuf_set(err, STATUS_EXISTS, "key %s: File exists", public_path);
    if (zmq_curve_keypair(public_key, secret_key))
        return errbuf_set(err, STATUS_IO, "no key pair: %s", zmq_strerror(zmq_errno()));
    status = write_key(secret_path, secret_key, 0600, err);
    explicit_bzero(secret_key, sizeof secret_key);
    if (status)
        return status;
    status = write_key(public_path, public_key, 0644, err);
    if (status)
        unlink(secret_path);
    return status;
}

/* key takes KEY_CHARS + 1 characters. */
static int read_key(char *key, const char *path, int secret, struct errbuf *err)
{
    char line[KEY_CHARS + 3];
    uint8_t binary[32];
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return errbuf_set(err, STATUS_IO, "key %s: %s", path, strerror(errno));
    if (fstat(fd, &info) == 0 && secret && (info.st_mode & 077)) {
        close(fd);
        return errbuf_set(err, STATUS_DENIED, "secret key %s can be read by others (mode %04o): chmod 600 it", path,
                          (unsigned)(info.st_mode & 07777));
    }
    ssize_t count = read(fd, line, sizeof line);
    int cause = errno;
    close(fd);
    if (count < 0)
        return errbuf_set(err, STATUS_IO, "key %s: %s", path, strerror(cause));
    if (count > 0 && line[count - 1] == '\n')
        count--;
    if (count != KEY_CHARS)
        return errbuf_set(err, STATUS_FORMAT, "key %s: not one line of %d characters", path, KEY_CHARS);
    memcpy(key, line, KEY_CHARS);
    key[KEY_CHARS] = '\0';
    explicit_bzero(line, sizeof line);
    int valid = strlen(key) == KEY_CHARS && zmq_z85_decode(binary, key);
    explicit_bzero(binary, sizeof binary);
    return valid ? STATUS_OK : errbuf_set(err, STATUS_FORMAT, "key %s: not a key in Z85", path);
}

int net_keys_load(struct net_curve *curve, const char *folder, const char *name, const char *server_name,
                  struct errbuf *err)
{
    char path[PATH_MAX_BYTES], derived[KEY_CHARS + 1];
    memset(curve, 0, sizeof *curve);
    int status = key_path(path, folder, name, "secret", err);
    if (!status)
        status = read_key(curve->secret_key, path, 1, err);
    if (!status)
        status = key_path(path, folder, name, "public", err);
    if (!status)
        status = read_key(curve->public_key, path, 0, err);
    if (!status && (zmq_curve_public(derived, curve->secret_key) || strcmp(derived, curve->public_key)))
        status = errbuf_set(err, STATUS_FORMAT, "key %s does not belong to the secret key beside it", path);
    if (!status && server_name)
        status = key_path(path, folder, server_name, "public", err);
    if (!status && server_name)
        status = read_key(curve->server_key, path, 0, err);
    if (status)
        explicit_bzero(curve, sizeof *curve);
    return status;
}
