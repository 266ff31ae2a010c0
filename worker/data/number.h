/* Numbers in text files, read the same under every locale. A locale_t of the C locale is passed, made once a file.
 */
#ifndef SHOAL_DATA_NUMBER_H
#define SHOAL_DATA_NUMBER_H

#include <locale.h>
#include <stddef.h>

enum { NUMBER_TEXT_MAX = 255 };

enum number_result {
    NUMBER_OK,
    NUMBER_EMPTY,   /* nothing but blanks */
    NUMBER_GARBAGE, /* not [+-]digits[.digits][e[+-]digits]: hexadecimal, nan and inf too */
    NUMBER_LARGE    /* beyond what a float holds */
};

locale_t number_locale_create(void); /* freelocale when done; (locale_t)0: out of memory */
/* The whole of text[0..count) but for blanks and tabs around it. */
enum number_result number_parse(locale_t c_locale, const char *text, size_t count, double *value);
/* Why it was refused, after the quoted text: "is not a number". */
const char *number_reason(enum number_result result);
/* Copies text for a message: at most 40 bytes, unprintable ones as '?', "..." behind when cut. Returns out (cap
 * 48). */
const char *number_quote(const char *text, size_t count, char out[48]);

#endif
