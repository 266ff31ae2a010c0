/* The little of UTF-8 that a job file needs. Pure; any thread. */
#ifndef SHOAL_CONFIG_UTF8_H
#define SHOAL_CONFIG_UTF8_H

#include <stdio.h>

/* Bytes of the first character of text (RFC 3629: no surrogates, no overlong forms), its code point in *code; 0
 * when it is not UTF-8. */
int utf8_decode(const char *text, unsigned *code);
/* 1 when text is valid UTF-8 without control characters or line breaks. */
int utf8_is_line(const char *text);
/* As a YAML and JSON string in double quotes. text is what utf8_is_line accepts. */
void utf8_write_quoted(const char *text, FILE *out);

#endif
