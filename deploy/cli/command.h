/* The operator's commands: one row of command_table.c and one file cmd_NAME.c a command. Each runs in the process'
 * first thread and returns an exit code: 0 done, 1 failed, 2 bad usage or configuration, 128 + signal after a stop.
 */
#ifndef SHOAL_CLI_COMMAND_H
#define SHOAL_CLI_COMMAND_H

#include <stdio.h>

#include "daemon/args.h"

struct command {
    const char *name, *help;
    int (*run)(int argc, char **argv); /* argv[0] is the command's name */
};
extern const struct command *const command_table[]; /* NULL-terminated */

extern const struct command command_run, command_predict, command_evaluate, command_inspect, command_keygen,
    command_submit, command_status, command_stop, command_bench, command_help;

/* `shoal` without anything, `shoal --help`. */
void command_print_all(FILE *out);
/* Parses, and answers --help and --version and bad usage; *code is then the exit code. 1: go on. */
int command_parse(const struct args_table *table, int argc, char **argv, void *out, struct args_list *operands,
                  int *code);
/* "shoal: TEXT" on stderr; returns `code`. */
int command_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* argv[0] "run" -> its row, NULL: none. */
const struct command *command_find(const char *name);
/* The command nearest to a mistyped one, or NULL. */
const char *command_nearest(const char *typed);

#endif
