/* What a process says about its machine and itself. Any thread; nothing is owned. */
#ifndef SHOAL_BASE_HOST_H
#define SHOAL_BASE_HOST_H

#include <stddef.h>
#include <stdint.h>

/* A text that processes on one machine share and others do not: the boot id (new at every boot, never copied
 * with a disk image), else the machine id, else the host name; "unknown" at worst. Always NUL-terminated. */
void host_id(char *id, size_t bytes);
/* The host name, for people. */
void host_name(char *name, size_t bytes);

/* A random number that tells one life of a process from the next; never 0. */
uint64_t host_incarnation(void);

int64_t host_peak_rss_bytes(void); /* VmHWM of this process, 0 when it cannot be read */
int64_t host_rss_bytes(void);      /* VmRSS */

#endif
