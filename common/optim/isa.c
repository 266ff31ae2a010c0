#include "optim/isa.h"

int isa_available(enum isa isa)
{
#if defined(__x86_64__)
    if (isa == ISA_AVX512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
    if (isa == ISA_AVX2)
        return __builtin_cpu_supports("avx2") != 0;
#endif
    return isa == ISA_PORTABLE;
}

enum isa isa_best(void)
{
    if (isa_available(ISA_AVX512))
        return ISA_AVX512;
    return isa_available(ISA_AVX2) ? ISA_AVX2 : ISA_PORTABLE;
}

const char *isa_name(enum isa isa)
{
    static const char *const names[ISA_COUNT] = {"portable", "avx2", "avx512"};

    return isa >= ISA_PORTABLE && isa < ISA_COUNT ? names[isa] : "unknown";
}
