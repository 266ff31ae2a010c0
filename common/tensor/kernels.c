#include "tensor/kernels.h"

#include <stddef.h>

#ifdef __x86_64__

/* The operating system's support is part of these flags. */
static int runs_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static int runs_avx2(void)
{
    return __builtin_cpu_supports("avx2") != 0;
}

const struct kernel_ops *kernel_ops_best(void)
{
    if (runs_avx512())
        return &kernel_ops_avx512;
    return runs_avx2() ? &kernel_ops_avx2 : &kernel_ops_portable;
}

const struct kernel_ops *kernel_ops_at(int i)
{
    if (i == 0)
        return &kernel_ops_portable;
    if (i == 1 && runs_avx2())
        return &kernel_ops_avx2;
    return i == 2 && runs_avx512() ? &kernel_ops_avx512 : NULL;
}

#else

const struct kernel_ops *kernel_ops_best(void)
{
    return &kernel_ops_portable;
}

const struct kernel_ops *kernel_ops_at(int i)
{
    return i == 0 ? &kernel_ops_portable : NULL;
}

#endif
