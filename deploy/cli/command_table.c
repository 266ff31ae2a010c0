#include "deploy/cli/command.h"

#include <stdarg.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"

const struct command *const command_table[] = {
    &command_run,    &command_predict, &command_evaluate, &command_inspect, &command_keygen,
    &command_submit, &command_status,  &command_stop,     &command_bench,    &command_help,    NULL,
};

const struct command *command_find(const char *name)
{
    for (int i = 0; command_table[i]; i++) {
        if (strcmp(command_table[i]->name, name) == 0)
            return command_table[i];
    }
    return NULL;
}

static const char *name_at(const void *table, int i)
{
    return ((const struct command *const *)table)[i]->name;
}

const char *command_nearest(const char *typed)
{
    return args_nearest(typed, name_at, command_table, (int)(sizeof command_table / sizeof *command_table) - 1);
}

void command_print_all(FILE *out)
{
    fputs("usage: shoal COMMAND [options]\n\nTrains models on the machines you have.\n\ncommands:\n", out);
    for (int i = 0; command_table[i]; i++)
        fprintf(out, "  %-10s %s\n", command_table[i]->name, command_table[i]->help);
    fputs("\n`shoal COMMAND --help` tells a command's options, `shoal help job` those of a job file.\n"
          "Exit codes: 0 done, 1 failed, 2 bad usage or configuration, 143 or 130 stopped by SIGTERM or SIGINT.\n",
          out);
}

int command_parse(const struct args_table *table, int argc, char **argv, void *out, struct args_list *operands,
                  int *code)
{
    struct errbuf err;
    errbuf_init(&err);
    int status = args_parse(table, argc, argv, out, operands, &err);
    if (status == 0)
        return 1;
    if (status == ARGS_HELP)
        args_print_help(table, stdout);
    else if (status == ARGS_VERSION)
        puts("shoal " SHOAL_VERSION);
    *code = status > 0 ? 0 : command_fail(2, "%s: %s", argv[0], err.text);
    args_close(table, out, operands);
    return 0;
}

int command_fail(int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("shoal: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return code;
}
