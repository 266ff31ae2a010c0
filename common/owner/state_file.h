/* Files of owners' state in a snapshot: safetensors files with, for every span of keys an owner holds, the float32 tensors
 * "FIRST-END/values" and "FIRST-END/slotN" (keys FIRST..END-1 end to end) and the clock in __metadata__. Key numbers do not
 * depend on mode, P, S or message sizes, so any later layout finds its keys in files of any earlier one. Any thread. */
#ifndef SHOAL_OWNER_STATE_FILE_H
#define SHOAL_OWNER_STATE_FILE_H

#include <stdint.h>

#include "cluster/keymap.h"

struct errbuf;

struct state_span {
    int64_t key_first, key_end; /* [first, end) */
    int slot;                   /* -1: values */
    const float *data;          /* writing: count floats, borrowed */
    int64_t count;
};

int state_file_write(const char *path, const struct state_span *spans, int count, uint64_t clock, char sha256_hex[65],
                     uint64_t *bytes, struct errbuf *err);

struct state_files;
/* Opens and checks any number of such files. map is borrowed. STATUS_IO, STATUS_FORMAT. */
int state_files_open(struct state_files **files, const struct keymap *map, const char *const *paths, int paths_count,
                     struct errbuf *err);
void state_files_close(struct state_files *files); /* takes NULL */
/* Copies a span (data unused) to out. STATUS_FORMAT naming the key that no file has. */
int state_file_copy(const struct state_files *files, const struct state_span *span, float *out, struct errbuf *err);

#endif
