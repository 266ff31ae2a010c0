/* What the coordinator must not forget: STATE_DIR/coordinator.json, written atomically and synced before anything of it
 * is announced. One thread. */
#ifndef SHOAL_COORDINATOR_DURABLE_STATE_H
#define SHOAL_COORDINATOR_DURABLE_STATE_H

#include <stdint.h>

struct errbuf;

struct durable_member {
    int is_worker;
    int rank;
    uint64_t incarnation;
    char *host, *address;
    int64_t pid;
};

struct durable_state {
    uint64_t term;          /* lives of the coordinator */
    uint64_t cluster_epoch; /* membership views */
    uint64_t job, job_hash; /* 0: none yet */
    uint64_t table;         /* fingerprint the key map was built from, with workers and servers */
    int workers, servers;
    struct durable_member *members;
    int members_count;
    char *manifest; /* folder of the last whole snapshot; "" */
};

void durable_state_init(struct durable_state *state);
void durable_state_close(struct durable_state *state);
/* A missing file gives an empty state. STATUS_FORMAT, STATUS_IO name the path. */
int durable_state_load(struct durable_state *state, const char *state_dir, struct errbuf *err);
int durable_state_save(const struct durable_state *state, const char *state_dir, struct errbuf *err);

#endif
