/* One kernel source, one machine path for each instruction set. A kernel's body is an inline function of one
 * argument struct; ISA_PATHS compiles it for every path and defines the function that picks one. All paths use
 * + - * / sqrt in float32 without FMA, so they give the same bits. Pure; any thread. */
#ifndef SHOAL_OPTIM_ISA_H
#define SHOAL_OPTIM_ISA_H

enum isa { ISA_PORTABLE, ISA_AVX2, ISA_AVX512, ISA_COUNT };

/* Whether this processor and system run the path. */
int isa_available(enum isa isa);
/* The widest available path. */
enum isa isa_best(void);
/* "portable", "avx2", "avx512" */
const char *isa_name(enum isa isa);

/* Before a loop whose iterations are independent, though its pointers cannot say so. */
#if defined(__clang__)
#define ISA_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define ISA_LOOP _Pragma("GCC ivdep")
#endif

#define ISA_INLINE static inline __attribute__((always_inline))
#define ISA_BODY static inline __attribute__((always_inline)) void

/* Defines `static void NAME_run(enum isa isa, const ARGS *args)` from `ISA_BODY NAME_body(const ARGS *args)`. */
#if defined(__x86_64__)
#define ISA_PATHS(name, args_type)                                                                                 \
    static __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw"))) void name##_avx512(const args_type *args) \
    {                                                                                                              \
        name##_body(args);                                                                                         \
    }                                                                                                              \
    static __attribute__((target("avx2"))) void name##_avx2(const args_type *args)                                 \
    {                                                                                                              \
        name##_body(args);                                                                                         \
    }                                                                                                              \
    static void name##_portable(const args_type *args)                                                             \
    {                                                                                                              \
        name##_body(args);                                                                                         \
    }                                                                                                              \
    static void name##_run(enum isa isa, const args_type *args)                                                    \
    {                                                                                                              \
        if (isa == ISA_AVX512)                                                                                     \
            name##_avx512(args);                                                                                   \
        else if (isa == ISA_AVX2)                                                                                  \
            name##_avx2(args);                                                                                     \
        else                                                                                                       \
            name##_portable(args);                                                                                 \
    }
#else
#define ISA_PATHS(name, args_type)                                                                                 \
    static void name##_run(enum isa isa, const args_type *args)                                                    \
    {                                                                                                              \
        (void)isa;                                                                                                 \
        name##_body(args);                                                                                         \
    }
#endif

#endif
