/* The snapshot files in a server's own state folder, told to the coordinator when joining, so that owners without a shared
 * folder can serve each other. */
#ifndef SHOAL_STORE_STORED_H
#define SHOAL_STORE_STORED_H

#include "envelope.pb-c.h"

struct stored;
/* Lists and hashes STATE/step-NNNNNNNN/owner-N.safetensors and points join->stored at the list. NULL when there is none. */
struct stored *stored_list(const char *state_dir, Shoal__Join *join);
void stored_free(struct stored *stored); /* takes NULL */

#endif
