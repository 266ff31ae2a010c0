/* Which server holds which key, which rank owns which part, and how keys travel. Built alike by coordinator, servers and
 * workers from the parameter table, P, S, message_bytes and placement; nothing of it is sent.
 *
 * Keys: each tensor is cut by a grid of 64 KiB; keys are numbered through the table in order (a tensor of 0 elements has
 * none). Servers: within a layer the keys are dealt in consecutive blocks, floor or ceil of keys/S each, the remainders
 * going round, so that over the model any two servers differ by at most one key.
 * Range: consecutive keys of one layer and one server, either all trainable or all frozen, at most message_bytes
 * (or one key): what one PUSH or PULL names, and what an owner treats as a unit.
 * Runs (key ∩ part) are numbered through the table in order of elements, independent of S; frozen keys have none.
 * Placement changes parts and runs, never keys and ranges.
 * Immutable once built; any thread. */
#ifndef SHOAL_CLUSTER_KEYMAP_H
#define SHOAL_CLUSTER_KEYMAP_H

#include <stdint.h>

#include "cluster/canonical.h"
#include "cluster/param_table.h"

struct errbuf;

struct keymap_layout {
    int ranks, servers;
    int64_t message_bytes;
    int placement; /* enum canonical_placement, in the order of enum job_placement */
};

struct keymap_key {
    int tensor;
    int server;
    int64_t begin, end; /* elements in the layer */
    int64_t run_first;  /* first run's number; -1 when frozen */
    int runs;
};

struct keymap_range {
    int64_t key_first, key_end; /* [first, end) */
    int64_t begin, end;         /* elements in the layer */
    int64_t run_first;          /* -1 when frozen */
    int runs;
    int layer;
    int server;
    int index_at_server; /* 0.. among the ranges of its server, in range order */
    int frozen;
};

struct keymap {
    struct keymap_key *keys;
    struct keymap_range *ranges; /* in order of keys */
    int *layer_range_first;      /* layers + 1 entries: ranges of layer l are [l], [l+1] */
    int *server_ranges;          /* servers + 1 entries: number of ranges of servers before s */
    int64_t keys_count, runs_count;
    int ranges_count, ranks, servers;
    int placement;
    const struct param_table *table; /* borrowed */
};

/* STATUS_RANGE (ranks, servers < 1, message_bytes below one key, no such placement), STATUS_NOMEM. */
int keymap_init(struct keymap *map, const struct param_table *table, const struct keymap_layout *layout,
                struct errbuf *err);
void keymap_close(struct keymap *map);
/* Range whose first key is `key`, or -1. */
int keymap_range_at(const struct keymap *map, uint64_t key);
int64_t keymap_range_elements(const struct keymap_range *range);
/* Elements held by a server: all, and trainable ones. */
int64_t keymap_server_elements(const struct keymap *map, int server);
int64_t keymap_server_trainable(const struct keymap *map, int server);

/* What `rank` owns of a layer, frozen tensors included: elements of the layer, begin == end when nothing. In order of
 * rank the parts tile the layer. */
void keymap_part(const struct keymap *map, int layer, int rank, int64_t *begin, int64_t *end);
int keymap_owner(const struct keymap *map, int layer, int64_t element); /* rank whose part holds it */
/* Elements of all parts of a rank (M); with trainable_only without those of frozen tensors. */
int64_t keymap_rank_elements(const struct keymap *map, int rank, int trainable_only);

/* The runs of a range, in order. */
struct keymap_run {
    int64_t begin, end; /* elements in the layer */
    int owner;          /* rank that owns the part */
    int64_t key;
};
/* Writes range->runs entries. */
void keymap_runs(const struct keymap *map, const struct keymap_range *range, struct keymap_run *runs);

/* The key that holds an element of the layer. */
int64_t keymap_key_at(const struct keymap *map, int layer, int64_t element);
/* Number of the run that holds an element of a trainable key, and where that run ends. The latter holds for frozen keys
 * too, whose pieces have no numbers. */
int64_t keymap_run_at(const struct keymap *map, int64_t key, int64_t element);
int64_t keymap_run_end(const struct keymap *map, int64_t key, int64_t element);

#endif
