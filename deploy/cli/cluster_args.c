#include "deploy/cli/cluster_args.h"

#include "base/errbuf.h"
#include "base/status.h"
#include "config/env.h"
#include "deploy/cli/command.h"
#include "net/endpoint.h"
#include "net/net.h"

extern char **environ;

enum { DEFAULT_S = 5 };

/* Bad keys or a bad address are the operator's to mend; no answer, or a refusal, is a failure. */
static int check(const struct operator_link *link, struct errbuf *err)
{
    struct endpoint endpoint;
    struct net_curve curve;
    int status = endpoint_parse_connect(&endpoint, link->cluster, err);
    if (status == 0 && link->keys_dir)
        status = net_keys_load(&curve, link->keys_dir, link->key_name, "coordinator", err);
    return status;
}

int cluster_ask(const char *command, const struct cluster_args *args, Shoal__Envelope *envelope,
                struct message *reply)
{
    struct env_identity identity;
    struct errbuf err;
    errbuf_init(&err);
    struct operator_link link = {.cluster = args->cluster,
                                 .keys_dir = args->keys,
                                 .key_name = args->key_name ? args->key_name : "operator",
                                 .deadline_ms =
                                     1000 * (int64_t)(args->timeout_s > 0 ? args->timeout_s : DEFAULT_S)};
    if (!link.cluster) {
        if (env_identity_read(&identity, environ, &err) != 0)
            return command_fail(2, "%s: %s", command, err.text);
        if (!identity.cluster[0])
            return command_fail(2, "%s: missing: --cluster tcp://HOST:PORT (or SHOAL_CLUSTER in the environment)",
                                command);
        link.cluster = identity.cluster;
    }
    if (check(&link, &err) != 0)
        return command_fail(2, "%s: %s", command, err.text);
    return operator_ask(&link, envelope, reply, &err) == 0 ? 0 : command_fail(1, "%s: %s", command, err.text);
}
