/* Gathers the loops into one table; included by one source for each instruction set, which sets the flags. */
#include "tensor/kernels.h"

#include <math.h>
#include <stddef.h>

#include "tensor/vector_math.h"

/* Iterations are independent even where an output is its input: vectorise without a check for overlap. */
#ifdef __clang__
#define KERNEL_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define KERNEL_LOOP _Pragma("GCC ivdep")
#endif

/* Loops that only stream: payloads need not lie at 64 bytes, and then each 64-byte load crosses a cache line, which
 * costs a fifth of the speed; 32-byte loads do so half as often and reach the memory's limit. */
#if defined(__AVX512F__) && !defined(__clang__)
#define KERNEL_STREAM __attribute__((target("prefer-vector-width=256")))
#else
#define KERNEL_STREAM
#endif

#include "tensor/kernels_elementwise_body.h"
#include "tensor/kernels_norm_body.h"
#include "tensor/kernels_reduce_body.h"

#define KERNEL_OPS(isa)                                                                                            \
    {                                                                                                              \
        .name = isa, .bias_add = kernel_bias_add, .bias_grad = kernel_bias_grad,                                   \
        .activation_forward = kernel_activation_forward, .activation_backward = kernel_activation_backward,        \
        .dropout_select = kernel_dropout_select, .reduce_add = kernel_reduce_add,                                  \
        .reduce_add_many = kernel_reduce_add_many, .reduce_sum_to = kernel_reduce_sum_to,                          \
        .reduce_scale = kernel_reduce_scale,                                                                       \
        .reduce_norm_squared = kernel_reduce_norm_squared, .reduce_sum = kernel_reduce_sum,                        \
        .row_maximum = kernel_row_maximum, .row_exp_sum = kernel_row_exp_sum,                                      \
        .row_exp_scale = kernel_row_exp_scale, .norm_moments = kernel_norm_moments,                                \
        .norm_forward = kernel_norm_forward, .norm_backward_sums = kernel_norm_backward_sums,                      \
        .norm_backward = kernel_norm_backward,                                                                     \
    }
