#include <stddef.h>

#include "config/job.h"
#include "worker/strategy/ddp.h"
#include "worker/strategy/ps.h"
#include "worker/strategy/zero1.h"
#include "worker/strategy/zero2.h"
#include "worker/strategy/zero3.h"

const struct strategy_ops *strategy_at(int kind)
{
    static const struct strategy_ops *const rows[] = {[JOB_PS] = &strategy_ps,
                                                      [JOB_DDP] = &strategy_ddp,
                                                      [JOB_ZERO1] = &strategy_zero1,
                                                      [JOB_ZERO2] = &strategy_zero2,
                                                      [JOB_ZERO3] = &strategy_zero3};
    return kind >= 0 && kind < (int)(sizeof(rows) / sizeof(rows[0])) ? rows[kind] : NULL;
}
