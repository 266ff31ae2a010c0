#include "worker/model/mlp.h"

#include <stdio.h>

#include "base/errbuf.h"
#include "base/status.h"

static enum activation activation_of(enum job_activation kind)
{
    switch (kind) {
    case JOB_ACTIVATION_RELU:
        return ACTIVATION_RELU;
    case JOB_ACTIVATION_GELU:
        return ACTIVATION_GELU;
    case JOB_ACTIVATION_GELU_TANH:
        return ACTIVATION_GELU_TANH;
    case JOB_ACTIVATION_TANH:
        return ACTIVATION_TANH;
    case JOB_ACTIVATION_NONE:
        break;
    }
    return ACTIVATION_NONE;
}

static int add_hidden(struct model *model, const struct job *job, int i, struct errbuf *err)
{
    if (job->model.hidden[i] < 1)
        return errbuf_set(err, STATUS_INVALID, "model.hidden: width %lld of layer %d, a width is at least 1",
                          (long long)job->model.hidden[i], i);
    char linear[48], norm[48];
    snprintf(linear, sizeof linear, "layers.%d.linear", i);
    snprintf(norm, sizeof norm, "layers.%d.norm", i);
    struct layer_linear_spec block = {.in = model_width(model),
                                      .out = job->model.hidden[i],
                                      .linear_name = linear,
                                      .norm_name = job->model.batch_norm ? norm : NULL,
                                      .activation = activation_of(job->model.activation),
                                      .dropout = job->model.dropout};
    return model_add_linear(model, &block, err);
}

static int build(struct model *model, const struct job *job, struct errbuf *err)
{
    int hidden = job->model.hidden_count;
    if (!(job->model.dropout >= 0 && job->model.dropout < 1))
        return errbuf_set(err, STATUS_INVALID, "model.dropout: %g, allowed are 0 to below 1", job->model.dropout);
    int status = model_reserve(model, hidden + 1, err);
    for (int i = 0; i < hidden && status == STATUS_OK; i++)
        status = add_hidden(model, job, i, err);
    if (status != STATUS_OK)
        return status;
    struct layer_linear_spec head = {
        .in = model_width(model), .out = model->outputs, .linear_name = "head", .activation = ACTIVATION_NONE};
    return model_add_linear(model, &head, err);
}

const struct model_ops model_mlp = {
    .kind = JOB_MODEL_MLP, .name = "mlp", .help = "hidden layers, then a linear head", .build = build};
