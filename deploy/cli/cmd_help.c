#include <stdlib.h>
#include <string.h>

#include "config/reference.h"
#include "deploy/cli/command.h"

static int print_text(char *text)
{
    if (!text)
        return command_fail(1, "out of memory");
    fputs(text, stdout);
    free(text);
    return 0;
}

static int help_run(int argc, char **argv)
{
    if (argc < 2 || argv[1][0] == '-') {
        command_print_all(stdout);
        return 0;
    }
    if (strcmp(argv[1], "job") == 0)
        return print_text(reference_help());
    if (strcmp(argv[1], "markdown") == 0)
        return print_text(reference_markdown());
    if (strcmp(argv[1], "man") == 0)
        return print_text(reference_man_page());
    const struct command *command = command_find(argv[1]);
    if (!command)
        return command_fail(2, "help: no command \"%.80s\"", argv[1]);
    char help[] = "--help";
    char *arguments[] = {argv[1], help, NULL};
    return command->run(2, arguments);
}

const struct command command_help = {
    "help", "this; `help job`: every option of a job file (`markdown`, `man`: as such)", help_run};
