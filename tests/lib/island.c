#include "tests/lib/island.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static int write_to(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t wrote = write(fd, text, strlen(text));
    close(fd);
    return wrote == (ssize_t)strlen(text) ? 0 : -1;
}

static int raise_device(int fd, const char *name, const char *address)
{
    struct ifreq request = {0};
    struct sockaddr_in *to = (struct sockaddr_in *)&request.ifr_addr;
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    to->sin_family = AF_INET;
    if (inet_pton(AF_INET, address, &to->sin_addr) != 1 || ioctl(fd, SIOCSIFADDR, &request) != 0)
        return -1;
    memset(&request.ifr_ifru, 0, sizeof request.ifr_ifru);
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    return ioctl(fd, SIOCSIFFLAGS, &request);
}

static int raise_network(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    int status = raise_device(fd, "lo", "127.0.0.1");
    if (status == 0)
        status = raise_device(fd, "lo:1", ISLAND_ADDRESS);
    close(fd);
    return status;
}

/* Whatever fails after an unshare, the new network has its loopback: the test goes on in it without an island. */
static int leave_host(void)
{
    enum { SPACES = CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWUTS };
    char map[64];
    unsigned user = getuid(), group = getgid();
    if (unshare(SPACES) == 0)
        return raise_network();
    if (errno != EPERM || unshare(CLONE_NEWUSER | SPACES) != 0)
        return -1;
    if (raise_network() != 0)
        return -1;
    snprintf(map, sizeof map, "0 %u 1", user);
    if (write_to("/proc/self/setgroups", "deny") != 0 || write_to("/proc/self/uid_map", map) != 0)
        return -1;
    snprintf(map, sizeof map, "0 %u 1", group);
    return write_to("/proc/self/gid_map", map);
}

int island_open(void)
{
    if (leave_host() != 0)
        return -1;
    return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL); /* fails in a chroot, whose top is no mount */
}

void island_cover(const char *path, const char *text, const char *folder)
{
    char copy[1024];
    const char *name = strrchr(path, '/') + 1;
    snprintf(copy, sizeof copy, "%s/cover-%s", folder, name);
    int fd = open(copy, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    assert_int_equal(mount(copy, path, NULL, MS_BIND, NULL), 0);
}

void island_tmpfs(const char *folder, const char *size)
{
    char options[64];
    snprintf(options, sizeof options, "size=%s,mode=0755", size);
    assert_int_equal(mount("tmpfs", folder, "tmpfs", 0, options), 0);
}

void island_read_only(const char *folder)
{
    assert_int_equal(mount(folder, folder, NULL, MS_BIND, NULL), 0);
    assert_int_equal(mount(NULL, folder, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL), 0);
}

void island_unmount(const char *folder)
{
    assert_int_equal(umount2(folder, MNT_DETACH), 0);
}
