/* Real programs under a test: started from the build's bin folder, what they say kept, ended by the test. Waits have
 * deadlines and fail the test with everything that was said. One test thread. */
#ifndef SHOAL_TESTS_PROCESS_H
#define SHOAL_TESTS_PROCESS_H

#include <stddef.h>
#include <sys/types.h>

enum { PROCESS_WORDS = 40, PROCESS_WORD = 512, PROCESS_VARIABLES = 8, PROCESS_DEADLINE_S = 90 };

struct process {
    char words[PROCESS_WORDS][PROCESS_WORD]; /* program, arguments */
    int count;
    char variables[PROCESS_VARIABLES][PROCESS_WORD]; /* NAME=VALUE, NAME alone is taken away */
    int variables_count;
    pid_t pid; /* 0: not running */
    int output; /* pipe of stdout and stderr */
    char *said; /* all of it so far */
    size_t said_bytes;
    int code; /* after the end: exit code, or 128 + signal when one killed it */
    struct process *next;
};

/* "shoal", "shoal-server", "shoal-worker", or a path. Words are split at blanks: process_add(p, "--rank %d", 1). */
void process_init(struct process *process, const char *program);
void process_add(struct process *process, const char *format, ...) __attribute__((format(printf, 2, 3)));
void process_word(struct process *process, const char *word); /* one word, whatever is in it */
void process_set(struct process *process, const char *format, ...) __attribute__((format(printf, 2, 3)));
void process_start(struct process *process);

/* Until it has said the text; returns where. Ends the test when the program ends before, or after PROCESS_DEADLINE_S. */
const char *process_until(struct process *process, const char *text);
/* Until the line with it is whole. */
const char *process_until_line(struct process *process, const char *text);
/* Until the count-th time. */
void process_until_times(struct process *process, const char *text, int count);
/* Until it has ended; its code. The processes' outputs are read meanwhile. */
int process_wait(struct process *process, double seconds);
void process_expect(struct process *process, int code, double seconds);
void process_expect_said(struct process *process, const char *text);
void process_signal(struct process *process, int number);
int process_lines(const struct process *process); /* lines said */
/* Starts, waits, and gives the code: for commands. */
int process_run(struct process *process);
void process_forget(struct process *process); /* killed if need be */
/* cmocka's teardown: kills what is left and forgets it. */
int processes_end(void **state);

#endif
