#include "config/option_table.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void option_path(const struct option *option, char out[OPTION_PATH_MAX])
{
    snprintf(out, OPTION_PATH_MAX, "%s%s%s", option->section, option->section[0] ? "." : "", option->name);
}

const struct option *option_find(const char *path)
{
    for (int i = 0; i < option_count(); i++) {
        char name[OPTION_PATH_MAX];
        option_path(option_at(i), name);
        if (strcmp(name, path) == 0) {
            return option_at(i);
        }
    }
    return NULL;
}

int option_is_section(const char *path)
{
    size_t length = strlen(path);
    if (length == 0) {
        return 1;
    }
    for (int i = 0; i < option_count(); i++) {
        char name[OPTION_PATH_MAX];
        option_path(option_at(i), name);
        if (strncmp(name, path, length) == 0 && name[length] == '.') {
            return 1;
        }
    }
    return 0;
}

void option_environment_name(const struct option *option, char out[OPTION_PATH_MAX + 8])
{
    char name[OPTION_PATH_MAX];
    option_path(option, name);
    for (char *c = name; *c; c++) {
        *c = *c == '.' ? '_' : (char)toupper((unsigned char)*c);
    }
    snprintf(out, OPTION_PATH_MAX + 8, "SHOAL_%s", name);
}

const char *option_type_text(enum option_type type)
{
    static const char *const names[OPTION_TYPES] = {"text", "path",   "integer",          "integer",     "number",
                                                    "bool", "one of", "list of integers", "list of text"};
    return names[type];
}

/* " >= 1", " from 0 to 1", " > 0 and < 1". Integer limits of 2^53 and beyond are no news to anyone. */
static void range_text(const struct option *option, char *out, size_t out_bytes)
{
    int has_low = isfinite(option->low), has_high = option->high < 9007199254740992.0;
    int low_open = option->flags & OPTION_LOW_OPEN, high_open = option->flags & OPTION_HIGH_OPEN;
    if (has_low && has_high && !low_open && !high_open) {
        snprintf(out, out_bytes, " from %.12g to %.12g", option->low, option->high);
    } else if (has_low && has_high) {
        snprintf(out, out_bytes, " %s %.12g and %s %.12g", low_open ? ">" : ">=", option->low,
                 high_open ? "<" : "<=", option->high);
    } else {
        snprintf(out, out_bytes, " %s %.12g", low_open ? ">" : ">=", option->low);
    }
}

static void choices_text(const struct option *option, char *out, size_t out_bytes)
{
    int used = snprintf(out, out_bytes, "%s", option->choices[1] ? "one of " : "");
    for (int i = 0; option->choices[i] && used >= 0 && (size_t)used < out_bytes; i++) {
        used += snprintf(out + used, out_bytes - (size_t)used, "%s%s", i ? ", " : "", option->choices[i]);
    }
}

void option_expected(const struct option *option, char *out, size_t out_bytes)
{
    static const char *const nouns[OPTION_TYPES] = {
        "text",          "a path",        "an integer", "an integer from 0 to 18446744073709551615",
        "a number",      "true or false", "",           "a list of integers",
        "a list of text"};
    if (option->choices) {
        choices_text(option, out, out_bytes);
        return;
    }
    char range[96] = "", multiple[48] = "";
    if (option->type == OPTION_INT || option->type == OPTION_FLOAT || option->type == OPTION_INTS) {
        range_text(option, range, sizeof range);
    }
    if (option->multiple > 0) {
        snprintf(multiple, sizeof multiple, ", a multiple of %.12g", option->multiple);
    }
    snprintf(out, out_bytes, "%s%s%s%s%s", option->zero_word ? option->zero_word : "",
             option->zero_word ? " or " : "", nouns[option->type], range, multiple);
}
