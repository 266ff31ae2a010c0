/* Text to a job's field and back, by an option's row. Pure; any thread. */
#ifndef SHOAL_CONFIG_OPTION_VALUE_H
#define SHOAL_CONFIG_OPTION_VALUE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct job;
struct option;

/* What was found: a scalar, or a list of scalars. Borrowed. */
struct option_text {
    const char *scalar; /* NULL: a list, or nothing */
    char *const *items; /* NULL: no list */
    int count;
};

/* Replaces the field. STATUS_INVALID or STATUS_RANGE leave it and write `found "abc", expected a number > 0` to
 * why; STATUS_NOMEM. */
int option_set(struct job *job, const struct option *option, const struct option_text *value, char *why,
               size_t why_bytes);
/* The same from one line (environment, --set, defaults): lists are "a,b" or "[a, b]". */
int option_set_line(struct job *job, const struct option *option, const char *line, char *why, size_t why_bytes);
void option_clear(struct job *job, const struct option *option); /* frees and zeroes the field */

/* As YAML: strings in double quotes, lists in brackets, floats in the fewest digits that read back the same. */
void option_write(const struct job *job, const struct option *option, FILE *out);
/* The same into a buffer, for messages; cut when it does not fit. */
void option_write_text(const struct job *job, const struct option *option, char *out, size_t out_bytes);

/* 1 when `condition` ("optimizer.kind=adam|adamw"; "snapshot.dir": is not empty) holds in this job; NULL holds. Its
 * option is an enum, a bool or a text. */
int option_condition_holds(const struct job *job, const char *condition);
/* 1 when the field holds its default. */
int option_is_default(const struct job *job, const struct option *option);

#endif
