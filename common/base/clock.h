/* Time. Nothing in Shoal's safety rests on it; time-outs and traces do. Any thread. */
#ifndef SHOAL_BASE_CLOCK_H
#define SHOAL_BASE_CLOCK_H

#include <stdint.h>

int64_t clock_now_ns(void);      /* CLOCK_MONOTONIC */
int64_t clock_realtime_ns(void); /* CLOCK_REALTIME, for people and for random incarnations */

#endif
