#include "config/utf8.h"

int utf8_decode(const char *text, unsigned *code)
{
    static const unsigned lowest[5] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *byte = (const unsigned char *)text;
    int length = byte[0] < 0x80 ? 1 : byte[0] >> 5 == 6 ? 2 : byte[0] >> 4 == 14 ? 3 : byte[0] >> 3 == 30 ? 4 : 0;
    if (length == 0) {
        return 0;
    }
    *code = length == 1 ? byte[0] : byte[0] & (0x7fu >> length);
    for (int i = 1; i < length; i++) {
        if (byte[i] >> 6 != 2) { /* a NUL ends here too */
            return 0;
        }
        *code = *code << 6 | (byte[i] & 0x3fu);
    }
    if (*code < lowest[length] || *code > 0x10ffff || (*code >= 0xd800 && *code <= 0xdfff)) {
        return 0;
    }
    return length;
}

/* Line and paragraph separators, next line, byte order mark, and what is no character. */
static int is_special(unsigned code)
{
    return (code >= 0x7f && code < 0xa0) || code == 0x2028 || code == 0x2029 || code == 0xfeff || code == 0xfffe ||
           code == 0xffff;
}

int utf8_is_line(const char *text)
{
    while (*text) {
        unsigned code;
        int length = utf8_decode(text, &code);
        if (length == 0 || code < 0x20 || is_special(code)) {
            return 0;
        }
        text += length;
    }
    return 1;
}

void utf8_write_quoted(const char *text, FILE *out)
{
    fputc('"', out);
    for (const char *c = text; *c; c++) {
        if (*c == '"' || *c == '\\') {
            fputc('\\', out);
        }
        fputc(*c, out);
    }
    fputc('"', out);
}
