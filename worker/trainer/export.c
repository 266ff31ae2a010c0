#include <stdlib.h>

#include "base/errbuf.h"
#include "base/sha256.h"
#include "base/status.h"
#include "worker/trainer/trainer_internal.h"

/* A pass over the parameters layer by layer, as a strategy gives them; the digest is taken on the way. */
struct pass {
    struct strategy *strategy;
    struct sha256 *hash;
};

static int pass_layer(void *context, int layer, const float **w, struct errbuf *err)
{
    struct pass *pass = context;
    int status = pass->strategy->ops->layer_acquire(pass->strategy, layer, STRATEGY_EVALUATE, err);
    if (status == 0) {
        *w = strategy_layer_w(pass->strategy, layer);
        sha256_update(pass->hash, *w, (size_t)pass->strategy->table->layers[layer].count * sizeof(float));
    }
    return status;
}

static void pass_done(void *context, int layer)
{
    struct pass *pass = context;
    pass->strategy->ops->layer_release(pass->strategy, layer, STRATEGY_EVALUATE);
}

static int export_file(struct trainer *trainer, const struct model_values *values, struct errbuf *err)
{
    const char *path = trainer->begin->export_path;
    char *transform = dataset_transform_to_json(&trainer->data.transform);
    int status = transform ? model_export(trainer->model, trainer->job, values, transform, path[0] ? path : NULL,
                                          trainer->export_sha256, err)
                           : errbuf_set(err, STATUS_NOMEM, "out of memory");
    free(transform);
    return status;
}

int trainer_export(struct trainer *trainer, struct errbuf *err)
{
    struct pass pass = {&trainer->strategy, sha256_create()};
    const struct model_values values = {pass_layer, pass_done, &pass};
    if (!pass.hash) {
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    }
    int status = trainer->rank == 0 ? export_file(trainer, &values, err)
                                    : model_values_pass(trainer->model, &values, err);
    if (status == 0 && sha256_finish_raw(pass.hash, trainer->digest) != 0) {
        status = errbuf_set(err, STATUS_NOMEM, "digest: out of memory");
    }
    sha256_destroy(pass.hash);
    return status;
}
