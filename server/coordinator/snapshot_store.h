/* Snapshots as folders: SNAPSHOT_DIR/step-00000100/{manifest.json, owners' files}. A folder is a snapshot when its
 * manifest is there; without one it is unfinished and not looked at. best.json names the best one. Files are read and
 * removed here, never owners' own folders elsewhere. One thread. */
#ifndef SHOAL_COORDINATOR_SNAPSHOT_STORE_H
#define SHOAL_COORDINATOR_SNAPSHOT_STORE_H

#include <stdint.h>

#include "server/coordinator/manifest.h"

struct errbuf;

struct snapshot_commit {
    const char *folder; /* of this snapshot; its parent is the folder of snapshots */
    const struct manifest *manifest;
    int keep;
    uint64_t best_step; /* stays beyond keep; 0: none */
    /* Snapshots of later steps are another run's: they move to old-step-N (one generation is kept); -1: leave them. */
    int64_t set_aside_after;
};
/* Writes the manifest (synced), then removes what is beyond keep and unfinished folders of earlier steps. */
int snapshot_store_commit(const struct snapshot_commit *commit, struct errbuf *err);
/* Removes a folder that did not become a snapshot; a whole one is left. */
void snapshot_store_discard(const char *folder);

/* path: a folder of snapshots (the newest one is taken) or one snapshot's folder. found 0: no snapshot there.
 * A newest one that is damaged (manifest does not parse, a file's size or SHA-256 differs) is STATUS_CHECKSUM, and the
 * text names the one before, which is used only when asked for. STATUS_IO: no such folder. *folder: owned. */
int snapshot_store_find(const char *path, struct manifest *manifest, char **folder, int *found, struct errbuf *err);

#endif
