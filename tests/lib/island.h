/* A network and mounts of the test's own: no other test's ports, addresses beyond loopback, files put over system ones.
 * To be called before any thread is started; needs root or user namespaces. */
#ifndef SHOAL_TESTS_ISLAND_H
#define SHOAL_TESTS_ISLAND_H

#define ISLAND_ADDRESS "10.77.0.1" /* not loopback; on the loopback device, so that it needs no other */

/* 0, or -1: this machine does not let us. */
int island_open(void);
/* Puts a file with this text over a path, until the test program ends. */
void island_cover(const char *path, const char *text, const char *folder);
/* A small file system of its own on a folder. */
void island_tmpfs(const char *folder, const char *size);
void island_read_only(const char *folder);
void island_unmount(const char *folder);

#endif
