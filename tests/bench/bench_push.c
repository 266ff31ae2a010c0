/* Pushes and pulls through libshoal, one client and one server with plain sgd, over shared memory and over tcp loopback in
 * interleaved rounds of one run: the time of a push of 64 bytes until it is acknowledged, at the median; and 16 MiB pushed,
 * added, applied and pulled again a step, the next push beside the last pull, in bytes of the tensor a second (as ps-lite
 * counts: each way once). Server and coordinator are threads of this process.    bench_push [rounds] */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/api_ranks.h"

enum { KEYS = 500, FLOATS = 16, LARGE = 4 << 20, STEPS = 20, WAYS = 2, ROUNDS_MAX = 64 };
static const char *const ways[WAYS] = {"shm", "tcp"};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    return values[count / 2];
}

static void must(struct shoal_client *client, int status)
{
    char text[512];
    if (status < 0) {
        shoal_error(client, text, sizeof text);
        fprintf(stderr, "bench_push: %s\n", text);
        exit(1);
    }
}

struct side {
    struct api_cluster *cluster;
    struct shoal_client *client;
};

static struct side side_open(const char *way, int keys, int64_t floats)
{
    char more[128], name[32];
    snprintf(more, sizeof more, "optimizer: {kind: sgd, lr: 0.1}\nparallel: {transport: %s}\n", way);
    struct api_cluster_options options = {.workers = 1, .servers = 1, .more = more};
    struct side side = {.cluster = api_cluster_start(&options)};
    side.client = api_connect(side.cluster, 0, 0);
    for (int k = 0; k < keys; k++) {
        snprintf(name, sizeof name, "k%d", k);
        must(side.client, shoal_register(side.client, name, 1, &floats));
    }
    must(side.client, shoal_start(side.client));
    return side;
}

static void side_close(struct side *side)
{
    shoal_close(side->client);
    api_cluster_end(side->cluster, NULL, NULL);
}

static double small_us(struct side *side)
{
    static float g[KEYS][FLOATS];
    static double times[KEYS];
    for (int k = 0; k < KEYS; k++) {
        shoal_request request;
        double begin = now_s();
        must(side->client, shoal_push(side->client, k, g[k], FLOATS, 1, &request));
        must(side->client, shoal_wait(side->client, request));
        times[k] = (now_s() - begin) * 1e6;
    }
    must(side->client, shoal_clock(side->client));
    return median(times, KEYS);
}

static double large_gb_s(struct side *side)
{
    static float g[LARGE], w[LARGE];
    double begin = now_s();
    for (int step = 0; step < STEPS; step++) {
        shoal_request pull;
        must(side->client, shoal_pull(side->client, 0, w, LARGE, &pull));
        must(side->client, shoal_push(side->client, 0, g, LARGE, 1, NULL));
        must(side->client, shoal_wait(side->client, pull));
        must(side->client, shoal_clock(side->client));
    }
    return (double)STEPS * sizeof g / (now_s() - begin) / 1e9;
}

int main(int count, char **arguments)
{
    int rounds = count > 1 ? atoi(arguments[1]) : 9;
    rounds = rounds < 1 ? 1 : rounds > ROUNDS_MAX ? ROUNDS_MAX : rounds;
    mallopt(M_MMAP_THRESHOLD, 32 << 20); /* as the daemons do */
    mallopt(M_TRIM_THRESHOLD, 512 << 20);
    static double small[WAYS][ROUNDS_MAX], large[WAYS][ROUNDS_MAX];
    struct side few[WAYS], many[WAYS];
    for (int way = 0; way < WAYS; way++) {
        many[way] = side_open(ways[way], KEYS, FLOATS);
        few[way] = side_open(ways[way], 1, LARGE);
    }
    for (int i = -1; i < rounds; i++) { /* the first is for warming up */
        for (int way = 0; way < WAYS; way++) {
            small[way][i < 0 ? 0 : i] = small_us(&many[way]);
            large[way][i < 0 ? 0 : i] = large_gb_s(&few[way]);
        }
    }
    for (int way = 0; way < WAYS; way++) {
        double us = median(small[way], rounds), rate = median(large[way], rounds);
        printf("%s  64 B push, median %7.1f us (rounds %.1f to %.1f)   16 MiB push + pull %5.2f GB/s (rounds %.2f to %.2f)\n",
               ways[way], us, small[way][0], small[way][rounds - 1], rate, large[way][0], large[way][rounds - 1]);
        side_close(&many[way]);
        side_close(&few[way]);
    }
    return 0;
}
