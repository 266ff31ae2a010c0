/* `shoal run` by processes: coordinator, servers and workers as children of this one. */
#ifndef SHOAL_CLI_LAUNCHER_H
#define SHOAL_CLI_LAUNCHER_H

struct run_plan;

/* Starts, watches and ends them; none is left when it returns. The exit code. */
int launcher_run(const struct run_plan *plan);

#endif
