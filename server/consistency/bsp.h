/* Bulk-synchronous: everybody computes clock c on the values of clock c-1 (Valiant 1990). */
#ifndef SHOAL_CONSISTENCY_BSP_H
#define SHOAL_CONSISTENCY_BSP_H

#include "server/consistency/controller.h"

extern const struct controller_ops controller_bsp;

#endif
