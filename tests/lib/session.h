/* Real processes for integration tests: started in a session of their own, their output read through pipes, every
 * wait with a deadline and driven by events. Whatever such a process starts shares its session and its pipes: the
 * end of the pipes is the end of them all. When the test dies, so does the process. One thread. */
#ifndef SHOAL_TEST_SESSION_H
#define SHOAL_TEST_SESSION_H

#include <stddef.h>
#include <sys/types.h>

enum { SESSION_OUT, SESSION_ERR, SESSION_STREAMS };

struct session {
    pid_t pid; /* and session */
    int pid_fd;
    int pipes[SESSION_STREAMS];  /* -1: at its end */
    char *text[SESSION_STREAMS]; /* what came so far, NUL-terminated, never NULL; owned */
    size_t bytes[SESSION_STREAMS];
    int ended, wait_status;
};

int session_start(struct session *process, const char *const *argv); /* 0, or -1 */
/* 1 when the text came on the stream by the deadline. */
int session_wait_text(struct session *process, int stream, const char *text, int deadline_ms);
/* Exit code, or 1000 + signal; -1 when it did not end by the deadline. */
int session_wait(struct session *process, int deadline_ms);
/* 1 when it and everything it started is gone by the deadline. */
int session_wait_gone(struct session *process, int deadline_ms);
/* A process of its session whose command line ends in `program` and has the argument `word` and, right after it,
 * `value` (NULL: any). 0: none. */
pid_t session_find(const struct session *process, const char *program, const char *word, const char *value);
/* Kills what is left of the session and frees. */
void session_close(struct session *process);

/* A port of 127.0.0.1 that nobody listens on at the moment. */
int session_free_port(void);
/* Milliseconds of CLOCK_MONOTONIC. */
long session_now_ms(void);

#endif
