#include "config/env.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"

enum { NUMBER_MAX = 1000000 };

const char *env_find(char *const *environment, const char *name)
{
    size_t length = strlen(name);
    for (int i = 0; environment && environment[i]; i++) {
        if (strncmp(environment[i], name, length) == 0 && environment[i][length] == '=') {
            return environment[i] + length + 1;
        }
    }
    return NULL;
}

static int parse_number(const char *name, const char *text, int lowest, int *value, struct errbuf *err)
{
    if (text[0] == '\0' || strlen(text) > 7 || strspn(text, "0123456789") != strlen(text) || atoi(text) < lowest ||
        atoi(text) > NUMBER_MAX) {
        return errbuf_set(err, STATUS_RANGE, "environment %s: found \"%.80s\", expected an integer from %d to %d",
                          name, text, lowest, NUMBER_MAX);
    }
    *value = atoi(text);
    return 0;
}

/* One number that several families may give; they must agree. */
static int read_number(char *const *environment, const char *const *names, int lowest, int *value,
                       const char **origin, struct errbuf *err)
{
    *value = -1;
    *origin = "";
    for (int i = 0; names[i]; i++) {
        const char *text = env_find(environment, names[i]);
        int number = 0;
        if (!text) {
            continue;
        }
        int status = parse_number(names[i], text, lowest, &number, err);
        if (status != 0) {
            return status;
        }
        if (*value >= 0 && number != *value) {
            return errbuf_set(err, STATUS_INVALID, "environment: %s=%d and %s=%d disagree", *origin, *value,
                              names[i], number);
        }
        if (*value < 0) {
            *value = number;
            *origin = names[i];
        }
    }
    return 0;
}

/* "tcp://host:port" of an address and a port variable; "" when neither is there. */
static int join_address(char *const *environment, const char *host_name, const char *port_name, char out[256],
                        struct errbuf *err)
{
    const char *host = env_find(environment, host_name), *port = env_find(environment, port_name);
    int number = 0;
    out[0] = '\0';
    if (!host && !port) {
        return 0;
    }
    if (!host || !port || !host[0]) {
        int has_host = host && host[0];
        return errbuf_set(err, STATUS_INVALID, "environment: %s is set and %s is %s, expected both",
                          has_host ? host_name : port_name, has_host ? port_name : host_name,
                          has_host || !host ? "missing" : "empty");
    }
    int status = parse_number(port_name, port, 1, &number, err);
    if (status == 0 && number > 65535) {
        status = errbuf_set(err, STATUS_RANGE, "environment %s: found %d, expected a port from 1 to 65535",
                            port_name, number);
    }
    if (status != 0) {
        return status;
    }
    int is_ipv6 = strchr(host, ':') && host[0] != '[';
    if (snprintf(out, 256, "tcp://%s%s%s:%d", is_ipv6 ? "[" : "", host, is_ipv6 ? "]" : "", number) >= 256) {
        return errbuf_set(err, STATUS_RANGE, "environment %s: found more than 240 characters", host_name);
    }
    return 0;
}

static int merge_address(struct env_identity *identity, const char *address, const char *origin, struct errbuf *err)
{
    if (address[0] == '\0') {
        return 0;
    }
    if (identity->cluster[0] == '\0') {
        snprintf(identity->cluster, sizeof identity->cluster, "%s", address);
        identity->cluster_origin = origin;
        return 0;
    }
    if (strcmp(identity->cluster, address) != 0) {
        return errbuf_set(err, STATUS_INVALID, "environment: %s (%.140s) and %s (%.140s) disagree",
                          identity->cluster_origin, identity->cluster, origin, address);
    }
    return 0;
}

static int read_cluster(struct env_identity *identity, char *const *environment, struct errbuf *err)
{
    static const char *const pairs[][2] = {{"DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT"},
                                           {"MASTER_ADDR", "MASTER_PORT"}};
    char address[256];
    const char *own = env_find(environment, "SHOAL_CLUSTER");
    identity->cluster[0] = '\0';
    identity->cluster_origin = "";
    if (own && (own[0] == '\0' || strlen(own) >= sizeof address)) {
        return errbuf_set(err, STATUS_INVALID,
                          "environment SHOAL_CLUSTER: found \"%.80s\", expected tcp://host:port", own);
    }
    int status = merge_address(identity, own ? own : "", "SHOAL_CLUSTER", err);
    for (int i = 0; i < 2 && status == 0; i++) {
        status = join_address(environment, pairs[i][0], pairs[i][1], address, err);
        if (status == 0) {
            status = merge_address(identity, address, pairs[i][0], err);
        }
    }
    return status;
}

static int read_role(struct env_identity *identity, char *const *environment, struct errbuf *err)
{
    static const char *const roles[][2] = {
        {"worker", "worker"}, {"server", "server"}, {"scheduler", "coordinator"}};
    const char *text = env_find(environment, "DMLC_ROLE");
    identity->role[0] = '\0';
    for (int i = 0; text && i < 3; i++) {
        if (strcmp(text, roles[i][0]) == 0) {
            snprintf(identity->role, sizeof identity->role, "%s", roles[i][1]);
        }
    }
    if (text && identity->role[0] == '\0') {
        return errbuf_set(err, STATUS_INVALID,
                          "environment DMLC_ROLE: found \"%.80s\", expected one of worker, server, scheduler",
                          text);
    }
    return 0;
}

int env_identity_read(struct env_identity *identity, char *const *environment, struct errbuf *err)
{
    static const char *const ranks[] = {
        "SHOAL_RANK", "DMLC_RANK", "DMLC_WORKER_ID", "RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", NULL};
    static const char *const worlds[] = {"SHOAL_WORKERS", "DMLC_NUM_WORKER",      "WORLD_SIZE",
                                         "SLURM_NTASKS",  "OMPI_COMM_WORLD_SIZE", NULL};
    static const char *const servers[] = {"SHOAL_SERVERS", "DMLC_NUM_SERVER", NULL};
    int status = read_number(environment, ranks, 0, &identity->rank, &identity->rank_origin, err);
    if (status == 0) {
        status = read_number(environment, worlds, 1, &identity->workers, &identity->workers_origin, err);
    }
    if (status == 0) {
        status = read_number(environment, servers, 0, &identity->servers, &identity->servers_origin, err);
    }
    if (status == 0) {
        status = read_cluster(identity, environment, err);
    }
    if (status == 0) {
        status = read_role(identity, environment, err);
    }
    int is_server = status == 0 && strcmp(identity->role, "server") == 0;
    int size = is_server ? identity->servers : identity->workers;
    if (status == 0 && identity->rank >= 0 && size >= 0 && identity->rank >= size) {
        status = errbuf_set(err, STATUS_RANGE, "environment: %s=%d with %s=%d, expected a rank from 0 to %d",
                            identity->rank_origin, identity->rank,
                            is_server ? identity->servers_origin : identity->workers_origin, size, size - 1);
    }
    return status;
}
