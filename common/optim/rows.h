/* What the built-in rows share: their declarations, and each update on a stated instruction set, which lets tests
 * compare the paths bit for bit. Pure; any thread; borrows every pointer. */
#ifndef SHOAL_OPTIM_ROWS_H
#define SHOAL_OPTIM_ROWS_H

#include "optim/isa.h"
#include "optim/optimizer.h"

/* The arguments of optimizer_ops.update, together. */
struct update_call {
    const struct optimizer_params *params;
    const struct optimizer_step *step;
    int decay;
    float *w;
    float *grad;
    float *const *slots;
    int64_t count;
};

extern const struct optimizer_ops optimizer_sgd, optimizer_adam, optimizer_adamw, optimizer_adagrad,
    optimizer_ftrl, optimizer_lamb;

void sgd_update_on(enum isa isa, const struct update_call *call);
void adam_update_on(enum isa isa, const struct update_call *call);
void adamw_update_on(enum isa isa, const struct update_call *call);
void adagrad_update_on(enum isa isa, const struct update_call *call);
void ftrl_update_on(enum isa isa, const struct update_call *call);
void lamb_prepare_on(enum isa isa, const struct update_call *call, double norms[2]);
void lamb_update_on(enum isa isa, const struct update_call *call);

/* The decay of this call: weight_decay, or 0 for a tensor of no_decay. */
static inline double update_call_decay(const struct update_call *call)
{
    return call->decay ? call->params->weight_decay : 0.0;
}

#endif
