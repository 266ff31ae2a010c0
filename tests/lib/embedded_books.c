#include "tests/lib/embedded.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static int64_t bytes_of(const json_t *rank, const char *kind, const char *name)
{
    const json_t *value = json_object_get(json_object_get(rank, kind), name);
    return value == NULL ? -1 : (int64_t)json_integer_value(value);
}

/* What servers and workers sent each other, and the whole model at each worker. */
static void check_server_books(const struct embedded_result *result)
{
    static const char *const kinds[] = {"push", "pull", "init"};
    const json_t *ranks = json_object_get(result->summary, "ranks"), *rank;
    int64_t sent[2] = {0, 0}, received[2] = {0, 0}, model = -1;
    size_t i;
    json_array_foreach(ranks, i, rank) {
        int worker = strcmp(json_string_value(json_object_get(rank, "role")), "worker") == 0;
        int64_t parameters = bytes_of(rank, "model_state_bytes", "parameters");
        for (int k = 0; k < 3; k++) {
            int64_t out = bytes_of(rank, "sent_bytes", kinds[k]), in = bytes_of(rank, "received_bytes", kinds[k]);
            sent[worker] += out > 0 ? out : 0;
            received[worker] += in > 0 ? in : 0;
        }
        if (worker && model >= 0 && parameters != model)
            fail_msg("workers hold %lld and %lld bytes of parameters", (long long)model, (long long)parameters);
        if (worker)
            model = parameters;
    }
    if (sent[1] != received[0] || sent[0] != received[1])
        fail_msg("workers sent %lld, servers received %lld; servers sent %lld, workers received %lld bytes",
                 (long long)sent[1], (long long)received[0], (long long)sent[0], (long long)received[1]);
}

/* What left one peer has come to another, and nothing was pushed or pulled. */
static void check_ring_books(const struct embedded_result *result)
{
    static const char *const kinds[] = {"reduce_scatter", "all_gather", "push", "pull"};
    const json_t *ranks = json_object_get(result->summary, "ranks"), *rank;
    for (int k = 0; k < 4; k++) {
        int64_t sent = 0, received = 0;
        size_t i;
        json_array_foreach(ranks, i, rank) {
            int64_t out = bytes_of(rank, "sent_bytes", kinds[k]), in = bytes_of(rank, "received_bytes", kinds[k]);
            if (out < 0 || in < 0)
                fail_msg("rank %zu has no row %s", i, kinds[k]);
            sent += out;
            received += in;
        }
        if (sent != received || (k >= 2 && sent != 0))
            fail_msg("%s: %lld bytes were sent, %lld received", kinds[k], (long long)sent, (long long)received);
    }
}

/* What no rank can say of itself; the rest is in the report card, beside its formula. */
void embedded_check_books(const struct embedded_result *result)
{
    if (result->servers > 0)
        check_server_books(result);
    else
        check_ring_books(result);
    if (strstr(result->output, "<- differs") != NULL)
        fail_msg("a number differs from its formula:\n%s", result->output);
    if (strstr(result->output, "memory by kind") == NULL || strstr(result->output, "payload by kind") == NULL)
        fail_msg("the report card is not whole:\n%s", result->output);
}

int64_t embedded_bytes(const struct embedded_result *result, int rank, const char *group, const char *name)
{
    const json_t *ranks = json_object_get(result->summary, "ranks"), *at;
    size_t i;
    json_array_foreach(ranks, i, at) {
        if (strcmp(json_string_value(json_object_get(at, "role")), "worker") != 0 ||
            json_integer_value(json_object_get(at, "rank")) != rank)
            continue;
        const json_t *value = json_object_get(json_object_get(at, group), name);
        if (json_is_integer(value))
            return (int64_t)json_integer_value(value);
    }
    fail_msg("worker %d has no %s in %s", rank, name, group);
    return -1;
}
