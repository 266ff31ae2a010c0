#include "files/npy_header.h"

#include "base/errbuf.h"
#include "base/status.h"

#include <string.h>

enum { NPY_HEADER_DIMS_MAX = 8 };

struct npy_cursor {
    const char *at, *end;
    struct errbuf *err;
};

static void npy_skip_blanks(struct npy_cursor *cursor)
{
    while (cursor->at < cursor->end && (*cursor->at == ' ' || *cursor->at == '\n' || *cursor->at == '\t'))
        cursor->at++;
}

/* Takes c, after blanks; 0 when something else comes. */
static int npy_take(struct npy_cursor *cursor, char c)
{
    npy_skip_blanks(cursor);
    if (cursor->at == cursor->end || *cursor->at != c)
        return 0;
    cursor->at++;
    return 1;
}

static int npy_take_word(struct npy_cursor *cursor, const char *word)
{
    size_t length = strlen(word);
    npy_skip_blanks(cursor);
    if ((size_t)(cursor->end - cursor->at) < length || memcmp(cursor->at, word, length) != 0)
        return 0;
    cursor->at += length;
    return 1;
}

/* A quoted text without escapes that fits into out. */
static int npy_take_text(struct npy_cursor *cursor, char *out, size_t room)
{
    npy_skip_blanks(cursor);
    if (cursor->at == cursor->end || (*cursor->at != '\'' && *cursor->at != '"'))
        return 0;
    char quote = *cursor->at++;
    size_t length = 0;
    while (cursor->at < cursor->end && *cursor->at != quote) {
        if (length + 1 >= room || *cursor->at == '\\' || *cursor->at < 0x20)
            return 0;
        out[length++] = *cursor->at++;
    }
    out[length] = '\0';
    return npy_take(cursor, quote);
}

static int npy_take_number(struct npy_cursor *cursor, int64_t *number)
{
    npy_skip_blanks(cursor);
    const char *start = cursor->at;
    *number = 0;
    for (; cursor->at < cursor->end && *cursor->at >= '0' && *cursor->at <= '9'; cursor->at++) {
        if (__builtin_mul_overflow(*number, 10, number) ||
            __builtin_add_overflow(*number, *cursor->at - '0', number))
            return 0;
    }
    if (cursor->at == start)
        return 0;
    npy_take(cursor, 'L'); /* Python 2 wrote long integers so */
    return 1;
}

/* "()", "(3,)", "(3, 4)" */
static int npy_read_shape(struct npy_cursor *cursor, struct npy_header *header)
{
    header->dims = 0;
    if (!npy_take(cursor, '('))
        return errbuf_set(cursor->err, STATUS_FORMAT, "header: shape is not a tuple");
    while (!npy_take(cursor, ')')) {
        if (header->dims == NPY_HEADER_DIMS_MAX)
            return errbuf_set(cursor->err, STATUS_FORMAT, "header: more than %d dimensions", NPY_HEADER_DIMS_MAX);
        if (!npy_take_number(cursor, &header->shape[header->dims++]))
            return errbuf_set(cursor->err, STATUS_FORMAT, "header: a dimension is not a whole number from 0 up");
        if (npy_take(cursor, ','))
            continue;
        if (!npy_take(cursor, ')') || header->dims == 1)
            return errbuf_set(cursor->err, STATUS_FORMAT, "header: shape is not a tuple");
        break;
    }
    return STATUS_OK;
}

static int npy_read_order(struct npy_cursor *cursor, struct npy_header *header)
{
    header->fortran_order = npy_take_word(cursor, "True");
    if (!header->fortran_order && !npy_take_word(cursor, "False"))
        return errbuf_set(cursor->err, STATUS_FORMAT, "header: fortran_order is neither True nor False");
    return STATUS_OK;
}

static int npy_read_descr(struct npy_cursor *cursor, struct npy_header *header)
{
    npy_skip_blanks(cursor);
    if (cursor->at < cursor->end && *cursor->at == '[')
        return errbuf_set(cursor->err, STATUS_FORMAT, "structured types are not supported");
    if (!npy_take_text(cursor, header->descr, sizeof header->descr))
        return errbuf_set(cursor->err, STATUS_FORMAT, "header: descr is not a short text");
    return STATUS_OK;
}

static int npy_read_pairs(struct npy_cursor *cursor, struct npy_header *header, unsigned *seen)
{
    static const char *const names[] = {"descr", "fortran_order", "shape"};
    static int (*const readers[])(struct npy_cursor *, struct npy_header *) = {npy_read_descr, npy_read_order,
                                                                               npy_read_shape};
    while (!npy_take(cursor, '}')) {
        char key[16];
        int field = 0;
        if (!npy_take_text(cursor, key, sizeof key) || !npy_take(cursor, ':'))
            return errbuf_set(cursor->err, STATUS_FORMAT, "header: not a dict of descr, fortran_order and shape");
        while (field < 3 && strcmp(key, names[field]) != 0)
            field++;
        if (field == 3)
            return errbuf_set(cursor->err, STATUS_FORMAT, "header: key %s is not known", key);
        if (*seen & 1u << field)
            return errbuf_set(cursor->err, STATUS_FORMAT, "header: key %s twice", key);
        *seen |= 1u << field;
        int status = readers[field](cursor, header);
        if (status)
            return status;
        if (npy_take(cursor, ','))
            continue;
        if (!npy_take(cursor, '}'))
            return errbuf_set(cursor->err, STATUS_FORMAT, "header: no comma after %s", key);
        break;
    }
    return STATUS_OK;
}

int npy_header_parse(const char *text, size_t bytes, struct npy_header *header, struct errbuf *err)
{
    struct npy_cursor cursor = {text, text + bytes, err};
    unsigned seen = 0;
    memset(header, 0, sizeof *header);
    if (!npy_take(&cursor, '{'))
        return errbuf_set(err, STATUS_FORMAT, "header: not a dict");
    int status = npy_read_pairs(&cursor, header, &seen);
    if (status)
        return status;
    npy_skip_blanks(&cursor);
    if (cursor.at != cursor.end)
        return errbuf_set(err, STATUS_FORMAT, "header: something follows the dict");
    if (seen != 7)
        return errbuf_set(err, STATUS_FORMAT, "header: descr, fortran_order or shape is missing");
    return STATUS_OK;
}
