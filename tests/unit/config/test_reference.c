#include "config/reference.h"

#include "config/option_table.h"
#include "config_test.h"

static void every_option_is_in_every_form(void **state)
{
    (void)state;
    char *markdown = reference_markdown(), *man = reference_man_page(), *help = reference_help();
    assert_true(markdown && man && help);
    for (int i = 0; i < option_count(); i++) {
        char path[OPTION_PATH_MAX], text[OPTION_PATH_MAX + 16], variable[OPTION_PATH_MAX + 8];
        option_path(option_at(i), path);
        option_environment_name(option_at(i), variable);
        snprintf(text, sizeof text, "\n| `%s` | ", path);
        assert_non_null(strstr(markdown, text));
        snprintf(text, sizeof text, "\n.B %s\n", path);
        assert_non_null(strstr(man, text));
        assert_non_null(strstr(man, variable));
        snprintf(text, sizeof text, "\n  %s ", path);
        assert_non_null(strstr(help, text));
    }
    free(markdown);
    free(man);
    free(help);
}

static void rows_say_value_default_and_meaning(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "\n| `optimizer.lr` | a number > 0 | sgd required, adam 0.001, adamw 0.001, adagrad 0.01, ftrl required, "
        "lamb "
        "0.001, plugin required | learning rate; ftrl's alpha |\n",
        "\n| `batch_size` | an integer from 1 to 1000000000 | required | samples an optimizer step takes over all "
        "workers; in samples |\n",
        "\n| `optimizer.momentum` | a number >= 0 and < 1 | 0 | part of the last move that is kept; only with "
        "optimizer.kind sgd or plugin |\n",
        "\n| `optimizer.no_decay` | a list of text | [] | patterns of tensor names that do not decay |\n",
    };
    char *markdown = reference_markdown();
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        if (!strstr(markdown, lines[i])) {
            fail_msg("missing: %s", lines[i]);
        }
    }
    free(markdown);
}

static void markdown_rows_have_four_cells(void **state)
{
    (void)state;
    char *markdown = reference_markdown();
    for (char *line = strtok(markdown, "\n"); line; line = strtok(NULL, "\n")) {
        int bars = 0;
        for (const char *c = line; *c; c++) {
            bars += *c == '|';
        }
        assert_true(line[0] != '|' || bars == 5);
    }
    free(markdown);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_option_is_in_every_form),
        cmocka_unit_test(rows_say_value_default_and_meaning),
        cmocka_unit_test(markdown_rows_have_four_cells),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
