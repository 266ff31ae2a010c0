#include "tests/integration/cluster.h"

#include <ftw.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/sha256.h"

static const double s1_losses[] = {0.69314718, 0.22782775, 0.16158376, 0.12855686, 0.10778109, 0.09321433};

void cluster_write(const struct cluster *cluster, const char *name, const char *text)
{
    char path[CLUSTER_PATH + 128];
    snprintf(path, sizeof path, "%s/%s", cluster->folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

void cluster_open(struct cluster *cluster, int workers, int servers, int steps, const char *more)
{
    char yaml[4096];
    memset(cluster, 0, sizeof *cluster);
    snprintf(cluster->folder, sizeof cluster->folder, "%s/cluster-XXXXXX", SHOAL_BINARY_DIR);
    assert_non_null(mkdtemp(cluster->folder));
    snprintf(cluster->job, sizeof cluster->job, "%s/job.yaml", cluster->folder);
    snprintf(cluster->metrics, sizeof cluster->metrics, "%s/metrics.jsonl", cluster->folder);
    cluster_write(cluster, "s1.libsvm", "0 1:1 2:2\n1 1:-1 2:0.5\n0 1:2 2:1\n1 1:-2 2:-1\n");
    snprintf(yaml, sizeof yaml,
             "name: s1\nsteps: %d\nbatch_size: 4\nlog_every: 1\n"
             "data: {kind: libsvm, train: {file: s1.libsvm}, test: {file: s1.libsvm}, order: sequential}\n"
             "model: {kind: linear, init: zeros}\noptimizer: {kind: sgd, lr: 0.5}\n"
             "cluster: {workers: %d, servers: %d}\n%s",
             steps, workers, servers, more);
    cluster_write(cluster, "job.yaml", yaml);
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *walk)
{
    (void)info;
    (void)type;
    (void)walk;
    return remove(path);
}

void cluster_remove_tree(const char *folder)
{
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

void cluster_close(struct cluster *cluster)
{
    process_forget(&cluster->coordinator);
    for (int i = 0; i < CLUSTER_RANKS; i++) {
        process_forget(&cluster->server[i]);
        process_forget(&cluster->worker[i]);
    }
    cluster_remove_tree(cluster->folder);
}

void cluster_coordinate(struct cluster *cluster, const char *arguments)
{
    struct process *coordinator = &cluster->coordinator;
    process_forget(coordinator);
    process_init(coordinator, "shoal-server");
    process_add(coordinator, "--coordinator %s", arguments);
    if (!strstr(arguments, "--listen"))
        process_add(coordinator, "--listen tcp://127.0.0.1:0");
    process_start(coordinator);
    const char *said = process_until_line(coordinator, "listening address=") + strlen("listening address=");
    snprintf(cluster->address, sizeof cluster->address, "%.*s", (int)strcspn(said, " \n"), said);
}

static void start_member(struct cluster *cluster, struct process *member, const char *program, const char *arguments)
{
    process_forget(member);
    process_init(member, program);
    process_add(member, "--threads 1 %s", arguments);
    if (!strstr(arguments, "--cluster"))
        process_add(member, "--cluster %s", cluster->address);
    process_start(member);
}

void cluster_serve(struct cluster *cluster, int i, const char *arguments)
{
    start_member(cluster, &cluster->server[i], "shoal-server", arguments);
}

void cluster_work(struct cluster *cluster, int i, const char *arguments)
{
    start_member(cluster, &cluster->worker[i], "shoal-worker", arguments);
}

void cluster_members(struct cluster *cluster, int servers, int workers, const char *arguments)
{
    for (int i = 0; i < servers; i++)
        cluster_serve(cluster, i, arguments);
    for (int i = 0; i < workers; i++)
        cluster_work(cluster, i, arguments);
}

void cluster_expect(struct cluster *cluster, int servers, int workers, int code)
{
    process_expect(&cluster->coordinator, code, PROCESS_DEADLINE_S);
    for (int i = 0; i < servers; i++)
        process_expect(&cluster->server[i], code, PROCESS_DEADLINE_S);
    for (int i = 0; i < workers; i++)
        process_expect(&cluster->worker[i], code, PROCESS_DEADLINE_S);
}

void cluster_until_step(struct cluster *cluster, int step)
{
    char text[32];
    snprintf(text, sizeof text, "step %d/", step);
    process_until(&cluster->coordinator, text);
}

static int read_line(const char *line, double *loss, double *evaluated)
{
    json_t *root = json_loads(line, 0, NULL);
    const char *event = json_string_value(json_object_get(root, "event"));
    int is_step = event && strcmp(event, "step") == 0;
    if (is_step)
        *loss = json_number_value(json_object_get(root, "loss"));
    if (event && strcmp(event, "eval") == 0)
        *evaluated = json_number_value(json_object_get(root, "loss"));
    json_decref(root);
    return is_step;
}

static int read_metrics(const struct cluster *cluster, double *losses, int room, double *evaluated)
{
    char line[8192];
    int count = 0;
    FILE *file = fopen(cluster->metrics, "r");
    assert_non_null(file);
    while (count < room && fgets(line, sizeof line, file))
        count += read_line(line, &losses[count], evaluated);
    fclose(file);
    return count;
}

int cluster_losses(const struct cluster *cluster, double *losses, int room)
{
    double evaluated;
    return read_metrics(cluster, losses, room, &evaluated);
}

static void expect_near(int i, double found, double wanted)
{
    if (!(fabs(found - wanted) <= 1e-6))
        fail_msg("S1, loss %d: %.9g, not %.9g", i, found, wanted);
}

void cluster_expect_s1(const struct cluster *cluster, int evaluated)
{
    double losses[5], last = NAN;
    assert_int_equal(read_metrics(cluster, losses, 5, &last), 5);
    for (int i = 0; i < 5; i++)
        expect_near(i, losses[i], s1_losses[i]);
    if (!evaluated)
        return;
    double all[6];
    assert_int_equal(read_metrics(cluster, all, 6, &last), 5);
    expect_near(5, last, s1_losses[5]);
}

void cluster_sha256(const char *path, char sha256[CLUSTER_SHA])
{
    if (sha256_of_file(path, sha256) != 0)
        fail_msg("%s: cannot be read", path);
}

void cluster_server_address(struct cluster *cluster, int i, const char *more, char address[128])
{
    struct process status;
    char text[32];
    process_init(&status, "shoal");
    process_add(&status, "status --timeout 30 --cluster %s %s", cluster->address, more);
    assert_int_equal(process_run(&status), 0);
    snprintf(text, sizeof text, "server %d ", i);
    const char *line = strstr(status.said, text), *at = line ? strstr(line, "address=") : NULL;
    if (!at)
        fail_msg("no server %d in: %s", i, status.said);
    snprintf(address, 128, "%.*s", (int)strcspn(at + 8, " \n"), at + 8);
    process_forget(&status);
}
