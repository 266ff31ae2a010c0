#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "worker/data/number.h"

static enum number_result parse(const char *text, double *value)
{
    locale_t c_locale = number_locale_create();
    enum number_result result = number_parse(c_locale, text, strlen(text), value);
    freelocale(c_locale);
    return result;
}

static void plain_decimal_numbers_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double value;
    } good[] = {{"0", 0},
                {"-0", -0.0},
                {"+1", 1},
                {"12.5", 12.5},
                {".5", .5},
                {"5.", 5},
                {" \t7 ", 7},
                {"1e3", 1000},
                {"1E+3", 1000},
                {"-2.5e-3", -2.5e-3},
                {"1e-400", 0},
                {"12345678901.23", 12345678901.23},
                {"0.1", 0.1},
                {"1.234567890123456e10", 1.234567890123456e10},
                {"00000000000000000000000012", 12},
                {"0.000000000000000000000000000001", 1e-30},
                {"123456789012345678901234567890", 123456789012345678901234567890.0}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        double value = 99;
        if (parse(good[i].text, &value) != NUMBER_OK || value != good[i].value)
            fail_msg("\"%s\" gave %.17g", good[i].text, value);
    }
}

static void everything_else_is_refused(void **state)
{
    (void)state;
    static const char *const garbage[] = {
        "nan", "NaN", "inf", "-Infinity", "0x10",  "12abc", "1,5",  "1 2", "--1",   "+-1", ".",        "+",
        "e5",  "1e",  "1e+", "1.2.3",     "1_000", "\"1\"", "1e5x", "1d3", "0x1p3", "one", "1\xc2\xa0"};
    double value;
    for (size_t i = 0; i < sizeof garbage / sizeof garbage[0]; i++)
        if (parse(garbage[i], &value) != NUMBER_GARBAGE)
            fail_msg("\"%s\" was taken", garbage[i]);
    assert_int_equal(parse("", &value), NUMBER_EMPTY);
    assert_int_equal(parse(" \t", &value), NUMBER_EMPTY);
    assert_int_equal(parse("1e400", &value), NUMBER_LARGE);
    assert_int_equal(parse("-3.5e38", &value), NUMBER_LARGE);
    char digits[400];
    memset(digits, '1', sizeof digits);
    digits[sizeof digits - 1] = '\0';
    assert_int_equal(parse(digits, &value), NUMBER_GARBAGE);
}

static void numbers_come_back_with_their_bits(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 20000; i++) {
        char text[64];
        double value = rng_normal(3, 1, 0, i) * (i % 3 ? 1 : 1e-9), back = 0;
        snprintf(text, sizeof text, i % 2 ? "%.17g" : "%.6g", value);
        assert_int_equal(parse(text, &back), NUMBER_OK);
        double expected = strtod(text, NULL);
        assert_memory_equal(&back, &expected, sizeof back);
    }
}

static void a_decimal_comma_locale_changes_nothing(void **state)
{
    (void)state;
    double value = 0;
    /* where this locale is not installed the test still says that setlocale is not needed */
    const char *set = setlocale(LC_NUMERIC, "de_DE.UTF-8");
    assert_int_equal(parse("0.1234567890123456789", &value), NUMBER_OK);
    assert_true(value > 0.1234 && value < 0.1235);
    assert_int_equal(parse("0,5", &value), NUMBER_GARBAGE);
    if (set)
        setlocale(LC_NUMERIC, "C");
}

static void quoted_text_is_short_and_printable(void **state)
{
    (void)state;
    char out[48];
    assert_string_equal(number_quote("a\nb\0c", 5, out), "a?b?c");
    char text[100];
    memset(text, 'x', sizeof text);
    assert_int_equal(strlen(number_quote(text, sizeof text, out)), 43);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_decimal_numbers_are_read),
        cmocka_unit_test(everything_else_is_refused),
        cmocka_unit_test(numbers_come_back_with_their_bits),
        cmocka_unit_test(a_decimal_comma_locale_changes_nothing),
        cmocka_unit_test(quoted_text_is_short_and_printable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
