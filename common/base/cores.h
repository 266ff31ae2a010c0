/* How many processors this process may use. Reads /proc and /sys; any thread; nothing is owned. */
#ifndef SHOAL_BASE_CORES_H
#define SHOAL_BASE_CORES_H

/* Processors in this thread's affinity mask, at least 1. */
int cores_by_affinity(void);

/* The smallest processor quota, rounded up to whole processors, over the process' own control group and all
 * groups above it, version 1 (cpu.cfs_quota_us / cpu.cfs_period_us) and 2 (cpu.max); 0 when none is set or
 * anything cannot be read. Paths of /proc/self/cgroup and /proc/self/mountinfo (a test gives its own). */
int cores_by_cgroup(const char *cgroup_path, const char *mountinfo_path);

#endif
