#include "worker/model/linear.h"

static int build(struct model *model, const struct job *job, struct errbuf *err)
{
    (void)job;
    int status = model_reserve(model, 1, err);
    if (status < 0)
        return status;
    struct layer_linear_spec head = {
        .in = model->features, .out = model->outputs, .linear_name = "head", .activation = ACTIVATION_NONE};
    return model_add_linear(model, &head, err);
}

const struct model_ops model_linear = {.kind = JOB_MODEL_LINEAR,
                                       .name = "linear",
                                       .help = "one linear layer: softmax, logistic or linear regression",
                                       .build = build};
