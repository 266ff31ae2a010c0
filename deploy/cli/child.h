/* One child process of `shoal run`: a program that lies beside this one, in a process group of its own (a
 * terminal's Ctrl-C reaches the launcher alone), told to stop when the launcher is gone. First thread only. */
#ifndef SHOAL_CLI_CHILD_H
#define SHOAL_CLI_CHILD_H

#include <sys/types.h>

struct errbuf;

enum { CHILD_ARGUMENTS_MAX = 40, CHILD_TEXT_BYTES = 24 };

struct child {
    const char *role;
    int rank;
    pid_t pid; /* 0: not there (any more) */
    int wait_status;
    /* The command line while it is put together. */
    const char *argv[CHILD_ARGUMENTS_MAX + 1];
    int argc;
    char texts[8][CHILD_TEXT_BYTES];
    int texts_count;
};

void child_init(struct child *child, const char *role, int rank);
/* Texts are borrowed until child_start. An option with an empty value is left out. */
void child_flag(struct child *child, const char *name);
void child_option(struct child *child, const char *name, const char *value);
void child_number(struct child *child, const char *name, int value);
/* `program` is "shoal-server" or "shoal-worker"; keep: descriptors that go along, -1 ends them. STATUS_IO. */
int child_start(struct child *child, const char *program, const int *keep, struct errbuf *err);
/* "worker 2 (pid 123) was killed by signal 9 (Killed)". */
void child_text(const struct child *child, pid_t pid, char *out, size_t out_bytes);

#endif
