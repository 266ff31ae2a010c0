#include "server/consistency/bsp.h"

static enum controller_answer bsp_push(uint64_t clock, uint64_t finished)
{
    if (clock <= finished) {
        return CONTROLLER_REPEAT;
    }
    return clock == finished + 1 ? CONTROLLER_SERVE : CONTROLLER_REFUSE;
}

static enum controller_answer bsp_pull(uint64_t wanted, uint64_t finished)
{
    return finished >= wanted ? CONTROLLER_SERVE : CONTROLLER_WAIT;
}

const struct controller_ops controller_bsp = {
    .name = "bsp",
    .help = "all workers step together",
    .push = bsp_push,
    .pull = bsp_pull,
};
