/* `shoal run --embedded`: the same roles as threads of this process, over inproc:// in one ZeroMQ context. */
#ifndef SHOAL_CLI_EMBEDDED_H
#define SHOAL_CLI_EMBEDDED_H

struct run_plan;

/* Returns when every role has; the exit code. */
int embedded_run(const struct run_plan *plan);

#endif
