#include "tests/cases/cluster_jobs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/errbuf.h"
#include "files/fs.h"
#include "files/safetensors.h"
#include "tests/lib/embedded.h"

const struct cluster_way cluster_ways[CLUSTER_WAYS] = {{"ps", 1},    {"ps", 2},    {"ps", 3},   {"ddp", 0},
                                                       {"zero1", 0}, {"zero2", 0}, {"zero3", 0}};

void cluster_jobs_way(struct embedded_order *order, const struct cluster_way *way)
{
    order->servers = way->servers;
    embedded_set(order, "parallel.data=%s", way->mode);
}

static const char iris[] = "/usr/lib/python3/dist-packages/sklearn/datasets/data/iris.csv";

void cluster_jobs_write(const char *folder, const char *name, const char *text)
{
    char path[1024];
    struct errbuf err;
    errbuf_init(&err);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (fs_write_file(path, text, strlen(text), &err) != 0)
        fail_msg("%s", err.text);
}

void cluster_jobs_need(const char *path, const char *package)
{
    if (access(path, R_OK) != 0)
        fail_msg("%s: not there, install %s", path, package);
}

void cluster_jobs_s1(const char *folder, char *yaml, size_t bytes)
{
    cluster_jobs_write(folder, "s1.libsvm", "0 1:1 2:2\n1 1:-1 2:0.5\n0 1:2 2:1\n1 1:-2 2:-1\n");
    snprintf(yaml, bytes,
             "name: s1\nsteps: 5\nbatch_size: 4\nlog_every: 1\n"
             "data: {kind: libsvm, train: {file: %s/s1.libsvm}, test: {file: %s/s1.libsvm}, order: sequential}\n"
             "model: {kind: linear, init: zeros}\n",
             folder, folder);
}

/* v(k,i) = a sin(0.37k + 0.11i), a = 0.5, computed in double and rounded once; gamma is 1 + v. */
static double formula(int k, int64_t i)
{
    return 0.5 * sin(0.37 * k + 0.11 * (double)i);
}

static void write_formula_weights(const char *path)
{
    static float w1[8 * 4], b1[8], gamma[8], beta[8], w2[3 * 8], b2[3], mean[8], var[8];
    static int64_t tracked;
    struct errbuf err;
    errbuf_init(&err);
    for (int i = 0; i < 4 * 8; i++) /* (in,out) in the formula, (out,in) in the file */
        w1[i % 8 * 4 + i / 8] = (float)formula(0, i);
    for (int i = 0; i < 8; i++) {
        b1[i] = (float)formula(1, i);
        gamma[i] = (float)(1 + formula(2, i));
        beta[i] = (float)formula(3, i);
        mean[i] = 0;
        var[i] = 1;
    }
    for (int i = 0; i < 8 * 3; i++)
        w2[i % 3 * 8 + i / 3] = (float)formula(4, i);
    for (int i = 0; i < 3; i++)
        b2[i] = (float)formula(5, i);
#define VECTOR(tensor, values)                                                                                     \
    {                                                                                                              \
        .name = tensor, .dims = 1, .shape = {sizeof values / sizeof(float)}, .count = sizeof values / sizeof(float), \
        .data = values, .bytes = sizeof values                                                                     \
    }
    const struct safetensors_tensor tensors[] = {
        {.name = "layers.0.linear.weight", .dims = 2, .shape = {8, 4}, .count = 32, .data = w1, .bytes = sizeof w1},
        VECTOR("layers.0.linear.bias", b1),
        VECTOR("layers.0.norm.weight", gamma),
        VECTOR("layers.0.norm.bias", beta),
        VECTOR("layers.0.norm.running_mean", mean),
        VECTOR("layers.0.norm.running_var", var),
        {.name = "layers.0.norm.num_batches_tracked", .dtype = SAFETENSORS_I64, .count = 1, .data = &tracked,
         .bytes = sizeof tracked},
        {.name = "head.weight", .dims = 2, .shape = {3, 8}, .count = 24, .data = w2, .bytes = sizeof w2},
        VECTOR("head.bias", b2),
    };
    if (safetensors_write(path, tensors, sizeof tensors / sizeof *tensors, NULL, 0, NULL, &err) != 0)
        fail_msg("%s", err.text);
}

void cluster_jobs_s4(const char *folder, char *yaml, size_t bytes, char *init, size_t init_bytes)
{
    cluster_jobs_need(iris, "python3-sklearn");
    snprintf(init, init_bytes, "%s/formula.safetensors", folder);
    write_formula_weights(init);
    snprintf(yaml, bytes,
             "name: s4\nsteps: 5\nbatch_size: 150\nlog_every: 1\n"
             "data: {kind: csv, train: {file: %s}, test: {file: %s}, header_lines: 1, order: sequential}\n"
             "model: {kind: mlp, hidden: [8], activation: relu, batch_norm: true}\n"
             "optimizer: {kind: sgd, lr: 0.1}\n",
             iris, iris);
}

void cluster_jobs_mlp(char *yaml, size_t bytes)
{
    snprintf(yaml, bytes,
             "name: bits\nseed: 7\nsteps: 8\nbatch_size: 24\nlog_every: 1\n"
             "data: {kind: synthetic, samples: 100, features: 150, classes: 5, seed: 3}\n"
             "model: {kind: mlp, hidden: [200, 90], activation: gelu_tanh, batch_norm: true, dropout: 0.2}\n"
             "optimizer: {kind: adam, lr: 0.01}\n");
}
