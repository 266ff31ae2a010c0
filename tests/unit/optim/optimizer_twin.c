#include "optimizer_twin.h"

#include <math.h>
#include <string.h>

static void twin_sgd(const struct optimizer_params *p, double lr, double g, double *w, double *buffer)
{
    if (p->momentum != 0) {
        *buffer = p->momentum * *buffer + g;
        g = p->nesterov ? g + p->momentum * *buffer : *buffer;
    }
    *w -= lr * g;
}

/* m̂ / (√v̂ + eps) */
static double twin_adam_direction(const struct optimizer_params *p, double t, double g, double *m, double *v)
{
    *m = p->beta1 * *m + (1 - p->beta1) * g;
    *v = p->beta2 * *v + (1 - p->beta2) * g * g;
    double m_hat = *m / (1 - pow(p->beta1, t)), v_hat = *v / (1 - pow(p->beta2, t));
    return m_hat / (sqrt(v_hat) + p->eps);
}

static void twin_ftrl(const struct optimizer_params *p, double alpha, int decay, double g, double *w, double *z,
                      double *n)
{
    double l1 = decay ? p->l1 : 0, l2 = decay ? p->l2 : 0;
    double sigma = (sqrt(*n + g * g) - sqrt(*n)) / alpha;

    *z += g - sigma * *w;
    *n += g * g;
    if (fabs(*z) <= l1)
        *w = 0;
    else
        *w = -(*z - (*z > 0 ? l1 : -l1)) / ((p->beta + sqrt(*n)) / alpha + l2);
}

static void twin_lamb(const struct optimizer_params *p, const struct optimizer_step *step, double decay,
                      struct twin_tensor *tensor, const double *grad)
{
    double u[TWIN_COUNT_MAX], w_norm = 0, u_norm = 0;

    for (int i = 0; i < tensor->count; i++) {
        u[i] = twin_adam_direction(p, (double)step->t, grad[i] * step->grad_scale, &tensor->a[i], &tensor->b[i]) +
               decay * tensor->w[i];
        w_norm += tensor->w[i] * tensor->w[i];
        u_norm += u[i] * u[i];
    }
    double trust = w_norm > 0 && u_norm > 0 ? sqrt(w_norm) / sqrt(u_norm) : 1;
    for (int i = 0; i < tensor->count; i++)
        tensor->w[i] -= step->lr * trust * u[i];
}

void twin_step(const char *name, const struct optimizer_params *params, const struct optimizer_step *step,
               int decay, struct twin_tensor *tensor, const double *grad)
{
    double lambda = decay ? params->weight_decay : 0;

    if (strcmp(name, "lamb") == 0) {
        twin_lamb(params, step, lambda, tensor, grad);
        return;
    }
    for (int i = 0; i < tensor->count; i++) {
        double *w = &tensor->w[i], *a = &tensor->a[i], *b = &tensor->b[i];
        double scaled = grad[i] * step->grad_scale, with_l2 = scaled + lambda * *w;
        if (strcmp(name, "sgd") == 0) {
            twin_sgd(params, step->lr, with_l2, w, a);
        } else if (strcmp(name, "adam") == 0) {
            *w -= step->lr * twin_adam_direction(params, (double)step->t, with_l2, a, b);
        } else if (strcmp(name, "adamw") == 0) {
            *w *= 1 - step->lr * lambda;
            *w -= step->lr * twin_adam_direction(params, (double)step->t, scaled, a, b);
        } else if (strcmp(name, "adagrad") == 0) {
            *a += with_l2 * with_l2;
            *w -= step->lr * with_l2 / (sqrt(*a) + params->eps);
        } else if (strcmp(name, "ftrl") == 0) {
            twin_ftrl(params, step->lr, decay, with_l2, w, a, b);
        }
    }
}
