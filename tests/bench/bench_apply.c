/* The owner's sum and Adam over P resident gradients, against bare loops of the same instruction set and flags in
 * the same run: rounds interleaved, medians and spread. Bytes an element: one pass 24 + 4P, two passes 32 + 4P. The
 * bare loops neither look for values that are not finite nor compute a norm. bench_apply [rounds 9] [elements
 * 8388608] */
#include "optim/isa.h"
#include "optim/optimizer.h"
#include "owner/apply.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { SOURCES_MAX = 4, ROUNDS_MAX = 101, RUN = 16384, VARIANTS = 4 };

struct arena {
    int64_t count;
    float *w, *m, *v, *grad;
    float *sources[SOURCES_MAX];
};

struct bare_args {
    const struct arena *arena;
    float beta1, rest1, beta2, rest2, step_size, root_scale, eps;
};

ISA_INLINE float bare_sum(float *const *sources, int sources_count, int64_t i)
{
    float sum = sources[0][i];
    for (int s = 1; s < sources_count; s++)
        sum += sources[s][i];
    return sum;
}

/* sources_count 0: from grad. */
ISA_INLINE void bare_adam(const struct bare_args *args, int sources_count)
{
    const struct bare_args a = *args;
    float *restrict w = a.arena->w, *restrict m = a.arena->m, *restrict v = a.arena->v;
    const float *restrict grad = a.arena->grad;
    float *const sources[SOURCES_MAX] = {a.arena->sources[0], a.arena->sources[1], a.arena->sources[2],
                                         a.arena->sources[3]};
    const int64_t count = a.arena->count;

    ISA_LOOP
    for (int64_t i = 0; i < count; i++) {
        float g = sources_count ? bare_sum(sources, sources_count, i) : grad[i];
        m[i] = a.beta1 * m[i] + a.rest1 * g;
        v[i] = a.beta2 * v[i] + a.rest2 * (g * g);
        w[i] = w[i] - (a.step_size * m[i]) / (sqrtf(v[i]) * a.root_scale + a.eps);
    }
}

ISA_INLINE void bare_add(const struct bare_args *args, int sources_count)
{
    float *restrict grad = args->arena->grad;
    float *const sources[SOURCES_MAX] = {args->arena->sources[0], args->arena->sources[1], args->arena->sources[2],
                                         args->arena->sources[3]};
    const int64_t count = args->arena->count;

    ISA_LOOP
    for (int64_t i = 0; i < count; i++)
        grad[i] = bare_sum(sources, sources_count, i);
}

#define BARE(p)                                                                                                    \
    ISA_BODY one##p##_body(const struct bare_args *args)                                                           \
    {                                                                                                              \
        bare_adam(args, p);                                                                                        \
    }                                                                                                              \
    ISA_PATHS(one##p, struct bare_args)                                                                            \
    ISA_BODY add##p##_body(const struct bare_args *args)                                                           \
    {                                                                                                              \
        bare_add(args, p);                                                                                         \
    }                                                                                                              \
    ISA_PATHS(add##p, struct bare_args)

BARE(1)
BARE(2)
BARE(4)
ISA_BODY second_body(const struct bare_args *args)
{
    bare_adam(args, 0);
}
ISA_PATHS(second, struct bare_args)

static const struct optimizer_params params = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
static const struct optimizer_step step = {.lr = 1e-4, .t = 1000, .grad_scale = 1};

static void bare_one_pass(struct arena *arena, int p)
{
    const struct bare_args args = {arena, 0.9f, 0.1f, 0.999f, 0.001f, 1e-4f, 1.2f, 1e-8f};
    const enum isa isa = isa_best();

    if (p == 1)
        one1_run(isa, &args);
    else if (p == 2)
        one2_run(isa, &args);
    else
        one4_run(isa, &args);
}

static void bare_two_pass(struct arena *arena, int p)
{
    const struct bare_args args = {arena, 0.9f, 0.1f, 0.999f, 0.001f, 1e-4f, 1.2f, 1e-8f};
    const enum isa isa = isa_best();

    if (p == 1)
        add1_run(isa, &args);
    else if (p == 2)
        add2_run(isa, &args);
    else
        add4_run(isa, &args);
    second_run(isa, &args);
}

static void owner_one_pass(struct arena *arena, int p)
{
    const struct owner_rule rule = {optimizer_find("adam"), &params, &step, 1};
    float *slots[2] = {arena->m, arena->v};

    owner_apply_sum(&rule, arena->w, slots, (const float *const *)arena->sources, p, arena->count);
}

static void owner_two_pass(struct arena *arena, int p)
{
    const struct owner_rule rule = {optimizer_find("adam"), &params, &step, 1};
    const float *sources[SOURCES_MAX];
    int finite = 1;

    for (int64_t first = 0; first < arena->count; first += RUN) {
        int64_t now = arena->count - first < RUN ? arena->count - first : RUN;
        for (int s = 0; s < p; s++)
            sources[s] = arena->sources[s] + first;
        owner_sum(arena->grad + first, sources, p, now, &finite);
    }
    for (int64_t first = 0; first < arena->count; first += RUN) {
        int64_t now = arena->count - first < RUN ? arena->count - first : RUN;
        float *slots[2] = {arena->m + first, arena->v + first};
        owner_apply(&rule, arena->w + first, arena->grad + first, slots, now);
    }
}

static float *filled(int64_t count, float value)
{
    float *x = aligned_alloc(64, sizeof(float) * (size_t)((count + 15) / 16 * 16));

    for (int64_t i = 0; x && i < count; i++)
        x[i] = value * (float)(1 + i % 7);
    return x;
}

/* Of this thread: what other processes take from the core does not count, what they take from the memory does. */
static double cpu_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void report(const char *name, int p, int rounds, double bytes, double seconds[2][ROUNDS_MAX])
{
    double ratio[ROUNDS_MAX], rate[2];

    for (int r = 0; r < rounds; r++)
        ratio[r] = seconds[0][r] / seconds[1][r];
    for (int k = 0; k < 2; k++) {
        qsort(seconds[k], (size_t)rounds, sizeof(double), ascending);
        rate[k] = bytes / seconds[k][rounds / 2] / 1e9;
    }
    qsort(ratio, (size_t)rounds, sizeof(double), ascending);
    printf("%-8s P=%d  bare %6.2f GB/s  owner %6.2f GB/s  ratio median %.3f (%.3f to %.3f)\n", name, p, rate[0],
           rate[1], ratio[rounds / 2], ratio[0], ratio[rounds - 1]);
}

static void measure(struct arena *arena, int p, int rounds)
{
    static void (*const variants[VARIANTS])(struct arena *, int) = {bare_one_pass, owner_one_pass, bare_two_pass,
                                                                    owner_two_pass};
    static double seconds[VARIANTS][ROUNDS_MAX];

    for (int round = -1; round < rounds; round++) /* -1 warms up */
        for (int k = 0; k < VARIANTS; k++) {
            double begin = cpu_seconds();
            variants[k](arena, p);
            if (round >= 0)
                seconds[k][round] = cpu_seconds() - begin;
        }
    report("one-pass", p, rounds, (double)arena->count * (24 + 4 * p), seconds);
    report("two-pass", p, rounds, (double)arena->count * (32 + 4 * p), seconds + 2);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 25;
    struct arena arena = {.count = argc > 2 ? atoll(argv[2]) : 4194304};
    int ready = 1;

    if (rounds < 1 || rounds > ROUNDS_MAX || arena.count < 1) {
        fprintf(stderr, "usage: bench_apply [rounds 1..%d] [elements]\n", ROUNDS_MAX);
        return 2;
    }
    arena.w = filled(arena.count, 0.1f);
    arena.m = filled(arena.count, 0.01f);
    arena.v = filled(arena.count, 0.001f);
    arena.grad = filled(arena.count, 0.0f);
    for (int s = 0; s < SOURCES_MAX; s++) {
        arena.sources[s] = filled(arena.count, 0.01f * (float)(s + 1));
        ready = ready && arena.sources[s];
    }
    if (!ready || !arena.w || !arena.m || !arena.v || !arena.grad) {
        fprintf(stderr, "out of memory\n");
        return 1;
    }
    printf("%lld elements, %d rounds, %s\n", (long long)arena.count, rounds, isa_name(isa_best()));
    for (int p = 1; p <= SOURCES_MAX; p *= 2)
        measure(&arena, p, rounds);
    free(arena.w), free(arena.m), free(arena.v), free(arena.grad);
    for (int s = 0; s < SOURCES_MAX; s++)
        free(arena.sources[s]);
    return 0;
}
