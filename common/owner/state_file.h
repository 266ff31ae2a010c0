/* Files of owners' state in a snapshot: safetensors files of float32 tensors, one for every span of elements that an owner
 * holds, named after the keys that the span touches, FIRST to END-1, end to end:
 *
 *   FIRST-END/values, FIRST-END/slotN               all of these keys
 *   FIRST-END+SKIP:COUNT/values, …/slotN            COUNT elements from SKIP elements after FIRST's start on
 *
 * and the clock in __metadata__. A server holds whole keys; a peer's part may begin and end inside a key. Frozen tensors
 * have values and no slots. Numbers of keys do not depend on mode, P, S, placement or message sizes, so any later layout
 * finds its elements in the files of any earlier one, however they are cut. An element may be stored more than once when
 * all copies are the same to the bit (a replica, a file of two owners); copies that differ make the files unusable, for
 * nobody could say which is right. Files of different clocks are not mixed. Any thread. */
#ifndef SHOAL_OWNER_STATE_FILE_H
#define SHOAL_OWNER_STATE_FILE_H

#include <stdint.h>

#include "cluster/keymap.h"

struct errbuf;

struct state_span {
    int64_t key_first, key_end; /* [first, end): the keys that the elements lie in */
    int64_t skip;               /* elements from the first key's start */
    int64_t count;              /* elements; 0: left out of a file */
    int slot;                   /* -1: values */
    const float *data;          /* writing: count floats, borrowed */
};

/* The span of elements [begin, end) of a layer; slot and data are the caller's to set. */
struct state_span state_span_of(const struct keymap *map, int layer, int64_t begin, int64_t end);

struct state_file {
    const char *path; /* borrowed */
    uint64_t clock;
    char sha256[65]; /* of the file, set by writing; its size too */
    uint64_t bytes;
};
/* STATUS_IO, STATUS_NOMEM; the file is there whole or not at all. */
int state_file_write(struct state_file *file, const struct keymap *map, const struct state_span *spans, int count,
                     struct errbuf *err);

struct state_files;
/* Opens and checks any number of such files. map is borrowed. STATUS_IO, STATUS_FORMAT naming the file. */
int state_files_open(struct state_files **files, const struct keymap *map, const char *const *paths, int paths_count,
                     struct errbuf *err);
void state_files_close(struct state_files *files); /* takes NULL */
/* Copies a span (data unused) to out, put together from whatever files have it. STATUS_FORMAT naming tensor and key and
 * what of it no file has. */
int state_files_copy(const struct state_files *files, const struct state_span *span, float *out, struct errbuf *err);

#endif
