#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "deploy/cli/bench.h"
#include "deploy/cli/command.h"

static const struct bench_ops *const operations[] = {&bench_all_reduce, &bench_reduce_scatter, &bench_all_gather,
                                                     &bench_push_pull};
enum { OPERATIONS = sizeof operations / sizeof *operations };
static const int64_t BYTES_MAX = (int64_t)64 << 30;

struct typed {
    const char *begin, *end, *transport;
    struct bench_options options;
};
#define AT(field) offsetof(struct typed, field)
static const struct arg rows[] = {
    {"b", ARG_TEXT, AT(begin), "BYTES", "the smallest size, with K, M or G; default 4K", 0, 0},
    {"e", ARG_TEXT, AT(end), "BYTES", "the largest; default 16M", 0, 0},
    {"f", ARG_NUMBER, AT(options.factor), "FACTOR", "from one size to the next; default 4", 2, 1 << 20},
    {"ranks", ARG_NUMBER, AT(options.ranks), "N", "processes; default 2", 1, BENCH_RANKS_MAX},
    {"transport", ARG_TEXT, AT(transport), "NAME", "tcp, shm or auto (shared memory where possible); default auto",
     0, 0},
    {"iters", ARG_NUMBER, AT(options.iterations), "N", "measured iterations of a size; default: by --time-ms", 1,
     BENCH_ITERATIONS_MAX},
    {"warmup", ARG_NUMBER, AT(options.warmup), "N", "iterations before them; default 5", 1, BENCH_ITERATIONS_MAX},
    {"time-ms", ARG_NUMBER, AT(options.time_ms), "MS", "how long a size is measured; default 500", 1, 3600000},
};
static const struct args_table table = {
    "shoal bench all_reduce | reduce_scatter | all_gather | push_pull [options]",
    "Measures an operation between processes on this machine, size by size, and checks what it computes.\n"
    "push_pull is a step of a client program: libshoal, a coordinator, one server, --ranks workers.\n"
    "Exit code 1 when an element is wrong.",
    rows,
    sizeof rows / sizeof *rows,
    1,
    1,
    "an operation",
    NULL};

/* "4K" -> 4096; a multiple of 4 from 4 on. */
static int parse_bytes(const char *option, const char *text, int64_t *bytes, struct errbuf *err)
{
    static const char suffixes[] = "KMG";
    char *end = NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    const char *suffix = end[0] ? strchr(suffixes, end[0] & ~0x20) : NULL;
    int shift = suffix ? 10 * (int)(suffix - suffixes + 1) : 0;
    int is_whole = end != text && errno == 0 && (end[0] == '\0' || (suffix && end[1] == '\0'));
    if (!is_whole || value < 1 || value > BYTES_MAX >> shift || (value << shift) % 4 != 0)
        return errbuf_set(err, STATUS_RANGE,
                          "-%s: found \"%.80s\", expected a multiple of 4 from 4 to 64G, such as 4096 or 4K",
                          option, text);
    *bytes = value << shift;
    return 0;
}

static int check(struct typed *typed, struct errbuf *err)
{
    static const char *const names[] = {"auto", "tcp", "shm"};
    static const enum collective_transport transports[] = {COLLECTIVE_AUTO, COLLECTIVE_TCP, COLLECTIVE_SHM};
    struct bench_options *options = &typed->options;
    int status = parse_bytes("b", typed->begin, &options->bytes_min, err);
    if (status == 0)
        status = parse_bytes("e", typed->end, &options->bytes_max, err);
    if (status != 0)
        return status;
    if (options->bytes_max < options->bytes_min)
        return errbuf_set(err, STATUS_RANGE, "-e %s is below -b %s", typed->end, typed->begin);
    for (int i = 0; i < 3; i++) {
        if (strcmp(typed->transport, names[i]) == 0) {
            options->transport = transports[i];
            options->transport_name = names[i];
            return 0;
        }
    }
    return errbuf_set(err, STATUS_INVALID, "--transport: found \"%.80s\", expected tcp, shm or auto",
                      typed->transport);
}

static const char *name_at(const void *rows_of_names, int i)
{
    return ((const struct bench_ops *const *)rows_of_names)[i]->name;
}

static int measure(const char *name, struct typed *typed)
{
    struct errbuf err;
    int64_t wrong = 0;
    const struct bench_ops *operation = NULL;
    errbuf_init(&err);
    for (int i = 0; i < OPERATIONS; i++) {
        if (strcmp(operations[i]->name, name) == 0)
            operation = operations[i];
    }
    const char *nearest = operation ? NULL : args_nearest(name, name_at, operations, OPERATIONS);
    if (nearest)
        return command_fail(2, "bench: no operation \"%.80s\"; did you mean %s?", name, nearest);
    if (!operation)
        return command_fail(2, "bench: no operation \"%.80s\"; see shoal bench --help", name);
    if (check(typed, &err) != 0)
        return command_fail(2, "bench: %s", err.text);
    if (operation->run(&typed->options, &wrong, &err) != 0)
        return command_fail(1, "bench: %s", err.text);
    return wrong ? 1 : 0;
}

static int bench_run(int argc, char **argv)
{
    struct typed typed = {.begin = "4K",
                          .end = "16M",
                          .transport = "auto",
                          .options = {.ranks = 2, .factor = 4, .warmup = 5, .time_ms = 500}};
    struct args_list operands;
    int code = 0;
    if (!command_parse(&table, argc, argv, &typed, &operands, &code))
        return code;
    code = measure(operands.items[0], &typed);
    args_close(&table, &typed, &operands);
    return code;
}

const struct command command_bench = {"bench", "measure collectives, push and pull on this machine", bench_run};
