#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "daemon/args.h"

struct options {
    const char *export_path;
    int workers, embedded;
    const char *begin;
    int factor;
    struct args_list sets;
};
#define AT(field) offsetof(struct options, field)
static const struct arg rows[] = {
    {"export", ARG_TEXT, AT(export_path), "FILE", "a file", 0, 0},
    {"workers", ARG_NUMBER, AT(workers), "N", "how many", 1, 64},
    {"embedded", ARG_FLAG, AT(embedded), NULL, "threads", 0, 0},
    {"set", ARG_LIST, AT(sets), "KEY=VALUE", "an option", 0, 0},
    {"b", ARG_TEXT, AT(begin), "BYTES", "from", 0, 0},
    {"f", ARG_NUMBER, AT(factor), "F", "times", 2, 9},
};
static const struct args_table table = {"test JOB [options]", "A test.", rows, sizeof rows / sizeof *rows, 1, 2, "a job file", NULL};

struct parsed {
    struct options options;
    struct args_list operands;
    struct errbuf err;
    int status;
};

static void parse(struct parsed *parsed, const char *line)
{
    char text[256], *argv[16] = {NULL}, *save = NULL;
    static char kept[256]; /* texts point into argv */
    int argc = 0;
    snprintf(text, sizeof text, "%s", line);
    memcpy(kept, text, sizeof kept);
    for (char *word = strtok_r(kept, " ", &save); word && argc < 15; word = strtok_r(NULL, " ", &save))
        argv[argc++] = word;
    memset(parsed, 0, sizeof *parsed);
    errbuf_init(&parsed->err);
    parsed->status = args_parse(&table, argc, argv, &parsed->options, &parsed->operands, &parsed->err);
}

static void expect_error(const char *line, int status, const char *part)
{
    struct parsed parsed;
    parse(&parsed, line);
    assert_int_equal(parsed.status, status);
    if (!strstr(parsed.err.text, part))
        fail_msg("\"%s\" does not say \"%s\"", parsed.err.text, part);
    args_close(&table, &parsed.options, &parsed.operands);
}

static void options_and_operands_may_come_in_any_order(void **state)
{
    (void)state;
    struct parsed parsed;
    parse(&parsed, "test --workers 4 job.yaml --set a=1 --embedded --set=b=2 --export=x.st");
    assert_int_equal(parsed.status, 0);
    assert_int_equal(parsed.options.workers, 4);
    assert_int_equal(parsed.options.embedded, 1);
    assert_string_equal(parsed.options.export_path, "x.st");
    assert_int_equal(parsed.options.sets.count, 2);
    assert_string_equal(parsed.options.sets.items[1], "b=2");
    assert_int_equal(parsed.operands.count, 1);
    assert_string_equal(parsed.operands.items[0], "job.yaml");
    args_close(&table, &parsed.options, &parsed.operands);
}

static void a_name_of_one_letter_is_a_short_option(void **state)
{
    (void)state;
    struct parsed parsed;
    parse(&parsed, "test -b 4K job.yaml -f3 --workers 2");
    assert_int_equal(parsed.status, 0);
    assert_string_equal(parsed.options.begin, "4K");
    assert_int_equal(parsed.options.factor, 3);
    assert_int_equal(parsed.options.workers, 2);
    args_close(&table, &parsed.options, &parsed.operands);
    expect_error("test job.yaml -f 1", STATUS_RANGE, "-f: found \"1\", expected a whole number from 2 to 9");
    expect_error("test job.yaml -b", STATUS_INVALID, "-b: a value is missing");
    expect_error("test job.yaml -q 1", STATUS_UNKNOWN, "unknown option -q");
}

static void unknown_option_is_answered_with_the_nearest(void **state)
{
    (void)state;
    expect_error("test job.yaml --wrokers 2", STATUS_UNKNOWN, "did you mean --workers?");
    expect_error("test job.yaml --exprt=a", STATUS_UNKNOWN, "did you mean --export?");
    expect_error("test job.yaml --nothing-like-it", STATUS_UNKNOWN, "unknown option --nothing-like-it; see --help");
    expect_error("test job.yaml -q", STATUS_UNKNOWN, "unknown option -q");
}

static void numbers_outside_their_range_are_refused(void **state)
{
    (void)state;
    expect_error("test job.yaml --workers 0", STATUS_RANGE, "from 1 to 64");
    expect_error("test job.yaml --workers 65", STATUS_RANGE, "\"65\"");
    expect_error("test job.yaml --workers 4x", STATUS_RANGE, "\"4x\"");
    expect_error("test job.yaml --workers 99999999999999999999", STATUS_RANGE, "from 1 to 64");
}

static void missing_and_surplus_words_are_named(void **state)
{
    (void)state;
    expect_error("test", STATUS_INVALID, "a job file is missing");
    expect_error("test a b c", STATUS_INVALID, "\"c\" is one too many");
    expect_error("test job.yaml --export", STATUS_INVALID, "--export: a value is missing");
    expect_error("test job.yaml --export=", STATUS_INVALID, "--export: found nothing");
    expect_error("test job.yaml --embedded=1", STATUS_INVALID, "takes no value");
}

static void help_and_version_are_told_apart(void **state)
{
    (void)state;
    struct parsed parsed;
    parse(&parsed, "test --help");
    assert_int_equal(parsed.status, ARGS_HELP);
    parse(&parsed, "test -h --workers 99");
    assert_int_equal(parsed.status, ARGS_HELP);
    parse(&parsed, "test --version");
    assert_int_equal(parsed.status, ARGS_VERSION);
}

static void help_names_every_option(void **state)
{
    (void)state;
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    args_print_help(&table, out);
    fclose(out);
    for (int i = 0; i < table.count; i++)
        assert_non_null(strstr(text, rows[i].name));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_and_operands_may_come_in_any_order),
        cmocka_unit_test(a_name_of_one_letter_is_a_short_option),
        cmocka_unit_test(unknown_option_is_answered_with_the_nearest),
        cmocka_unit_test(numbers_outside_their_range_are_refused),
        cmocka_unit_test(missing_and_surplus_words_are_named),
        cmocka_unit_test(help_and_version_are_told_apart),
        cmocka_unit_test(help_names_every_option),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
