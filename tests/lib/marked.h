/* Real processes for a test, with all their descendants (tests/lib/process.h is plainer, for those without):
 * started with a mark in their environment, their output kept in files, every wait with a deadline, and nothing
 * left behind: marked_set_destroy, which belongs into a cmocka teardown so that a failed test gets there too, kills
 * whatever carries the mark, grandchildren included, and a test that is killed takes its own children along. One
 * set at a time, one test thread. */
#ifndef SHOAL_TESTS_MARKED_H
#define SHOAL_TESTS_MARKED_H

#include <sys/types.h>

enum { MARKED_MAX = 32, MARKED_PATH = 512, MARKED_TEXT = 1 << 16 };

struct marked_set;
struct marked;

/* Output goes to folder/NAME.out and folder/NAME.err; folder is borrowed. */
struct marked_set *marked_set_create(const char *folder);
void marked_set_destroy(struct marked_set *processes);

/* argv[0] is a path or found in PATH; NULL ends argv. Fails the test when it cannot be started. The set's. */
struct marked *marked_start(struct marked_set *processes, const char *name, const char *const *argv);
pid_t marked_pid(const struct marked *process);
/* Exit code, 128 + signal, or -1 when it is still there after `seconds`. May be asked again. */
int marked_wait(struct marked *process, double seconds);
/* What it wrote so far, stdout then stderr, the last MARKED_TEXT bytes of each; valid until the next call. */
const char *marked_text(struct marked *process);
int marked_said(struct marked *process, const char *text);

/* Processes with the mark that still run (no zombies), and their command lines on stderr with print. */
int marked_set_left(const struct marked_set *processes, int print);
/* Until none is left: 0, or how many are after `seconds`. */
int marked_set_wait_none(const struct marked_set *processes, double seconds);
/* The marked process of this program (its last name) that has these words in its command line, one after the other;
 * NULL: any. 0: none, so far. */
pid_t marked_set_find(const struct marked_set *processes, const char *program, const char *word, const char *next);

/* Polls until done(context) or `seconds` are over: whether it is done. */
int marked_until(int (*done)(void *context), void *context, double seconds);
double marked_now_s(void);
/* Lines of a file; 0 when it is not there. */
int marked_count_lines(const char *path);
/* A port of 127.0.0.1 that nobody listens on, outside the range that the kernel gives away. */
int marked_free_port(void);

/* A fresh folder below /tmp, and its removal with all that is in it. */
void marked_folder_create(char folder[MARKED_PATH]);
void marked_folder_remove(const char *folder);

#endif
