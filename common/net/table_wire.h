/* The parameter table as a protobuf message and back, with every check that a stranger's table needs. */
#ifndef SHOAL_NET_TABLE_WIRE_H
#define SHOAL_NET_TABLE_WIRE_H

#include "cluster/param_table.h"
#include "envelope.pb-c.h"

struct errbuf;

/* *message borrows names and shapes of the table; free with table_wire_free. NULL when out of memory. */
Shoal__ParamTable *table_wire_pack(const struct param_table *table);
void table_wire_free(Shoal__ParamTable *message);
/* table: owned by the caller, for param_table_close. STATUS_FORMAT, STATUS_RANGE (more than 65535
 * tensors, and as param_table_add), STATUS_EXISTS, STATUS_INVALID, STATUS_NOMEM. */
int table_wire_unpack(struct param_table *table, const Shoal__ParamTable *message, struct errbuf *err);

#endif
