/* What an owner does to its elements once all contributions of a step are there: sum them in canonical order, then
 * update. One pass when nothing has to be known before the update (`update: eager`), two passes with the verdict
 * between otherwise. Both give the same bits as summing everything first, at any tile size. Pure, allocates
 * nothing; any thread, several at once on disjoint ranges; borrows every pointer. */
#ifndef SHOAL_OWNER_APPLY_H
#define SHOAL_OWNER_APPLY_H

#include <stdint.h>

struct optimizer_ops;
struct optimizer_params;
struct optimizer_step;

/* The rule of one tensor in one step. */
struct owner_rule {
    const struct optimizer_ops *ops;
    const struct optimizer_params *params;
    const struct optimizer_step *step;
    int decay; /* 0 for tensors of no_decay */
};

/* One pass: sums sources[0..sources_count) (at least one, in the order to add) and updates w and slots from the
 * sum, which is never written to memory: Adam moves 24 + 4P bytes an element. Returns 1, or 0 when an element of
 * the sum is not finite: w and slots are then spoiled or partly updated, and the job must stop. Not for rules with
 * `prepare` (lamb), which need the tensor's norms first. */
int owner_apply_sum(const struct owner_rule *rule, float *w, float *const *slots, const float *const *sources,
                    int sources_count, int64_t count);

/* First of two passes: grad = sum of the sources (grad may be one of them); returns Σ grad² in 16 double lanes and
 * sets *finite to 0 when an element is not finite, else leaves it. Call it once for each run, so that norms do not
 * depend on how parts are cut. */
double owner_sum(float *grad, const float *const *sources, int sources_count, int64_t count, int *finite);

/* Second pass, after the verdict. May overwrite grad. */
void owner_apply(const struct owner_rule *rule, float *w, float *grad, float *const *slots, int64_t count);

#endif
