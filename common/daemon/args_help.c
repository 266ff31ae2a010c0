#include <stdlib.h>
#include <string.h>

#include "daemon/args.h"

enum { HELP_COLUMN = 28, HELP_WIDTH = 100 };

/* The help text from HELP_COLUMN on, broken at blanks. */
static void print_wrapped(const char *text, int column, FILE *out)
{
    if (column >= HELP_COLUMN) {
        fputc('\n', out);
        column = 0;
    }
    fprintf(out, "%*s", HELP_COLUMN - column, "");
    int used = HELP_COLUMN;
    while (*text) {
        int length = (int)strcspn(text, " ");
        if (used > HELP_COLUMN && used + 1 + length > HELP_WIDTH) {
            fprintf(out, "\n%*s", HELP_COLUMN, "");
            used = HELP_COLUMN;
        }
        used += fprintf(out, "%s%.*s", used > HELP_COLUMN ? " " : "", length, text);
        text += length;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

static void print_row(const struct arg *row, FILE *out)
{
    int column = fprintf(out, "  %s%s%s%s", args_dashes(row), row->name, row->value ? " " : "",
                         row->value ? row->value : "");
    print_wrapped(row->help, column + 2 > HELP_COLUMN ? HELP_COLUMN : column, out);
}

void args_print_help(const struct args_table *table, FILE *out)
{
    fprintf(out, "usage: %s\n\n%s\n\noptions:\n", table->usage, table->about);
    for (int i = 0; i < table->count; i++) {
        const struct arg *row = &table->rows[i];
        if (row->help)
            print_row(row, out);
    }
    print_row(&(struct arg){.name = "help", .help = "this text"}, out);
    print_row(&(struct arg){.name = "version", .help = "the release"}, out);
    char *more = table->more ? table->more() : NULL;
    if (more)
        fprintf(out, "\n%s", more);
    free(more);
}
