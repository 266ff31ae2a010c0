#include "tensor/gemm.h"

#include <assert.h>
#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "base/errbuf.h"
#include "base/pool.h"
#include "base/status.h"
#include "tensor/naive.h"

enum { CBLAS_ROW_MAJOR = 101, CBLAS_NO_TRANS = 111, CBLAS_TRANS = 112 };

typedef void sgemm_function(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a,
                            int lda, const float *b, int ldb, float beta, float *c, int ldc);

/* The process has one BLAS, so this is the process's: written once under `once`, read only after that. */
struct library {
    int status;
    sgemm_function *sgemm;
    char core_type[32];
    char reason[384];
};
static struct library library;
static pthread_once_t once = PTHREAD_ONCE_INIT;

#ifdef __x86_64__

/* OpenBLAS 0.3.21 takes processors it does not know for a Prescott, so it is told. These flags include the
 * operating system's support for the registers. NULL: its own choice is as good. */
static const char *core_type_wanted(void)
{
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512cd"))
        return "SkylakeX";
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? "Haswell" : NULL;
}

/* OpenBLAS sizes its blocks by this leaf; some hypervisors say 0, from which it computes blocks of no rows. */
static int second_cache_unknown(void)
{
    unsigned eax, ebx, ecx = 0, edx;
    return __get_cpuid(0x80000006u, &eax, &ebx, &ecx, &edx) == 0 || ecx >> 16 == 0;
}

#else

static const char *core_type_wanted(void)
{
    return NULL;
}

static int second_cache_unknown(void)
{
    return 0;
}

#endif

/* A variable set for the time of loading only, so that children choose for themselves. */
struct setting {
    const char *name;
    int set;
};

static void setting_begin(struct setting *setting, const char *value)
{
    setting->set = value != NULL && getenv(setting->name) == NULL && setenv(setting->name, value, 0) == 0;
}

static void setting_end(const struct setting *setting)
{
    if (setting->set)
        unsetenv(setting->name);
}

/* POSIX lets a symbol's address be a function's; C does not, hence the copy. */
static void find(void *handle, const char *name, void *function, size_t bytes)
{
    void *symbol = dlsym(handle, name);
    memcpy(function, &symbol, bytes);
}

static int load(struct library *lib)
{
    struct setting settings[] = {{"OPENBLAS_CORETYPE", 0}, {"OPENBLAS_L2_SIZE", 0}, {"OPENBLAS_NUM_THREADS", 0}};
    setting_begin(&settings[0], core_type_wanted());
    setting_begin(&settings[1], second_cache_unknown() ? "512" : NULL);
    setting_begin(&settings[2], "1"); /* else it starts threads as it is loaded */
    void *handle = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        setting_end(&settings[i]);
    if (handle == NULL) {
        snprintf(lib->reason, sizeof lib->reason, "OpenBLAS: %s", dlerror());
        return STATUS_IO;
    }
    void (*set_threads)(int) = NULL;
    char *(*core_name)(void) = NULL;
    find(handle, "cblas_sgemm", &lib->sgemm, sizeof lib->sgemm);
    find(handle, "openblas_set_num_threads", &set_threads, sizeof set_threads);
    find(handle, "openblas_get_corename", &core_name, sizeof core_name);
    if (lib->sgemm == NULL || set_threads == NULL || core_name == NULL) {
        snprintf(lib->reason, sizeof lib->reason,
                 "libopenblas.so.0 lacks one of cblas_sgemm, openblas_set_num_threads, openblas_get_corename");
        dlclose(handle);
        return STATUS_IO;
    }
    set_threads(1);
    snprintf(lib->core_type, sizeof lib->core_type, "%s", core_name());
    return STATUS_OK; /* the handle stays open as long as the process */
}

static void fill(float *x, int64_t count, uint32_t state)
{
    for (int64_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) * 0x1p-24f - 0.5f;
    }
}

/* Largest difference from the slow twin, infinity for a NaN. k passes the depth at which OpenBLAS cuts. */
static double product_error(int trans_a, int trans_b, float *memory)
{
    enum { M = 67, N = 50, K = 450 };
    float *a = memory, *b = a + M * K, *c = b + N * K, *expected = c + M * N;
    fill(a, M * K, 1);
    fill(b, N * K, 2);
    for (int i = 0; i < M * N; i++)
        c[i] = NAN; /* must not be read when beta is 0 */
    gemm(NULL, trans_a, trans_b, M, N, K, a, b, 0.0f, c);
    naive_gemm(trans_a, trans_b, M, N, K, a, b, 0.0f, expected);
    double worst = 0.0;
    for (int i = 0; i < M * N; i++) {
        double error = fabs((double)c[i] - (double)expected[i]);
        if (!(error <= worst))
            worst = isnan(error) ? INFINITY : error;
    }
    return worst;
}

static int self_test(struct library *lib)
{
    float *memory = malloc((size_t)(67 * 450 + 50 * 450 + 2 * 67 * 50) * sizeof *memory);
    if (memory == NULL) {
        snprintf(lib->reason, sizeof lib->reason, "OpenBLAS: no memory for the first products");
        return STATUS_NOMEM;
    }
    double worst = 0.0;
    for (int form = 0; form < 4; form++)
        worst = fmax(worst, product_error(form & 1, form >> 1, memory));
    free(memory);
    if (worst < 1e-4)
        return STATUS_OK;
    snprintf(lib->reason, sizeof lib->reason,
             "OpenBLAS computes wrong products on this processor with core type %s (off by %g); set "
             "OPENBLAS_CORETYPE to another, for example Haswell",
             lib->core_type, worst);
    return STATUS_NUMERIC;
}

static void load_once(void)
{
    library.status = load(&library);
    if (library.status == STATUS_OK)
        library.status = self_test(&library);
}

int gemm_start(struct errbuf *err)
{
    pthread_once(&once, load_once);
    if (library.status != STATUS_OK)
        return errbuf_set(err, library.status, "%s", library.reason);
    return STATUS_OK;
}

const char *gemm_core_type(void)
{
    return library.core_type;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Below this waking another thread costs more than it saves. */
static int worth_sharing(int64_t m, int64_t n, int64_t k)
{
    return (double)m * (double)n * (double)k >= 1 << 20;
}

/* `length` in `parts` nearly equal pieces, multiples of the widest kernel's 16. */
static int64_t piece(int64_t length, int64_t parts)
{
    int64_t size = ceil_div(ceil_div(length, parts), 16) * 16;
    return size < length ? size : length;
}

/* Every block packs its rows of a and columns of b again, so blocks are few: the longer side is halved until there
 * are four (2 to 5% slower than one call on one thread; eight blocks of 128x512x784 would cost 9 to 13%) and no
 * side is above 512. Too little work to share stays whole. */
void gemm_block_size(int64_t m, int64_t n, int64_t k, int64_t *block_m, int64_t *block_n)
{
    enum { NARROW = 32, SIDE_MAX = 512, SIDE_MIN = 32 };
    int64_t parts_m = 1, parts_n = 1;
    *block_m = m > 0 ? m : 1;
    *block_n = n > 0 ? n : 1;
    if (n <= NARROW && m > 96) /* OpenBLAS's kernel without packing takes a narrow c up to about 100 rows */
        *block_m = 64;
    if (!worth_sharing(m, n, k))
        return;
    while (parts_m * parts_n < 4 || *block_m > SIDE_MAX || *block_n > SIDE_MAX) {
        if (*block_n >= *block_m && *block_n >= 2 * SIDE_MIN)
            *block_n = piece(n, parts_n *= 2);
        else if (*block_m >= 2 * SIDE_MIN)
            *block_m = piece(m, parts_m *= 2);
        else
            break;
    }
}

struct gemm_call {
    int trans_a, trans_b;
    int64_t m, n, k, block_m, block_n, blocks_n;
    const float *a, *b;
    float beta, *c;
};

static void run_block(void *context, int64_t i)
{
    const struct gemm_call *call = context;
    int64_t row = i / call->blocks_n * call->block_m, column = i % call->blocks_n * call->block_n;
    int64_t m = call->m - row < call->block_m ? call->m - row : call->block_m;
    int64_t n = call->n - column < call->block_n ? call->n - column : call->block_n;
    int64_t lda = call->trans_a ? call->m : call->k, ldb = call->trans_b ? call->k : call->n;
    library.sgemm(CBLAS_ROW_MAJOR, call->trans_a ? CBLAS_TRANS : CBLAS_NO_TRANS,
                  call->trans_b ? CBLAS_TRANS : CBLAS_NO_TRANS, (int)m, (int)n, (int)call->k, 1.0f,
                  call->a + (call->trans_a ? row : row * call->k), (int)lda,
                  call->b + (call->trans_b ? column * call->k : column), (int)ldb, call->beta,
                  call->c + row * call->n + column, (int)call->n);
}

void gemm(struct pool *pool, int trans_a, int trans_b, int64_t m, int64_t n, int64_t k, const float *a,
          const float *b, float beta, float *c)
{
    assert(library.sgemm != NULL && "gemm before gemm_start");
    assert(m >= 0 && n >= 0 && k >= 0 && m <= INT_MAX && n <= INT_MAX && k <= INT_MAX);
    if (m == 0 || n == 0)
        return;
    if (k == 0) {
        if (beta == 0.0f)
            memset(c, 0, (size_t)m * (size_t)n * sizeof *c);
        return;
    }
    struct gemm_call call = {
        .trans_a = trans_a, .trans_b = trans_b, .m = m, .n = n, .k = k, .a = a, .b = b, .beta = beta, .c = c};
    gemm_block_size(m, n, k, &call.block_m, &call.block_n);
    call.blocks_n = ceil_div(n, call.block_n);
    int64_t blocks = ceil_div(m, call.block_m) * call.blocks_n;
    if (pool != NULL && blocks > 1 && worth_sharing(m, n, k)) {
        pool_for(pool, blocks, run_block, &call);
        return;
    }
    for (int64_t i = 0; i < blocks; i++)
        run_block(&call, i);
}
