#include "worker/data/number.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

locale_t number_locale_create(void)
{
    return newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* What the grammar check learns on its way: up to 19 digits of the mantissa, and the power of ten behind it. */
struct scan {
    uint64_t mantissa;
    int digits;   /* significant ones */
    int exponent; /* of ten, for the mantissa as an integer */
    int negative;
};

static int scan_digits(const char **at, const char *end, int fraction, struct scan *scan)
{
    const char *p = *at;
    for (; p < end && is_digit(*p); p++) {
        if (scan->digits > 0 || *p != '0')
            scan->digits++;
        if (scan->digits <= 19) {
            scan->mantissa = scan->mantissa * 10 + (uint64_t)(*p - '0');
            scan->exponent -= fraction;
        }
    }
    int any = p > *at;
    *at = p;
    return any;
}

static int scan_number(const char *p, const char *end, struct scan *scan)
{
    memset(scan, 0, sizeof *scan);
    if (p < end && (*p == '+' || *p == '-'))
        scan->negative = *p++ == '-';
    int any = scan_digits(&p, end, 0, scan);
    if (p < end && *p == '.') {
        p++;
        any |= scan_digits(&p, end, 1, scan);
    }
    if (!any)
        return 0;
    if (p < end && (*p == 'e' || *p == 'E')) {
        int negative = 0, exponent = 0;
        p++;
        if (p < end && (*p == '+' || *p == '-'))
            negative = *p++ == '-';
        if (p == end)
            return 0;
        for (; p < end && is_digit(*p); p++)
            exponent = exponent < 100000 ? exponent * 10 + (*p - '0') : exponent;
        scan->exponent += negative ? -exponent : exponent;
    }
    return p == end;
}

/* Exact in one rounding when mantissa and power of ten are both exact doubles (Clinger, PLDI 1990, section 3). */
static int convert_fast(const struct scan *scan, double *value)
{
    static const double power[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                   1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    if (scan->digits > 15 || scan->exponent < -22 || scan->exponent > 22)
        return 0;
    double magnitude = (double)scan->mantissa;
    magnitude = scan->exponent < 0 ? magnitude / power[-scan->exponent] : magnitude * power[scan->exponent];
    *value = scan->negative ? -magnitude : magnitude;
    return 1;
}

enum number_result number_parse(locale_t c_locale, const char *text, size_t count, double *value)
{
    const char *begin = text, *end = text + count;
    struct scan scan;
    while (begin < end && (*begin == ' ' || *begin == '\t'))
        begin++;
    while (begin < end && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    if (begin == end)
        return NUMBER_EMPTY;
    if (end - begin > NUMBER_TEXT_MAX || !scan_number(begin, end, &scan))
        return NUMBER_GARBAGE;
    if (!convert_fast(&scan, value)) {
        char copy[NUMBER_TEXT_MAX + 1];
        memcpy(copy, begin, (size_t)(end - begin));
        copy[end - begin] = '\0';
        *value = strtod_l(copy, NULL, c_locale);
    }
    return fabs(*value) <= FLT_MAX ? NUMBER_OK : NUMBER_LARGE;
}

const char *number_reason(enum number_result result)
{
    switch (result) {
    case NUMBER_EMPTY:
        return "is an empty cell";
    case NUMBER_LARGE:
        return "is too large for a 32-bit float";
    case NUMBER_OK:
    case NUMBER_GARBAGE:
        break;
    }
    return "is not a number";
}

const char *number_quote(const char *text, size_t count, char out[48])
{
    size_t n = count < 40 ? count : 40;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        out[i] = c < 0x20 || c == 0x7f ? '?' : (char)c;
    }
    strcpy(out + n, count > n ? "..." : "");
    return out;
}
