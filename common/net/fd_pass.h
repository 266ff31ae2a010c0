/* Descriptors from process to process on one host: sequenced-packet sockets in the abstract namespace (no file, gone with its
 * process), SCM_RIGHTS, and the uid of the other end checked before anything is read. Every call is bounded by
 * until_ns (of clock_now_ns). A connection that stays open tells of the other end's death (fd_pass_gone). Any thread; one at a
 * time a socket. Sockets are plain descriptors, the caller's to close. */
#ifndef SHOAL_NET_FD_PASS_H
#define SHOAL_NET_FD_PASS_H

#include <stddef.h>
#include <stdint.h>

struct errbuf;

enum { FD_PASS_NAME_BYTES = 64, FD_PASS_FDS_MAX = 16 };

/* Listens under a random name, which it leaves as text without the leading NUL byte. */
int fd_pass_listen(int *listener, char name[FD_PASS_NAME_BYTES], struct errbuf *err);
/* STATUS_UNKNOWN: nobody listens there (another network namespace, say), STATUS_DENIED: another user does. */
int fd_pass_connect(int *sock, const char *name, int64_t until_ns, struct errbuf *err);
/* The next connection; STATUS_DENIED: another user's, closed again (the caller may go on), STATUS_TIMEOUT: none came. */
int fd_pass_accept(int *sock, int listener, int64_t until_ns, struct errbuf *err);

/* One message of `bytes` (1..65536) with fds_count descriptors, which stay the caller's. STATUS_CLOSED: the other end is gone. */
int fd_pass_send(int sock, const void *message, size_t bytes, const int *fds, int fds_count, int64_t until_ns,
                 struct errbuf *err);
/* A message of exactly `bytes` with exactly fds_count descriptors, now the caller's (close-on-exec). STATUS_CLOSED: the other
 * end is gone; STATUS_FORMAT: another length or number; every descriptor that came is closed then. */
int fd_pass_receive(int sock, void *message, size_t bytes, int *fds, int fds_count, int64_t until_ns,
                    struct errbuf *err);

/* The other end has closed or died. Never blocks. */
int fd_pass_gone(int sock);

#endif
