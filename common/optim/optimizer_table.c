#include "optim/optimizer.h"

#include "base/errbuf.h"
#include "base/status.h"
#include "config/job.h"
#include "optim/plugin.h"
#include "optim/rows.h"

#include <stddef.h>
#include <string.h>

/* In the order of enum job_optimizer_kind. */
static const struct optimizer_ops *const rows[] = {
    [JOB_SGD] = &optimizer_sgd,         [JOB_ADAM] = &optimizer_adam, [JOB_ADAMW] = &optimizer_adamw,
    [JOB_ADAGRAD] = &optimizer_adagrad, [JOB_FTRL] = &optimizer_ftrl, [JOB_LAMB] = &optimizer_lamb,
};

enum { ROWS = sizeof rows / sizeof rows[0] };

const struct optimizer_ops *optimizer_at(int index)
{
    return index >= 0 && index < ROWS ? rows[index] : NULL;
}

const struct optimizer_ops *optimizer_find(const char *name)
{
    for (int i = 0; i < ROWS; i++)
        if (strcmp(rows[i]->name, name) == 0)
            return rows[i];
    return NULL;
}

static int plugin_complete(const char *path, const struct optimizer_ops *ops, const struct optimizer_params *params,
                           struct errbuf *err)
{
    if (!ops->name || !ops->slots || !ops->update)
        return errbuf_set(err, STATUS_PROTOCOL, "plug-in %s: `shoal_optimizer` needs name, slots and update", path);
    int slots = ops->slots(params);
    if (slots < 0 || slots > OPTIMIZER_SLOTS_MAX)
        return errbuf_set(err, STATUS_PROTOCOL, "plug-in %s: optimizer %s asks for %d slots, allowed are 0 to %d",
                          path, ops->name, slots, OPTIMIZER_SLOTS_MAX);
    return STATUS_OK;
}

static int optimizer_load(const char *path, const struct optimizer_params *params, const struct optimizer_ops **ops,
                          void **handle, struct errbuf *err)
{
    const struct plugin_want want = {"shoal_optimizer", OPTIMIZER_OPS_VERSION};
    const void *found;
    void *library;

    int status = plugin_open(path, &want, &found, &library, err);
    if (status)
        return status;
    status = plugin_complete(path, found, params, err);
    if (status) {
        plugin_close(library);
        return status;
    }
    *ops = found;
    *handle = library;
    return STATUS_OK;
}

int optimizer_of_job(const struct job *job, const struct optimizer_ops **ops, struct optimizer_params *params,
                     void **handle, struct errbuf *err)
{
    *params = (struct optimizer_params){
        .beta1 = job->optimizer.beta1,
        .beta2 = job->optimizer.beta2,
        .eps = job->optimizer.eps,
        .weight_decay = job->optimizer.weight_decay,
        .momentum = job->optimizer.momentum,
        .l1 = job->optimizer.l1,
        .l2 = job->optimizer.l2,
        .beta = job->optimizer.beta,
        .nesterov = job->optimizer.nesterov,
    };
    *ops = NULL;
    *handle = NULL;
    if (job->optimizer.kind == JOB_OPTIMIZER_PLUGIN)
        return optimizer_load(job->optimizer.plugin, params, ops, handle, err);
    *ops = optimizer_at((int)job->optimizer.kind);
    if (!*ops)
        return errbuf_set(err, STATUS_UNKNOWN, "optimizer: there is no kind number %d", (int)job->optimizer.kind);
    return STATUS_OK;
}

void optimizer_unload(void *handle)
{
    plugin_close(handle);
}
