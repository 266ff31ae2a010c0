#include "worker/strategy/local_update.h"

#include <stdlib.h>

#include "base/account.h"
#include "base/errbuf.h"
#include "base/status.h"
#include "config/job.h"
#include "optim/optimizer.h"
#include "owner/state_file.h"
#include "owner/trust.h"
#include "worker/strategy/strategy.h"

struct local_update {
    const struct optimizer_ops *ops;
    struct optimizer_params params;
    void *handle;
    int slots;
    double *norms, *ratios; /* lamb: (runs, 2) and by tensor; else NULL */
    float **state; /* [tensor * slots + slot]; NULL for frozen and empty tensors */
};

static size_t tensor_bytes(const struct strategy *s, int t)
{
    return (size_t)s->table->tensors[t].count * sizeof(float);
}

static int is_trained(const struct strategy *s, int t)
{
    return !s->table->tensors[t].frozen && s->table->tensors[t].count > 0;
}

int local_update_create(struct local_update **out, const struct strategy *s, struct errbuf *err)
{
    struct local_update *local = calloc(1, sizeof(*local));
    if (!local) {
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    }
    *out = local;
    int status = optimizer_of_job(s->job, &local->ops, &local->params, &local->handle, err);
    if (status != 0) {
        return status;
    }
    local->slots = local->ops->slots(&local->params);
    local->state = calloc((size_t)(s->table->tensor_count * local->slots) + 1, sizeof(*local->state));
    for (int i = 0; local->state && i < s->table->tensor_count * local->slots; i++) {
        int t = i / local->slots;
        if (is_trained(s, t)) {
            local->state[i] = account_alloc(s->account, ACCOUNT_OPTIMIZER, tensor_bytes(s, t));
            if (!local->state[i]) {
                return errbuf_set(err, STATUS_NOMEM, "out of memory for the optimizer's state");
            }
        }
    }
    if (local->ops->prepare) {
        local->norms = calloc(2 * (size_t)s->map->runs_count + 1, sizeof(double));
        local->ratios = calloc((size_t)s->table->tensor_count + 1, sizeof(double));
    }
    int whole = local->state && (!local->ops->prepare || (local->norms && local->ratios));
    return whole ? 0 : errbuf_set(err, STATUS_NOMEM, "out of memory");
}

void local_update_destroy(struct local_update *local, const struct strategy *s)
{
    if (!local) {
        return;
    }
    for (int i = 0; local->state && i < s->table->tensor_count * local->slots; i++) {
        account_free(s->account, ACCOUNT_OPTIMIZER, local->state[i],
                     local->state[i] ? tensor_bytes(s, i / local->slots) : 0);
    }
    free(local->norms);
    free(local->ratios);
    free(local->state);
    optimizer_unload(local->handle);
    free(local);
}

int local_update_slots(const struct local_update *local)
{
    return local->slots;
}

/* lamb: directions and norms run by run, as owners elsewhere take them; then a ratio a tensor. */
static void prepare_runs(struct local_update *local, const struct strategy *s, const struct optimizer_step *step)
{
    for (int r = 0; r < s->map->ranges_count; r++) {
        const struct keymap_range *range = &s->map->ranges[r];
        struct keymap_run runs[range->runs + 1];
        keymap_runs(s->map, range, runs);
        for (int i = 0; i < range->runs; i++) {
            int t = s->map->keys[runs[i].key].tensor;
            int64_t at = runs[i].begin - s->table->tensors[t].offset; /* elements from the tensor's start */
            float *slots[OPTIMIZER_SLOTS_MAX];
            for (int slot = 0; slot < local->slots; slot++) {
                slots[slot] = local->state[t * local->slots + slot] + at;
            }
            double *norms = &local->norms[2 * (range->run_first + i)];
            norms[0] = norms[1] = 0;
            local->ops->prepare(&local->params, step, !s->table->tensors[t].no_decay,
                                strategy_layer_w(s, range->layer) + runs[i].begin, s->g[range->layer] + runs[i].begin,
                                slots, runs[i].end - runs[i].begin, norms);
        }
    }
    trust_ratios(s->map, local->norms, local->ratios);
}

void local_update_step(struct local_update *local, const struct strategy *s, const Shoal__Verdict *verdict)
{
    struct optimizer_step step = {.lr = verdict->lr, .t = (int64_t)verdict->t, .grad_scale = verdict->grad_scale,
                                  .trust_ratio = 1};
    if (local->ops->prepare) {
        prepare_runs(local, s, &step);
    }
    for (int t = 0; t < s->table->tensor_count; t++) {
        const struct param_tensor *tensor = &s->table->tensors[t];
        step.trust_ratio = local->ratios ? local->ratios[t] : 1;
        if (is_trained(s, t)) {
            local->ops->update(&local->params, &step, !tensor->no_decay,
                               strategy_layer_w(s, tensor->layer) + tensor->offset, s->g[tensor->layer] + tensor->offset,
                               &local->state[t * local->slots], tensor->count);
        }
    }
}

/* Spans, one a tensor and slot; *count of them, owned. */
static struct state_span *spans_of(const struct local_update *local, const struct strategy *s, int *count)
{
    struct state_span *spans = calloc((size_t)(s->table->tensor_count * (1 + local->slots)) + 1, sizeof(*spans));
    int64_t key = 0;
    *count = 0;
    for (int t = 0; spans && t < s->table->tensor_count; t++) {
        const struct param_tensor *tensor = &s->table->tensors[t];
        int64_t first = key;
        while (key < s->map->keys_count && s->map->keys[key].tensor == t) {
            key++;
        }
        for (int slot = -1; slot < (is_trained(s, t) ? local->slots : 0) && key > first; slot++) {
            spans[(*count)++] = (struct state_span){
                .key_first = first, .key_end = key, .slot = slot, .count = tensor->count,
                .data = slot < 0 ? strategy_layer_w(s, tensor->layer) + tensor->offset
                                 : local->state[t * local->slots + slot]};
        }
    }
    return spans;
}

int local_update_save(const struct local_update *local, const struct strategy *s, const char *path, char sha256[65],
                      uint64_t *bytes, struct errbuf *err)
{
    int count = 0;
    struct state_span *spans = spans_of(local, s, &count);
    if (!spans) {
        return errbuf_set(err, STATUS_NOMEM, "%s: out of memory", path);
    }
    int status = state_file_write(path, spans, count, (uint64_t)s->step, sha256, bytes, err);
    free(spans);
    return status;
}

int local_update_load(struct local_update *local, struct strategy *s, struct errbuf *err)
{
    int count = 0;
    struct state_span *spans = spans_of(local, s, &count);
    struct state_files *files = NULL;
    int status = spans ? state_files_open(&files, s->map, s->snapshot_paths, s->snapshot_paths_count, err) : STATUS_NOMEM;
    for (int i = 0; i < count && status == 0; i++) {
        status = state_file_copy(files, &spans[i], (float *)spans[i].data, err);
    }
    state_files_close(files);
    free(spans);
    return status;
}
