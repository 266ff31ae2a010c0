#include "tensor/kernels_table_body.h"

const struct kernel_ops kernel_ops_avx2 = KERNEL_OPS("avx2");
