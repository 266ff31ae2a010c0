#include "tensor/kernels_table_body.h"

const struct kernel_ops kernel_ops_portable = KERNEL_OPS("portable");
