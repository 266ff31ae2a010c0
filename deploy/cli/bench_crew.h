/* The processes of a benchmark: forked from this one, each with a socket to it over which the two keep step. They
 * end with their parent, whatever ends it (PR_SET_PDEATHSIG); crew_close ends those that are left.
 *
 * A member works in memory of its own and says that it has come to a point (crew_say); the parent waits for that
 * (crew_wait) and tells members to go on (crew_tell), which they wait for (crew_hear). What they have to say goes
 * over memory that the parent shared before (crew_share). The parent has no other thread when it starts members. */
#ifndef SHOAL_CLI_BENCH_CREW_H
#define SHOAL_CLI_BENCH_CREW_H

#include <stddef.h>
#include <sys/types.h>

struct errbuf;
struct crew;

/* In the member's process; its status and text are what crew_wait tells. */
typedef int crew_work(int line, int rank, void *context, struct errbuf *err);

int crew_open(struct crew **crew, int members_max, struct errbuf *err);
void crew_close(struct crew *crew); /* takes NULL */

/* Zeroed memory that members started later share with the parent; NULL: none left. */
void *crew_share(size_t bytes);
void crew_unshare(void *memory, size_t bytes); /* takes NULL */

/* role and rank are for messages; rank -1: the only one. Members are numbered 0, 1, … in this order. */
int crew_start(struct crew *crew, const char *role, int rank, crew_work *work, void *context, struct errbuf *err);
/* Until members [first, first + count) have said something. A member that ended, whichever, is the error. */
int crew_wait(struct crew *crew, int first, int count, struct errbuf *err);
void crew_tell(struct crew *crew, int first, int count, int order);
/* Until all have ended well. */
int crew_finish(struct crew *crew, struct errbuf *err);

/* The member's side. STATUS_CLOSED when the parent has gone. */
int crew_say(int line, struct errbuf *err);
int crew_hear(int line, int *order, struct errbuf *err);

#endif
