/* bench_kernels [rounds]: speed of the tensor kernels against bare references. All contestants of a table take
 * turns in every round. Printed: the best and the median rate; the median over the rounds of the ratio to the first
 * contestant in the same round, and in brackets that ratio's lower and upper quartile. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/errbuf.h"
#include "base/pool.h"
#include "tensor/kernels.h"
#include "tensor/tensor.h"

enum { ROUNDS_MAX = 1001, VECTOR = 4 << 20, CONTESTANTS_MAX = 8, SOURCES = 8 };

typedef void sgemm_function(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a,
                            int lda, const float *b, int ldb, float beta, float *c, int ldc);

struct bench {
    int rounds;
    struct pool *pools[2]; /* of 1 and 2 threads */
    sgemm_function *sgemm;
    float *acc, *sources[SOURCES];
    int64_t m, n, k;
    int trans_a, trans_b, sources_count;
};

struct contestant {
    const char *name;
    void (*run)(struct bench *bench);
    double work;  /* per call, in the table's unit times 1e9 */
    double calls; /* in one measurement */
};

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const struct contestant *contestant, const char *unit, double *rate, double *ratio, int n)
{
    qsort(rate, (size_t)n, sizeof *rate, compare);
    qsort(ratio, (size_t)n, sizeof *ratio, compare);
    printf("  %-40s best %8.2f median %8.2f %-8s ratio %.3f [%.3f to %.3f]\n", contestant->name, rate[n - 1],
           rate[n / 2], unit, ratio[n / 2], ratio[n / 4], ratio[n * 3 / 4]);
}

static void race(struct bench *bench, const char *title, const char *unit, struct contestant *all, int count)
{
    static double rate[CONTESTANTS_MAX][ROUNDS_MAX], ratio[CONTESTANTS_MAX][ROUNDS_MAX];
    printf("%s\n", title);
    for (int i = 0; i < count; i++)
        all[i].run(bench); /* first touch */
    for (int r = 0; r < bench->rounds; r++)
        for (int i = 0; i < count; i++) {
            int64_t begin = clock_now_ns();
            for (int call = 0; call < (int)all[i].calls; call++)
                all[i].run(bench);
            rate[i][r] = all[i].work * (int)all[i].calls / (double)(clock_now_ns() - begin);
            ratio[i][r] = rate[i][r] / rate[0][r];
        }
    for (int i = 0; i < count; i++)
        report(&all[i], unit, rate[i], ratio[i], bench->rounds);
}

static void run_memcpy(struct bench *b)
{
    memcpy(b->acc, b->sources[0], VECTOR * sizeof(float));
}

static void run_add(struct bench *b)
{
    reduce_add(b->acc, b->sources[0], VECTOR);
}

static void run_add_many(struct bench *b)
{
    reduce_add_many(b->acc, (const float *const *)b->sources, b->sources_count, 1, VECTOR);
}

static void run_add_one_by_one(struct bench *b)
{
    reduce_copy(b->acc, b->sources[0], VECTOR);
    for (int s = 1; s < b->sources_count; s++)
        reduce_add(b->acc, b->sources[s], VECTOR);
}

/* A bare fused loop over four sources with this file's flags. */
static void run_bare_four(struct bench *b)
{
    float *restrict acc = b->acc;
    const float *a = b->sources[0], *c = b->sources[1], *d = b->sources[2], *e = b->sources[3];
    for (int64_t i = 0; i < VECTOR; i++)
        acc[i] = ((a[i] + c[i]) + d[i]) + e[i];
}

static void run_norm(struct bench *b)
{
    int finite = 1;
    volatile double sum = reduce_norm_squared(b->sources[0], VECTOR, &finite);
    (void)sum;
}

static void bench_memory(struct bench *b)
{
    const double bytes = VECTOR * 4.0;
    struct contestant plain[] = {{"memcpy (2 floats moved an element)", run_memcpy, 2 * bytes, 1},
                                 {"reduce_add (3)", run_add, 3 * bytes, 1},
                                 {"reduce_norm_squared (1)", run_norm, bytes, 1}};
    race(b, "one vector of 16 MiB, one thread", "GB/s", plain, 3);
    b->sources_count = 4;
    struct contestant four[] = {{"bare fused loop, same 4 sources (5)", run_bare_four, 5 * bytes, 1},
                                {"reduce_add_many, 4 sources (5)", run_add_many, 5 * bytes, 1},
                                {"copy and add one by one, as if (5)", run_add_one_by_one, 5 * bytes, 1}};
    race(b, "four vectors of 16 MiB into one, one thread", "GB/s", four, 3);
    b->sources_count = 8;
    struct contestant eight[] = {{"reduce_add_many, 8 sources (9)", run_add_many, 9 * bytes, 1},
                                 {"copy and add one by one, as if (9)", run_add_one_by_one, 9 * bytes, 1}};
    race(b, "eight vectors of 16 MiB into one, one thread", "GB/s", eight, 2);
}

static void run_sgemm(struct bench *b)
{
    int m = (int)b->m, n = (int)b->n, k = (int)b->k;
    b->sgemm(101, b->trans_a ? 112 : 111, b->trans_b ? 112 : 111, m, n, k, 1.0f, b->sources[0], b->trans_a ? m : k,
             b->sources[1], b->trans_b ? k : n, 0.0f, b->acc, n);
}

static void run_gemm(struct bench *b)
{
    gemm(NULL, b->trans_a, b->trans_b, b->m, b->n, b->k, b->sources[0], b->sources[1], 0.0f, b->acc);
}

static void run_gemm_1(struct bench *b)
{
    gemm(b->pools[0], b->trans_a, b->trans_b, b->m, b->n, b->k, b->sources[0], b->sources[1], 0.0f, b->acc);
}

static void run_gemm_2(struct bench *b)
{
    gemm(b->pools[1], b->trans_a, b->trans_b, b->m, b->n, b->k, b->sources[0], b->sources[1], 0.0f, b->acc);
}

static void bench_gemm(struct bench *b, int trans_a, int trans_b, int64_t m, int64_t n, int64_t k)
{
    char title[128];
    int64_t block_m, block_n;
    double flops = 2.0 * (double)m * (double)n * (double)k, calls = 2e8 / flops + 1.0;
    struct contestant all[] = {{"one plain sgemm, one thread", run_sgemm, flops, calls},
                               {"gemm, no pool", run_gemm, flops, calls},
                               {"gemm, pool of 1", run_gemm_1, flops, calls},
                               {"gemm, pool of 2", run_gemm_2, flops, calls}};
    b->m = m, b->n = n, b->k = k, b->trans_a = trans_a, b->trans_b = trans_b;
    gemm_block_size(m, n, k, &block_m, &block_n);
    snprintf(title, sizeof title, "%s%s %lld x %lld x %lld in blocks of %lld x %lld", trans_a ? "t" : "n",
             trans_b ? "t" : "n", (long long)m, (long long)n, (long long)k, (long long)block_m, (long long)block_n);
    race(b, title, "GFLOP/s", all, 4);
}

enum { SMALL = 1 << 14 };

static void run_relu(struct bench *b)
{
    activation_forward(ACTIVATION_RELU, NULL, b->sources[0], b->acc, SMALL);
}

static void run_gelu(struct bench *b)
{
    activation_forward(ACTIVATION_GELU, NULL, b->sources[0], b->acc, SMALL);
}

static void run_gelu_tanh(struct bench *b)
{
    activation_forward(ACTIVATION_GELU_TANH, NULL, b->sources[0], b->acc, SMALL);
}

static void run_tanh(struct bench *b)
{
    activation_forward(ACTIVATION_TANH, NULL, b->sources[0], b->acc, SMALL);
}

static void run_dropout(struct bench *b)
{
    dropout_apply(NULL, 0.1, 1, 0, 1, 0, b->sources[0], b->acc, SMALL);
}

static void run_softmax(struct bench *b)
{
    softmax_rows(b->sources[0], b->acc, 16, SMALL / 16);
}

static void run_norm_stats(struct bench *b)
{
    double mean[512], m2[512];
    struct norm_stats stats = {0, mean, m2};
    (void)b;
    batch_norm_stats(b->sources[0], SMALL / 512, 512, &stats);
}

static void bench_elements(struct bench *b)
{
    struct contestant all[] = {{"relu", run_relu, SMALL, 20},
                               {"gelu", run_gelu, SMALL, 20},
                               {"gelu_tanh", run_gelu_tanh, SMALL, 20},
                               {"tanh", run_tanh, SMALL, 20},
                               {"dropout", run_dropout, SMALL, 20},
                               {"softmax, 1024 classes", run_softmax, SMALL, 20},
                               {"batch_norm_stats, 32 x 512", run_norm_stats, SMALL, 20}};
    race(b, "16384 elements in the cache, one thread", "G/s", all, 7);
}

static int start(struct bench *b, struct errbuf *err)
{
    if (gemm_start(err) != 0)
        return -1;
    void *handle = dlopen("libopenblas.so.0", RTLD_NOW); /* the one that is loaded */
    void *symbol = handle != NULL ? dlsym(handle, "cblas_sgemm") : NULL;
    memcpy(&b->sgemm, &symbol, sizeof symbol);
    b->pools[0] = pool_create(1, 0);
    b->pools[1] = pool_create(2, 0);
    b->acc = calloc(VECTOR, sizeof(float));
    int missing = symbol == NULL || b->pools[0] == NULL || b->pools[1] == NULL || b->acc == NULL;
    for (int s = 0; s < SOURCES; s++) {
        b->sources[s] = malloc(VECTOR * sizeof(float));
        missing |= b->sources[s] == NULL;
        for (int64_t i = 0; !missing && i < VECTOR; i++)
            b->sources[s][i] = (float)((i * 37 + s) % 101) * 0.05f - 2.5f;
    }
    return missing ? errbuf_set(err, -1, "out of memory or threads") : 0;
}

int main(int argc, char **argv)
{
    struct bench b = {.rounds = argc > 1 ? atoi(argv[1]) : 21};
    struct errbuf err;
    errbuf_init(&err);
    if (b.rounds < 1 || b.rounds > ROUNDS_MAX || start(&b, &err) != 0) {
        fprintf(stderr, "bench_kernels: %s\n", err.text[0] != '\0' ? err.text : "rounds are 1 to 1001");
        return 1;
    }
    printf("core type %s, loops %s, %d rounds\n", gemm_core_type(), kernel_ops_best()->name, b.rounds);
    bench_memory(&b);
    bench_gemm(&b, 0, 1, 128, 512, 784);
    bench_gemm(&b, 0, 1, 32, 512, 784);
    bench_gemm(&b, 1, 0, 512, 784, 128);
    bench_gemm(&b, 1, 0, 512, 784, 32);
    bench_gemm(&b, 0, 0, 128, 512, 512);
    bench_gemm(&b, 0, 1, 128, 10, 512);
    bench_gemm(&b, 0, 1, 1024, 1024, 1024);
    bench_elements(&b);
    pool_destroy(b.pools[0]);
    pool_destroy(b.pools[1]);
    free(b.acc);
    for (int s = 0; s < SOURCES; s++)
        free(b.sources[s]);
    return 0;
}
