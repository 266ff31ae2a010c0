#include "base/errbuf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void errbuf_init(struct errbuf *err)
{
    if (err)
        err->text[0] = '\0';
}

int errbuf_set(struct errbuf *err, int status, const char *format, ...)
{
    if (!err)
        return status;
    /* By way of a copy: an argument may be err->text itself. */
    char text[sizeof err->text];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    memcpy(err->text, text, sizeof text);
    return status;
}

int errbuf_prefix(struct errbuf *err, int status, const char *format, ...)
{
    if (!err)
        return status;
    char prefix[sizeof err->text], text[2 * sizeof err->text + 2];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(prefix, sizeof prefix, format, arguments);
    va_end(arguments);
    snprintf(text, sizeof text, "%s: %s", prefix, err->text);
    text[sizeof err->text - 1] = '\0';
    memcpy(err->text, text, sizeof err->text);
    return status;
}
