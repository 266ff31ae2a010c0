/* A timeline that a run has written (common/base/trace.h), read back by a test: what began and ended when, on which rank.
 * One test thread; a file that is not as it should be fails the test. */
#ifndef SHOAL_TESTS_TIMELINE_H
#define SHOAL_TESTS_TIMELINE_H

struct timeline_event {
    int rank, step, layer;
    int beside; /* 1: not on the compute thread */
    char name[32];
    double begin_us, end_us; /* on one clock */
};

struct timeline {
    struct timeline_event *events; /* of workers, by rank, each in order of begin */
    int count;
};

void timeline_read(struct timeline *timeline, const char *path);
void timeline_close(struct timeline *timeline);
/* The nth (from 0) event of this name, step and layer on a rank; NULL: there are fewer. */
const struct timeline_event *timeline_find(const struct timeline *timeline, const struct timeline_event *like, int nth);

#endif
