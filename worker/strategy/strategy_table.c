#include <stddef.h>

#include "config/job.h"
#include "worker/strategy/ps.h"

const struct strategy_ops *strategy_at(int kind)
{
    static const struct strategy_ops *const rows[] = {[JOB_PS] = &strategy_ps};
    return kind >= 0 && kind < (int)(sizeof(rows) / sizeof(rows[0])) ? rows[kind] : NULL;
}
