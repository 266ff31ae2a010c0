#include "base/clock.h"

#include <time.h>

static int64_t clock_read(clockid_t id)
{
    struct timespec now = {0};
    clock_gettime(id, &now); /* cannot fail for these ids */
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t clock_now_ns(void)
{
    return clock_read(CLOCK_MONOTONIC);
}

int64_t clock_realtime_ns(void)
{
    return clock_read(CLOCK_REALTIME);
}
