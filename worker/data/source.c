#include "worker/data/source.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/errbuf.h"
#include "base/status.h"

enum { INPUT_BYTES = 1 << 16, DEFLATE_RATIO_MAX = 1032 };

struct source {
    char *name;
    int fd;                /* -1: memory */
    const uint8_t *memory; /* what is left of it */
    int64_t raw_left;      /* bytes of the file not yet in `input` */
    int gzip, ended;       /* ended: the last member's check passed and nothing follows */
    z_stream stream;
    uint8_t input[INPUT_BYTES];
    size_t input_at, input_count;
};

char *source_resolve(const char *folder, const char *path)
{
    char *joined = NULL;
    if (!folder || folder[0] == '\0' || path[0] == '/')
        return strdup(path);
    if (asprintf(&joined, "%s/%s", folder, path) < 0)
        return NULL;
    return joined;
}

/* Tops `input` up from file or memory; 0 at the end. */
static int64_t refill(struct source *source, struct errbuf *err)
{
    if (source->input_at < source->input_count)
        return (int64_t)(source->input_count - source->input_at);
    source->input_at = source->input_count = 0;
    size_t want = source->raw_left < INPUT_BYTES ? (size_t)source->raw_left : INPUT_BYTES;
    if (want == 0)
        return 0;
    if (source->fd < 0) {
        memcpy(source->input, source->memory, want);
        source->memory += want;
    } else {
        ssize_t got;
        do
            got = read(source->fd, source->input, want);
        while (got < 0 && errno == EINTR);
        if (got < 0)
            return errbuf_set(err, STATUS_IO, "%s: cannot read: %s", source->name, strerror(errno));
        if (got == 0)
            return errbuf_set(err, STATUS_IO, "%s: became shorter while it was read", source->name);
        want = (size_t)got;
    }
    source->raw_left -= (int64_t)want;
    source->input_count = want;
    return (int64_t)want;
}

static int detect(struct source *source, struct errbuf *err)
{
    int64_t got = refill(source, err);
    if (got < 0)
        return (int)got;
    if (got < 2 || source->input[0] != 0x1f || source->input[1] != 0x8b)
        return 0;
    /* 16: a gzip wrapper, whose CRC-32 and length zlib checks */
    if (inflateInit2(&source->stream, 16 + MAX_WBITS) != Z_OK)
        return errbuf_set(err, STATUS_NOMEM, "%s: out of memory", source->name);
    source->gzip = 1;
    return 0;
}

static int source_create(struct source **out, const char *name, struct errbuf *err)
{
    struct source *source = calloc(1, sizeof *source);
    if (source)
        source->name = strdup(name);
    if (!source || !source->name) {
        free(source);
        return errbuf_set(err, STATUS_NOMEM, "%s: out of memory", name);
    }
    source->fd = -1;
    *out = source;
    return 0;
}

int source_open(struct source **out, const char *folder, const char *path, struct errbuf *err)
{
    *out = NULL;
    char *name = source_resolve(folder, path);
    struct source *source = NULL;
    struct stat status;
    int rc;
    if (!name)
        return errbuf_set(err, STATUS_NOMEM, "%s: out of memory", path);
    rc = source_create(&source, name, err);
    free(name);
    if (rc)
        return rc;
    source->fd =
        open(source->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not block before it is refused */
    if (source->fd < 0 || fstat(source->fd, &status) != 0) {
        rc = errbuf_set(err, STATUS_IO, "%s: cannot open: %s", source->name, strerror(errno));
        goto close;
    }
    if (!S_ISREG(status.st_mode)) {
        rc = errbuf_set(err, STATUS_IO, "%s: is %s, not a regular file", source->name,
                        S_ISDIR(status.st_mode) ? "a folder" : "a device or pipe");
        goto close;
    }
    source->raw_left = status.st_size;
    rc = detect(source, err);
    if (rc)
        goto close;
    *out = source;
    return 0;
close:
    source_close(source);
    return rc;
}

int source_open_memory(struct source **out, const char *name, const void *bytes, size_t count, struct errbuf *err)
{
    struct source *source = NULL;
    *out = NULL;
    int rc = source_create(&source, name, err);
    if (rc)
        return rc;
    source->memory = bytes;
    source->raw_left = (int64_t)count;
    rc = detect(source, err);
    if (rc) {
        source_close(source);
        return rc;
    }
    *out = source;
    return 0;
}

void source_close(struct source *source)
{
    if (!source)
        return;
    if (source->gzip)
        inflateEnd(&source->stream);
    if (source->fd >= 0)
        close(source->fd);
    free(source->name);
    free(source);
}

const char *source_name(const struct source *source)
{
    return source->name;
}

int source_is_gzip(const struct source *source)
{
    return source->gzip;
}

static int64_t read_plain(struct source *source, uint8_t *out, size_t count, struct errbuf *err)
{
    size_t done = 0;
    while (done < count) {
        int64_t got = refill(source, err);
        if (got < 0)
            return got;
        if (got == 0)
            break;
        size_t take = (size_t)got < count - done ? (size_t)got : count - done;
        memcpy(out + done, source->input + source->input_at, take);
        source->input_at += take;
        done += take;
    }
    return (int64_t)done;
}

/* At the end of a gzip member: another may follow (concatenated files are one), or nothing. */
static int next_member(struct source *source, struct errbuf *err)
{
    int64_t left = refill(source, err);
    if (left < 0)
        return (int)left;
    if (left == 0) {
        source->ended = 1;
        return 0;
    }
    if (source->input[source->input_at] != 0x1f)
        return errbuf_set(err, STATUS_FORMAT, "%s: %lld bytes too many after the gzip data", source->name,
                          (long long)(left + source->raw_left));
    inflateReset(&source->stream);
    return 0;
}

static int inflate_failed(const struct source *source, int code, struct errbuf *err)
{
    const char *reason = source->stream.msg ? source->stream.msg : "unreadable";
    if (code == Z_MEM_ERROR)
        return errbuf_set(err, STATUS_NOMEM, "%s: out of memory", source->name);
    if (strstr(reason, "check"))
        return errbuf_set(err, STATUS_CHECKSUM, "%s: gzip checksum error (%s): the file is damaged", source->name,
                          reason);
    return errbuf_set(err, STATUS_CHECKSUM, "%s: gzip data are damaged, checksum not reached (%s)", source->name,
                      reason);
}

static int64_t read_gzip(struct source *source, uint8_t *out, size_t count, struct errbuf *err)
{
    z_stream *stream = &source->stream;
    size_t done = 0;
    while (!source->ended) {
        int64_t got = refill(source, err);
        if (got < 0)
            return got;
        size_t room = count - done < UINT_MAX ? count - done : UINT_MAX;
        stream->next_in = source->input + source->input_at;
        stream->avail_in = (uInt)got;
        stream->next_out = out + done;
        stream->avail_out = (uInt)room;
        int code = inflate(stream, Z_NO_FLUSH);
        source->input_at = source->input_count - stream->avail_in;
        done += room - stream->avail_out;
        if (code == Z_STREAM_END) {
            int rc = next_member(source, err);
            if (rc)
                return rc;
        } else if (code != Z_OK && code != Z_BUF_ERROR) {
            return inflate_failed(source, code, err);
        } else if (stream->avail_out > 0 && stream->avail_in == 0 && source->raw_left == 0) {
            return errbuf_set(err, STATUS_FORMAT, "%s: gzip data are cut short", source->name);
        }
        if (done == count)
            break;
    }
    return (int64_t)done;
}

int64_t source_read(struct source *source, void *out, size_t count, struct errbuf *err)
{
    return source->gzip ? read_gzip(source, out, count, err) : read_plain(source, out, count, err);
}

int64_t source_left_max(const struct source *source)
{
    int64_t raw = source->raw_left + (int64_t)(source->input_count - source->input_at);
    if (!source->gzip)
        return raw;
    /* what zlib holds but has not handed out is at most its window */
    return raw < INT64_MAX / DEFLATE_RATIO_MAX - 64 ? raw * DEFLATE_RATIO_MAX + 65536 : INT64_MAX;
}

int source_read_all(struct source *source, char **text, size_t *count, struct errbuf *err)
{
    /* one byte more than a plain file has, so that its end is seen without growing */
    int64_t left = source->gzip ? INPUT_BYTES : source_left_max(source);
    size_t capacity = (size_t)left + 2, used = 0;
    char *bytes = malloc(capacity);
    while (bytes) {
        int64_t got = source_read(source, bytes + used, capacity - 1 - used, err);
        if (got < 0) {
            free(bytes);
            return (int)got;
        }
        used += (size_t)got;
        if (used < capacity - 1) {
            bytes[used] = '\0';
            *text = bytes;
            *count = used;
            return 0;
        }
        capacity += capacity / 2;
        char *grown = realloc(bytes, capacity);
        if (!grown)
            free(bytes);
        bytes = grown;
    }
    return errbuf_set(err, STATUS_NOMEM, "%s: out of memory for its text", source->name);
}
