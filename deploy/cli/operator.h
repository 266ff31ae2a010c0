/* One question to a coordinator and its answer, as the operator. Blocks, with a loop and a ZeroMQ context of its
 * own. */
#ifndef SHOAL_CLI_OPERATOR_H
#define SHOAL_CLI_OPERATOR_H

#include <stdint.h>

#include "wire/message.h"

struct errbuf;

struct operator_link {
    const char *cluster;             /* coordinator's endpoint */
    const char *keys_dir, *key_name; /* NULL: no CURVE */
    int64_t deadline_ms;
};
/* reply NULL: only its status; else the caller's, for message_close, when 0 is returned. The coordinator's own
 * refusal comes back as its status and text; STATUS_TIMEOUT when it does not answer. */
int operator_ask(const struct operator_link *link, Shoal__Envelope *envelope, struct message *reply,
                 struct errbuf *err);

#endif
