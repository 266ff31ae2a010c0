/* What commands that talk to a running cluster share: where it is and with which keys. */
#ifndef SHOAL_CLI_CLUSTER_ARGS_H
#define SHOAL_CLI_CLUSTER_ARGS_H

#include "deploy/cli/operator.h"

struct cluster_args {
    const char *cluster, *keys, *key_name;
    int timeout_s; /* 0: the default */
};
/* Rows of a command's table, for a struct whose member `field` is a struct cluster_args. */
#define CLUSTER_ARG_ROWS(type, field)                                                                              \
    {"cluster",                                                                                                    \
     ARG_TEXT,                                                                                                     \
     offsetof(struct type, field.cluster),                                                                         \
     "tcp://HOST:PORT",                                                                                            \
     "where the coordinator is (or SHOAL_CLUSTER in the environment)",                                             \
     0,                                                                                                            \
     0},                                                                                                           \
        {"keys", ARG_TEXT, offsetof(struct type, field.keys), "DIR", "CURVE keys, by shoal keygen", 0, 0},         \
        {"key-name",                                                                                               \
         ARG_TEXT,                                                                                                 \
         offsetof(struct type, field.key_name),                                                                    \
         "NAME",                                                                                                   \
         "which key pair in --keys; default operator",                                                             \
         0,                                                                                                        \
         0},                                                                                                       \
    {                                                                                                              \
        "timeout", ARG_NUMBER, offsetof(struct type, field.timeout_s), "SECONDS",                                  \
            "wait this long for an answer; default 5", 1, 86400                                                    \
    }

/* A request without a body or with one that the caller filled. `identity` must outlive the link. 0, or an exit code
 * after saying why. reply NULL: only its status. */
int cluster_ask(const char *command, const struct cluster_args *args, Shoal__Envelope *envelope,
                struct message *reply);

#endif
