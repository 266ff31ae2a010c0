/* The update rules. One row (sgd.c, adam.c, …) exports one const struct optimizer_ops; servers, peers and
 * workers call the same update. Without FMA: the same bits at any offset, length and instruction set. Pure; any
 * thread. Follows spec section 4; PyTorch 1.13's results to 1e-6. */
#ifndef SHOAL_OPTIM_OPTIMIZER_H
#define SHOAL_OPTIM_OPTIMIZER_H

#include <stdint.h>

struct errbuf;
struct job;

enum { OPTIMIZER_SLOTS_MAX = 4, OPTIMIZER_SOURCES_MAX = 4, OPTIMIZER_OPS_VERSION = 1 };

/* What the job says; constant. */
struct optimizer_params {
    double beta1, beta2, eps, weight_decay, momentum, l1, l2, beta;
    int nesterov;
};

/* What one step says, computed once and sent; the same for every element. */
struct optimizer_step {
    double lr;
    int64_t t;          /* applied steps, from 1 */
    float grad_scale;   /* clip coefficient times 1/Σw, rounded once to float32; 1 leaves gradients as they are */
    double trust_ratio; /* lamb only: of the tensor at hand */
};

/* The tensor's piece that one call works on. */
struct optimizer_call {
    const struct optimizer_params *params;
    const struct optimizer_step *step;
    int decay; /* 0 for tensors of no_decay */
    float *w;
    float *const *slots;
    int64_t count;
};

struct optimizer_ops {
    int version; /* OPTIMIZER_OPS_VERSION; first member, for plug-ins */
    const char *name, *help;
    int (*slots)(const struct optimizer_params *params); /* state vectors: sgd 0 or 1, adam 2, … */
    /* slots[s][0..count): state, zero before the first step. decay 0 for tensors of no_decay. May overwrite grad.
     */
    void (*update)(const struct optimizer_params *params, const struct optimizer_step *step, int decay, float *w,
                   float *grad, float *const *slots, int64_t count);
    /* NULL, or update() on the sum of sources[0..sources_count), 1 to OPTIMIZER_SOURCES_MAX, added in this order,
     * in one loop. Returns 0 when an element of the sum is not finite (w and slots then hold it), else 1. */
    int (*update_sum)(const struct optimizer_call *call, const float *const *sources, int sources_count);
    /* lamb: writes the raw update direction over grad and adds Σw², Σu² (16 double lanes a call) to norms[2]; NULL
     * elsewhere. After it, update() is called with trust_ratio = |w|/|u| (1 when either is 0). */
    void (*prepare)(const struct optimizer_params *params, const struct optimizer_step *step, int decay,
                    const float *w, float *grad, float *const *slots, int64_t count, double norms[2]);
};

/* The row by name ("adam"), or NULL. */
const struct optimizer_ops *optimizer_find(const char *name);
const struct optimizer_ops *optimizer_at(int index); /* rows in table order, NULL past the end */
/* Of the job: a built-in row or its plug-in (loaded; `*handle` for optimizer_unload). Defaults of the kind applied
 * to params. STATUS_IO, STATUS_PROTOCOL (version). */
int optimizer_of_job(const struct job *job, const struct optimizer_ops **ops, struct optimizer_params *params,
                     void **handle, struct errbuf *err);
void optimizer_unload(void *handle); /* takes NULL */

/* A plug-in exports `const struct optimizer_ops shoal_optimizer`. */

/* lr of applied step t (from 1) by spec section 4; total > 0. */
double lr_schedule_at(const struct job *job, int64_t t, int64_t total);

#endif
