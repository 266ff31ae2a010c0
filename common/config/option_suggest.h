/* What to say about a key that is not in the table. Pure; any thread. */
#ifndef SHOAL_CONFIG_OPTION_SUGGEST_H
#define SHOAL_CONFIG_OPTION_SUGGEST_H

#include <stddef.h>

/* For an unknown full name writes "did you mean optimizer.lr?", what a known synonym stands for, or the keys that
 * its section has. */
void option_suggest(const char *path, char *out, size_t out_bytes);
/* 1 when the last part of path is a known synonym ("learning_rate"). */
int option_is_synonym(const char *path);

#endif
