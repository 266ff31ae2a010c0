#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/core.h"

/* "12,345,678" */
static const char *grouped(int64_t value, char out[40])
{
    char digits[32];
    int count = snprintf(digits, sizeof digits, "%lld", (long long)(value < 0 ? -value : value));
    size_t used = 0;
    if (value < 0)
        out[used++] = '-';
    for (int i = 0; i < count; i++) {
        if (i > 0 && (count - i) % 3 == 0)
            out[used++] = ',';
        out[used++] = digits[i];
    }
    out[used] = '\0';
    return out;
}

/* One kind of one rank: measured, formula, difference; a difference is marked. Returns 1 when there is one. */
static int say_bytes(struct coordinator_core *core, const struct core_member *member, const char *what,
                     const Shoal__Bytes *bytes)
{
    char name[64], measured[40], formula[40], difference[40];
    snprintf(name, sizeof name, "%s%.40s", what, bytes->name);
    grouped(bytes->bytes, measured);
    if (bytes->formula < 0) {
        core_say(core, "  %s %-3d %-22s %18s", core_kind_name(member->kind), member->rank, name, measured);
        return 0;
    }
    grouped(bytes->formula, formula);
    grouped(bytes->bytes - bytes->formula, difference);
    int differs = bytes->bytes != bytes->formula;
    core_say(core, "  %s %-3d %-22s %18s %18s %12s%s", core_kind_name(member->kind), member->rank, name, measured,
             formula, difference, differs ? "  <- differs" : "");
    return differs;
}

static void say_plain(struct coordinator_core *core, const struct core_member *member, const char *name,
                      int64_t bytes)
{
    Shoal__Bytes item = SHOAL__BYTES__INIT;
    item.name = (char *)name;
    item.bytes = bytes;
    item.formula = -1;
    if (bytes > 0)
        say_bytes(core, member, "", &item);
}

/* Buffers come and go: what is stated is a cap. */
static int say_buffers(struct coordinator_core *core, const struct core_member *member)
{
    const Shoal__Summary *summary = member->summary;
    char most[40], held[40];
    if (summary->buffer_bytes_max <= 0) {
        say_plain(core, member, "buffers", summary->buffer_bytes);
        return 0;
    }
    grouped(summary->buffer_bytes, held);
    grouped(summary->buffer_bytes_max, most);
    int above = summary->buffer_bytes > summary->buffer_bytes_max;
    core_say(core, "  %s %-3d %-22s %18s %18s at most%s", core_kind_name(member->kind), member->rank, "buffers", held,
             most, above ? "  <- above" : "");
    return above;
}

static int say_memory(struct coordinator_core *core, const struct core_member *member)
{
    const Shoal__Summary *summary = member->summary;
    int differs = 0;
    for (size_t i = 0; i < summary->n_state; i++)
        differs += say_bytes(core, member, "", summary->state[i]);
    differs += say_buffers(core, member);
    say_plain(core, member, "activations", summary->activation_bytes);
    say_plain(core, member, "data", summary->data_bytes);
    say_plain(core, member, "peak resident", summary->peak_rss_bytes);
    return differs;
}

static int say_payload(struct coordinator_core *core, const struct core_member *member)
{
    const Shoal__Summary *summary = member->summary;
    int differs = 0;
    for (size_t i = 0; i < summary->n_sent; i++)
        if (summary->sent[i]->bytes != 0 || summary->sent[i]->formula > 0)
            differs += say_bytes(core, member, "sent ", summary->sent[i]);
    for (size_t i = 0; i < summary->n_received; i++)
        if (summary->received[i]->bytes != 0 || summary->received[i]->formula > 0)
            differs += say_bytes(core, member, "received ", summary->received[i]);
    return differs;
}

static int say_part(struct coordinator_core *core, const char *title,
                    int (*part)(struct coordinator_core *, const struct core_member *))
{
    int differs = 0;
    char line[128];
    snprintf(line, sizeof line, "%-35s %18s %18s %12s", title, "measured", "formula", "difference");
    core_say(core, "%s", line);
    for (int kind = CORE_KINDS - 1; kind >= 0; kind--)
        for (int rank = 0; rank < core_kind_count(core, (enum core_kind)kind); rank++)
            differs += part(core, core->members[kind][rank]);
    return differs;
}

static void say_evaluation(struct coordinator_core *core)
{
    for (int i = 0; i < CORE_SETS; i++) {
        const struct core_evaluation *evaluation = &core->job.evaluations[i];
        if (evaluation->done && evaluation->step == core->job.last_step)
            core_say(core, "  %s: loss %.6g, accuracy %.2f%% (%lld of %lld)", evaluation->set, evaluation->loss,
                     100 * evaluation->accuracy, (long long)evaluation->correct, (long long)evaluation->counted);
    }
}

int core_report_say(struct coordinator_core *core)
{
    struct core_job *job = &core->job;
    char number[40];
    double seconds = (double)(core->now_ns - job->train_ns) / 1e9;
    core_say(core, "report card: %s", job->job->name);
    core_say(core, "  steps %llu, %s samples in %.1f s", (unsigned long long)job->last_step,
             grouped(job->samples_seen, number), seconds);
    core_say(core, "  training loss %.6g", job->last_loss);
    if (job->rollbacks > 0)
        core_say(core, "  began anew %d times, the last time from step %llu with %d workers: %.600s", job->rollbacks,
                 (unsigned long long)job->rolled_to, job->workers, job->rolled_why);
    say_evaluation(core);
    int differs = say_part(core, "memory by kind (bytes)", say_memory);
    differs += say_part(core, "payload by kind (bytes)", say_payload);
    if (differs > 0)
        core_say(core, "  %d numbers differ from their formula", differs);
    for (int rank = 0; rank < job->workers; rank++) {
        const Shoal__Summary *summary = core->members[CORE_WORKER][rank]->summary;
        double all = summary->compute_s + summary->wait_s;
        core_say(core, "  worker %-3d compute %.2f s, wait %.2f s (%.0f%% computing)", rank, summary->compute_s,
                 summary->wait_s, all > 0 ? 100 * summary->compute_s / all : 0);
    }
    const char *digest = core->members[CORE_WORKER][0]->summary->export_sha256;
    if (*digest != '\0')
        core_say(core, "  export %s sha256 %s", job->spec.export_path, digest);
    return differs;
}

static const Shoal__Bytes *find_bytes(Shoal__Bytes *const *items, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(items[i]->name, name) == 0)
            return items[i];
    return NULL;
}

/* The named kinds first, 0 where a rank has none; then what else it said. */
static json_t *bytes_json(Shoal__Bytes *const *items, size_t count, const char *const *names)
{
    json_t *object = json_object();
    for (int i = 0; names[i] != NULL; i++) {
        const Shoal__Bytes *item = find_bytes(items, count, names[i]);
        json_object_set_new(object, names[i], json_integer(item == NULL ? 0 : item->bytes));
    }
    for (size_t i = 0; i < count; i++)
        if (json_object_get(object, items[i]->name) == NULL)
            json_object_set_new(object, items[i]->name, json_integer(items[i]->bytes));
    return object;
}

static json_t *rank_json(const struct core_member *member)
{
    static const char *const state[] = {"parameters", "gradients", "optimizer", NULL};
    static const char *const payload[] = {"push", "pull", "reduce_scatter", "all_gather", "all_reduce",
                                          "point_to_point", NULL};
    const Shoal__Summary *summary = member->summary;
    json_t *rank = json_object();
    json_object_set_new(rank, "role", json_string(core_kind_name(member->kind)));
    json_object_set_new(rank, "rank", json_integer(member->rank));
    json_object_set_new(rank, "model_state_bytes", bytes_json(summary->state, summary->n_state, state));
    json_object_set_new(rank, "buffer_bytes", json_integer(summary->buffer_bytes));
    if (summary->buffer_bytes_max > 0)
        json_object_set_new(rank, "buffer_bytes_max", json_integer(summary->buffer_bytes_max));
    json_object_set_new(rank, "activation_bytes", json_integer(summary->activation_bytes));
    json_object_set_new(rank, "data_bytes", json_integer(summary->data_bytes));
    json_object_set_new(rank, "peak_rss_bytes", json_integer(summary->peak_rss_bytes));
    json_object_set_new(rank, "sent_bytes", bytes_json(summary->sent, summary->n_sent, payload));
    json_object_set_new(rank, "received_bytes", bytes_json(summary->received, summary->n_received, payload));
    return rank;
}

void core_report_metrics(struct coordinator_core *core)
{
    json_t *root = json_object(), *ranks = json_array();
    for (int kind = CORE_KINDS - 1; kind >= 0; kind--)
        for (int rank = 0; rank < core_kind_count(core, (enum core_kind)kind); rank++)
            json_array_append_new(ranks, rank_json(core->members[kind][rank]));
    const char *digest = core->members[CORE_WORKER][0]->summary->export_sha256;
    json_object_set_new(root, "event", json_string("summary"));
    json_object_set_new(root, "export_sha256", json_string(digest));
    json_object_set_new(root, "ranks", ranks);
    /* bsp: every push was computed from the newest parameters. */
    int64_t steps = (int64_t)(core->job.last_step - core->job.first_step + 1);
    json_object_set_new(root, "staleness", json_pack("{s:I}", "0", (json_int_t)(steps * core->job.workers)));
    char *line = json_dumps(root, JSON_COMPACT);
    if (line != NULL)
        core->ops.metrics(core->ops.context, line);
    free(line);
    json_decref(root);
}
