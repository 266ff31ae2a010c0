/* Matrix products: the only caller of BLAS. OpenBLAS is loaded at run time, so nothing links it.
 * gemm_start is called once a process before other threads start; after it, gemm may run on any threads at once. */
#ifndef SHOAL_TENSOR_GEMM_H
#define SHOAL_TENSOR_GEMM_H

#include <stdint.h>

struct pool;
struct errbuf;

/* Chooses OPENBLAS_CORETYPE for this processor unless the user set it, loads OpenBLAS, sets it to one thread and
 * compares a few products with the slow twin. Once a process, before other threads start; idempotent. STATUS_IO
 * when the library cannot be loaded, STATUS_NUMERIC when it computes wrong on this processor. */
int gemm_start(struct errbuf *err);
/* Core type in use as OpenBLAS reports it ("SkylakeX", "Haswell"), "" before gemm_start. */
const char *gemm_core_type(void);

/* c (m,n) = op(a) (m,k) * op(b) (k,n) + beta * c, beta 0 or 1. trans_a: a is stored (k,m); trans_b: b is
 * stored (n,k). c is cut into blocks that depend on (m, n, k) only; each is one single-threaded sgemm on a pool
 * thread (pool NULL: all on the caller). k is never split. With beta 0 c is not read; k = 0 then gives zeros.
 * Dimensions below 2^31. gemm_start must have succeeded. */
void gemm(struct pool *pool, int trans_a, int trans_b, int64_t m, int64_t n, int64_t k, const float *a,
          const float *b, float beta, float *c);

/* The block that gemm uses for this shape: rows and columns of c, each at least 1. For benchmarks and tests. */
void gemm_block_size(int64_t m, int64_t n, int64_t k, int64_t *block_m, int64_t *block_n);

#endif
