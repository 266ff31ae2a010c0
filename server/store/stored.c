#include "server/store/stored.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/sha256.h"

struct stored {
    Shoal__StoredSnapshot *items;
    Shoal__StoredSnapshot **pointers;
    char (*hashes)[65];
};

void stored_free(struct stored *stored)
{
    if (stored) {
        free(stored->items);
        free(stored->pointers);
        free(stored->hashes);
        free(stored);
    }
}

static int fill(struct stored *stored, size_t at, const char *path, size_t base)
{
    unsigned long long step = 0;
    unsigned owner = 0;
    if (sscanf(path + base, "/step-%llu/owner-%u.safetensors", &step, &owner) != 2 ||
        sha256_of_file(path, stored->hashes[at]) != 0) {
        return 0;
    }
    Shoal__StoredSnapshot *item = &stored->items[at];
    shoal__stored_snapshot__init(item);
    item->step = step;
    item->owner = owner;
    item->sha256 = stored->hashes[at];
    stored->pointers[at] = item;
    return 1;
}

struct stored *stored_list(const char *state_dir, Shoal__Join *join)
{
    char pattern[4096];
    glob_t found = {0};
    int base = snprintf(pattern, sizeof(pattern), "%s", state_dir);
    if (base <= 0 || (size_t)base + 40 > sizeof(pattern)) {
        return NULL;
    }
    snprintf(pattern + base, sizeof(pattern) - (size_t)base, "/step-*/owner-*.safetensors");
    struct stored *stored = glob(pattern, GLOB_NOSORT, NULL, &found) == 0 ? calloc(1, sizeof(*stored)) : NULL;
    if (stored) {
        stored->items = calloc(found.gl_pathc + 1, sizeof(*stored->items));
        stored->pointers = calloc(found.gl_pathc + 1, sizeof(*stored->pointers));
        stored->hashes = calloc(found.gl_pathc + 1, sizeof(*stored->hashes));
        size_t count = 0;
        for (size_t i = 0; stored->items && stored->pointers && stored->hashes && i < found.gl_pathc; i++) {
            count += (size_t)fill(stored, count, found.gl_pathv[i], (size_t)base);
        }
        join->n_stored = count;
        join->stored = stored->pointers;
    }
    globfree(&found);
    return stored;
}
