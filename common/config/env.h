/* Who a daemon is, from the environment that a launcher made: SHOAL_RANK, SHOAL_WORKERS, SHOAL_SERVERS,
 * SHOAL_CLUSTER; DMLC_* (ps-lite, BytePS); RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT (torchrun); SLURM_*;
 * OMPI_COMM_WORLD_*. Pure; any thread. */
#ifndef SHOAL_CONFIG_ENV_H
#define SHOAL_CONFIG_ENV_H

struct errbuf;

struct env_identity {
    int rank;          /* -1: not said */
    int workers;       /* -1: not said */
    int servers;       /* -1: not said */
    char cluster[256]; /* "tcp://host:port" of the coordinator; "": not said */
    char role[16];     /* "worker", "server", "coordinator" from DMLC_ROLE; "": not said */
    /* The variable that said it, "" when none did. Constant strings. */
    const char *rank_origin, *workers_origin, *servers_origin, *cluster_origin;
};

/* environment: NULL-terminated, as environ. Two families that disagree are an error that names both variables.
 * STATUS_INVALID, STATUS_RANGE. */
int env_identity_read(struct env_identity *identity, char *const *environment, struct errbuf *err);

/* The variable's value in such a list, or NULL. */
const char *env_find(char *const *environment, const char *name);

#endif
