/* Small pushes through libshoal: one client, one server, tcp loopback, KEYS tensors of 16 floats, each pushed on its own
 * in every clock. Prints pushes a second by rounds: from the first push to the end of the step, and with a pull of all
 * keys. Usage: bench_api [rounds] */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "lib/api_ranks.h"

enum { KEYS = 10000, FLOATS = 16 };

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void must(struct shoal_client *client, int status)
{
    char text[512];
    if (status < 0) {
        shoal_error(client, text, sizeof(text));
        fprintf(stderr, "bench_api: %s\n", text);
        exit(1);
    }
}

int main(int count, char **arguments)
{
    int rounds = count > 1 ? atoi(arguments[1]) : 50;
    struct api_cluster_options options = {.workers = 1, .servers = 1, .more = "optimizer: {kind: sgd, lr: 0.1}\n"};
    struct api_cluster *cluster = api_cluster_start(&options);
    struct shoal_client *client = api_connect(cluster, 0, 0);
    static float g[KEYS][FLOATS], w[KEYS][FLOATS];
    static struct shoal_slice slices[KEYS];
    int64_t n = FLOATS;
    char name[32];
    for (int k = 0; k < KEYS; k++) {
        snprintf(name, sizeof(name), "k%d", k);
        must(client, shoal_register(client, name, 1, &n));
        slices[k] = (struct shoal_slice){k, NULL, w[k], FLOATS};
    }
    double begin = now_s();
    must(client, shoal_start(client));
    printf("start with %d keys %.3f s\n", KEYS, now_s() - begin);
    double pushing = 0, stepping = 0, whole = 0, best = 1e9;
    for (int round = -2; round < rounds; round++) { /* two to warm up */
        double t0 = now_s();
        for (int k = 0; k < KEYS; k++) {
            must(client, shoal_push(client, k, g[k], FLOATS, 1, NULL));
        }
        double t1 = now_s();
        must(client, shoal_clock(client));
        double t2 = now_s();
        must(client, shoal_pull_many(client, slices, KEYS, NULL));
        double t3 = now_s();
        if (round >= 0) {
            pushing += t1 - t0;
            stepping += t2 - t0;
            whole += t3 - t0;
            best = t2 - t0 < best ? t2 - t0 : best;
        }
    }
    double pushes = (double)KEYS * rounds;
    printf("calls of shoal_push       %.3f M/s\n", pushes / pushing / 1e6);
    printf("pushed and applied        %.3f M/s (best round %.3f)\n", pushes / stepping / 1e6, KEYS / best / 1e6);
    printf("pushed, applied, pulled   %.3f M/s\n", pushes / whole / 1e6);
    shoal_close(client);
    api_cluster_end(cluster, NULL, NULL);
    return 0;
}
