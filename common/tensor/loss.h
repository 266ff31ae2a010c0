/* Losses and their gradients. A caller may split the rows over threads in blocks of its own and add the sums in
 * order. Any thread; see tensor.h.
 *
 * *loss_sum = sum over rows in double, in order of rows (not divided by their number). The gradient (NULL: not
 * wanted) is that of loss_sum times `scale`, computed in double and rounded once to float32; it may be the logits'
 * or outputs' own array. A padded row has no loss, a zero gradient, and is not counted. counted, correct: NULL ok.
 */
#ifndef SHOAL_TENSOR_LOSS_H
#define SHOAL_TENSOR_LOSS_H

#include <stdint.h>

/* logits (rows, classes). A label of -1 is padding; others must be below classes. correct counts rows whose
 * largest logit is at the label, ties to the lowest class; a row with a NaN is never correct. */
void loss_softmax_cross_entropy(const float *logits, const int32_t *labels, int64_t rows, int64_t classes,
                                double scale, double *loss_sum, float *dlogits, int64_t *correct, int64_t *counted);
/* Logits (rows, n), targets (rows, n) in [0,1]; per row the mean over n outputs as in PyTorch. correct: n = 1 and
 * (logit > 0) == (target > 0.5). A row with a NaN target is padding. */
void loss_binary_cross_entropy(const float *logits, const float *targets, int64_t rows, int64_t n, double scale,
                               double *loss_sum, float *dlogits, int64_t *correct, int64_t *counted);
/* Per row the mean over outputs of (y-x)^2. A row with a NaN target is padding. */
void loss_mse(const float *outputs, const float *targets, int64_t rows, int64_t n, double scale, double *loss_sum,
              float *doutputs, int64_t *counted);
/* Per row ½ Σ over outputs (y-x)^2. A row with a NaN target is padding. */
void loss_half_squared_error(const float *outputs, const float *targets, int64_t rows, int64_t n, double scale,
                             double *loss_sum, float *doutputs, int64_t *counted);
/* probabilities = softmax of each row. In place allowed. */
void softmax_rows(const float *logits, float *probabilities, int64_t rows, int64_t classes);

#endif
