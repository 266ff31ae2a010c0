#include "cluster.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { WIDTH = 200 };

void cluster_open(struct cluster *cluster, const char *yaml)
{
    char text[2048];
    memset(cluster, 0, sizeof *cluster);
    cluster->total_steps = 6;
    snprintf(text, sizeof text, "%s%s", yaml,
             strstr(yaml, "cluster:") != NULL ? "" : "cluster: {workers: 3, servers: 2}\n");
    world_open(&cluster->world, text, 1);
    for (int i = 0; i < CLUSTER_WORKERS; i++)
        actor_init(&cluster->workers[i], &cluster->world, SHOAL__ROLE__WORKER, -1);
    for (int i = 0; i < CLUSTER_SERVERS; i++)
        actor_init(&cluster->servers[i], &cluster->world, SHOAL__ROLE__SERVER, -1);
    world_table(&cluster->table, WIDTH);
    assert_int_equal(keymap_init(&cluster->keymap, &cluster->table,
                                 &(struct keymap_layout){CLUSTER_WORKERS, CLUSTER_SERVERS,
                                                         cluster->world.job->parallel.message_bytes, CANONICAL_PART},
                                 NULL),
                     0);
}

void cluster_close(struct cluster *cluster)
{
    keymap_close(&cluster->keymap);
    param_table_close(&cluster->table);
    world_close(&cluster->world);
}

void cluster_join(struct cluster *cluster)
{
    for (int i = 0; i < CLUSTER_WORKERS; i++) {
        actor_join(&cluster->workers[i]);
        assert_int_equal(cluster->workers[i].rank, i);
    }
    for (int i = 0; i < CLUSTER_SERVERS; i++) {
        actor_join(&cluster->servers[i]);
        assert_int_equal(cluster->servers[i].rank, i);
    }
}

const struct world_reply *cluster_events(struct cluster *cluster, Shoal__Type type, int workers, int servers)
{
    uint64_t first = 0;
    for (int i = 0; servers && i < CLUSTER_SERVERS; i++) {
        const struct world_reply *event = actor_event(&cluster->servers[i]);
        assert_non_null(event);
        assert_int_equal(event->envelope->type, type);
        first = event->request;
    }
    for (int i = CLUSTER_WORKERS - 1; workers && i >= 0; i--) {
        const struct world_reply *event = actor_event(&cluster->workers[i]);
        assert_non_null(event);
        assert_int_equal(event->envelope->type, type);
        first = event->request;
    }
    return world_answer(&cluster->world, first);
}

void cluster_start(struct cluster *cluster)
{
    struct world *world = &cluster->world;
    cluster_events(cluster, SHOAL__TYPE__JOB, 1, 1);
    uint64_t requests[CLUSTER_WORKERS];
    for (int i = 0; i < CLUSTER_WORKERS; i++) {
        for (int j = 0; j < i; j++)
            assert_int_equal(world_status(world, requests[j]), 1); /* held until all agree */
        requests[i] = actor_register(&cluster->workers[i], cluster->total_steps, WIDTH, cluster->features);
    }
    for (int i = 0; i < CLUSTER_WORKERS; i++)
        assert_int_equal(world_status(world, requests[i]), 0);
    cluster_events(cluster, SHOAL__TYPE__START, 0, 1);
    for (int i = 0; i < CLUSTER_SERVERS; i++)
        assert_int_equal(world_status(world, actor_simple(&cluster->servers[i], SHOAL__TYPE__READY, 0, 0, "")), 0);
    cluster_events(cluster, SHOAL__TYPE__START, 1, 0);
}

void cluster_feed(struct cluster *cluster, uint64_t step, double loss, int finite)
{
    struct world *world = &cluster->world;
    for (int i = 0; i < cluster->keymap.ranges_count; i++) {
        const struct keymap_range *range = &cluster->keymap.ranges[i];
        uint64_t request = actor_prepared(&cluster->servers[range->server], step, range, 4.0 + i, finite);
        assert_int_equal(world_status(world, request), 0);
    }
    for (int i = 0; i < CLUSTER_WORKERS; i++)
        assert_int_equal(world_status(world, actor_report(&cluster->workers[i], step, 4 * loss, 4)), 0);
}

const Shoal__Verdict *cluster_step(struct cluster *cluster, uint64_t step, double loss)
{
    cluster_feed(cluster, step, loss, 1);
    const struct world_reply *event = cluster_events(cluster, SHOAL__TYPE__VERDICT, 1, 1);
    assert_int_equal(event->envelope->clock, step);
    return event->envelope->verdict;
}

void cluster_finish(struct cluster *cluster)
{
    for (int i = 0; i < CLUSTER_WORKERS; i++)
        assert_int_equal(world_status(&cluster->world, actor_summary(&cluster->workers[i], i == 0 ? "ab" : "")), 0);
    const struct world_reply *event = cluster_events(cluster, SHOAL__TYPE__VERDICT, 0, 1);
    assert_int_equal(event->envelope->verdict->decision, SHOAL__DECISION__DECISION_NONE);
    assert_true(event->envelope->verdict->last);
    for (int i = 0; i < CLUSTER_SERVERS; i++)
        assert_int_equal(world_status(&cluster->world, actor_summary(&cluster->servers[i], "")), 0);
    event = cluster_events(cluster, SHOAL__TYPE__END, 1, 1);
    assert_int_equal(event->envelope->status, 0);
    for (int i = 0; i < CLUSTER_WORKERS; i++)
        actor_simple(&cluster->workers[i], SHOAL__TYPE__LEAVE, 0, 0, "");
    assert_int_equal(cluster->world.ended, 0);
    for (int i = 0; i < CLUSTER_SERVERS; i++)
        actor_simple(&cluster->servers[i], SHOAL__TYPE__LEAVE, 0, 0, "");
    assert_int_equal(cluster->world.ended, 1);
    assert_int_equal(cluster->world.end_status, 0);
}
