#include <stddef.h>

#include "config/job.h"
#include "server/consistency/bsp.h"

const struct controller_ops *controller_at(int consistency)
{
    static const struct controller_ops *const rows[] = {[JOB_BSP] = &controller_bsp};
    return consistency >= 0 && consistency < (int)(sizeof(rows) / sizeof(rows[0])) ? rows[consistency] : NULL;
}
