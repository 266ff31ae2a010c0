/* A snapshot's manifest (manifest.json): written last, so that its presence makes the snapshot whole. Pure; any thread.
 * Floats are hexadecimal texts ("0x1.8p+0"), 64-bit numbers beyond 2^53 are hexadecimal texts. */
#ifndef SHOAL_COORDINATOR_MANIFEST_H
#define SHOAL_COORDINATOR_MANIFEST_H

#include <stddef.h>
#include <stdint.h>

struct errbuf;

enum { MANIFEST_FORMAT = 1, MANIFEST_BYTES_MAX = 64 << 20 };

struct manifest_file {
    unsigned owner;
    char *name; /* inside the snapshot's folder; no slash */
    char sha256[65];
    uint64_t bytes;
    char *holder; /* address of a server that has it; "" when not known */
    int missing;  /* not written: set by whoever looked for the file */
};

struct manifest {
    uint64_t step, applied; /* step of the last verdict, t; num_batches_tracked is t */
    uint64_t total_steps;
    uint64_t job_hash;
    char *yaml;
    int workers, servers;
    struct manifest_file *files;
    int files_count;
    float *running; /* BatchNorm running values */
    int64_t running_count;
    int watched;         /* evaluations seen so far; the next three are of those */
    int bad_evaluations; /* in a row without improvement */
    double early_best;   /* early_stop.metric */
    double best_value;   /* snapshot.best.metric */
    int best_known;      /* best_value is set */
    int best;            /* this snapshot is the best one */
    uint64_t best_step;  /* step of the best one so far; 0: none */
};

void manifest_init(struct manifest *manifest);
void manifest_close(struct manifest *manifest);
/* Appends a copy. STATUS_NOMEM. */
int manifest_add_file(struct manifest *manifest, const struct manifest_file *file);
/* Owned, NUL-terminated; NULL when out of memory. */
char *manifest_to_text(const struct manifest *manifest);
/* Strict: an unknown, missing or mistyped key, a name with a slash, a digest that is none: STATUS_FORMAT with the
 * reason. manifest is initialised by the call and empty on error. */
int manifest_parse(const char *text, size_t bytes, struct manifest *manifest, struct errbuf *err);

#endif
