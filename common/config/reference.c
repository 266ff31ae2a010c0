#include "config/reference.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/option_table.h"

static const char *section_title(const char *section)
{
    return section[0] ? section : "top level";
}

/* The default as a person would type it; the kinds of optimizer that differ are listed. */
static void default_text(const struct option *option, char *out, size_t out_bytes)
{
    const char *const *kinds = option_find("optimizer.kind")->choices;
    int is_list = option->type == OPTION_INTS || option->type == OPTION_STRINGS;
    if (!option->kind_fallback) {
        const char *empty = option->flags & (OPTION_REQUIRED | OPTION_ALWAYS_NEEDED) ? "required" : "";
        snprintf(out, out_bytes, "%s",
                 option->fallback && option->fallback[0] ? option->fallback
                 : is_list                               ? "[]"
                                                         : empty);
        return;
    }
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; kinds[i] && used < out_bytes; i++) {
        const char *fallback = option->kind_fallback[i];
        int wrote = snprintf(out + used, out_bytes - used, "%s%s %s", i ? ", " : "", kinds[i],
                             fallback ? fallback : "required");
        used += wrote > 0 ? (size_t)wrote : 0;
    }
}

/* "optimizer.kind=sgd|plugin" -> "optimizer.kind sgd or plugin". */
static void write_condition(const char *condition, FILE *out)
{
    for (; *condition; condition++) {
        if (*condition == '|') {
            fputs(" or ", out);
        } else {
            fputc(*condition == '=' ? ' ' : *condition, out);
        }
    }
}

static void write_meaning(const struct option *option, FILE *out)
{
    fputs(option->help, out);
    if (option->unit) {
        fprintf(out, "; in %s", option->unit);
    }
    if (option->only) {
        fputs("; only with ", out);
        write_condition(option->only, out);
    }
}

static void markdown_row(const struct option *option, FILE *out)
{
    char path[OPTION_PATH_MAX], expected[320], fallback[256];
    option_path(option, path);
    option_expected(option, expected, sizeof expected);
    default_text(option, fallback, sizeof fallback);
    fprintf(out, "| `%s` | %s | %s | ", path, expected, fallback);
    write_meaning(option, out);
    fputs(" |\n", out);
}

static void markdown_section(const char *section, FILE *out)
{
    fprintf(out, "\n#### %s\n\n| key | value | default | meaning |\n|---|---|---|---|\n", section_title(section));
    for (int i = 0; i < option_count(); i++) {
        if (strcmp(option_at(i)->section, section) == 0) {
            markdown_row(option_at(i), out);
        }
    }
}

static void help_section(const char *section, FILE *out)
{
    fprintf(out, "\n%s:\n", section_title(section));
    for (int i = 0; i < option_count(); i++) {
        const struct option *option = option_at(i);
        char path[OPTION_PATH_MAX], expected[320], fallback[256];
        if (strcmp(option->section, section) != 0) {
            continue;
        }
        option_path(option, path);
        option_expected(option, expected, sizeof expected);
        default_text(option, fallback, sizeof fallback);
        fprintf(out, "  %-36s ", path);
        write_meaning(option, out);
        fprintf(out, " (%s%s%s)\n", expected, fallback[0] ? "; default " : "", fallback);
    }
}

/* roff takes - for a hyphen, \ for an escape and a line's first . or ' for a request. */
static void write_roff(const char *text, FILE *out)
{
    for (; *text; text++) {
        if (*text == '\\') {
            fputs("\\e", out);
        } else if (*text == '-') {
            fputs("\\-", out);
        } else {
            fputc(*text, out);
        }
    }
}

static void man_option(const struct option *option, FILE *out)
{
    char path[OPTION_PATH_MAX], expected[320], fallback[256], name[OPTION_PATH_MAX + 8];
    char *meaning = NULL;
    size_t bytes = 0;
    option_path(option, path);
    option_expected(option, expected, sizeof expected);
    default_text(option, fallback, sizeof fallback);
    option_environment_name(option, name);
    FILE *stream = open_memstream(&meaning, &bytes);
    if (stream) {
        write_meaning(option, stream);
        fclose(stream);
    }
    fprintf(out, ".TP\n.B %s\n", path);
    write_roff(expected, out);
    if (fallback[0]) {
        fputs(" (default ", out);
        write_roff(fallback, out);
        fputc(')', out);
    }
    fputs(". ", out);
    write_roff(meaning ? meaning : option->help, out);
    fprintf(out, ". Environment: %s.\n", name);
    free(meaning);
}

static void man_section(const char *section, FILE *out)
{
    fprintf(out, ".SS %s\n", section_title(section));
    for (int i = 0; i < option_count(); i++) {
        if (strcmp(option_at(i)->section, section) == 0) {
            man_option(option_at(i), out);
        }
    }
}

static char *build(const char *head, void (*write_section)(const char *, FILE *))
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) {
        return NULL;
    }
    fputs(head, out);
    for (int i = 0; option_section(i); i++) {
        write_section(option_section(i), out);
    }
    int failed = ferror(out);
    if (fclose(out) != 0 || failed) {
        free(text);
        return NULL;
    }
    return text;
}

char *reference_markdown(void)
{
    return build("", markdown_section);
}

char *reference_help(void)
{
    return build("Options of a job. In the file as nested keys, as SHOAL_SECTION_KEY in the environment, or as\n"
                 "--set section.key=value; the later of the three wins.\n",
                 help_section);
}

char *reference_man_page(void)
{
    return build(
        ".TH SHOAL\\-JOB 5\n.SH NAME\nshoal\\-job \\- the job file of shoal\n.SH DESCRIPTION\n"
        "A job is one YAML file of nested keys, at most 1 MiB. A value is taken from the file, then from the\n"
        "environment (SHOAL_SECTION_KEY), then from \\-\\-set section.key=value; the last one wins.\n"
        "\\-\\-print\\-config shows every value with its origin.\n.SH OPTIONS\n",
        man_section);
}
