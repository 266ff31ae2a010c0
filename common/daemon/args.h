/* Command lines: one small table a command drives getopt_long and --help. One thread; parsing happens before any
 * other thread is there (getopt keeps state of its own). Texts point into argv. */
#ifndef SHOAL_DAEMON_ARGS_H
#define SHOAL_DAEMON_ARGS_H

#include <stddef.h>
#include <stdio.h>

struct errbuf;

enum arg_type {
    ARG_FLAG,   /* int, set to 1 */
    ARG_TEXT,   /* const char * */
    ARG_NUMBER, /* int, low..high */
    ARG_LIST    /* struct args_list; may be given again */
};

struct arg {
    const char *name; /* without the dashes; a single letter is a short option */
    enum arg_type type;
    size_t offset;     /* of the field in the command's struct */
    const char *value; /* "FILE"; NULL for flags */
    const char *help;  /* NULL: for programs, not listed */
    int low, high;     /* ARG_NUMBER */
};

struct args_list {
    const char **items; /* the array is owned, the texts are argv's */
    int count;
};

struct args_table {
    const char *usage; /* "shoal run JOB.yaml [options]" */
    const char *about; /* lines under the usage */
    const struct arg *rows;
    int count;
    int operands_min, operands_max;
    const char *operand; /* what an operand is: "a job file" */
    char *(*more)(void); /* printed under the options, owned by the caller; NULL: nothing */
};

enum { ARGS_HELP = 1, ARGS_VERSION = 2 };
/* Fills `out` (the caller gave it its defaults) and the operands. 0, ARGS_HELP (--help, -h), ARGS_VERSION,
 * STATUS_INVALID, STATUS_UNKNOWN (with the nearest name), STATUS_RANGE, STATUS_NOMEM. args_close also after errors.
 */
int args_parse(const struct args_table *table, int argc, char **argv, void *out, struct args_list *operands,
               struct errbuf *err);
void args_close(const struct args_table *table, void *out, struct args_list *operands);
void args_print_help(const struct args_table *table, FILE *out);
const char *args_dashes(const struct arg *row); /* "-" or "--" */

/* The one of `count` names that is nearest to a mistyped one, or NULL when none is near. `at` gives the i-th. */
const char *args_nearest(const char *typed, const char *(*at)(const void *table, int i), const void *table,
                         int count);

#endif
