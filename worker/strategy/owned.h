/* What a worker owns: the pieces of the model whose optimizer state it holds and which it updates, with the same update
 * function as a server, so that the bits are the same. A piece is a contiguous range of one trainable tensor: whole
 * tensors where a worker owns everything (ddp, ps with update_at: worker), else tensor ∩ part (zero1 to zero3).
 *
 * The strategy says where a piece's parameters and gradient sums lie (w, g); slots are allocated here. Functions that
 * name a layer range [begin, end) may be called from the comm thread, on disjoint ranges; all others from one thread. */
#ifndef SHOAL_STRATEGY_OWNED_H
#define SHOAL_STRATEGY_OWNED_H

#include <stdint.h>

#include "cluster/keymap.h"
#include "optim/optimizer.h"

struct account;
struct errbuf;
struct job;
struct pool;

struct owned_piece {
    int tensor, layer;
    int64_t begin, end; /* elements in the layer */
    int64_t run_first, runs; /* consecutive numbers, as the piece's elements */
    float *w, *g;       /* of element `begin`; set by the strategy; may change between steps */
    float *slots[OPTIMIZER_SLOTS_MAX];
};

struct owned_options { /* all borrowed */
    const struct job *job;
    const struct param_table *table;
    const struct keymap *map;
    struct account *account;
    struct pool *pool; /* updates are spread over it; the cut never changes a bit */
    int rank;          /* whose parts; -1: everything */
};

/* One step's rule, for all pieces. */
struct owned_step {
    double lr;
    int64_t t;
    float grad_scale;
    const double *ratios; /* lamb: by tensor; NULL: 1 */
};

struct owned;
int owned_create(struct owned **owned, const struct owned_options *options, struct errbuf *err);
void owned_destroy(struct owned *owned); /* takes NULL */
/* Ascending by layer and begin; [*first, *end) of a layer. */
struct owned_piece *owned_pieces(struct owned *owned, int *count);
void owned_layer(const struct owned *owned, int layer, int *first, int *end);
int owned_slots(const struct owned *owned);        /* state vectors of the rule */
int owned_needs_norms(const struct owned *owned);  /* lamb */
int64_t owned_elements(const struct owned *owned); /* trainable ones */

/* w, slots <- rule(w, g, slots) for pieces [first, end), spread over the pool. g may be overwritten. */
void owned_update(struct owned *owned, int first, int end, const struct owned_step *step);
/* `update: eager`: the same for [begin, end) of a layer, straight from contributions (each of end - begin floats, in the
 * order to add), on the calling thread; what no own piece has of it is left alone. Returns 0 when a sum is not finite:
 * parameters and slots are then spoiled. Not for rules that need norms. */
struct owned_sources {
    const float *const *sources;
    int count;
};
int owned_update_sum(struct owned *owned, const struct keymap_run *range, int layer,
                     const struct owned_sources *sources, const struct owned_step *step);
/* lamb: directions over g, Σw² and Σu² of every own run into norms[2 * run], norms[2 * run + 1]. */
void owned_prepare(struct owned *owned, const struct owned_step *step, double *norms);

/* g[0 .. range->end - range->begin) = sum of the sources, run by run: Σg² into squares[run], 1 or 0 into finite[run]. The
 * range, in the part of one owner, begins and ends at runs' borders; range->key has its first element, run_first is its
 * first run. Elements of frozen tensors are left alone. The sink of a reduce-scatter; touches nothing else. */
struct owned_norms {
    double *squares;
    uint8_t *finite;
};
void owned_sum(const struct keymap *map, const struct keymap_run *range, int64_t run_first, float *g,
               const struct owned_sources *sources, const struct owned_norms *norms);

/* A snapshot file (owner/state_file.h) of the own parts, frozen tensors' values included. w: by layer, where element
 * w_begin[layer] of it is; NULL for layers of which nothing is owned. */
struct owned_values {
    float *const *w;
    const int64_t *w_begin; /* NULL: all 0 */
};
struct owned_file {
    const char *path;
    uint64_t clock;
    char sha256[65];
    uint64_t bytes;
};
int owned_save(const struct owned *owned, const struct owned_values *values, struct owned_file *file,
               struct errbuf *err);
/* Own values (w of every own part) and slots from the files of any earlier layout. */
int owned_load(struct owned *owned, const struct owned_values *values, const char *const *paths, int paths_count,
               struct errbuf *err); /* as state_files_open and state_files_copy (owner/state_file.h) */

#endif
